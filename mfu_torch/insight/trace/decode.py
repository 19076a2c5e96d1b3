"""Events of a trace, typed: what is not read is skipped by the decoder."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Annotated, Any, ClassVar, TypeVar, Union

import msgspec
from msgspec import Meta, Raw, Struct

LENIENT_BYTES = 16 << 20
"""The standard library's decoder makes objects of everything: no more than this at once."""

Id = Annotated[int, Meta(ge=-(1 << 62), le=(1 << 62))]
_NONE = Raw(b"")
Kind = TypeVar("Kind")


Text = bytes | bytearray | memoryview
"""JSON."""


class NotJSON(ValueError):
    """Text that no decoder takes."""


class TooDeep(NotJSON):
    """Text in which lists or objects lie in one another some hundreds of times."""


class Args(Struct, gc=False):
    """Arguments of an event that are read."""

    external: Id | None = msgspec.field(default=-1, name="External id")
    external_old: Id | None = msgspec.field(default=-1, name="external id")
    correlation: Id | None = -1
    stream: Id | str | None = None
    device: Id | None = None
    grid: Raw = _NONE
    dims: Raw = msgspec.field(default=_NONE, name="Input Dims")
    dims_old: Raw = msgspec.field(default=_NONE, name="Input dims")
    types: Raw = msgspec.field(default=_NONE, name="Input type")
    concrete: Raw = msgspec.field(default=_NONE, name="Concrete Inputs")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: str | Id | None = msgspec.field(default=None, name="Process Group Name")
    group_id: str | Id | None = msgspec.field(default=None, name="Process Group ID")
    group_text: str | None = msgspec.field(default=None, name="Process Group Description")
    group_size: Id | None = msgspec.field(default=None, name="Group size")
    group_ranks: Raw = msgspec.field(default=_NONE, name="Process Group Ranks")
    dtype: str | None = None
    elements_in: Id | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: Id | None = msgspec.field(default=None, name="Out msg nelems")
    sequence: Id | None = msgspec.field(default=None, name="Seq")
    source: Id | None = msgspec.field(default=None, name="Src Rank")
    destination: Id | None = msgspec.field(default=None, name="Dst Rank")


class _Timed(Struct, gc=False):
    cat: str | None = None
    name: str = ""
    pid: Id | str | None = None
    tid: Id | str | None = None
    ts: float = math.nan
    dur: float = 0.0
    args: Args | None = None


class Event(_Timed, gc=False):
    """One event; ``ts`` and ``dur`` in microseconds."""

    ph: str = ""


class Complete(_Timed, gc=False, tag_field="ph", tag="X"):
    """An event of which the decoder knows by its first key that it is read."""

    ph: ClassVar[str] = "X"


class Stamped(Complete, gc=False, tag="X"):
    """The same with the time stamp as text, see :mod:`mfu_torch.insight.trace.times`."""

    ts: Raw = _NONE  # type: ignore[assignment]


class _Unread(Struct, gc=False):
    """An arrow, an instant: a third of most traces, of which nothing is read."""

    ph: ClassVar[str] = "unread"
    cat: ClassVar[str] = ""


def _unread(phase: str) -> type[Struct]:
    name = f"_Unread_{phase}"
    return msgspec.defstruct(name, [], bases=(_Unread,), gc=False, tag_field="ph", tag=phase)


class Head(Struct, gc=False):
    """What is read beside the events."""

    device_properties: Raw = msgspec.field(default=_NONE, name="deviceProperties")
    distributed: Raw = msgspec.field(default=_NONE, name="distributedInfo")
    with_stack: Raw = _NONE
    profile_memory: Raw = _NONE
    kept_ops: Raw = msgspec.field(default=_NONE, name="keptOps")


class Document(Head, gc=False):
    """A whole trace."""

    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


class Stamp(Struct, gc=False):
    """The time stamp as text: a float of microseconds since 1970 holds no nanoseconds."""

    ts: Raw = _NONE


class Stamps(Struct, gc=False):
    """The same for a whole trace."""

    events: list[Stamp] = msgspec.field(default_factory=list, name="traceEvents")


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_UNREAD = [*map(_unread, "sftiIM")]
_USUAL, _USUAL_STAMPED = (
    msgspec.json.Decoder[list[Any]](list[Union[(read, *_UNREAD)]], strict=False)  # type: ignore[valid-type]
    for read in (Complete, Stamped)
)
_DOCUMENT = msgspec.json.Decoder(Document, strict=False)
_HEAD = msgspec.json.Decoder(Head, strict=False)
_STAMPS = msgspec.json.Decoder(list[Stamp])
_LAST_STAMPS = msgspec.json.Decoder(Stamps)
_NO_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_FAILED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_events(text: Text, *, stamped: bool = False) -> tuple[list[Event], int]:
    """A JSON list of events, and how many of its entries are none.

    Arrows and instants may come without anything but ``ph`` and an empty ``cat``.

    Args:
        text: The list.
        stamped: Time stamps are wanted as text; all are numbers where that does not work.

    Raises:
        NotJSON: It is no list that a decoder takes.
    """
    with suppress(*_FAILED):  # on begins and ends, among others
        return (_USUAL_STAMPED if stamped else _USUAL).decode(text), 0
    events = _fast(_EVENTS, text)
    return (events, 0) if events is not None else _lenient_events(_lenient(text))


def decode_document(text: Text) -> tuple[Document, int]:
    """A JSON object with ``traceEvents``, and how many of its entries are no events.

    Raises:
        NotJSON: It is no object that a decoder takes.
    """
    document = _fast(_DOCUMENT, text)
    if document is not None:
        return document, 0
    found = _lenient(text)
    if not isinstance(found, dict):
        raise NotJSON("no object")
    events, skipped = _lenient_events(found.get("traceEvents", []))
    return Document(**_raws(found, _HEAD_KEYS), events=events), skipped


def decode_head(text: Text) -> Head:
    """A JSON object of what stands before the events.

    Raises:
        NotJSON: It is no object that a decoder takes.
    """
    head = _fast(_HEAD, text)
    if head is not None:
        return head
    found = _lenient(text)
    if not isinstance(found, dict):
        raise NotJSON("no object")
    return Head(**_raws(found, _HEAD_KEYS))


def decode_stamps(text: Text) -> list[bytes] | None:
    """The ``ts`` of events as text; ``None`` if the fast decoder refuses them."""
    if text[:1] == b"[":
        stamps = _fast(_STAMPS, text)
    else:
        document = _fast(_LAST_STAMPS, text)
        stamps = None if document is None else document.events
    return None if stamps is None else texts([stamp.ts for stamp in stamps])


def texts(raws: list[Raw]) -> list[bytes]:
    """Each as bytes: one join and one split are faster than a call for each."""
    found = b"\0".join(raws).split(b"\0")
    return found if len(found) == len(raws) else [bytes(raw) for raw in raws]


def plain(raw: Raw | bytes) -> Any:
    """A small JSON value; ``None`` if it is none."""
    try:
        return _lenient(bytes(raw)) if raw else None
    except NotJSON:
        return None


def _fast(decoder: msgspec.json.Decoder[Kind], text: Text) -> Kind | None:
    """``None`` where the decoder takes it neither as it is nor repaired."""
    with suppress(*_FAILED):
        return decoder.decode(text)
    if _NO_NUMBER.search(text):
        with suppress(*_FAILED):
            return decoder.decode(_repaired(text))
    return None


def _repaired(text: Text) -> bytes:
    """Kineto writes ``inf`` and ``nan`` for the bandwidth of a copy that took no time."""
    return _NO_NUMBER.sub(rb"\1null", text)


def _lenient(text: Text) -> Any:
    """Takes what is no number, bad UTF-8 and control characters as well."""
    if len(text) > LENIENT_BYTES:
        raise NotJSON("too long for the lenient decoder")
    try:
        return json.loads(bytes(_repaired(text)).decode("utf-8", "replace"), strict=False)
    except RecursionError as error:
        raise TooDeep("nested too deeply") from error
    except ValueError as error:
        raise NotJSON(str(error)) from error


def _lenient_events(found: Any) -> tuple[list[Event], int]:
    if not isinstance(found, list):
        raise NotJSON("no list of events")
    events = [event for entry in found if (event := _lenient_event(entry)) is not None]
    return events, len(found) - len(events)


def _lenient_event(entry: Any) -> Event | None:
    """An entry of ``traceEvents``, its arguments dropped where their type is wrong."""
    if not isinstance(entry, dict):
        return None
    values = {key: entry[key] for key in ("ph", "cat", "name", "pid", "tid") if key in entry}
    values |= {key: _number(entry[key]) for key in ("ts", "dur") if key in entry}
    args = entry.get("args")
    try:
        event = msgspec.convert(values, Event, strict=False)
    except _FAILED:
        return None
    event.args = _lenient_args(args) if isinstance(args, dict) else None
    return event


def _lenient_args(args: dict[str, Any]) -> Args:
    found = Args()
    for field, raw in _raws(args, _ARGS_KEYS).items():
        setattr(found, field, raw)
    for key, field, kind in _TYPED_ARGS:
        if key in args:
            try:
                setattr(found, field, msgspec.convert(args[key], kind, strict=False))
            except _FAILED:
                continue  # of a wrong type: as if it were not there
    return found


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _raws(found: dict[str, Any], keys: dict[str, str]) -> dict[str, Raw]:
    return {
        field: Raw(json.dumps(found[key], separators=(",", ":")).encode())
        for key, field in keys.items()
        if key in found
    }


_FIELDS = msgspec.structs.fields(Args)
_HEAD_KEYS = {field.encode_name: field.name for field in msgspec.structs.fields(Head)}
_ARGS_KEYS = {field.encode_name: field.name for field in _FIELDS if field.type is Raw}
_TYPED_ARGS = [(f.encode_name, f.name, f.type) for f in _FIELDS if f.type is not Raw]
