"""Meter(explain_every=N) beside others: profilers of the program, ranks, processes, threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from explained_loop import InstantAnalysis, Loop, instant, notes, profiler_is_off

from mfu_torch.explaining.recording import Recording
from mfu_torch.session import Place

__all__ = ["instant"]

CPU = [torch.profiler.ProfilerActivity.CPU]
SKIPPED = (
    "explain_every: steps were not recorded while another torch.profiler was active; torch has "
    "one profiler at a time"
)


def test_while_the_program_profiles_itself_nothing_is_recorded(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(5)
        with torch.profiler.profile(activities=CPU) as own:
            loop.steps(10)
        loop.steps(20)
    assert sum(e.count for e in own.key_averages() if e.key == "aten::mm") >= 20
    assert notes(loop) == [SKIPPED]
    assert loop.entries[0].steps == (21, 22, 23)


def test_a_profiler_of_the_program_that_only_gets_ready_is_left_alone_too(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    traces = []
    loop = Loop(tmp_path)
    schedule = torch.profiler.schedule(wait=5, warmup=6, active=2, repeat=1)
    with (
        loop.meter,
        torch.profiler.profile(
            activities=CPU,
            schedule=schedule,
            on_trace_ready=lambda one: traces.append(one.key_averages()),
        ) as own,
    ):
        for _ in range(20):
            loop.step()
            own.step()
    assert len(traces) == 1
    assert [e.count for e in traces[0] if e.key.startswith("ProfilerStep")] == [2]
    assert notes(loop) == [SKIPPED]
    assert profiler_is_off()


@pytest.mark.parametrize("inside", [True, False])
def test_a_profiler_of_the_program_that_begins_meanwhile_finds_no_other(
    tmp_path: Path, instant: type[InstantAnalysis], inside: bool
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(12)
        if inside:
            with loop.meter.step(), torch.profiler.profile(activities=CPU) as own:
                loop.work()
        else:
            with torch.profiler.profile(activities=CPU) as own:
                loop.step()
        assert [e.count for e in own.key_averages() if e.key == "aten::sum"] == [1]
        loop.steps(30)
    # What ran with a profiler beside it, even in part, is no steady step.
    assert (12 in loop.traced()) == inside
    assert loop.entries and 12 not in loop.entries[0].steps
    assert profiler_is_off()


def test_on_a_gpu_its_work_is_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
    monkeypatch.setattr(torch._C._autograd, "_supported_activities", lambda: {cpu, cuda})
    assert set(Recording(on_cuda=True)._profile.activities) == {cpu, cuda}
    assert set(Recording(on_cuda=False)._profile.activities) == {cpu}
    monkeypatch.setattr(torch._C._autograd, "_supported_activities", lambda: {cpu})
    assert set(Recording(on_cuda=True)._profile.activities) == {cpu}
    assert Recording(on_cuda=True)._profile.record_shapes


def test_under_nsight_systems_nothing_is_recorded(
    tmp_path: Path, instant: type[InstantAnalysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(40)
    assert loop.traced() == []
    assert notes(loop) == [SKIPPED.replace("another torch.profiler", "Nsight Systems")]


def test_nothing_is_left_behind_in_torch(tmp_path: Path, instant: type[InstantAnalysis]) -> None:
    kind = torch.autograd.profiler.profile
    before = dict(vars(kind))
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(20)
        assert dict(vars(kind)) != before
    assert dict(vars(kind)) == before


def test_a_rank_above_0_records_nothing(
    tmp_path: Path, instant: type[InstantAnalysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = Place.__init__

    def second(self: Place, device: Any, described: Any, rank: int, world_size: int) -> None:
        init(self, device, described, 1, 2)

    monkeypatch.setattr(Place, "__init__", second)
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(40)
    assert loop.traced() == [] and instant.jobs == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_leaves_the_recording_to_the_one_it_came_from(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(13)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                loop.steps(2)
                loop.meter.close()
                code = 0 if not instant.jobs else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        loop.steps(20)
    assert loop.entries[0].steps == (11, 12, 13)


def test_a_loop_that_moves_to_another_thread_ends_the_recording_where_it_began(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(12)
        other = threading.Thread(target=loop.steps, args=(1,))
        other.start()
        other.join()
        loop.steps(30)
    assert profiler_is_off()
    assert loop.entries and 12 not in loop.entries[0].steps
