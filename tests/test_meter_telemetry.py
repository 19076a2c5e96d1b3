"""The meter samples the device beside the steps: once a window, never in a pause."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink

from mfu_torch import Meter, bookkeeping, read_run
from mfu_torch.peak import resolve
from mfu_torch.records import Device, Peak, Telemetry


class Sampler:
    """Gives one record for each window, and notes what it is told."""

    made: list[Sampler]

    def __init__(self, device: Device) -> None:
        self.device, self.told = device, [""]
        self.told.clear()
        self.made.append(self)

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def take(self, after_step: int) -> Telemetry:
        self.told.append(f"take {after_step}")
        return Telemetry(after_step=after_step, samples=2, time_s=2.0, power_w=100.0 * after_step)


@pytest.fixture(autouse=True)
def sampler(monkeypatch: pytest.MonkeyPatch) -> type[Sampler]:
    fresh = type("Fresh", (Sampler,), {"made": []})
    monkeypatch.setattr(bookkeeping, "DeviceSampler", fresh)
    return fresh


def train(folder: Path, **arguments: object) -> tuple[Meter, ListSink]:
    sink, clock, model = ListSink(), FakeClock(), torch.nn.Linear(4, 4)
    made = Meter(
        model,
        peak=1e9,
        log_every=2,
        log_dir=folder,
        sinks=[sink],
        clock=clock,
        **arguments,  # type: ignore[arg-type]
    )
    with made:
        for index in range(5):
            with made.step():
                model(torch.ones(2, 4)).sum().backward()
                clock.advance(1.0)
            if index == 2:
                with made.pause("eval"), made.pause("checkpoint"):
                    clock.advance(5.0)
    return made, sink


def test_each_window_comes_with_what_the_device_did(tmp_path: Path, sampler: type[Sampler]) -> None:
    train(tmp_path)
    (one,) = sampler.made
    assert one.device.kind == "cpu"
    assert [word for word in one.told if word not in ("pause", "resume")] == [
        "start",
        "take 2",
        "take 4",
        "take 5",
        "stop",
        "take 5",  # whether stopping found that the driver hangs
    ]
    run = read_run(tmp_path)
    seen = [(t.after_step, t.power_w) for t in run.telemetry]
    assert seen == [(2, 200.0), (4, 400.0), (5, 500.0), (5, 500.0)]


def test_pauses_are_not_sampled(tmp_path: Path, sampler: type[Sampler]) -> None:
    train(tmp_path)
    told = [word for word in sampler.made[0].told if word in ("pause", "resume")]
    assert told == ["pause", "resume"]  # the eval, with the checkpoint in it


def test_telemetry_can_be_left_out(tmp_path: Path, sampler: type[Sampler]) -> None:
    _, sink = train(tmp_path, telemetry=False)
    assert (sampler.made, sink.of(Telemetry)) == ([], [])


def test_the_report_shows_mfu_against_what_the_device_sustains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Forward and dW of Linear(4, 4), 2 rows: 2 * 64 FLOPs a second, of 1e9 and of 256 FLOP/s.
    sustained = Peak(flops_per_s=256.0, dtype="fp32", source="a GEMM", provenance="measured")
    monkeypatch.setattr(resolve, "saved_peak", lambda device, dtype, cache_dir: sustained)
    made, _ = train(tmp_path)
    assert "  measured peak    fp32 256 FLOP/s (MFU 50.0 %, HFU 50.0 % of it)" in made.summary()
