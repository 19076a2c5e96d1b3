"""MFU, MBU and the roofline of inference, against numbers worked by hand and published ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from mfu_torch.calculator.serving import Serving, render, serve
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Block, Decoder, Experts, LatentAttention


class Model(NamedTuple):
    name: str
    model: Any


LLAMA_8B = Model(
    "Llama 3 8B",
    formulas.dense_decoder(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, others=65 * 4096
    ),
)
LLAMA_2_7B = Model(
    "Llama 2 7B",
    formulas.dense_decoder(
        layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, others=65 * 4096
    ),
)
LLAMA_2_70B = Model(
    "Llama 2 70B",
    formulas.dense_decoder(
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000, others=161 * 8192
    ),
)
H100: dict[str, Any] = {"flops_per_s": 989.4e12, "bytes_per_s": 3.352e12}
A100: dict[str, Any] = {"flops_per_s": 312e12, "bytes_per_s": 2.039e12}


def decoded(model: Model = LLAMA_8B, **arguments: Any) -> Serving:
    return serve(model, **{"mode": "decode", "batch": 1, "context": 1, **H100, **arguments})


def test_llama_3_8b_one_sequence_on_an_h100() -> None:
    found = decoded()
    # (8.03e9 parameters - 0.525e9 of the embedding) in 2 bytes, over 3.352e12 B/s
    assert found.weight_bytes_read == 2 * (7_504_658_432 + 65 * 4096 + 4096) == 15_009_857_536
    assert found.cache_bytes_moved == 2 * 65536
    assert found.memory_s == pytest.approx(15.0100e9 / 3.352e12, rel=1e-4)  # 4.478 ms
    assert found.compute_s == pytest.approx(15.0096e9 / 989.4e12, rel=1e-4)  # 15.2 us
    assert (found.binds, found.time_s) == ("memory", found.memory_s)
    assert found.best_tokens_per_s == pytest.approx(223.3, abs=0.05)
    assert found.intensity == pytest.approx(1.0, abs=1e-3)
    assert found.ridge == pytest.approx(989.4 / 3.352)  # 295.2 FLOP/byte


def test_compute_binds_from_the_ridge_on_where_there_is_no_cache_to_speak_of() -> None:
    found = decoded()
    assert found.roofline_batch is not None
    # f = 2W, so without a cache the batch is ridge * bytes / 2W = 295.2 and the rows' share
    assert 295 < found.roofline_batch < 300
    assert decoded(batch=found.roofline_batch).binds == "compute"
    assert decoded(batch=found.roofline_batch - 1).binds == "memory"


def test_the_cache_of_long_sequences_keeps_decoding_memory_bound_at_any_batch() -> None:
    found = decoded(context=8192)
    assert found.roofline_batch is None
    # 19.3e9 FLOPs over 1.07e9 bytes of a sequence
    assert "memory-bound at any batch" in found.roofline_note
    assert "18 FLOP for a byte" in found.roofline_note
    assert decoded(context=8192, batch=100_000).binds == "memory"


def test_a_prefill_is_bound_by_compute() -> None:
    found = serve(LLAMA_8B, mode="prefill", batch=1, context=8192, **H100)
    assert found.binds == "compute"
    assert found.flops == LLAMA_8B.model.flops(seq=8192).forward
    assert found.tokens == 8192
    assert found.best_tokens_per_s == pytest.approx(8192 * 989.4e12 / found.flops)
    assert any("attention full" in line for line in found.assumptions)


def test_measured_tokens_give_mfu_and_mbu() -> None:
    found = decoded(tokens_per_s=150.0)
    assert found.mbu == pytest.approx(150 * (15_009_857_536 + 131_072) / 3.352e12)  # 67.2 %
    assert found.mfu == pytest.approx(150 * found.flops / 989.4e12)  # 0.23 %
    shared = decoded(tokens_per_s=150.0, devices=4)
    assert shared.mbu == pytest.approx(found.mbu / 4)


@pytest.mark.parametrize(
    ("model", "weight_bytes", "devices", "tokens_per_s", "gb_per_s", "tolerance"),
    [
        (LLAMA_2_7B, 2, 1, 104.9, 1397.31, 0.002),
        (LLAMA_2_7B, 1, 1, 155.58, 1069.20, 0.025),  # scales of int8 and its head in bf16
        (LLAMA_2_70B, 2, 2, 21.32, 1481.87, 0.012),  # the head is not shared there
    ],
)
def test_the_bandwidth_that_gpt_fast_reports(
    model: Model,
    weight_bytes: float,
    devices: int,
    tokens_per_s: float,
    gb_per_s: float,
    tolerance: float,
) -> None:
    # pytorch-labs/gpt-fast, README: A100-80GB, batch 1, 200 tokens from a prompt of 5; bandwidth
    # is tokens/s times the bytes of the model and its cache, of one GPU.
    found = decoded(
        model,
        **A100,
        context=205,
        devices=devices,
        weight_bytes=weight_bytes,
        tokens_per_s=tokens_per_s,
    )
    assert found.mbu == pytest.approx(gb_per_s * 1e9 / 2.039e12, rel=tolerance)


def test_weights_and_cache_have_to_fit() -> None:
    found = decoded(context=8192, memory_bytes=80 * 2**30)
    assert found.needed_bytes == 2 * (8_030_261_248 + 8192 * 65536)
    assert found.fits is True
    assert decoded(context=8192, batch=100, memory_bytes=80 * 2**30).fits is False
    assert decoded(context=8192, batch=100, memory_bytes=80 * 2**30, devices=2).fits is True
    assert decoded().fits is None


def test_without_a_bandwidth_nothing_is_said_about_what_binds() -> None:
    found = decoded(bytes_per_s=None, tokens_per_s=100.0)
    assert (found.binds, found.time_s, found.best_tokens_per_s, found.mbu) == (None,) * 4
    assert found.mfu is not None
    assert found.roofline_note == "the memory bandwidth is not known"
    assert "unknown: the memory bandwidth is not known" in render(found)


def test_a_batch_that_meets_more_experts_reads_more() -> None:
    part = Experts(experts=8, chosen=2, width=64)
    model = Model("mixture", Decoder(hidden=32, vocab=64, blocks=(Block(parts=(part,)),)))
    one, two = decoded(model), decoded(model, batch=2)
    assert two.weight_bytes_read - one.weight_bytes_read == pytest.approx(
        2 * (1.5 * 3 * 32 * 64 + 32)
    )
    assert any("routed evenly" in line for line in two.assumptions)
    assert not any("routed evenly" in line for line in one.assumptions)


def test_how_latent_attention_decodes_is_said() -> None:
    part = LatentAttention(heads=4, query_rank=None, kv_rank=8, nope_dim=6, rope_dim=4, value_dim=6)
    model = Model("latent", Decoder(hidden=32, vocab=64, blocks=(Block(parts=(part,)),)))
    assert any("absorbed" in line for line in decoded(model).assumptions)
    expanded = decoded(model, latent="expanded")
    assert any("all heads" in line for line in expanded.assumptions)


def test_of_samples_the_context_changes_nothing() -> None:
    vit = formulas.vit(layers=2, hidden=8, heads=2, ffn=16, image=8, patch=4, classes=3)
    found = serve(Model("vit", vit), mode="prefill", batch=4, context=99, **H100)
    assert (found.flops, found.tokens) == (vit.flops(4).forward, 4)
    assert any("context changes nothing" in line for line in found.assumptions)


def test_a_model_that_does_not_decode_has_a_prefill() -> None:
    model = Model("bert", formulas.bert(layers=2, hidden=8, heads=2, ffn=16, vocab=10))
    with pytest.raises(ValueError, match="bert is no decoder"):
        decoded(model)
    assert serve(model, mode="prefill", batch=2, context=4, **H100).tokens == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"context": 0}, "context is 0"),
        ({"devices": 0}, "devices is 0; expected a finite number above 0"),
        ({"flops_per_s": float("nan")}, "flops_per_s is nan"),
        ({"bytes_per_s": -1.0}, "bytes_per_s is -1.0"),
        ({"kv_bytes": float("inf")}, "kv_bytes is inf"),
        ({"tokens_per_s": 0.0}, "tokens_per_s is 0.0"),
        ({"mode": "both"}, "mode is 'both'; expected prefill or decode"),
    ],
)
def test_absurd_inputs_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        decoded(**arguments)
    assert "\n" not in str(refused.value)


def test_the_text_has_every_figure_with_its_unit() -> None:
    found = decoded(batch=64, context=1024, tokens_per_s=8000.0, memory_bytes=80 * 2**30)
    text = render(found)
    for line in (
        "Llama 3 8B, decode, batch 64, context 1024, 1 device",
        "  ridge point        295 FLOP/byte (989.4 TFLOP/s over 3.35 TB/s)",
        "  binds              memory",
        "  at best            7.04 ms a step, 9,090.05 tokens/s, 142.03 for each sequence",
        "  weights and cache  24.7 GB fit the memory, 85.9 GB (80 GiB)",
        "  measured           8,000 tokens/s",
        "  MFU                12.57 %",
        "  MBU                88.01 %",
        "  bytes of a weight: 2, of a cached number: 2",
    ):
        assert line in text.splitlines()


def test_what_does_not_fit_says_so_first_and_has_no_best_throughput() -> None:
    # 131072 numbers of cache a token: 65536 x 2 bytes x 8192 tokens = 1.074 GB a sequence, beside
    # 16.06 GB of weights: (85.9 - 16.06) / 1.0737 = 65.04 sequences.
    found = decoded(batch=66, context=8192, memory_bytes=80 * 2**30)
    assert (found.fits, found.largest_batch) == (False, 65)
    assert decoded(batch=65, context=8192, memory_bytes=80 * 2**30).fits
    lines = render(found).splitlines()
    assert lines[1].startswith(
        "  weights and cache  86.9 GB do not fit the memory, 85.9 GB (80 GiB)"
    )
    assert lines[2] == "  largest batch      65 of this context fit"
    assert "at best" not in render(found)


def test_weights_alone_that_do_not_fit_leave_no_batch_but_a_number_of_devices() -> None:
    found = decoded(LLAMA_2_70B, memory_bytes=80 * 2**30)
    assert (found.fits, found.largest_batch) == (False, 0)
    assert "none: this batch takes 2 devices" in render(found)  # 138 GB over 85.9


def test_a_model_without_a_cache_has_no_largest_batch() -> None:
    resnet = Model("ResNet-50", formulas.resnet(50))
    found = serve(resnet, mode="prefill", batch=8, context=1, memory_bytes=80 * 2**30, **H100)
    assert (found.fits, found.largest_batch) == (True, None)


def test_what_was_measured_says_which_part_of_a_step_the_memory_explains() -> None:
    # 15.01 GB over 3.352e12 B/s are 4.48 ms of the 10 ms of a step.
    text = " ".join(render(decoded(tokens_per_s=100.0)).split())
    assert "a step takes 10.0 ms, of which weights and cache need 4.48 ms" in text
    assert "do not say what the other 5.52 ms are" in text
    assert "100.0 % of the bytes are weights, which a larger batch reads as often" in text


def test_a_share_above_1_is_called_impossible() -> None:
    assert "above 100 %" in render(decoded(tokens_per_s=1000.0))


def test_it_can_be_printed_as_json() -> None:
    decoded_json = msgspec.json.decode(msgspec.json.encode(decoded()))
    assert decoded_json["binds"] == "memory"
    assert decoded_json["flops"] == decoded().flops
