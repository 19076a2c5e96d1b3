"""The conventions of published numbers, against numbers that can be computed by hand.

GPT of 2 layers, hidden 8, 2 heads, MLP of 32, vocabulary 100, sequences of 16 tokens:
W = 2 (4 * 8 * 8 + 2 * 8 * 32) + 8 * 100 = 2336; scores and values 4 L h s = 4 * 2 * 8 * 16 = 1024
FLOPs a token forward.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import CONVENTIONS, flops_per_token

GPT = formulas.dense_decoder(
    layers=2, hidden=8, heads=2, ffn=32, vocab=100, is_gated=False, learned_positions=16, others=52
)
W, CORE, SEQ = 2336, 1024, 16
N = W + 100 * 8 + 16 * 8 + 52  # with the embedding, the positions, biases and norms


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul", 6 * W + 3 * CORE),
        ("matmul-half", 6 * W + 3 * CORE / 2),
        ("matmul-causal", 6 * W + 3 * CORE * 17 / 32),  # s (s + 1) / 2 of s² pairs
        ("palm", 6 * N + 3 * CORE),
        ("mosaic", 6 * N + 3 * CORE),
        ("6n", 6 * N),
        ("6w", 6 * W),
        ("lora", 4 * W + CORE),
        ("korthikanti", 72 * 2 * 64 * (1 + 16 / 48 + 100 / (12 * 8 * 2))),
        ("korthikanti-selective", 72 * 2 * 64 * (1 + 16 / 24 + 100 / (12 * 8 * 2))),
        ("megatron", 96 * 2 * 64 * (1 + 16 / 48 + 100 / (16 * 2 * 8))),
        ("full-recompute", 8 * W + 4 * CORE),
        ("palm-hardware", 7.5 * N + 4 * CORE),
        ("palm-selective", 6 * N + 4 * CORE),
        ("nanogpt", 6 * (N - 16 * 8) + 3 * CORE),
        ("torchtitan", 6 * (N - 100 * 8) + 3 * CORE),
        ("megatron-model", 72 * 2 * 64 * (1 + 16 / 48 + 100 / (16 * 2 * 8))),
        ("mosaic-hardware", 8 * N + 4 * CORE),
        ("8n", 8 * N),
    ],
)
def test_each_convention_of_a_small_gpt(name: str, expected: float) -> None:
    assert float(flops_per_token(name, GPT, SEQ)) == pytest.approx(expected, rel=1e-15)


def test_no_convention_is_without_a_number_above() -> None:
    mark = test_each_convention_of_a_small_gpt.pytestmark[0]  # type: ignore[attr-defined]
    assert {name for name, _ in mark.args[1]} >= {
        *("matmul", "matmul-causal", "palm", "korthikanti", "megatron", "mosaic", "6n", "lora")
    }
    assert {name for name, _ in mark.args[1]} == set(CONVENTIONS)


def test_of_a_gpt_korthikanti_is_matmul() -> None:
    assert flops_per_token("korthikanti", GPT, SEQ) == flops_per_token("matmul", GPT, SEQ)


def test_megatron_computes_the_layers_again_and_not_the_head() -> None:
    once = GPT.flops(seq=SEQ)
    assert flops_per_token("megatron", GPT, SEQ) * SEQ == once.hardware("full")
    assert once.hardware("full") == once.training + once.forward - 2 * SEQ * 8 * 100


def test_a_nominal_number_of_parameters_takes_the_place_of_the_model_s_own() -> None:
    assert flops_per_token("6n", GPT, SEQ, parameters=530e9) == 6 * Fraction(530e9)
    assert flops_per_token("6w", GPT, SEQ, parameters=530e9) == 6 * W


def test_palm_takes_heads_times_their_size_not_hidden() -> None:
    # PaLM 540B: 48 heads of 256 in 18432. TFLOP per token of Table 22: 3.28, with what is
    # computed again 4.10.
    palm = formulas.dense_decoder(
        layers=118, hidden=18432, heads=48, head_dim=256, kv_heads=1, ffn=73728, vocab=256000
    )
    assert float(flops_per_token("palm", palm, 2048, parameters=540.35e9)) == pytest.approx(
        6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048, rel=1e-15
    )
    again = float(flops_per_token("palm-hardware", palm, 2048, parameters=540.35e9))
    assert round(again / 1e12, 2) == 4.10


def test_one_run_of_llama_3_70b_has_an_mfu_from_36_to_56_percent() -> None:
    # 866.77 tokens/s per GPU at 8192 tokens, 989e12 FLOP/s; the figures are those that an
    # independent recomputation gave.
    llama = formulas.dense_decoder(
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        ffn=28672,
        vocab=128256,
        others=161 * 8192,
    )
    shares = {
        name: float(flops_per_token(name, llama, 8192)) * 866.77 / 989e12 * 100
        for name, convention in CONVENTIONS.items()
        if convention.is_general
    }
    assert round(shares["6w"], 2) == 36.55
    assert round(shares["6n"], 2) == 37.10
    assert round(shares["matmul-half"], 2) == 39.37
    assert round(shares["matmul"], 2) == 42.19
    assert round(shares["palm"], 2) == 42.75
    assert round(shares["full-recompute"], 2) == 56.26
    assert min(shares.values()) == shares["6w"]
    assert max(shares.values()) == shares["full-recompute"]


def test_experts_that_a_token_does_not_meet_count_nothing() -> None:
    experts = formulas.Experts(experts=8, chosen=2, width=16)
    attention = formulas.Attention(heads=2, kv_heads=2, head_dim=4)
    model = formulas.Decoder(
        hidden=8, vocab=10, blocks=(formulas.Block(parts=(attention, experts)),)
    )
    weights_used = 4 * 64 + 8 * 8 + 2 * 3 * 8 * 16 + 80
    assert model.parameters.used == weights_used
    assert model.parameters.total == 4 * 64 + 8 * 8 + 8 * 3 * 8 * 16 + 80 + 80
    assert flops_per_token("6n", model, 4) == 6 * (weights_used + 80)


@pytest.mark.parametrize(
    ("name", "seq", "parameters", "message"),
    [
        ("chinchilla", 16, None, "'chinchilla' is no convention; expected matmul, "),
        ("6n", 16, 0, "parameters is 0; expected a number above 0"),
        ("6n", 16, float("nan"), "parameters is nan"),
        ("6n", 16, float("inf"), "parameters is inf"),
        ("matmul", 0, None, "seq is 0; expected a whole number above 0"),
    ],
)
def test_what_cannot_be_computed_says_why(
    name: str, seq: int, parameters: float | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        flops_per_token(name, GPT, seq, parameters=parameters)
