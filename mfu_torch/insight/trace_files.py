"""Traces that a person means by a path: a file, or all below a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    """Of what is in a folder, the newest recording of runs with ``explain_every``; and the rest.

    It is of the run that wrote last, and of its last steps: a file, or one of each rank. Where
    there is none, all files are one job's: ``(files, [])``.
    """
    named = [(file, _RECORDING.fullmatch(file.name)) for file in files]
    recorded = [(file, match) for file, match in named if match is not None]
    if not recorded:
        return list(files), []
    # Ranks may write into folders of their own; runs do if their files have the same names.
    by_folder = len({file.name for file, _ in recorded}) < len(recorded)
    runs: dict[tuple[str, str], dict[tuple[int, int], list[Path]]] = {}
    for file, match in recorded:
        run = str(file.parent) if by_folder else "", match["run"]
        steps = int(match["last"]), int(match["first"])
        runs.setdefault(run, {}).setdefault(steps, []).append(file)
    of_run = max(runs.values(), key=_written_s)
    newest = of_run[max(of_run)]
    return newest, [file for file in files if file not in newest]


def _written_s(of_run: Mapping[tuple[int, int], Sequence[Path]]) -> float:
    return max(file.stat().st_mtime for found in of_run.values() for file in found)
