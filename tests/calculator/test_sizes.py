"""Models by the sizes that a paper's table has."""

from __future__ import annotations

import pytest

from mfu_torch.calculator import calculate
from mfu_torch.calculator.sizes import model_of
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas.configs import ModelError

TINY = "layers=22 hidden=2048 heads=32 kv_heads=4 ffn=5632 vocab=32000"
MIXTRAL = (
    "layers=32 hidden=4096 heads=32 kv_heads=8 experts=8 chosen=2 expert_ffn=14336 vocab=32000"
)
DEEPSEEK = (
    "layers=61 hidden=7168 heads=128 vocab=129280 ffn=18432 dense_layers=3 experts=256 chosen=8 "
    "expert_ffn=2048 shared_ffn=2048 query_rank=1536 kv_rank=512 nope_dim=128 rope_dim=64 "
    "value_dim=128"
)


def test_sizes_make_the_decoder_that_python_makes() -> None:
    built = formulas.dense_decoder(
        layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632, vocab=32000
    )
    found = model_of(TINY)
    assert found.model == built
    assert found.name == "a decoder of 1.1B parameters" and found.seq is None
    assert any("mlp=plain" in line for line in found.notes)


def test_commas_and_thousands_separate_as_well() -> None:
    assert model_of("layers=2,hidden=64, heads=4;ffn=256,vocab=100").model.layers == 2  # type: ignore[attr-defined]


def test_a_plain_mlp_tied_embeddings_and_positions_are_said() -> None:
    found = model_of("layers=2 hidden=8 heads=2 ffn=32 vocab=10 mlp=plain tied=yes positions=5")
    # 2 layers of 4 * 64 + 2 * 8 * 32, one table of 10 * 8, 5 positions of 8
    assert found.model.parameters.total == 2 * (256 + 512) + 80 + 40
    assert found.notes == ()


@pytest.mark.parametrize(("text", "name"), [(MIXTRAL, "mixtral-8x7b"), (DEEPSEEK, "deepseek-v3")])
def test_experts_and_latent_attention_are_those_of_the_known_model(text: str, name: str) -> None:
    known = calculate(model=name, seq=4096, tokens_per_s=1, peak_flops_per_s=1e15)
    found = calculate(model=text, seq=4096, tokens_per_s=1, peak_flops_per_s=1e15)
    assert found.work.model_flops == pytest.approx(known.work.model_flops, rel=1e-12)


def test_tinyllama_is_56_percent_as_its_page_says() -> None:
    found = calculate(
        model=TINY, seq=2048, tokens_per_s_per_device=24e3, device="a100-sxm-40gb", devices=16
    )
    # W = 22 * (2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 5632) + 2048 * 32000
    weights = 22 * (2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 5632) + 2048 * 32000
    worked = (6 * weights + 12 * 22 * 2048 * 2048) * 24e3 / 312e12
    assert found.mfu == pytest.approx(worked, rel=1e-12)
    assert round(100 * worked) == 56


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=22", "lack hidden, heads, vocab, ffn"),
        ("layer=22 hidden=8", "'layer=22' is no size, did you mean layers"),
        ("=", "'=' is no size"),
        ("layers=0 hidden=8 heads=2 ffn=1 vocab=2", "layers: '0' is not above 0"),
        ("layers=nan", "layers: 'nan' is not understood"),
        ("layers=1e400", "layers: '1e400' is more than a number"),
        ("layers=1e12", "layers is 1e12; expected a whole number from 1 to 1000000000"),
        ("layers=2 layers=3", "layers is given twice"),
        ("layers=2 hidden=9 heads=2 ffn=1 vocab=2", "hidden 9 is no multiple of heads 2"),
        ("layers=2 hidden=8 heads=4 kv_heads=3 ffn=1 vocab=2", "no multiple of kv_heads 3"),
        ("layers=2 hidden=8 heads=4 ffn=1 vocab=2 mlp=wide", "mlp is 'wide'; expected gated or"),
        (
            "layers=2 hidden=8 heads=4 ffn=1 vocab=2 experts=4",
            "experts says nothing without chosen",
        ),
        ("layers=2 hidden=8 heads=4 vocab=2 chosen=2", "lack experts, expert_ffn"),
        ("layers=2 hidden=8 heads=4 vocab=2 chosen=5 experts=4 expert_ffn=2", "above experts 4"),
        ("layers=2 hidden=8 heads=4 ffn=1 vocab=2 rope_dim=4", "says nothing without kv_rank"),
        ("no-such-model", "or sizes: layers=22 hidden=2048"),
    ],
)
def test_sizes_that_make_no_model_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ModelError) as refused:
        model_of(text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(tmp_path: object) -> None:
    path = f"{tmp_path}/a=b.json"
    with open(path, "w", encoding="utf-8") as file:
        file.write("{}")
    with pytest.raises(ModelError, match="has no model_type"):
        model_of(path)
    with pytest.raises(ModelError, match="is no size"):
        model_of("x" * 5000 + "=1")
