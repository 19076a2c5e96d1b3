"""What is read of an NVIDIA GPU, in which units, and what a MIG slice has of it."""

from __future__ import annotations

import os

import pytest
from fake_nvml import FakeSlice
from telemetry_rig import BUSY, UUID, Rig, a100, h100

from mfu_torch.peak.telemetry.nvidia import throttle_reasons
from mfu_torch.records import Device, Telemetry

ME = os.getpid()
SLICE = "MIG-00000000-aaaa-bbbb-cccc-dddddddddddd"
OTHER = "MIG-11111111-aaaa-bbbb-cccc-dddddddddddd"
CARDS = "NVML knows it of the whole card, not of a MIG slice"


def test_a_hopper_gpu_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = h100(reasons=0x4, limit_mw=500_000, enforced_limit_mw=450_000)
    assert Rig(monkeypatch, gpu).seen(1.0) == Telemetry(
        after_step=0,
        samples=1,
        time_s=1.0,
        gpu_util=1.0,
        sm_active=pytest.approx(0.9),
        tensor_active=pytest.approx(0.45),
        dram_active=pytest.approx(0.3),
        sm_clock_hz=1.755e9,
        sm_clock_min_hz=1.755e9,
        memory_clock_hz=2.619e9,
        power_w=350.0,
        power_limit_w=450.0,  # the one in force
        power_default_w=700.0,
        temperature_c=55.0,
        throttle={"power cap": 1.0},
        memory_used_bytes=3 * 2**30,
        pcie_rx_bytes_per_s=8 * 2.0**20,
        pcie_tx_bytes_per_s=2 * 2.0**20,
        nvlink_rx_bytes_per_s=2.0**30,
        nvlink_tx_bytes_per_s=2.0**29,
        other_processes=0,
        absent={"cpu_util": "of a CPU only"},
    )


def test_gpm_counts_over_the_interval_and_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.sample()
    rig.elapse(3.0)  # at 90 % and 45 %
    rig.gpu.activity = BUSY | {"SM_UTIL": 10.0, "ANY_TENSOR_UTIL": 5.0}
    rig.sample(1.0)
    found = rig.take()
    assert found.sm_active == pytest.approx((3 * 0.9 + 1 * 0.1) / 4)
    assert found.tensor_active == pytest.approx((3 * 0.45 + 1 * 0.05) / 4)


def test_what_happens_in_a_pause_is_in_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, a100(activity=BUSY))
    rig.sampler.sample()
    rig.sample(1.0)
    rig.sampler.pause()
    rig.gpu.activity = BUSY | {"SM_UTIL": 0.0}
    rig.gpu.nvlink_rx_kib = 10**9  # a checkpoint goes over the links
    rig.sample(10.0)
    rig.sampler.resume()
    rig.gpu.activity = BUSY
    rig.sample(1.0, 1.0)
    assert rig.take().nvlink_rx_bytes_per_s == 0.0
    hopper = Rig(monkeypatch)
    hopper.sampler.sample()
    hopper.sampler.pause()
    hopper.gpu.activity = BUSY | {"SM_UTIL": 0.0}
    hopper.elapse(10.0)
    hopper.sampler.resume()
    hopper.gpu.activity = BUSY
    hopper.sample(1.0, 1.0)
    assert hopper.take().sm_active == pytest.approx(0.9)


def test_before_hopper_there_is_no_tensor_activity_and_traffic_comes_from_nvml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, a100())
    rig.sampler.sample()
    rig.gpu.nvlink_rx_kib, rig.gpu.nvlink_tx_kib = 4096, 1024
    rig.sample(2.0)
    found = rig.take()
    assert found.sm_active is found.tensor_active is found.dram_active is None
    assert "no GPM counters; Hopper" in found.absent["tensor_active"]
    assert (found.pcie_rx_bytes_per_s, found.pcie_tx_bytes_per_s) == (5e6, 7e5)  # KB/s
    # 4096 KiB and 1024 KiB in 2 s
    assert (found.nvlink_rx_bytes_per_s, found.nvlink_tx_bytes_per_s) == (2097152.0, 524288.0)
    assert found.gpu_util == 1.0


def test_a_counter_of_the_links_that_was_reset_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, a100(nvlink_rx_kib=9999))
    rig.sampler.sample()
    rig.gpu.nvlink_rx_kib = 0
    rig.sample(1.0)
    assert rig.take().nvlink_rx_bytes_per_s is None


def test_what_a_card_does_not_have_is_absent_with_nvmls_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A desktop card of two generations ago."""
    gpu = a100(
        name="NVIDIA GeForce RTX 2080 Ti", nvlink_rx_kib=None, nvlink_tx_kib=None, power_mw=None,
        mig_capable=False, graphics={1: 5, 2: 6},
    )  # fmt: skip
    found = Rig(monkeypatch, gpu).seen(1.0)
    assert (found.power_w, found.absent["power_w"]) == (None, "NVML: Not Supported")
    assert found.absent["nvlink_rx_bytes_per_s"] == "NVML: Not Supported"
    assert found.other_processes == 2  # the desktop draws on it
    assert found.power_limit_w == 700.0


def test_other_processes_are_counted_besides_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = h100(processes={ME: 1, 999_999: 1, 999_998: 1}, graphics={999_999: 1})
    assert Rig(monkeypatch, gpu).seen(1.0).other_processes == 2


def test_in_a_container_the_processes_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for processes in ({}, {999_999: 1}):
        found = Rig(monkeypatch, h100(processes=processes)).seen(1.0)
        assert found.other_processes is None
        assert "does not have this one" in found.absent["other_processes"]


def test_an_old_driver_or_module_is_read_by_its_older_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(
        monkeypatch,
        h100(reasons=0x20),
        without=(
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetTemperature",  # a driver to come
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlGpmSampleAlloc",
        ),
    )
    rig.nvml.remove_from_module("nvmlDeviceGetUtilizationRates")
    found = rig.seen(1.0)
    assert found.throttle == {"thermal (software)": 1.0}
    assert (found.temperature_c, found.power_limit_w) == (55.0, 700.0)
    assert found.absent["other_processes"] == "this driver does not have the call"
    assert found.absent["sm_active"] == "this driver does not have the call"
    assert "update nvidia-ml-py" in found.absent["gpu_util"]
    assert found.pcie_rx_bytes_per_s == 3e6


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, set()),
        (0x1, {"idle"}),
        (0x2, {"application clocks"}),
        (0x44, {"power cap", "thermal (hardware)"}),
        (0x28, {"hardware slowdown", "thermal (software)"}),
        (0x190, {"sync boost", "power brake", "display clock"}),
        (0x600, {"board limit", "reliability"}),
        (0x8804, {"power cap", "bit 0x800", "bit 0x8000"}),
    ],
)
def test_throttle_reasons_have_plain_names(bits: int, names: set[str]) -> None:
    assert throttle_reasons(bits) == names


# --- MIG ----------------------------------------------------------------------------------------


def sliced(**changes: object) -> tuple[FakeSlice, ...]:
    own = {"uuid": SLICE, "gpu_instance": 7, "processes": {ME: 1, 4: 1}, "activity": BUSY}
    idle = {"SM_UTIL": 1.0, "ANY_TENSOR_UTIL": 0.0, "DRAM_BW_UTIL": 0.0}
    return (
        FakeSlice(uuid=OTHER, gpu_instance=9, memory_used=5, activity=idle),
        FakeSlice(**(own | changes)),  # type: ignore[arg-type]
    )


def slice_device(uuid: str = SLICE) -> Device:
    return Device(
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", kind="cuda", index=0, mig="1g.10gb",
        uuid=uuid.replace("MIG-", "GPU-"),  # torch gives no prefix, and GPU- is put before it
    )  # fmt: skip


def test_a_mig_slice_has_its_own_counters_and_the_cards_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = h100(slices=list(sliced()), activity={"SM_UTIL": 50.0}, reasons=0x4)
    found = Rig(monkeypatch, gpu, device=slice_device()).seen(1.0)
    assert (found.sm_active, found.tensor_active) == (pytest.approx(0.9), pytest.approx(0.45))
    assert (found.memory_used_bytes, found.other_processes) == (2**30, 1)
    assert (found.sm_clock_hz, found.temperature_c) == (1.755e9, 55.0)
    assert found.throttle == {"power cap": 1.0}
    for field in ("gpu_util", "power_w", "power_limit_w", "power_default_w"):
        assert getattr(found, field) is None
        assert found.absent[field] == CARDS


def test_traffic_of_the_card_is_not_reported_as_a_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"SM_UTIL": 50.0}  # GPM of the slice knows no traffic
    gpu = h100(slices=list(sliced(activity=own)))
    found = Rig(monkeypatch, gpu, device=slice_device()).seen(1.0)
    assert found.sm_active == pytest.approx(0.5)
    assert found.absent["tensor_active"] == "GPM: Not Supported"
    assert found.absent["pcie_rx_bytes_per_s"] == found.absent["nvlink_rx_bytes_per_s"] == CARDS


def test_a_slice_that_shares_its_gpu_instance_has_no_counters_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = h100(slices=list(sliced(gpu_instance_slices=3, compute_instance_slices=1)))
    found = Rig(monkeypatch, gpu, device=slice_device()).seen(1.0)
    assert found.sm_active is None
    assert "this MIG slice is a part of it" in found.absent["sm_active"]


def test_the_slice_is_found_where_torch_gives_the_uuid_of_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for visible in (SLICE, f"MIG-{UUID}/7/0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        rig = Rig(monkeypatch, h100(slices=list(sliced())), device=slice_device(UUID))
        assert rig.seen(1.0).sm_active == pytest.approx(0.9)


def test_which_slice_is_meant_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    rig = Rig(monkeypatch, h100(slices=list(sliced())), device=slice_device(UUID))
    assert rig.sampler.sample() is False
    said = rig.take()
    assert "which of its slices this process uses cannot be told (2 fit)" in said.absent["power_w"]
    assert "set CUDA_VISIBLE_DEVICES" in caplog.text


def test_the_only_slice_and_the_only_one_of_the_profile_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    other, own = sliced()
    other.name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    for slices in ([own], [other, own]):
        rig = Rig(monkeypatch, h100(slices=slices), device=slice_device(UUID))
        assert rig.seen(1.0).other_processes == 1
