"""Writing a page: whole or not at all, and over nothing but a page of ours."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from mfu_torch.insight.html.page import BEGIN
from mfu_torch.records import MFUError


class NotOurs(MFUError):
    """Where the page would go is a file that is none of ours; the message says what to do."""


def write_page(path: str | os.PathLike[str], page: str, *, force: bool = False) -> Path:
    """Write a page to a file; another process sees the old file or the new one, never a part.

    Args:
        path: Of the file. A link is followed.
        page: From :func:`mfu_torch.insight.html.render_page`.
        force: Write over any file.

    Returns:
        Where it was written.

    Raises:
        NotOurs: If there is a file already that is no page of ours, and ``force`` is not given.
        MFUError: If the path is that of a directory or a device, or in no directory.
        OSError: If the disk is full, or cannot be written to.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise MFUError(f"{path}: there is no directory {target.parent}; make it first")
    if target.exists() and not target.is_file():
        raise MFUError(f"{path}: is no file; expected the name of a file to write, report.html")
    if target.exists() and not force and not is_ours(target):
        raise NotOurs(
            f"{path}: exists, and is no page of mfu-torch; give another name, or --force to "
            "write over it"
        )
    _replace(target, page.encode("utf-8", "backslashreplace"))
    return target


def is_ours(path: Path) -> bool:
    """Whether a file begins as our pages do."""
    begin = BEGIN.encode()
    with path.open("rb") as file:
        return file.read(len(begin)) == begin


def _replace(target: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:  # Ctrl-C, too, must not leave half a page beside the old one
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """Who may read it: as before, or as any new file; a temporary one is its owner's alone."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
