"""Matrix multiplies to time: operands, and settings of torch that are as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeGpu

from mfu_torch.peak import matmuls
from mfu_torch.peak.matmuls import exactly, flops, matmul, reduced_fp32, rotating, timed
from mfu_torch.records import Device, UnknownPeak

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
GPU = Device(name="NVIDIA L4", kind="cuda", index=0)
HERE = torch.device("cpu")
NEW_API = hasattr(torch.backends.cuda.matmul, "fp32_precision")
needs_new_api = pytest.mark.skipif(not NEW_API, reason="torch < 2.9 has one setting for all")


@pytest.fixture(autouse=True)
def fp32_settings_as_they_were() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    if NEW_API:
        settings: list[Any] = [torch.backends, torch.backends.cuda.matmul]
        for one in [*settings, torch.backends.mkldnn.matmul]:
            one.fp32_precision = "none"


def old_setting() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # once the new way of setting it has said otherwise
        return "refused"


def settings() -> dict[str, object]:
    found: dict[str, object] = {
        "old": old_setting(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "rng": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "fp16": getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", None),
    }
    if NEW_API:
        found["all"] = torch.backends.fp32_precision
        found["cuda"] = torch.backends.cuda.matmul.fp32_precision
        found["cpu"] = torch.backends.mkldnn.matmul.fp32_precision
    return found


# --- operands ---------------------------------------------------------------------------------


def test_a_multiply_add_is_two_flops() -> None:
    assert flops((4, 5, 6)) == 240


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8", "fp8"])
def test_a_multiply_has_the_shape_m_by_n_and_the_numbers_of_its_seed(dtype: str) -> None:
    try:
        one, same, other = (matmul((32, 48, 64), dtype, HERE, seed)() for seed in (1, 1, 2))
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"this torch does not multiply {dtype} on a CPU: {error}")
    assert one.shape == (32, 48)
    expected = {"fp64": torch.float64, "fp32": torch.float32, "int8": torch.int32}
    expected |= {"fp16": torch.float16}
    assert one.dtype == expected.get(dtype, torch.bfloat16)
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert one.float().std() > 1  # of 64 products of random numbers each


def test_the_users_defaults_do_not_reach_the_operands() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = matmul((8, 8, 8), "fp32", HERE)()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.dtype, found.device.type) == (torch.float32, "cpu")


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    free = [80 * 2**30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda where: (free[0], 80 * 2**30))
    monkeypatch.setattr(matmuls, "matmul", lambda shape, dtype, where, seed: seed)
    return free


@pytest.mark.parametrize(
    ("shape", "dtype", "sets"),
    [
        ((4096, 4096, 4096), "bf16", 6),  # 3 * 32 MiB; 512 / 96 is 5.33
        ((4096, 4096, 4096), "fp32", 3),
        ((4096, 4096, 4096), "int8", 6),  # 16 + 16 + 64 MiB
        ((1024, 1024, 1024), "fp8", 128),  # 1 + 1 + 2 MiB
        ((16384, 16384, 16384), "bf16", 2),  # 1.5 GiB each
    ],
)
def test_operands_on_a_gpu_take_turns_until_its_caches_cannot_hold_them(
    shape: tuple[int, int, int], dtype: str, sets: int, gpu_memory: list[int]
) -> None:
    assert rotating(shape, dtype, torch.device("cuda", 0)) == tuple(range(sets))


def test_operands_take_at_most_a_quarter_of_the_free_memory_but_there_is_one_set(
    gpu_memory: list[int],
) -> None:
    where = torch.device("cuda", 0)
    gpu_memory[0] = 4 * 3 * 96 * 2**20
    assert len(rotating((4096, 4096, 4096), "bf16", where)) == 3
    gpu_memory[0] = 2**20
    assert len(rotating((4096, 4096, 4096), "bf16", where)) == 1


def test_operands_on_a_cpu_do_not_take_turns() -> None:
    assert len(rotating((8, 8, 8), "fp32", HERE)) == 1


# --- settings ---------------------------------------------------------------------------------


def test_what_fp32_really_runs_in_is_read_from_the_backends_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reduced_fp32(CPU) == ""
    setting = SimpleNamespace(matmul=SimpleNamespace(fp32_precision="bf16"))
    monkeypatch.setattr(torch.backends, "mkldnn", setting)
    assert reduced_fp32(CPU) == "bf16"


@pytest.mark.parametrize(
    ("precision", "kind", "reduced"),
    [
        ("highest", "cuda", ""),
        ("high", "cuda", "tf32"),
        ("medium", "cuda", "tf32"),  # CUDA has no bf16 mode for fp32
        ("medium", "cpu", "bf16"),
    ],
)
def test_older_torch_has_one_setting_for_all_backends(
    precision: str, kind: str, reduced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda", "mkldnn"):
        monkeypatch.setattr(torch.backends, name, SimpleNamespace())
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert reduced_fp32(Device(name="x", kind=kind)) == reduced


def use_old(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)


def use_new(all_: str, matmul_: str) -> None:
    torch.backends.fp32_precision = all_
    torch.backends.cuda.matmul.fp32_precision = matmul_


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda: None, id="nothing"),
        pytest.param(lambda: use_old("high"), id="old high"),
        pytest.param(lambda: use_old("medium"), id="old medium"),
        pytest.param(lambda: use_new("none", "tf32"), id="new matmul", marks=needs_new_api),
        pytest.param(lambda: use_new("tf32", "none"), id="new all", marks=needs_new_api),
        pytest.param(lambda: use_new("tf32", "ieee"), id="new all but one", marks=needs_new_api),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("end", [None, RuntimeError, KeyboardInterrupt])
def test_settings_hold_inside_and_are_as_before_afterwards(
    choose: Any, dtype: str, end: type[BaseException] | None
) -> None:
    choose()
    before = settings()
    try:
        with torch.autocast("cpu", torch.bfloat16), exactly(GPU, dtype):
            assert not torch.is_grad_enabled()
            if dtype != "fp16":
                assert reduced_fp32(GPU) == ("tf32" if dtype == "tf32" else "")
            if end is not None:
                raise end
    except (RuntimeError, KeyboardInterrupt) as error:
        assert type(error) is end
    assert settings() == before


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_the_one_setting_of_older_torch_is_as_before_afterwards(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [before]
    for name in ("cuda", "mkldnn"):
        monkeypatch.setattr(torch.backends, name, SimpleNamespace(matmul=SimpleNamespace()))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    for device, dtype in ((GPU, "tf32"), (GPU, "fp32"), (CPU, "fp32")):
        with pytest.raises(KeyboardInterrupt), exactly(device, dtype):
            assert reduced_fp32(device) == ("tf32" if dtype == "tf32" else "")
            raise KeyboardInterrupt
        assert chosen[-1] == before


@needs_new_api
def test_a_setting_for_all_of_torch_still_reaches_matmuls_afterwards() -> None:
    with exactly(GPU, "tf32"):
        pass
    torch.backends.fp32_precision = "tf32"
    assert reduced_fp32(GPU) == "tf32"


def test_the_users_autocast_does_not_reach_inside() -> None:
    a = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with exactly(CPU, "fp32"):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


@needs_new_api
def test_fp32_on_a_cpu_is_fp32_although_the_user_allows_less() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    with exactly(CPU, "fp32"):
        assert reduced_fp32(CPU) == ""
    assert reduced_fp32(CPU) == "bf16"


def test_fp16_is_accumulated_in_fp32_although_the_user_allows_less() -> None:
    switches: Any = torch.backends.cuda.matmul
    if not hasattr(switches, "allow_fp16_accumulation"):
        pytest.skip("this torch has no such switch")
    switches.allow_fp16_accumulation = True
    try:
        with exactly(GPU, "fp16"):
            assert not switches.allow_fp16_accumulation
        assert switches.allow_fp16_accumulation
    finally:
        switches.allow_fp16_accumulation = False


def test_a_setting_that_changes_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmuls, "reduced_fp32", lambda device: "")
    with pytest.raises(UnknownPeak, match="runs fp32 as fp32 here"), exactly(GPU, "tf32"):
        pass
    monkeypatch.setattr(matmuls, "reduced_fp32", lambda device: "tf32")
    with pytest.raises(UnknownPeak, match="runs fp32 as tf32 here"), exactly(GPU, "fp32"):
        pass
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(UnknownPeak, match="runs fp32 as fp32 here"), exactly(GPU, "tf32"):
        pass


# --- clocks -----------------------------------------------------------------------------------


def test_a_gpu_is_timed_between_two_events_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    assert timed(lambda: gpu.launch(0.006), 2, torch.device("cuda", 0)) == pytest.approx(0.012)
    assert gpu.calls == ["record", "record", "synchronize"]
    assert gpu.recorded_on == ["stream of cuda:0"] * 2


def test_a_gpu_of_the_third_index_is_timed_on_its_own_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.launch(5.0, "cuda:0")  # the work of others, on the current device
    spent_s = timed(lambda: gpu.launch(0.25, "cuda:2"), 1, torch.device("cuda", 2))
    assert spent_s == pytest.approx(0.25)
