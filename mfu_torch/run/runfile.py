"""The run file: JSON lines, one complete record per line; the only bridge to the readers.

    {"type":"header","schema":1,...}     first
    {"type":"peak",...}  {"type":"count",...}  {"type":"window",...}  {"type":"pause",...}
    {"type":"telemetry",...}  {"type":"breakdown",...}
    {"type":"end",...}                   last, unless the process was killed

Every line is handed to the system at once, so a killed process loses at most the line that it was
writing, and a run can be read while it goes on.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mfu_torch.figures import Figures
from mfu_torch.records import SCHEMA_VERSION, Earlier, Entry, Header, MFUError, Run

_NAME = re.compile(r"run(?:-(?P<number>\d+))?(?:\.rank(?P<rank>\d+))?\.jsonl")
_NULL_NUMBER = re.compile(r"Expected `(float|int)`, got `null`")
_NOT_FINITE = "a number that is not finite"
_SHOWN = 60  # characters of a broken line that an error quotes


class RunFileSink:
    """Writes a run file; figures are left out, since readers compute them from the records.

    Attributes:
        path: ``run.jsonl`` in ``log_dir``, ``run-2.jsonl`` if that exists, and so on; with the
            rank in the name for ranks above 0 (``run.rank3.jsonl``).
    """

    path: Path

    def __init__(self, log_dir: str | os.PathLike[str], rank: int = 0) -> None:
        """Create the file, and the directory where needed.

        Raises:
            OSError: If the directory cannot be written to.
        """
        directory = Path(log_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _create(directory, rank)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)

    def write(self, record: Entry | Figures) -> None:
        """Append one record as one line. Numbers that are not finite become ``null``.

        Raises:
            OSError: If the disk is full, or gone.
            TypeError: If a field holds what is neither text nor number.
            ValueError: After ``close``.
        """
        if isinstance(record, Figures):
            return
        line = memoryview(self._encode(record) + b"\n")
        while line:  # a disk that is nearly full takes a part
            line = line[self._file.write(line) :]

    def _encode(self, record: Entry) -> bytes:
        try:
            return self._encoder.encode(record)
        except UnicodeEncodeError:  # half of a character, as in names of files that are no UTF-8
            return self._encoder.encode(_writable(msgspec.to_builtins(record, enc_hook=_plain)))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _plain(value: Any) -> str | int | float:
    """Text and numbers of other kinds: torch's version string, numpy's and torch's scalars.

    Raises:
        TypeError: If it is none of these.
    """
    if isinstance(value, str):
        return "".join(value)  # str() would keep the subclass
    try:
        return index(value)
    except TypeError:
        return float(value)


def _writable(value: Any) -> Any:
    """Plain data with every text as UTF-8 can have it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(each) for key, each in value.items()}
    return [_writable(each) for each in value] if isinstance(value, (list, tuple)) else value


def _create(directory: Path, rank: int) -> tuple[Path, FileIO]:
    suffix = f".rank{rank}" if rank else ""
    number = 1
    while True:
        path = directory / f"run{f'-{number}' if number > 1 else ''}{suffix}.jsonl"
        try:
            # "x" is O_CREAT | O_EXCL: of two processes that try at once, one gets the name.
            # Without a buffer: a forked process would write out what is in its copy of it.
            return path, path.open("xb", buffering=0)
        except FileExistsError:
            number += 1


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run file, or the newest one of a directory.

    What could be read around (a last line cut short, records of a later version) is in
    ``Run.notes``, as are the names of the other run files in the directory.

    Raises:
        MFUError: If there is no run file, or it cannot be read; the message says which line.
    """
    where = Path(path)
    notes: list[str] = []
    if where.is_dir():
        where = _newest(where, notes)
    try:
        data = where.read_bytes()
    except FileNotFoundError as err:
        raise MFUError(
            f"{where}: no such file; expected a run file (run.jsonl), or the directory given to "
            "Meter(log_dir=...)"
        ) from err
    except OSError as err:
        raise MFUError(f"{where}: cannot be read ({err.strerror}); expected a run file") from err
    return Run.from_entries(_entries(where, data, notes), tuple(notes))


class _Tag(msgspec.Struct):
    """What every line has, whatever version wrote it."""

    type: str = ""
    schema: int = 0


_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_tag_decoder = msgspec.json.Decoder(_Tag)
_KNOWN_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in Entry.__args__)


def _entries(path: Path, data: bytes, notes: list[str]) -> list[Entry]:
    """All records of a file; its first line is a header of a schema that is understood."""
    *lines, cut = data.split(b"\n")
    if cut:
        # Only the line that a killed process was writing lacks its newline.
        try:
            _tag_decoder.decode(cut)
            lines.append(cut)
        except msgspec.DecodeError:
            notes.append(f"line {len(lines) + 1} is cut short and was left out")
    if not any(lines):
        raise MFUError(
            f"{path}: holds no complete line ({len(data)} bytes); expected a header line first; "
            "the run ended, or was read, before it was written"
        )
    _check_header(path, lines[0])
    lines[0] = _readable_header(lines[0], notes)
    entries: list[Entry] = []
    skipped: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _entry(path, number, line)
        if isinstance(entry, str):
            skipped.setdefault(entry, []).append(number)
        else:
            entries.append(entry)
    for reason, numbers in skipped.items():
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        notes.append(f"line {numbers[0]}{more} left out: {reason}")
    return entries


def _check_header(path: Path, line: bytes) -> None:
    try:
        tag = _tag_decoder.decode(line)
    except msgspec.DecodeError:
        tag = _Tag()
    if tag.type != "header" or tag.schema < 1:
        raise MFUError(
            f"{path}: is no run file: line 1 is {_quoted(line)}; expected "
            '{"type":"header","schema":1,...}; give the run.jsonl that Meter wrote, or its folder'
        )
    if tag.schema > SCHEMA_VERSION:
        raise MFUError(
            f"{path}: line 1 has schema {tag.schema}; this mfu_torch reads up to {SCHEMA_VERSION}; "
            "upgrade mfu_torch to read this run"
        )


def _readable_header(line: bytes, notes: list[str]) -> bytes:
    """A header whose word on earlier attempts makes no sense says nothing of them."""
    try:
        _decoder.decode(line)
    except msgspec.DecodeError as error:
        fields = msgspec.json.decode(line)  # it is JSON: its type and schema were read
        if not fields.get("earlier"):
            return line
        why = "the run file does not say what it had done"
        unknown = Earlier(started="an unknown time", wall_s=0.0, steps=0, unknown=why)
        fields["earlier"] = msgspec.to_builtins(unknown)
        changed = msgspec.json.encode(fields)
        try:
            _decoder.decode(changed)
        except msgspec.DecodeError:  # something else is broken, which is to be told
            return line
        notes.append(f"line 1: what it says of earlier attempts was left out: {error}")
        return changed
    return line


def _entry(path: Path, number: int, line: bytes) -> Entry | str:
    """The record on a line, or why it may be left out."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as err:
        problem = str(err)
        tag = ""
        if isinstance(err, msgspec.ValidationError):
            tag = _tag_of(line)
    if tag and tag not in _KNOWN_TAGS:
        return f"record {tag!r} is not known to this version"
    if tag and tag != "header" and _NULL_NUMBER.search(problem):
        return f"record {tag!r} holds {_NOT_FINITE}"
    raise MFUError(
        f"{path}: line {number} is broken: {problem}; seen {_quoted(line)}; expected one complete "
        "record; remove that line to read the others"
    )


def _tag_of(line: bytes) -> str:
    try:
        return _tag_decoder.decode(line).type
    except msgspec.DecodeError:
        return ""


def _quoted(line: bytes) -> str:
    text = line[:_SHOWN].decode("utf-8", "backslashreplace")
    return repr(text + ("..." if len(line) > _SHOWN else ""))


class _Candidate(NamedTuple):
    """A run file in a directory; the largest is the newest run's, of its lowest rank."""

    started: str
    minus_rank: int
    number: int
    path: Path


def _newest(directory: Path, notes: list[str]) -> Path:
    """The file of the run that started last: copying keeps its header, but not its mtime."""
    found = [
        _Candidate(_started(path), -int(match["rank"] or 0), int(match["number"] or 1), path)
        for path in directory.iterdir()
        if (match := _NAME.fullmatch(path.name))
    ]
    if not found:
        below = sorted({path.parent.name for path in directory.glob("*/run*.jsonl")})
        give = (
            f"one of the runs in it: {', '.join(below)}"
            if below
            else ("the directory that was given to Meter(log_dir=...)")
        )
        raise MFUError(f"{directory}: holds no run file; expected run.jsonl; give {give}")
    rank_0 = [each for each in found if each.minus_rank == 0]
    newest = max(rank_0 or found)
    others = sorted(each.path.name for each in found if each is not newest)
    if others:
        names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if others[4:] else "")
        notes.append(f"read {newest.path.name}; other run files lie beside it: {names}")
    return newest.path


def _started(path: Path) -> str:
    """When a run began; before all others where its header cannot be read."""
    try:
        with path.open("rb") as file:
            entry = _decoder.decode(file.readline())
    except (OSError, msgspec.DecodeError):
        return ""
    return entry.started if isinstance(entry, Header) else ""
