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


def cache_folder(cache_dir: CacheDir) -> Path:
    """``cache_dir``, or the user's cache folder when that is ``None``."""
    return Path(platformdirs.user_cache_dir("mfu_torch") if cache_dir is None else cache_dir)


def peaks_path(cache_dir: CacheDir) -> Path:
    """The file of quick measurements; what ``mfu-torch bench`` saved lies in a folder beside it."""
    return cache_folder(cache_dir) / "peaks.json"


def read_peaks(path: Path) -> dict[str, Peak]:
    """The peaks in the file; none when it is missing or cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Peak])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        warn_once(f"{path} cannot be read ({error}): measuring again. If it stays, delete it")
        return {}


def write_peaks(path: Path, peaks: dict[str, Peak], *, otherwise: str) -> None:
    """Replace the file; where that fails, log what happens ``otherwise``."""
    # The last of two writers wins, and the other measures again.
    try:
        replace(path, msgspec.json.format(msgspec.json.encode(peaks)))
    except OSError as error:
        warn_once(
            f"{path} cannot be written ({error}): {otherwise}. "
            "Set XDG_CACHE_HOME to a folder that can be written"
        )


def replace(path: Path, text: bytes) -> None:
    """Write a file beside and move it into place, so that no reader ever sees half of it.

    Raises:
        OSError: If it cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="peaks-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:  # Ctrl-C included: nothing half done stays behind
        with suppress(OSError):
            os.unlink(name)
        raise


@functools.cache
def warn_once(message: str) -> None:
    """Log what is wrong with the cache, each message once a process."""
    logger.warning("The cache of measured peaks %s.", message)
