"""Bytes that are used up from the front."""

from __future__ import annotations

from mfu_torch.insight.trace.buffer import Buffer


def test_what_is_dropped_makes_room_for_what_comes() -> None:
    buffer = Buffer(8)
    buffer.append(b"abcdef")
    buffer.drop(4)
    buffer.append(b"ghijkl")
    assert (len(buffer), buffer.take(), bytes(buffer.view(3))) == (8, b"efghijkl", b"efg")
    assert len(buffer.content) == 8


def test_it_grows_where_too_little_was_dropped() -> None:
    buffer = Buffer(4)
    buffer.append(b"abc")
    first = buffer.view(3)
    buffer.append(b"d" * 20)
    assert buffer.take() == b"abc" + b"d" * 20
    assert bytes(first) == b"abc"


def test_a_view_shows_other_bytes_once_some_are_dropped() -> None:
    buffer = Buffer(8)
    buffer.append(b"abcdef")
    view = buffer.view(2)
    buffer.drop(3)
    assert bytes(view) == b"de"
