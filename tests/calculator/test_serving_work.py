"""What inference computes and moves, in closed form, against numbers worked by hand."""

from __future__ import annotations

import pytest

from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Block, Decoder, Experts, LatentAttention, Mamba2
from mfu_torch.flops.formulas.inference import (
    cached_numbers,
    decode,
    expected_experts,
    prefill,
    weights_met,
)

LLAMA_8B = formulas.dense_decoder(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, others=65 * 4096
)
SMALL = formulas.dense_decoder(layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=10)
MIXTURE = Decoder(
    hidden=8,
    vocab=10,
    blocks=(Block(parts=(Experts(experts=8, chosen=2, width=4, is_gated=False),)),),
    is_tied=True,
)
LATENT = LatentAttention(
    heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
)
DEEPSEEK = Decoder(hidden=7168, vocab=129280, blocks=(Block(parts=(LATENT,), count=61),))


def test_a_token_of_llama_3_8b_at_8192_keys() -> None:
    work = decode(LLAMA_8B, context=8192)
    # 2 W, and for each of 32 layers 2 * 32 heads * (128 + 128) * 8192 keys
    assert work.flops == 2 * 7_504_658_432 + 32 * 2 * 32 * 256 * 8192 == 19_304_284_160
    # All weights that multiply, norms, one row of the embedding.
    assert work.weights_read == 7_504_658_432 + 65 * 4096 + 4096
    # 2 * 8 key heads * 128, of 32 layers: 65536 numbers a token
    assert work.cache_moved == work.cache_held == 8192 * 65536
    assert work.tokens == 1


def test_weights_are_read_once_for_a_batch_and_the_cache_for_each_sequence() -> None:
    one, many = decode(LLAMA_8B, context=100), decode(LLAMA_8B, context=100, batch=16)
    assert many.flops == 16 * one.flops
    assert many.cache_moved == 16 * one.cache_moved
    assert many.weights_read == one.weights_read + 15 * 4096  # 15 more rows of the embedding


def test_a_tied_head_is_read_once_and_has_no_rows_besides() -> None:
    tied = formulas.dense_decoder(layers=2, hidden=8, heads=2, ffn=16, vocab=10, is_tied=True)
    assert decode(tied, batch=4).weights_read == tied.parameters.weights


def test_a_prefill_is_a_forward_and_writes_its_cache() -> None:
    work = prefill(SMALL, batch=3, context=5)
    assert work.flops == SMALL.flops(batch=3, seq=5).forward
    assert work.cache_moved == work.cache_held == 3 * 5 * 2 * 8  # 2 layers, k and v of 1 head of 4
    assert work.tokens == 15


def test_a_window_limits_scores_and_cache() -> None:
    near = formulas.dense_decoder(layers=2, hidden=8, heads=2, ffn=16, vocab=10, window=4)
    assert decode(near, context=100) == decode(near, context=4)
    assert cached_numbers(near, 100) == 2 * 4 * 16
    assert cached_numbers(near, 3) == 2 * 3 * 16


def test_one_token_meets_the_experts_that_are_chosen_for_it() -> None:
    # router 8 * 8, head 10 * 8, 2 experts of 2 * 8 * 4
    assert weights_met(MIXTURE, 1) == 64 + 80 + 2 * 64 == MIXTURE.parameters.used


def test_a_batch_meets_the_expected_number_of_experts() -> None:
    # 8 (1 - (6/8)^2) = 3.5
    assert expected_experts(8, 2, 2) == pytest.approx(3.5, rel=1e-12)
    assert weights_met(MIXTURE, 2) == pytest.approx(64 + 80 + 3.5 * 64, rel=1e-12)
    assert weights_met(MIXTURE, 10_000) == pytest.approx(64 + 80 + 8 * 64, rel=1e-12)
    assert decode(MIXTURE, batch=10_000).flops == 10_000 * 2 * (64 + 80 + 2 * 64)


def test_biases_of_experts_that_are_not_met_are_not_read() -> None:
    import msgspec

    biased = msgspec.structs.replace(MIXTURE, others=8 * 12, idle=6 * 12)
    assert weights_met(biased, 1) == weights_met(MIXTURE, 1) + 2 * 12
    assert weights_met(biased, 2) == pytest.approx(weights_met(MIXTURE, 2) + 3.5 * 12, rel=1e-12)


def test_latent_attention_decodes_over_its_latents() -> None:
    # 128 heads: scores over 512 + 64, values over 512; the cache has 576 numbers a token
    products = 2 * DEEPSEEK.parameters.used
    absorbed = decode(DEEPSEEK, context=4096)
    assert absorbed.flops == products + 61 * 2 * 128 * (512 + 64 + 512) * 4096
    assert absorbed.cache_held == 61 * 4096 * 576
    expanded = decode(DEEPSEEK, context=4096, latent="expanded")
    assert expanded.flops == products + 61 * 2 * 128 * (128 + 64 + 128) * 4096
    assert expanded.cache_held == 61 * 4096 * 128 * 320
    recomputed = decode(DEEPSEEK, context=4096, latent="recomputed")
    assert recomputed.flops == expanded.flops + 61 * 2 * 512 * 128 * 256 * 4095
    assert recomputed.cache_held == absorbed.cache_held


def test_deepseek_v3_caches_70_kb_a_token() -> None:
    # "Insights into DeepSeek-V3" (ISCA 2025), Table 1: 70.272 KB; Llama 3.1 405B: 516.096 KB
    assert 2 * cached_numbers(DEEPSEEK, 1) == 70_272
    llama = formulas.dense_decoder(
        layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256
    )
    assert 2 * cached_numbers(llama, 1) == 516_096


def test_layers_for_further_tokens_do_not_run() -> None:
    import msgspec

    more = msgspec.structs.replace(SMALL, mtp=SMALL.blocks[:1])
    assert decode(more, context=7) == decode(SMALL, context=7)
    assert prefill(more, context=7) == prefill(SMALL, context=7)


def test_a_state_is_as_large_whatever_the_context() -> None:
    part = Mamba2(heads=4, head_dim=8, state=16, kernel=4)
    model = Decoder(hidden=16, vocab=10, blocks=(Block(parts=(part,), count=3),))
    short, long = decode(model, context=1), decode(model, context=100_000)
    assert short == long
    # a state of 32 * 16 and three inputs of the filter over 32 + 2 * 16 channels, in 3 layers
    assert short.cache_held == 3 * (32 * 16 + 64 * 3)
    assert short.cache_moved == 2 * short.cache_held  # read and written
    # the filter, B x^T into the state, C times the state
    core = 2 * 64 * 4 + 2 * 32 * 16 + 2 * 32 * 16
    assert short.flops == 2 * model.parameters.used + 3 * core


def test_a_model_without_tokens_has_a_prefill_that_is_its_forward() -> None:
    model = formulas.vit(layers=2, hidden=8, heads=2, ffn=16, image=8, patch=4, classes=3)
    work = prefill(model, batch=4)
    assert work.flops == model.flops(4).forward
    assert (work.tokens, work.cache_moved) == (4, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch is 0; expected a whole number above 0"),
        ({"context": -1}, "context is -1; expected a whole number above 0"),
        ({"latent": "both"}, "latent is 'both'; expected one of absorbed, expanded, recomputed"),
    ],
)
def test_what_is_no_step_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(SMALL, **arguments)  # type: ignore[arg-type]
