"""What goes wrong in a training run must not be made worse by measuring it."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink
from torch.utils.data import DataLoader

from mfu_torch import Meter, read_run
from mfu_torch.records import Pause, Window

X = torch.ones(8, 16)


def a_meter(folder: Path | str, **arguments: Any) -> tuple[torch.nn.Module, Meter]:
    model = torch.nn.Linear(16, 16)
    arguments = {"peak": 1e12, "sinks": [], "log_dir": folder, "log_every": 2} | arguments
    return model, Meter(model, **arguments)


def train(model: torch.nn.Module, meter: Meter, steps: int) -> None:
    for _ in range(steps):
        with meter.step(tokens=8):
            model(X).sum().backward()


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, torch.OutOfMemoryError]
)
@pytest.mark.parametrize("failing_step", [0, 3])
def test_an_exception_in_a_step_passes_unchanged_and_the_run_file_is_whole(
    kind: type[BaseException], failing_step: int, tmp_path: Path
) -> None:
    model, meter = a_meter(tmp_path)
    error = kind("the user's own")
    with pytest.raises(kind) as caught, meter:
        train(model, meter, failing_step)
        with meter.step():
            model(X)
            raise error
    assert caught.value is error
    assert error.__cause__ is None and error.__context__ is None
    run = read_run(tmp_path)
    assert len(list(run.steps)) == failing_step
    assert run.end is not None and run.end.reason == kind.__name__
    assert [p.name for p in run.pauses if p.name == "interrupted step"] == ["interrupted step"]
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not model._forward_pre_hooks


def test_a_step_that_failed_and_was_retried_is_wall_time_but_no_step(tmp_path: Path) -> None:
    clock, sink = FakeClock(), ListSink()
    model, meter = a_meter(tmp_path, clock=clock, sinks=[sink], log_every=1)
    for duration_s, fails in ((1.0, False), (2.0, True), (4.0, False)):
        try:
            with meter.step():
                model(X).sum().backward()
                clock.advance(duration_s)
                if fails:
                    raise torch.OutOfMemoryError("too large")
        except torch.OutOfMemoryError:
            clock.advance(0.5)  # emptying the cache
    meter.close()
    steps = [s for r in sink.records if type(r) is Window for s in r.steps]
    assert [(s.index, s.duration_s) for s in steps] == [(0, 1.0), (2, 4.0)]
    pauses = [r for r in sink.records if type(r) is Pause and r.duration_s]
    assert pauses == [Pause(name="interrupted step", after_step=1, duration_s=2.5)]
    assert read_run(tmp_path).wall_s == 7.5


def test_an_exception_while_flops_are_counted_leaves_nothing_behind(tmp_path: Path) -> None:
    model, meter = a_meter(tmp_path)
    unwatched = torch.autograd.graph._engine_run_backward
    meter.start()
    engine = torch.autograd.graph._engine_run_backward
    with pytest.raises(ZeroDivisionError), meter.step():
        model(X)
        1 / 0  # noqa: B018
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd.graph._engine_run_backward is engine
    train(model, meter, 2)  # the next step is counted instead
    meter.close()
    assert torch.autograd.graph._engine_run_backward is unwatched
    assert torch.autograd._engine_run_backward is unwatched
    counts = read_run(tmp_path).counts
    assert [entry.count.model for entry in counts.values() if entry.count] == [2 * 2 * 8 * 16 * 16]


def test_a_log_dir_that_cannot_be_written_is_one_warning_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    model, meter = a_meter(tmp_path / "file")
    with caplog.at_level(logging.WARNING), meter:
        train(model, meter, 5)
    warnings = [r for r in caplog.records if "log_dir" in r.getMessage()]
    assert len(warnings) == 1 and "log_dir=" in warnings[0].getMessage()
    assert len(list(meter.run.steps)) == 5  # from memory
    assert "steady-state" in meter.summary()


def test_no_log_dir_keeps_the_run_in_memory_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, meter = a_meter("")
    with caplog.at_level(logging.WARNING), meter:
        train(model, meter, 5)
    assert caplog.records == [] and list(tmp_path.iterdir()) == []
    assert len(list(meter.run.steps)) == 5


def test_a_sink_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ListSink):
        def write(self, record: Any) -> None:
            super().write(record)
            if type(record) is Window:
                raise OSError("no space left on device")

    broken, good = Broken(), ListSink()
    model, meter = a_meter(tmp_path, sinks=[broken, good])
    with caplog.at_level(logging.WARNING), meter:
        train(model, meter, 6)
    assert len([r for r in caplog.records if "Broken failed" in r.getMessage()]) == 1
    assert len([r for r in broken.records if type(r) is Window]) == 1
    assert len([r for r in good.records if type(r) is Window]) == 3
    assert "no space left" in read_run(tmp_path).end.notes[0]


def test_a_sink_that_hangs_stops_neither_training_nor_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import threading

    from mfu_torch.run import recorder

    monkeypatch.setattr(recorder, "QUEUE_LIMIT", 3)
    release = threading.Event()

    class Hanging(ListSink):
        def write(self, record: Any) -> None:
            release.wait()

    model, meter = a_meter(tmp_path, sinks=[Hanging()])
    train(model, meter, 40)
    meter._recorder.close(timeout_s=0.01)
    release.set()
    meter.close()
    assert "stuck" in caplog.text
    assert "not finished writing" in caplog.text


def test_a_sink_that_fails_only_as_the_run_ends_is_told_by_the_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    ending = threading.Event()

    class Late(ListSink):
        def write(self, record: Any) -> None:
            if type(record) is Window:
                assert ending.wait(10), "the end of the run did not wait for the sinks"
                raise OSError("no space left on device")

    model, meter = a_meter(tmp_path, sinks=[Late()])
    train(model, meter, 6)
    settle = meter._recorder.settle
    monkeypatch.setattr(meter._recorder, "settle", lambda: (ending.set(), settle()))
    meter.close()
    assert "no space left" in read_run(tmp_path).end.notes[0]


def test_an_internal_failure_stands_the_meter_down_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, meter = a_meter(tmp_path)
    with caplog.at_level(logging.WARNING), meter:
        train(model, meter, 2)
        monkeypatch.setattr(meter._live, "end_step", lambda *_, **__: 1 / 0)
        train(model, meter, 3)
        with meter.pause("eval"), meter.step(), meter.phase("forward"):
            pass
    assert len([r for r in caplog.records if "internal error" in r.getMessage()]) == 1
    assert "ZeroDivisionError" in read_run(tmp_path).end.notes[0]


def test_an_internal_failure_in_the_models_forward_does_not_reach_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mfu_torch.flops import live

    model, meter = a_meter(tmp_path)
    monkeypatch.setattr(live, "signature", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING), meter:
        train(model, meter, 2)
    assert "internal error" in caplog.text


@pytest.mark.parametrize("where", ["step", "pause"])
def test_a_step_inside_a_step_or_a_pause_is_refused(where: str, tmp_path: Path) -> None:
    _, meter = a_meter(tmp_path)
    outer = meter.step() if where == "step" else meter.pause("eval")
    with meter, pytest.raises(RuntimeError, match=rf"step\(\) inside {where}\(\)"):  # noqa: SIM117
        with outer, meter.step():
            pass


def test_a_meter_measures_one_run(tmp_path: Path) -> None:
    model, meter = a_meter(tmp_path)
    with meter:
        train(model, meter, 1)
    meter.close()  # twice is harmless
    with pytest.raises(RuntimeError, match="make a new Meter"):
        train(model, meter, 1)


def test_a_phase_outside_of_a_step_is_refused(tmp_path: Path) -> None:
    _, meter = a_meter(tmp_path)
    with meter, pytest.raises(RuntimeError, match="inside `with meter"):  # noqa: SIM117
        with meter.phase("forward"):
            pass


def test_reading_a_run_that_has_not_begun_is_refused(tmp_path: Path) -> None:
    _, meter = a_meter(tmp_path)
    with pytest.raises(RuntimeError, match="no run yet"):
        meter.summary()


def test_tokens_may_be_a_number_of_another_type(tmp_path: Path) -> None:
    import numpy as np

    model, meter = a_meter(tmp_path, log_every=1)
    for tokens in (7, np.int64(8), torch.tensor(9)):
        with meter.step(tokens=tokens):
            model(X)
    meter.close()
    assert [s.tokens for s in read_run(tmp_path).steps] == [7, 8, 9]


def test_tokens_that_are_no_number_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, meter = a_meter(tmp_path)
    with caplog.at_level(logging.WARNING), meter:
        for _ in range(3):
            with meter.step(tokens="many"):  # type: ignore[arg-type]
                model(X)
    assert len([r for r in caplog.records if "tokens=" in r.getMessage()]) == 1


def test_loader_workers_and_an_early_break_are_no_trouble(tmp_path: Path) -> None:
    model, meter = a_meter(tmp_path)
    loader = DataLoader(torch.ones(64, 16), batch_size=8, num_workers=2)
    with meter:
        data = meter.data(loader)
        assert len(data) == 8
        for step, batch in enumerate(data):
            with meter.step():
                model(batch).sum().backward()
            if step == 4:
                break
    assert len(list(read_run(tmp_path).steps)) == 5


def test_a_loader_that_is_iterated_over_without_steps_keeps_no_batch_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mfu_torch.stepping.BATCHES_LIMIT", 3)
    model, meter = a_meter(tmp_path)
    with meter:
        assert len(list(meter.data([X] * 10))) == 10
        assert len(meter._stepping._batches) == 3
        train(model, meter, 1)
        assert meter._stepping._batches == []  # a step takes them
        meter._stepping.stand_down(RuntimeError("a test"))
        assert len(list(meter.data([X] * 10))) == 10
        assert meter._stepping._batches == []


def script(tmp_path: Path, body: str) -> list[str]:
    text = """
        import signal, sys, time, torch
        from mfu_torch import Meter
        # A shell that starts this in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model = torch.nn.Linear(16, 16)
        meter = Meter(model, peak=1e12, sinks=[], log_dir=sys.argv[1], log_every=1)
        def train(steps):
            for _ in range(steps):
                with meter.step(tokens=8):
                    model(torch.ones(8, 16)).sum().backward()
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text) + textwrap.dedent(body))
    return [sys.executable, str(path), str(tmp_path / "run")]


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} never held {text!r}"
        time.sleep(0.02)  # another process is being waited for; nothing is timed


@pytest.mark.parametrize(
    ("sent", "reason"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGKILL, None)]
)
def test_a_process_that_is_interrupted_or_killed_leaves_a_readable_run(
    sent: signal.Signals, reason: str | None, tmp_path: Path
) -> None:
    command = script(tmp_path, "with meter:\n    train(5)\n    meter._recorder.flush()\n"
                               "    with meter.step():\n"
                               "        open(sys.argv[1] + '/asleep', 'w').write('yes')\n"
                               "        time.sleep(60)\n")  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "."}
    )
    wait_for(tmp_path / "run" / "asleep", "yes")
    process.send_signal(sent)
    process.communicate(timeout=60)
    run = read_run(tmp_path / "run")
    assert len(list(run.steps)) >= 4
    assert (run.end.reason if run.end else None) == reason


def test_a_run_that_is_never_closed_is_closed_when_the_program_ends(tmp_path: Path) -> None:
    command = script(tmp_path, "train(3)\n")
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"PYTHONPATH": "."})
    run = read_run(tmp_path / "run")
    assert run.end is not None and len(list(run.steps)) == 3


@pytest.mark.parametrize("how", [copy.deepcopy, lambda meter: pickle.loads(pickle.dumps(meter))])
@pytest.mark.parametrize("begun", [False, True])
def test_a_copy_of_a_meter_has_its_arguments_and_no_run(
    begun: bool, how: Any, tmp_path: Path
) -> None:
    model, meter = a_meter(tmp_path, log_every=3, attention="causal")
    if begun:
        with meter.step():
            model(torch.ones(8, 16)).sum().backward()
    other = how(meter)
    with pytest.raises(RuntimeError, match="no run yet"):
        _ = other.run
    with other:
        for _ in range(2):
            with other.step():
                other._settings.models[0](torch.ones(8, 16)).sum().backward()
    header = other.run.header
    assert (header.log_every, header.attention) == (3, "causal")
    assert len(list(other.run.steps)) == 2
    meter.close()
