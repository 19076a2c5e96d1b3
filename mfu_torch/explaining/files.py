"""Where traces lie: in ``traces`` beside the run file, the newest few; or nowhere for long."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

KEPT = 3
"""Traces of a run that are kept; one can have tens of megabytes."""


class TraceFiles:
    """The traces of one run.

    Args:
        run_file: Of the run; ``None`` when it is not kept on disk: its traces are not, either.
    """

    def __init__(self, run_file: Path | None) -> None:
        self._run_file = run_file
        self._temporary: Path | None = None
        self._written: list[Path] = []

    def new(self, first: int, last: int) -> Path:
        """Path of the next trace, which is not there yet.

        Raises:
            OSError: If there can be no folder for it.
        """
        if self._run_file is None:
            if self._temporary is None:
                self._temporary = Path(tempfile.mkdtemp(prefix="mfu_torch_traces_"))
            folder, stem = self._temporary, "run"
        else:
            folder, stem = self._run_file.parent / "traces", self._run_file.stem
            folder.mkdir(exist_ok=True)
        path = folder / f"{stem}.steps-{first}-{last}.json"
        self._written.append(path)
        return path

    def drop_old(self) -> None:
        """Keep the newest few of those that this run wrote."""
        while len(self._written) > KEPT:
            old = self._written.pop(0)
            for path in (old, packed(old)):
                path.unlink(missing_ok=True)

    def settle(self, path: Path) -> str:
        """Clean up after the analysis; the name of what is kept, relative to the run's folder."""
        packed(path).with_suffix(".part").unlink(missing_ok=True)
        kept = packed(path)
        if kept.is_file():
            path.unlink(missing_ok=True)
        else:
            kept = path  # it came to nothing before that
        if self._run_file is None or not kept.is_file():
            return ""
        return kept.relative_to(self._run_file.parent).as_posix()

    def close(self) -> None:
        """Remove what is kept nowhere."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def packed(path: Path) -> Path:
    """Where a trace lies when it is compressed."""
    return path.with_name(f"{path.name}.gz")
