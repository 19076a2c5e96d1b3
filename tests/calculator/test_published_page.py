"""docs/published.md is what the code produces."""

from __future__ import annotations

import difflib

import published_page
import pytest

from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import flops_per_token

LLAMA_8B = formulas.dense_decoder(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256
)
LLAMA_70B = formulas.dense_decoder(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000
)
LLAMA_2_7B = formulas.dense_decoder(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000)
LLAMA_405B = formulas.dense_decoder(
    layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256
)


def gpt_oss(layers: int, experts: int, head_dim: int) -> float:
    """FLOPs a token, without the router; every other layer sees 128 keys."""
    moe = formulas.Experts(experts=experts, chosen=4, width=2880)
    blocks = [
        formulas.Block(
            parts=(
                formulas.Attention(
                    heads=64, kv_heads=8, head_dim=head_dim, mask=formulas.Mask(window=window)
                ),
                moe,
            ),
            count=layers // 2,
        )
        for window in (None, 128)
    ]
    model = formulas.Decoder(hidden=2880, vocab=201088, blocks=tuple(blocks))
    return float(flops_per_token("matmul-causal", model, 4096, without=("router",)))


def gpt_oss_ungated(per_s: float, seq: int, products: int = 2) -> float:
    """TFLOP/s, without the router, of half of all scores and so many products of each expert."""
    moe = formulas.Experts(experts=128, chosen=4, width=2880)
    attention = formulas.Attention(heads=64, kv_heads=8, head_dim=64)
    block = formulas.Block(parts=(attention, moe), count=36)
    model = formulas.Decoder(hidden=2880, vocab=201088, blocks=(block,))
    each = float(flops_per_token("matmul-half", model, seq, without=("router",)))
    return per_s * (each - (3 - products) * 6 * 36 * 4 * 2880 * 2880) / 1e12


def share(model: formulas.Decoder, convention: str, seq: int, per_s: float, peak: float) -> float:
    return 100 * float(flops_per_token(convention, model, seq)) * per_s / peak


# As it stands on the page -> worked.
WORKED = {
    "123 tokens/s give 35.2 %": (share(LLAMA_405B, "matmul", 8192, 123, 918e12), 35.2),
    "692 tokens/s give 67.0 %": (share(LLAMA_70B, "matmul", 4096, 692, 459e12), 67.0),
    "or 64.6 % with attention halved": (share(LLAMA_70B, "matmul-half", 4096, 692, 459e12), 64.6),
    "279 and 231 TFLOP/s are what": (gpt_oss(24, 32, 45) * 256 * 4096 / 10.04 / 8 / 1e12, 279),
    "231 TFLOP/s are what heads of": (gpt_oss(36, 128, 45) * 512 * 4096 / 4.30 / 64 / 1e12, 231),
    "it is 299 and 249": (gpt_oss(24, 32, 64) * 256 * 4096 / 10.04 / 8 / 1e12, 299),
    "and 249.": (gpt_oss(36, 128, 64) * 512 * 4096 / 4.30 / 64 / 1e12, 249),
    "565, 488, 223 and 153 TFLOP/s": (gpt_oss_ungated(18347, 8192), 565),
    "488, 223 and 153 TFLOP/s": (gpt_oss_ungated(15876, 8192), 488),
    "223 and 153 TFLOP/s": (gpt_oss_ungated(8213, 4096), 223),
    "153 TFLOP/s are what two": (gpt_oss_ungated(5630, 4096), 153),
    "696, 603, 282 and 193": (gpt_oss_ungated(18347, 8192, 3), 696),
    "603, 282 and 193": (gpt_oss_ungated(15876, 8192, 3), 603),
    "282 and 193 TFLOP/s": (gpt_oss_ungated(8213, 4096, 3), 282),
    "193 TFLOP/s, and less": (gpt_oss_ungated(5630, 4096, 3), 193),
    "by which it is 534": (2139 * 961 / 3848, 534),
    "are 55.6 % as PaLM": (share(LLAMA_2_7B, "palm", 4096, 3700, 312e12), 55.6),
    "which are 56.5 %": (share(LLAMA_2_7B, "palm", 4096, 3760, 312e12), 56.5),
    "which are 3772 tokens/s": (2.2e12 / 162e3 / 3600, 3772),
    "249 TFLOP/s are 54.2 % of 459": (249 / 4.59, 54.2),
    "which are 40.4, 38.8": (126 / 3.12, 40.4),
    "38.8 and 36.2 % of 312": (121 / 3.12, 38.8),
    "and 36.2 % of 312": (113 / 3.12, 36.2),
    "19.7 % of 125": (24.6 / 1.25, 19.7),
    "31737 tokens/s and 1838 TFLOP/s": (share(LLAMA_8B, "matmul", 8192, 31737, 1e14), 1838),
    "31357 tokens/s and 1614 TFLOP/s": (share(LLAMA_8B, "matmul-half", 8192, 31357, 1e14), 1614),
}


@pytest.mark.parametrize("words", WORKED)
def test_a_number_in_the_text_is_right(words: str) -> None:
    value, stated = WORKED[words]
    assert words in " ".join(published_page.PAGE.read_text(encoding="utf-8").split())
    assert value == pytest.approx(stated, rel=2.5e-3)


def test_the_page_is_what_the_code_produces() -> None:
    written = published_page.PAGE.read_text(encoding="utf-8")
    produced = published_page.page(written)
    difference = difflib.unified_diff(written.splitlines(), produced.splitlines(), n=0, lineterm="")
    assert list(difference) == [], f"write it again: {published_page.COMMAND}"
