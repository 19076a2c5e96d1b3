"""Whose time it is, where steps and pauses end in any order."""

from __future__ import annotations

from fake_clock import FakeClock

from mfu_torch.clock.ledger import OpenStep, PauseTime
from mfu_torch.clock.timeline import Timeline


def never(error: Exception) -> None:
    raise error


def parts(done: list[OpenStep | PauseTime]) -> list[tuple[str | int, float]]:
    return [
        (part.name, part.duration_s)
        if isinstance(part, PauseTime)
        else (part.index, part.inside_s + part.tail_s)
        for part in done
    ]


def test_a_pause_goes_on_after_the_step_in_which_it_began_has_ended() -> None:
    clock = FakeClock()
    time = Timeline(clock, never)
    first = time.begin(None, None, None)
    clock.advance(1.0)
    pause = time.pausing("eval")
    pause.__enter__()
    clock.advance(2.0)
    time.end(first)
    clock.advance(8.0)
    pause.__exit__(None, None, None)
    clock.advance(0.25)  # the first step's tail
    second = time.begin(None, None, None)
    clock.advance(0.5)
    time.end(second)
    assert parts(time.close()) == [
        ("init", 0.0), ("eval", 10.0), (0, 1.25), (1, 0.5), ("finish", 0.0),
    ]  # fmt: skip


def test_a_step_goes_on_after_a_pause_in_it() -> None:
    clock = FakeClock()
    time = Timeline(clock, never)
    step = time.begin(None, None, None)
    clock.advance(1.0)
    with time.pausing("eval"):
        clock.advance(2.0)
    clock.advance(4.0)
    time.end(step)
    assert parts(time.close()) == [("init", 0.0), ("eval", 2.0), (0, 5.0), ("finish", 0.0)]
