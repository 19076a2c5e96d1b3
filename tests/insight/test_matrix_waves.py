"""Why kernels stay below the peak, from grids and names; the H100 has 132 SMs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matmuls import add_mm, analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.matrix import split
from mfu_torch.insight.breakdown.waves import Finding, built_for, findings, tail_share


def _found(trace: TraceBuilder, folder: Path) -> dict[str, Finding]:
    analysis = analysed(trace, folder)
    matrix = split(analysis.trace, analysis.labels)
    return {one.kind: one for one in findings(analysis.trace, matrix.counted)}


@pytest.mark.parametrize(
    ("blocks", "share"),
    [(132, 0.0), (264, 0.0), (133, 1 - 133 / 264), (66, 0.5), (1, 1 - 1 / 132), (330, 1 - 2.5 / 3)],
)
def test_the_last_wave_wastes_what_it_does_not_fill(blocks: int, share: float) -> None:
    assert tail_share(np.array([blocks]), 132).tolist() == pytest.approx([share])


def test_a_tail_is_the_time_of_the_empty_part_of_the_last_wave(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 30_000, grid=[165, 2, 1])  # 330 blocks: 2.5 waves in 3
    add_mm(trace, 50_000, 30_000, grid=[264, 1, 1])  # 2 waves in 2
    tail = _found(trace, tmp_path)["tail"]
    assert (tail.time_ns, tail.lost_ns, tail.kernels) == (30_000, 5_000, 1)
    assert "2.50 waves of 132 SMs" in tail.detail


def test_a_grid_below_one_wave_leaves_multiprocessors_idle(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 40_000, grid=[33, 1, 1])
    small = _found(trace, tmp_path)["small_grid"]
    assert (small.time_ns, small.lost_ns) == (40_000, 30_000)


def test_the_grid_of_a_persistent_kernel_says_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 40_000, grid=[100, 1, 1], kernel="nvjet_tst_128x128_2x1_v_bz_TNT")
    assert not {"tail", "small_grid"} & set(_found(trace, tmp_path))


def test_a_grid_of_rocm_counts_threads_and_is_not_read(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="AMD Instinct MI300X", sm_count=304)
    add_mm(trace, 10_000, 40_000, grid=[100, 1, 1], kernel="Cijk_Ailk_Bljk_BBS_BH_MT64x64x64")
    assert not {"tail", "small_grid"} & set(_found(trace, tmp_path))


def test_names_tell_old_and_misaligned_kernels(tmp_path: Path) -> None:
    trace = TraceBuilder()
    odd = "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1"
    add_mm(trace, 10_000, 40_000, kernel=odd)
    add_mm(trace, 60_000, 10_000, kernel="cutlass_80_tensorop_bf16_s16816gemm_bf16_align8")
    add_mm(trace, 80_000, 10_000)  # sm90
    found = _found(trace, tmp_path)
    assert found["misaligned"].time_ns == 40_000
    assert found["old_architecture"].time_ns == 50_000
    assert found["misaligned"].example == odd
    assert "sm_90" in found["old_architecture"].detail


def test_four_elements_of_fp32_are_aligned_and_four_of_bf16_are_not(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="NVIDIA A100-SXM4-80GB", sm_count=108)
    add_mm(trace, 10_000, 40_000, kernel="cutlass_80_tensorop_s1688gemm_align4", dtype="float")
    add_mm(trace, 60_000, 10_000, kernel="cutlass_80_tensorop_bf16_s16816gemm_align4")
    found = _found(trace, tmp_path)
    assert found["misaligned"].time_ns == 10_000
    assert "old_architecture" not in found


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("cutlass_75_wmma_tensorop_bf16_s161616gemm", 75),
        ("volta_sgemm_128x64_nn", 70),
        ("turing_fp16_s1688gemm_fp16_128x128", 75),
        ("ampere_bf16_s16816gemm_bf16_128x64", 80),
        ("sm80_xmma_fprop_implicit_gemm", 80),
        ("pytorch_flash::flash_fwd_kernel<...>", 80),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", 90),
        ("fmhaSm100aKernel_QkvE4m3", 100),
        ("nvjet_tst_64x64", None),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64", None),
    ],
)
def test_a_name_says_which_architecture_it_is_for(name: str, architecture: int | None) -> None:
    assert built_for(name) == architecture
