"""Short cuts of the reader give what the long way gives."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from mfu_torch.insight.trace import pieces, source
from mfu_torch.insight.trace.decode import decode_events, texts
from mfu_torch.insight.trace.reading import read_trace

MM = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 1,
    "tid": "7",
    "ts": 2.5,
    "dur": 3,
    "args": {"External id": 4, "Input Dims": [[2, 3], [3, 4]]},
}
ARROW = {"ph": "s", "id": 4, "pid": 1, "tid": 7, "ts": 2, "cat": "ac2g", "name": "ac2g"}


def decoded(*events: dict[str, Any]) -> list[Any]:
    found, skipped = decode_events(json.dumps(events).encode())
    assert skipped == 0
    return found


def test_nothing_is_made_of_arrows_and_instants() -> None:
    for phase in "sftiIM":
        arrow, op = decoded(ARROW | {"ph": phase}, MM)
        assert arrow.cat == ""
        assert not hasattr(arrow, "ts")
        assert (op.ph, op.cat, op.ts) == ("X", "cpu_op", 2.5)


@pytest.mark.parametrize("other", [{"ph": "B"}, {"ph": "E"}, {"ph": "C"}, {"ph": ""}, {}])
def test_beside_any_other_phase_events_are_decoded_alike(other: dict[str, Any]) -> None:
    alone, _ = decoded(MM, ARROW)
    beside, second = decoded(MM, other | {"ts": 9, "name": "x"})
    assert (second.ph, second.ts, second.name) == (other.get("ph", ""), 9, "x")
    for name in ("ph", "cat", "name", "pid", "tid", "ts", "dur"):
        assert getattr(alone, name) == getattr(beside, name)
    assert alone.args.external == beside.args.external == 4
    assert bytes(alone.args.dims) == bytes(beside.args.dims) == b"[[2, 3], [3, 4]]"


@pytest.mark.parametrize("found", [[], [b""], [b"", b""], [b"[1]", b"", b'"a"'], [b'"\0"', b"2"]])
def test_texts_are_those_that_were_given(found: list[bytes]) -> None:
    assert texts([Raw(text) for text in found]) == found


@pytest.mark.parametrize("size", [200, 1 << 20])
def test_time_stamps_of_any_form_are_exact(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(source, "_CHUNK_BYTES", size)
    stamps = ["0.125", "1.000", "2.999", "3.25", "4", "5.5", "6.1250", '"7.375"', "8.001"]
    whole = 1_700_000_000_000_000
    events = []
    for stamp in stamps * 20:
        quote = '"' if stamp.startswith('"') else ""
        ts = f"{quote}{Decimal(stamp.strip(quote)) + whole}{quote}"
        events.append(
            f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": 0}}'
        )
        events.append(json.dumps(ARROW))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    starts = sorted(int(Decimal(stamp.strip('"')) * 1000) for stamp in stamps * 20)
    first = starts[0]
    assert read_trace(path).ops.start_ns.tolist() == [start - first for start in starts]


@pytest.mark.parametrize("size", [200, 1 << 20])
@pytest.mark.parametrize(
    ("stamps", "expected_ns"),
    [
        # Written from floats, which lie 0.25 us apart there: .2 was .25 and .8 was .75.
        (["0.0", "1.2", "2.5", "3.8", "4.0"], [0, 1250, 2500, 3750, 4000]),
        (["0.0", "1.25", "2.5", "3", "4.0"], [0, 1250, 2500, 3000, 4000]),
        (["0.001", "1.002", "2.003", "3.250", "4.999"], [0, 1001, 2002, 3249, 4998]),
    ],
)
def test_time_stamps_of_one_length_are_read_like_any(
    size: int,
    stamps: list[str],
    expected_ns: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(source, "_CHUNK_BYTES", size)
    whole = 1_712_195_495_500_000
    events = []
    for copy in range(20):
        for stamp in stamps:
            ts = Decimal(stamp) + whole + 10 * copy
            events.append(
                f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}}}'
            )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    expected = [10_000 * copy + ns for copy in range(20) for ns in expected_ns]
    assert read_trace(path).ops.start_ns.tolist() == expected


def test_text_that_is_no_time_stamp_is_an_impossible_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 200)
    monkeypatch.setattr(source, "_CHUNK_BYTES", 200)
    stamps = [f"{1_712_195_495_500_000 + i}.5" for i in range(40)]
    stamps[20:22] = ['"soon"', "true"]
    events = [
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}}}'
        for ts in stamps
    ]
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    trace = read_trace(path)
    assert len(trace.ops) == 38
    assert trace.notes == ("2 events with an impossible time or duration were left out",)
