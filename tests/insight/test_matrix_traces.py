"""Real traces: the figures that were found by other means (HFU, efficiency, recompute)."""

from __future__ import annotations

from functools import cache

import pytest
from traces import real_trace, trace_path

from mfu_torch.insight.breakdown.explain import Analysis, analyse
from mfu_torch.insight.breakdown.matrix import MatrixSplit, split
from mfu_torch.insight.breakdown.roofline import roofline

QWEN, OWL = "tl_h100_qwen05b_fwd", "tl_h100_owlv2_fwd_dataloader"
MI300 = "tl_mi300_resnet_ddp_8gpu_recompute"


def _analysed(name: str, edges: str = "gpu") -> Analysis:
    trace_path(name)  # skips without it
    return _cached(name, edges)


@cache
def _cached(name: str, edges: str) -> Analysis:
    return analyse(real_trace(name), edges=edges)


def _matrix(found: Analysis) -> MatrixSplit:
    return split(found.trace, found.labels)


def _percent(found: Analysis, *names: str) -> float:
    buckets = found.breakdown.buckets
    return 100 * sum(b.time_ns for b in buckets if b.name in names) / found.breakdown.wall_ns


def _efficiency(found: Analysis, family: str) -> float:
    """FLOPs over time and peak of one family, in percent."""
    ops = [one for one in _matrix(found).counted.ops if one.work.family == family]
    rate = sum(one.work.flops for one in ops) / (sum(one.time_ns for one in ops) / 1e9)
    assert found.breakdown.peak is not None
    return 100 * rate / found.breakdown.peak.flops_per_s


def test_the_forward_of_qwen_on_an_h100_has_the_hfu_of_the_reference() -> None:
    found = _analysed(QWEN, "cpu")
    assert _percent(found, "matrix/model_flops") == pytest.approx(11.92, abs=0.01)
    below = _percent(found, "matrix/below_peak", "matrix/unknown_flops")
    assert below == pytest.approx(21.31, abs=0.01)


def test_its_products_and_attention_reach_the_share_of_the_peak_of_the_reference() -> None:
    found = _analysed(QWEN)
    assert _efficiency(found, "gemm") == pytest.approx(62.9, abs=0.05)
    assert _efficiency(found, "attention") == pytest.approx(18.3, abs=0.1)
    hint = {one.name: one.hint for one in found.breakdown.buckets}["matrix/below_peak"]
    assert "gemm reaches 62.9 % of its peak" in hint


def test_its_flops_are_those_of_its_layers() -> None:
    # 24 layers over 16 x 559 tokens of 1024: q, k, v, o (1024), gate, up, down (2816); attention
    # over 16 heads of 64; one outer product of 32 x 559 for the rotary angles.
    tokens, layers = 16 * 559, 24
    products = 2 * tokens * (4 * 1024 * 1024 + 3 * 1024 * 2816)
    attention = 4 * 16 * 16 * 559 * 559 * 64
    expected = layers * (products + attention) + 2 * 32 * 559
    assert _analysed(QWEN).breakdown.model_flops == expected


def test_the_products_of_owlv2_reach_a_ninth_of_the_peak_and_the_hint_says_why() -> None:
    found = _analysed(OWL)
    assert _efficiency(found, "gemm") == pytest.approx(11.4, abs=0.05)
    hint = {one.name: one.hint for one in found.breakdown.buckets}["matrix/below_peak"]
    assert "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1" in hint
    assert "misaligned" in hint and "older architecture than sm_90" in hint
    assert "[[16,5185,64],[16,64,5185]]" in hint  # 5185 is odd


def test_the_checkpointed_resnet_on_mi300_repeats_57_convolutions() -> None:
    found = _analysed(MI300)
    ops = _matrix(found).counted.ops
    again = [one for one in ops if one.recompute]
    assert len(again) == 57 and {one.work.family for one in again} == {"conv"}
    assert len(ops) == 186  # 117 forward, 60 backward convolutions, 9 products
    flops, hardware = found.breakdown.model_flops, found.breakdown.hardware_flops
    assert flops is not None and hardware is not None
    assert hardware - flops == sum(one.work.flops for one in again)


def test_a_resnet50_step_of_an_old_trace_has_the_flops_of_its_layers() -> None:
    # 4.089 GMAC forward per image of 224 x 224 (torchvision); 32 images, 6 steps; backward is
    # twice that, but for the first layer, which needs no gradient of its input.
    found = _analysed("kineto_v100_rn50_workers0")
    forward = 2 * 4_089_184_256 * 32
    first = 2 * 32 * 112 * 112 * 64 * 3 * 7 * 7
    assert found.breakdown.model_flops == 6 * (3 * forward - first)


def test_unknown_flops_are_most_of_a_served_mixture_of_experts() -> None:
    found = _analysed("tl_b200_vllm_step_multimem")
    coverage = found.breakdown.coverage
    assert coverage.matrix_known_ns / coverage.matrix_ns == pytest.approx(0.12, abs=0.01)
    assert any("not known" in note for note in found.breakdown.notes)


@pytest.mark.parametrize("name", [QWEN, OWL, MI300])
def test_the_roofline_places_the_busy_time(name: str) -> None:
    found = _analysed(name)
    roofs = roofline(found.trace, found.labels, _matrix(found))
    placed = roofs.compute_ns + roofs.memory_ns + roofs.neither_ns + roofs.unknown_ns
    buckets = {one.name: one.time_ns for one in found.breakdown.buckets}
    busy = sum(ns for name, ns in buckets.items() if name.startswith(("matrix", "other")))
    assert placed == busy + buckets["exposed_memcpy"]
    assert roofs.unknown_ns >= 0


def test_the_products_of_qwen_are_bound_by_compute_and_its_copies_by_memory() -> None:
    found = _analysed(QWEN)
    roofs = roofline(found.trace, found.labels, _matrix(found)).roofs
    assert roofs[0].op == "aten::mm" and roofs[0].bound == "compute"
    assert {one.bound for one in roofs if one.op == "aten::copy_"} >= {"memory"}


def test_the_loader_of_resnet50_is_named_until_it_has_workers() -> None:
    hints = {one.name: one.hint for one in _analysed("kineto_v100_rn50_workers0").breakdown.buckets}
    assert "_SingleProcessDataLoaderIter" in hints["idle/data_wait"]
    assert "num_workers" in hints["idle/data_wait"]
    four = _analysed("kineto_v100_rn50_workers4").breakdown.buckets
    assert not {one.name: one.hint for one in four}.get("idle/data_wait")
