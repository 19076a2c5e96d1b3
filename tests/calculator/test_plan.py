"""The terms of a plan, worked by hand for a machine of round figures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mfu_torch.calculator.plan import (
    ContradictionError,
    Layout,
    Link,
    Machine,
    Plan,
    plan,
    render,
    summary,
)
from mfu_torch.calculator.plan.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
)
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Attention, Block, Decoder, Experts, flops_per_token
from mfu_torch.records import Peak

NODE = Link(bytes_per_s=400e9, latency_s=1e-6)
NETWORK = Link(bytes_per_s=50e9, latency_s=10e-6)
MACHINE = Machine(
    peak=Peak(flops_per_s=100e12, dtype="bf16", device="a device"),
    matmul_flops_per_s=80e12,
    bytes_per_s=1e12,
    memory_bytes=80e9,
    gpus_per_node=8,
    node=NODE,
    network=NETWORK,
)
MODEL = formulas.dense_decoder(layers=16, hidden=1024, heads=16, kv_heads=4, ffn=4096, vocab=32768)
SEQ = 2048
MESSAGE = SEQ * 1024 * 2  # bytes of the activations between two parts


def planned(model: Decoder = MODEL, machine: Machine = MACHINE, **layout: Any) -> Plan:
    arguments = {"gpus": 1, "micro_batches": 4, "seq": SEQ, "overlap": (), **layout}
    return plan(model, Layout(**arguments), machine)


def seconds(found: Plan, name: str) -> float:
    (term,) = (term for term in found.terms if term.name == name)
    return term.seconds


def test_the_terms_add_up_to_the_step_and_the_first_is_the_mfu() -> None:
    found = planned(gpus=64, tp=4, pp=4, zero=1, recompute="full")
    assert sum(term.seconds for term in found.terms) == pytest.approx(found.step_s, rel=1e-12)
    assert sum(map(found.points, found.terms)) == pytest.approx(1, rel=1e-12)
    assert found.mfu == found.points(found.terms[0])
    tokens = 4 * 4 * SEQ
    assert found.model_flops == flops_per_token("matmul", MODEL, SEQ) * tokens
    assert found.mfu == pytest.approx(found.model_flops / (64 * 100e12 * found.step_s))
    assert found.tokens_per_s == pytest.approx(tokens / found.step_s)


def test_one_device_has_matmuls_and_other_operations_and_an_optimizer() -> None:
    found = planned(attention="unfused")
    flops = 4 * MODEL.flops(seq=SEQ).training
    assert seconds(found, "model FLOPs at the peak") == pytest.approx(flops / 100e12)
    assert seconds(found, "matmuls below the peak") == pytest.approx(
        flops * (1 / 80 - 1 / 100) / 1e12
    )
    assert seconds(found, "counted otherwise") == 0
    # of a token and layer: norms and additions 2 * 22h, gated 16f, softmax and dropout 20 * 16 s
    moved = 16 * (44 * 1024 + 16 * 4096 + 20 * 16 * SEQ) * SEQ * 4
    assert seconds(found, "other operations") == pytest.approx(moved / 1e12)
    assert seconds(found, "optimizer") == pytest.approx(30 * MODEL.parameters.total / 1e12)
    for name in ("recompute", "tensor parallel", "pipeline bubble", "data parallel"):
        assert seconds(found, name) == 0


def test_fused_attention_skips_masked_scores_and_computes_scores_again() -> None:
    found = planned()
    full, causal = (MODEL.flops(seq=SEQ, attention=rule) for rule in ("full", "causal"))  # type: ignore[arg-type]
    skipped = 4 * (full.training - causal.training)
    assert seconds(found, "counted otherwise") == pytest.approx(-skipped / 100e12)
    again = 4 * sum(term.forward for term in causal.terms if term.name == "scores")
    assert seconds(found, "recompute") == pytest.approx(again / 80e12)


def test_recompute_runs_scores_or_all_layers_again() -> None:
    form = MODEL.flops(seq=SEQ)
    for policy in ("selective", "full"):
        found = planned(attention="unfused", recompute=policy)
        assert seconds(found, "recompute") == pytest.approx(
            4 * form.recompute(policy) / 80e12  # type: ignore[arg-type]
        )


def test_tensor_parallelism_reduces_four_times_a_layer_and_six_with_full_recompute() -> None:
    one = all_reduce_s(8, MESSAGE, NODE)
    found = planned(gpus=8, tp=8)
    assert seconds(found, "tensor parallel") == pytest.approx(4 * 16 * 4 * one)
    full = planned(gpus=8, tp=8, recompute="full")
    assert seconds(full, "tensor parallel") == pytest.approx(4 * 16 * 6 * one)
    # Sequence parallelism: a reduce-scatter and an all-gather are as long as an all-reduce.
    split = planned(gpus=8, tp=8, sequence_parallel=True)
    assert seconds(split, "tensor parallel") == seconds(found, "tensor parallel")
    assert seconds(split, "other operations") < seconds(found, "other operations")


def test_the_bubble_is_that_of_the_pipeline_and_smaller_with_chunks() -> None:
    found = planned(gpus=4, pp=4, micro_batches=8)
    shared = ("data parallel", "optimizer", "pipeline bubble", "uneven stages")
    work = found.step_s - sum(seconds(found, name) for name in shared)
    # A micro-batch passes the three stages without the head, once forward and once back.
    head_s = MODEL.flops(seq=SEQ, attention="causal").only("head").training / 80e12
    stage_s = work / 8 - head_s / 4
    assert seconds(found, "pipeline bubble") == pytest.approx(3 * stage_s)
    chunks = planned(gpus=4, pp=4, micro_batches=8, virtual_stages=4)
    assert seconds(chunks, "pipeline bubble") < seconds(found, "pipeline bubble") / 3
    sends = seconds(found, "pipeline sends")
    assert seconds(chunks, "pipeline sends") == pytest.approx(4 * sends)
    # 8 micro-batches, one send each way, over the node's link
    assert sends == pytest.approx(8 * 2 * (1e-6 + MESSAGE / 400e9))


def test_the_head_makes_the_last_stage_longer() -> None:
    found = planned(gpus=4, pp=4, micro_batches=8)
    form = MODEL.flops(seq=SEQ, attention="causal")
    head_s = form.only("head").training / 80e12
    assert seconds(found, "uneven stages") == pytest.approx(8 * head_s * 3 / 4)
    # Where it takes the place of a layer, the longest stage is one without ends, or the last.
    even = planned(
        model=formulas.dense_decoder(
            layers=14, hidden=1024, heads=16, kv_heads=4, ffn=4096, vocab=32768
        ),
        gpus=4,
        pp=4,
        micro_batches=8,
        ends_as_layers=True,
    )
    assert 0 < seconds(even, "uneven stages") < seconds(found, "uneven stages")


def test_gradients_are_reduced_once_a_step_in_fp32() -> None:
    weights = MODEL.parameters.total
    found = planned(gpus=16)
    ring = Link(bytes_per_s=400e9, latency_s=10e-6)  # 8 network links of 50 GB/s
    assert seconds(found, "data parallel") == pytest.approx(all_reduce_s(16, 4 * weights, ring))
    spread = planned(gpus=16, zero=1)
    expected = reduce_scatter_s(16, 4 * weights, ring) + all_gather_s(16, 2 * weights, ring)
    assert seconds(spread, "data parallel") == pytest.approx(expected)
    assert seconds(spread, "optimizer") == pytest.approx(seconds(found, "optimizer") / 16)


def test_zero_3_gathers_parameters_for_every_micro_batch() -> None:
    found = planned(gpus=8, zero=3)
    weights = MODEL.parameters.total
    each = 2 * all_gather_s(8, 2 * weights, NODE) + reduce_scatter_s(8, 4 * weights, NODE)
    assert seconds(found, "parameter gathers") == pytest.approx(4 * each)
    assert seconds(found, "data parallel") == 0


def test_what_overlaps_costs_only_what_is_longer_than_the_matmuls() -> None:
    slow = msgspec.structs.replace(MACHINE, node=Link(bytes_per_s=1e9, latency_s=0.0))
    layers = MODEL.flops(seq=SEQ, attention="causal").without("head").training / 80e12
    beside = planned(machine=slow, gpus=8, zero=1, overlap=("dp",))
    alone = planned(machine=slow, gpus=8, zero=1)
    assert seconds(beside, "data parallel") == pytest.approx(
        seconds(alone, "data parallel") - layers
    )
    fast = planned(gpus=8, tp=8, overlap=("tp",))
    assert seconds(fast, "tensor parallel") == 0


def test_context_parallelism_gathers_keys_and_values() -> None:
    found = planned(gpus=4, cp=4)
    numbers = 2 * 4 * 64  # k and v of 4 heads of 64
    buffer = SEQ * numbers * 2
    each = 2 * all_gather_s(4, buffer, NODE) + reduce_scatter_s(4, buffer, NODE)
    assert seconds(found, "context parallel") == pytest.approx(4 * 16 * each)


def test_expert_parallelism_sends_tokens_to_their_experts_and_back() -> None:
    attention = Attention(heads=16, kv_heads=4, head_dim=64)
    experts = Experts(experts=16, chosen=2, width=512)
    model = Decoder(hidden=1024, vocab=32768, blocks=(Block(parts=(attention, experts), count=8),))
    found = planned(model, gpus=8, ep=8)
    assert seconds(found, "expert parallel") == pytest.approx(
        4 * 8 * 4 * all_to_all_s(8, 2 * MESSAGE, NODE)
    )
    assert any("routed evenly" in line for line in found.assumptions)
    # Each rank holds 2 of 16 experts, which nobody else has: only the rest is reduced over all.
    dense = model.parameters.total - 8 * 16 * 3 * 1024 * 512
    assert seconds(found, "data parallel") == pytest.approx(all_reduce_s(8, 4 * dense, NODE))


def test_more_micro_batches_raise_the_mfu_of_a_pipeline() -> None:
    few, many = (planned(gpus=4, pp=4, micro_batches=m) for m in (4, 64))
    assert few.mfu < many.mfu


def test_the_convention_changes_the_mfu_and_not_the_step() -> None:
    layout = Layout(gpus=8, tp=8, micro_batches=4, seq=SEQ)
    full = plan(MODEL, layout, MACHINE)
    halved = plan(MODEL, layout, MACHINE, convention="matmul-half")
    assert halved.step_s == pytest.approx(full.step_s, rel=1e-12)
    assert halved.mfu < full.mfu


@pytest.mark.parametrize("convention", ["megatron", "full-recompute"])
def test_hardware_flops_are_no_mfu(convention: str) -> None:
    with pytest.raises(ValueError, match=f"{convention} counts hardware FLOPs"):
        plan(MODEL, Layout(gpus=1, seq=SEQ), MACHINE, convention=convention)


def test_what_is_not_the_training_of_a_whole_model_is_not_planned() -> None:
    with pytest.raises(ValueError, match="lora is not for training whole models"):
        plan(MODEL, Layout(gpus=1, seq=SEQ), MACHINE, convention="lora")
    slow = msgspec.structs.replace(
        MACHINE, peak=Peak(flops_per_s=10e12, dtype="fp32", device="a device")
    )
    with pytest.raises(ValueError, match="a step in fp32 is not planned"):
        planned(machine=slow)


def test_an_mfu_above_1_is_explained() -> None:
    found = planned(seq=1_048_576, micro_batches=1)
    assert found.mfu > 1
    assert "above 100 %: matmul counts more than the kernels run" in render(found)


def test_a_layout_that_cannot_be_is_not_estimated() -> None:
    with pytest.raises(ContradictionError, match="heads 16 is no multiple of tp 3"):
        planned(gpus=3, tp=3)


def test_what_is_not_modelled_of_a_part_is_said() -> None:
    model = formulas.mamba2(layers=2, hidden=64, vocab=64)
    found = planned(model)
    assert any("Mamba2" in line and "left out" in line for line in found.assumptions)
    assert found.memory.fits is None
    assert "at least" in render(found) and "whether it fits is not known" in render(found)
    small = planned(model, msgspec.structs.replace(MACHINE, memory_bytes=1e5))
    assert small.memory.fits is False


def test_the_text_has_the_terms_the_memory_and_the_assumptions() -> None:
    found = planned(gpus=64, tp=4, pp=4, zero=1)
    text = render(found)
    assert "an estimate" in text.splitlines()[0]
    assert f"{100 * found.mfu:.2f} % by matmul" in text
    for term in found.terms:
        assert (term.name in text) == (term.seconds != 0)
    assert "fits 80.0 GB" in text
    words = " ".join(text.split())
    for line in (*found.assumptions, found.expected):
        assert line in words
    assert max(map(len, text.splitlines())) <= 100


def test_a_model_that_does_not_fit_is_said_to() -> None:
    text = render(planned(machine=msgspec.structs.replace(MACHINE, memory_bytes=1e9)))
    assert "does not fit 1.00 GB" in text


def test_the_same_values_as_json() -> None:
    found = planned(gpus=64, tp=4, pp=4)
    values = msgspec.json.decode(msgspec.json.encode(summary(found)))
    assert values["mfu"] == found.mfu
    assert values["layout"]["dp"] == 4
    assert values["memory"]["fits"] is True
    assert sum(term["share"] for term in values["terms"]) == pytest.approx(1)


def test_hidden_communication_has_a_row_of_its_own_that_is_no_part_of_the_step() -> None:
    shown = planned(gpus=8, zero=3)
    hidden = planned(gpus=8, zero=3, overlap=("dp",))
    (row,) = hidden.hidden
    assert row.name == "parameter gathers"
    # What is hidden, and what of it is still exposed, is what the links take.
    exposed = sum(t.seconds for t in hidden.terms if t.name == "parameter gathers")
    assert row.seconds + exposed == pytest.approx(seconds(shown, "parameter gathers"))
    assert sum(term.seconds for term in hidden.terms) == pytest.approx(hidden.step_s)
    assert hidden.unhidden_step_s == pytest.approx(shown.step_s)
    assert hidden.unhidden_mfu == pytest.approx(shown.mfu)
    assert shown.hidden == () and shown.unhidden_step_s == shown.step_s
    text = render(hidden)
    assert "hidden beside compute" in text
    assert "not in the step; if nothing were hidden" in " ".join(text.split())
    assert summary(hidden)["unhidden"]["mfu"] == hidden.unhidden_mfu
    assert "hidden beside compute" not in render(shown)


def test_all_that_is_hidden_is_no_more_than_the_matmuls_beside_it() -> None:
    slow = msgspec.structs.replace(MACHINE, node=Link(bytes_per_s=2e9, latency_s=1e-6))
    layout: dict[str, Any] = {"gpus": 8, "tp": 2, "zero": 3}
    both = planned(machine=slow, overlap=("tp", "dp"), **layout)
    bare = planned(machine=slow, **layout)
    matmuls_s = 4 * MODEL.flops(1, SEQ, attention="causal").without("head").training / (2 * 80e12)
    assert sum(term.seconds for term in both.hidden) == pytest.approx(matmuls_s)
    assert bare.step_s - both.step_s == pytest.approx(matmuls_s)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_hidden_gradients_are_those_of_one_micro_batch(zero: int) -> None:
    bare, hidden = (planned(gpus=8, zero=zero, overlap=way) for way in ((), ("dp",)))
    (row,) = hidden.hidden
    assert row.name == "data parallel"
    assert row.seconds == pytest.approx(seconds(bare, "data parallel"))


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    found = planned(gpus=8, zero=3)
    most = found.largest_micro_batch
    assert most is not None and most > 1
    assert planned(gpus=8, zero=3, micro_batch_size=most).memory.fits
    assert not planned(gpus=8, zero=3, micro_batch_size=most + 1).memory.fits
    assert f"micro-batches of up to {most} sequences fit" in render(found)


def test_a_model_too_large_for_any_micro_batch_says_so() -> None:
    small = msgspec.structs.replace(MACHINE, memory_bytes=1e9)
    found = planned(machine=small)
    assert found.largest_micro_batch == 0
    assert "no micro-batch fits" in render(found)


def test_one_of_something_is_no_plural() -> None:
    text = render(planned(micro_batches=1))
    assert "1 micro-batch of 1 x 2048 tokens, 1 sequence a step" in " ".join(text.split())


def test_a_layout_that_few_runs_had_says_how_these_went() -> None:
    assert "data parallel alone 39 to 92 %, the one with ZeRO 3 67 %" in planned(zero=3).expected
    assert planned(gpus=8, tp=2, zero=3).expected.count("ZeRO 3 67 %") == 1
    assert "alone" not in planned(gpus=8, tp=2).expected
