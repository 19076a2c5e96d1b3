"""Traces that a person means by a path: a file, or all below a folder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from mfu_torch.insight.trace.source import is_stdin

ENDINGS = (".json", ".json.gz")
"""Of what ``export_chrome_trace`` and ``tensorboard_trace_handler`` write."""


_RECORDING = re.compile(
    r"(?P<run>run(?:-\d+)?)(?:\.rank\d+)?\.steps-(?P<first>\d+)-(?P<last>\d+)\.json(?:\.gz)?"
)
"""Of what a run with ``explain_every`` writes: ``run-2.rank3.steps-45-47.json.gz``."""


def trace_files(path: str | Path) -> list[Path]:
    """The file itself, whatever its name, or ``-``; of a folder, all below it that may be traces.

    Raises:
        FileNotFoundError: If there is no such path, or nothing in the folder.
    """
    path = Path(path)
    if is_stdin(path):
        return [path]
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected a trace or a folder of them")
        return [path]
    found = sorted(
        one for one in path.rglob("*") if one.name.lower().endswith(ENDINGS) and one.is_file()
    )
    if not found:
        raise FileNotFoundError(
            f"{path} holds no trace; expected files that end in {' or '.join(ENDINGS)}"
        )
    return found


def newest_recording(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Of traces that runs with ``explain_every`` left in a folder, the newest, and the others.

    It is of the run that wrote last, and of its last steps: a file, or one of each rank. Files
    without such a name are all of a job's ranks, and none is left out: ``(files, [])``.
    """
    recordings: dict[tuple[Path, str, int, int], list[Path]] = defaultdict(list)
    for file in files:
        named = _RECORDING.fullmatch(file.name)
        if named is None:
            return list(files), []
        steps = int(named["last"]), int(named["first"])
        recordings[file.parent, named["run"], *steps].append(file)
    written: dict[tuple[Path, str], float] = defaultdict(float)
    for (folder, run, *_), found in recordings.items():
        times = [written[folder, run], *(file.stat().st_mtime for file in found)]
        written[folder, run] = max(times)
    newest = max(recordings, key=lambda key: (written[key[:2]], key))
    return recordings[newest], [file for file in files if file not in recordings[newest]]
