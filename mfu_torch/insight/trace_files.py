"""Traces that a person means by a path: a file, or all below a folder."""

from __future__ import annotations

from pathlib import Path

ENDINGS = (".json", ".json.gz")
"""Of what ``export_chrome_trace`` and ``tensorboard_trace_handler`` write."""


def trace_files(path: str | Path) -> list[Path]:
    """The file itself, whatever its name is; of a folder, all below it that may be traces.

    Raises:
        FileNotFoundError: If there is no such path, or nothing in the folder.
    """
    path = Path(path)
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
