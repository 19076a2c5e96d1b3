from __future__ import annotations

from fake_clock import FakeClock

from mfu_torch.clock.ledger import TAIL, Ledger, OpenStep, PauseTime


def test_a_step_lasts_from_its_start_to_the_start_of_the_next() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    first, second = OpenStep(0, None, None, None), OpenStep(1, None, None, None)
    ledger.begin(first)
    clock.advance(0.5)
    ledger.begin(first, TAIL)
    clock.advance(0.25)
    ledger.begin(second, closes=first)
    assert ledger.poll() == [first]
    assert (first.inside_s, first.tail_s, first.wall_s) == (0.5, 0.25, 0.75)


def test_a_pause_is_taken_out_of_the_step_that_it_interrupts() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    step, following = OpenStep(0, None, None, None), OpenStep(1, None, None, None)
    pause = PauseTime("eval", 0)
    ledger.begin(step)
    clock.advance(1.0)
    ledger.begin(pause)
    clock.advance(8.0)
    ledger.begin(step)
    clock.advance(2.0)
    ledger.begin(following, closes=step)
    assert ledger.poll() == [pause, step]
    assert (step.inside_s, pause.duration_s, ledger.wall_s) == (3.0, 8.0, 11.0)


def test_phases_are_booked_by_name_within_the_step() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    step = OpenStep(0, None, None, None)
    for label, spent_s in (("", 1.0), ("forward", 2.0), ("", 4.0), ("forward", 8.0)):
        ledger.begin(step, label)
        clock.advance(spent_s)
    ledger.begin(PauseTime("finish", 1), closes=step)
    assert ledger.poll() == [step]
    assert step.phases == {"forward": 10.0}
    assert step.inside_s == 15.0


def test_nothing_is_complete_before_the_device_has_reached_the_marks() -> None:
    clock = FakeClock(lag_s=10.0)
    ledger = Ledger(clock)
    step = OpenStep(0, None, None, None)
    ledger.begin(step)
    clock.advance(1.0)
    ledger.begin(PauseTime("finish", 1), closes=step)
    assert ledger.poll() == []
    assert clock.waits == 0
    clock.advance(9.0)
    assert ledger.poll() == []  # 9 s after the mark, which is ready after 10
    clock.advance(1.0)
    assert ledger.poll() == [step]
    assert step.inside_s == 1.0


def test_closing_waits_for_the_device() -> None:
    clock = FakeClock(lag_s=10.0)
    ledger = Ledger(clock)
    step = OpenStep(0, None, None, None)
    ledger.begin(step)
    clock.advance(1.0)
    ledger.begin(PauseTime("finish", 1), closes=step)
    assert ledger.poll(wait=True) == [step]
    assert clock.waits == 2  # for the first mark, and for the last


def test_marks_are_given_back_so_that_a_pool_does_not_grow() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    last = None
    for index in range(1000):
        step = OpenStep(index, None, None, None)
        ledger.begin(step, closes=last)
        ledger.begin(step, TAIL)
        ledger.poll()
        last = step
    assert clock.marks == 2000
    assert clock.marks_out == 1  # the last one


def test_the_parts_sum_to_the_wall_time() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    init, step = PauseTime("init", 0), OpenStep(0, None, None, None)
    pause, after = PauseTime("checkpoint", 1), PauseTime("finish", 1)
    parts = ((init, ""), (step, ""), (step, TAIL), (pause, ""), (step, TAIL))
    for k, (owner, label) in enumerate(parts):
        ledger.begin(owner, label)
        clock.advance(2.0**k)
    ledger.begin(after, closes=step)
    done = ledger.poll()
    assert done == [init, pause, step]
    assert ledger.wall_s == 31.0  # 1 + 2 + 4 + 8 + 16
    assert init.duration_s + pause.duration_s + step.inside_s + step.tail_s == 31.0
    assert step.tail_s == 4.0 + 16.0
