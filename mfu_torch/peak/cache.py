"""``peaks.json``: the measured peaks of this machine, kept so that each is measured once.

A cache that cannot be read or written is logged once and does without: it never stops a run.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import platformdirs

from mfu_torch.records import Peak

logger = logging.getLogger(__name__)

CacheDir = str | os.PathLike[str] | None


def peaks_path(cache_dir: CacheDir) -> Path:
    """The file in ``cache_dir``, or in the user's cache folder when that is ``None``."""
    folder = platformdirs.user_cache_dir("mfu_torch") if cache_dir is None else cache_dir
    return Path(folder) / "peaks.json"


def read_peaks(path: Path) -> dict[str, Peak]:
    """The peaks in the file; none when it is missing or cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Peak])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        _warn_once(f"{path} cannot be read ({error}): measuring again. If it stays, delete it")
        return {}


def write_peaks(path: Path, peaks: dict[str, Peak], *, otherwise: str) -> None:
    """Replace the file; where that fails, log what happens ``otherwise``."""
    # Written beside and moved into place: a reader, or another rank that writes at the same
    # time, never sees half a file. The last of two writers wins, and the other measures again.
    text = msgspec.json.format(msgspec.json.encode(peaks))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="peaks-", suffix=".json", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            os.replace(name, path)
        except OSError:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        _warn_once(
            f"{path} cannot be written ({error}): {otherwise}. "
            "Set XDG_CACHE_HOME to a folder that can be written"
        )


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("The cache of measured peaks %s.", message)
