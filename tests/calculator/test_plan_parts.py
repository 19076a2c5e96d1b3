"""What a plan is made of: collectives, layouts, links, memory and traffic, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mfu_torch.calculator.plan import ContradictionError, Layout, Link, Machine, machine_of
from mfu_torch.calculator.plan.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from mfu_torch.calculator.plan.interconnects import interconnects
from mfu_torch.calculator.plan.memory import activation_bytes, memory_of, parameters_on_rank
from mfu_torch.calculator.plan.traffic import traffic_of
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import MLP, Block, Decoder, Experts
from mfu_torch.peak.rows import table
from mfu_torch.records import Peak

LINK = Link(bytes_per_s=200e9, latency_s=5e-6)


def gpt(layers: int, hidden: int, heads: int) -> Decoder:
    return formulas.dense_decoder(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=51200,
        is_gated=False,
        is_tied=True,
        learned_positions=2048,
    )


# --- collectives ---------------------------------------------------------------------------------


def test_a_ring_moves_all_but_one_share_in_one_step_less_than_ranks() -> None:
    # 7 steps of 5 us, 7/8 of 80 MB over 200 GB/s: 35 us + 350 us
    assert reduce_scatter_s(8, 80e6, LINK) == pytest.approx(385e-6, rel=1e-12)
    assert all_gather_s(8, 80e6, LINK) == reduce_scatter_s(8, 80e6, LINK)
    assert all_to_all_s(8, 80e6, LINK) == reduce_scatter_s(8, 80e6, LINK)


def test_an_all_reduce_moves_twice_that() -> None:
    # 2 (n-1)/n of the bytes: 14 steps, 140 MB
    assert all_reduce_s(8, 80e6, LINK) == pytest.approx(770e-6, rel=1e-12)


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert all_reduce_s(1, 80e6, LINK) == all_gather_s(1, 80e6, LINK) == 0


def test_a_send_is_its_latency_and_its_bytes() -> None:
    assert send_s(80e6, LINK) == pytest.approx(405e-6, rel=1e-12)


# --- links ---------------------------------------------------------------------------------------


def machine(**changes: Any) -> Machine:
    arguments: dict[str, Any] = {
        "peak": Peak(flops_per_s=100e12, dtype="bf16", device="a device"),
        "matmul_flops_per_s": 80e12,
        "bytes_per_s": 1e12,
        "memory_bytes": 80e9,
        "gpus_per_node": 8,
        "node": Link(bytes_per_s=400e9, latency_s=1e-6),
        "network": Link(bytes_per_s=50e9, latency_s=10e-6),
    }
    return Machine(**{**arguments, **changes})


def test_ranks_of_one_node_use_its_link() -> None:
    one = machine()
    assert one.tensor_link(Layout(gpus=8, tp=8)) == one.node
    assert one.data_link(Layout(gpus=8, tp=2)) == one.node


def test_a_ring_out_of_a_node_uses_the_network_links_of_all_its_ranks_there() -> None:
    one = machine()
    # 8 data-parallel ranks a node: 8 links of 50 GB/s, as fast as the node's own
    assert one.data_link(Layout(gpus=16)).bytes_per_s == 400e9
    # with tp 4 two of them share a node
    assert one.data_link(Layout(gpus=16, tp=4)).bytes_per_s == 100e9
    assert one.data_link(Layout(gpus=16, tp=8)) == one.network
    # tensor parallelism over two nodes
    assert one.tensor_link(Layout(gpus=16, tp=16)).bytes_per_s == 400e9


def test_where_stages_are_depends_on_the_order_of_ranks() -> None:
    one = machine()
    layout = Layout(gpus=16, tp=2, pp=4)
    assert one.pipeline_link(layout) == one.network  # tp 2, dp 2: neighbours are 4 ranks apart
    inner = Layout(gpus=16, tp=2, pp=4, order="tp-cp-pp-dp")
    assert one.pipeline_link(inner) == one.node


def test_tokens_that_go_to_experts_of_other_nodes_use_the_own_link_of_each_rank() -> None:
    one = machine()
    assert one.expert_link(Layout(gpus=16, ep=8)) == one.node
    assert one.expert_link(Layout(gpus=16, ep=16)) == one.network


def test_every_interconnect_is_of_a_device_of_the_table() -> None:
    names = {row.name for row in table()}
    for one in interconnects():
        assert set(one.devices) <= names
        assert one.bytes_per_s > 0 and one.source and one.technology


def test_nvlink_is_half_of_what_its_vendor_adds_up() -> None:
    found = {one.devices[-1]: one.bytes_per_s for one in interconnects() if one.reach == "node"}
    assert found["A100 SXM4 80GB"] == 600e9 / 2
    assert found["H100 SXM5"] == 900e9 / 2
    assert found["B200 SXM"] == 14.4e12 / 8 / 2


def test_a_machine_says_where_its_figures_are_from() -> None:
    found = machine_of("h100-sxm")
    assert found.matmul_flops_per_s == 794.5e12
    assert found.node.bytes_per_s == pytest.approx(450e9 * 235 / 300)
    assert found.network.bytes_per_s == pytest.approx(50e9 * 235 / 300)
    text = "\n".join(found.notes)
    for words in ("H100 whitepaper", "2048x2048x13312", "NVLink 4", "DGX H100", "235 of 300"):
        assert words in text
    given = machine_of("h100-sxm", efficiency=0.6, node_bytes_per_s=200e9, link_efficiency=1)
    assert given.matmul_flops_per_s == pytest.approx(0.6 * 989.4e12)
    assert given.node.bytes_per_s == 200e9
    assert "60.0 % of it, as given" in "\n".join(given.notes)


@pytest.mark.parametrize(
    ("device", "arguments", "message"),
    [
        ("h200-sxm", {}, "what matmuls reach on h200-sxm in bf16 is not published here"),
        ("l4", {"efficiency": 0.8}, "what connects L4 in a node is not in the table"),
        ("mi300x", {}, "out of a node is not in the table; give --inter-node-bandwidth"),
        ("a100-80gb", {}, "'a100-80gb' is a100-sxm-80gb, a100-pcie-80gb; say one"),
        ("h100-sxm", {"efficiency": 1.2}, "efficiency is 1.2; expected a share"),
        ("h100-sxm", {"node_bytes_per_s": 0.0}, "node_bytes_per_s is 0.0"),
        ("h100-sxm", {"gpus_per_node": 0}, "gpus_per_node is 0"),
    ],
)
def test_what_is_not_known_is_never_taken(
    device: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        machine_of(device, **arguments)


def test_a_network_that_is_not_used_may_be_unknown() -> None:
    assert "network: not used" not in machine_of("mi300x", needs_network=False).notes


# --- layouts -------------------------------------------------------------------------------------


SMALL = formulas.dense_decoder(layers=8, hidden=64, heads=8, kv_heads=2, ffn=128, vocab=64)


@pytest.mark.parametrize(
    ("arguments", "dp", "message"),
    [
        ({"gpus": 12, "tp": 8}, None, "tp 8 x pp 1 is 8, which does not divide 12 GPUs"),
        ({"gpus": 64, "tp": 4, "pp": 2}, 4, "x dp 4 is 32, not 64 GPUs; expected dp 8"),
        ({"gpus": 24, "pp": 3}, None, "8 layers cannot be spread evenly over pp 3"),
        (
            {"gpus": 8, "pp": 4, "virtual_stages": 4, "micro_batches": 8},
            None,
            "over pp 4 x 4 virtual stages; expected a multiple of 16",
        ),
        (
            {"gpus": 8, "pp": 4, "virtual_stages": 2, "micro_batches": 2},
            None,
            "2 micro-batches over pp 4: the interleaved schedule needs a multiple of pp",
        ),
        ({"gpus": 8, "virtual_stages": 2}, None, "2 virtual stages need pp above 1"),
        ({"gpus": 16, "tp": 16}, None, "heads 8 is no multiple of tp 16"),
        ({"gpus": 8, "cp": 8, "seq": 1028}, None, "seq 1028 is no multiple of cp 8"),
        ({"gpus": 8, "ep": 3}, None, "ep 3 does not divide the 8 data-parallel ranks"),
        ({"gpus": 8, "ep": 2}, None, "ep 2 spreads experts, and the model has none"),
        ({"gpus": 8, "sequence_parallel": True}, None, "splits over tp ranks; tp is 1"),
    ],
)
def test_a_contradiction_is_one_clear_line(
    arguments: dict[str, Any], dp: int | None, message: str
) -> None:
    with pytest.raises(ContradictionError, match=message) as refused:
        Layout(**arguments).check(SMALL, dp)
    assert "\n" not in str(refused.value)


def test_experts_have_to_be_shared_evenly() -> None:
    part = Experts(experts=6, chosen=2, width=64)
    model = Decoder(hidden=64, vocab=64, blocks=(Block(parts=(part,)),))
    with pytest.raises(ContradictionError, match="6 experts are no multiple of ep 4"):
        Layout(gpus=8, ep=4).check(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"gpus": 8, "tp": -1}, "tp is -1"),
        ({"gpus": 8, "recompute": "some"}, "recompute is 'some'; expected one of none"),
        ({"gpus": 8, "zero": 4}, "zero is 4; expected one of 0, 1, 2, 3"),
        ({"gpus": 8, "overlap": ("all",)}, "overlap is 'all'; expected one of tp, cp"),
    ],
)
def test_what_is_no_layout_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(**arguments)


def test_embedding_and_head_can_take_the_place_of_layers() -> None:
    llama = formulas.dense_decoder(layers=126, hidden=64, heads=8, ffn=64, vocab=64)
    with pytest.raises(ContradictionError, match="126 layers cannot"):
        Layout(gpus=16, pp=16).check(llama)
    Layout(gpus=16, pp=16, ends_as_layers=True).check(llama)


# --- memory --------------------------------------------------------------------------------------


GIB = 2**30


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "layout", "without", "selective"),
    [
        # Korthikanti et al. 2022, Figure 1: GiB of activations with tensor parallelism alone, and
        # with sequence parallelism and selective recompute.
        (48, 6144, 64, {"pp": 1, "micro_batch_size": 4}, 59.25, 9.5625),
        (96, 12288, 96, {"pp": 8, "virtual_stages": 3}, 66.84375, 12.3515625),
        (105, 20480, 128, {"pp": 35, "virtual_stages": 3}, 114.0234375, 23.076171875),
        (128, 25600, 160, {"pp": 64}, 131.25, 26.5625),
    ],
)
def test_activations_are_those_of_korthikantis_first_figure(
    layers: int,
    hidden: int,
    heads: int,
    layout: dict[str, int],
    without: float,
    selective: float,
) -> None:
    model = gpt(layers, hidden, heads)
    pp = layout["pp"]
    common: dict[str, Any] = {
        **{"gpus": 8 * pp, "tp": 8, "seq": 2048, "micro_batches": pp, "attention": "unfused"},
        **layout,
    }
    logits = 4 * 51200 / 8 * 2048 * layout.get("micro_batch_size", 1) if pp == 1 else 0
    plain = activation_bytes(model, Layout(**common)) - logits
    assert plain / GIB == pytest.approx(without, rel=1e-9)
    spread = Layout(**common, sequence_parallel=True, recompute="selective")
    assert (activation_bytes(model, spread) - logits) / GIB == pytest.approx(selective, rel=1e-9)


def test_full_recompute_keeps_the_input_of_each_layer() -> None:
    model = gpt(8, 1024, 8)
    layout = Layout(gpus=8, tp=2, pp=4, micro_batches=4, seq=2048, recompute="full")
    # sbh * 2 bytes, 2 layers of 4 micro-batches in flight
    assert activation_bytes(model, layout) == 2 * 2048 * 1024 * 2 * 4


def test_parameters_take_18_bytes_and_zero_spreads_them() -> None:
    model = gpt(8, 1024, 8)
    layers = 12 * 8 * 1024**2
    ends = (51200 + 2048) * 1024
    layout = Layout(gpus=16, tp=2, pp=2, micro_batches=2)
    assert parameters_on_rank(model, layout) == ((layers / 2 + ends) / 2, 0)
    dense = (layers / 2 + ends) / 2
    for zero, states in ((0, 18), (1, 6 + 12 / 4), (2, 2 + 16 / 4), (3, 18 / 4)):
        import msgspec

        found = memory_of(model, msgspec.structs.replace(layout, zero=zero), None)
        held = found.parameters + found.gradients + found.optimizer
        assert held == pytest.approx(states * dense)
        assert found.fits is None


def test_experts_are_spread_over_their_ranks() -> None:
    part = Experts(experts=8, chosen=2, width=32)
    model = Decoder(hidden=16, vocab=64, blocks=(Block(parts=(part,), count=2),), has_head=False)
    dense, experts = parameters_on_rank(model, Layout(gpus=8, ep=4))
    assert experts == 2 * 8 * 3 * 16 * 32 / 4
    assert dense == 2 * 16 * 8 + 64 * 16  # routers and embedding


def test_what_does_not_fit_does_not_fit() -> None:
    found = memory_of(gpt(96, 12288, 96), Layout(gpus=64, tp=8, pp=1), 80e9)
    assert found.fits is False
    assert found.total > 300e9


# --- traffic -------------------------------------------------------------------------------------


def test_operations_without_a_product_of_gpts_layer() -> None:
    (block,) = gpt(1, 1024, 16).blocks
    attention, mlp = block.parts
    options: dict[str, Any] = {"tp": 1, "is_split_by_tokens": False, "is_fused": True}
    plain = traffic_of(attention, 1024, 2048, **options)
    assert (plain.forward, plain.backward) == (10 * 1024, 12 * 1024)
    unfused = traffic_of(attention, 1024, 2048, **{**options, "is_fused": False})
    assert unfused.scores == 9 * 16 * 2048
    assert unfused.backward == 12 * 1024 + 11 * 16 * 2048
    wide = traffic_of(mlp, 1024, 2048, **options)
    assert (wide.forward, wide.backward) == (10 * 1024 + 4 * 4096, 12 * 1024 + 6 * 4096)


def test_tensor_parallel_ranks_share_what_they_split() -> None:
    mlp = MLP(width=4096)
    half = traffic_of(mlp, 1024, 1, tp=2, is_split_by_tokens=False, is_fused=True)
    assert half.forward == 10 * 1024 + 6 * 2048
    split = traffic_of(mlp, 1024, 1, tp=2, is_split_by_tokens=True, is_fused=True)
    assert split.forward == 5 * 1024 + 6 * 2048
