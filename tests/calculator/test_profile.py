"""A model by itself: parameters, FLOPs of a token, the share of attention."""

from __future__ import annotations

from typing import Any

import pytest
from llama_sizes import TINY

from mfu_torch.calculator import InputError, read_question
from mfu_torch.calculator.profile import Profile, is_of_model_alone, profile
from mfu_torch.calculator.profile_table import chosen, render_models, render_profile
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas.known_table import known_families


def of(**given: Any) -> Profile:
    return profile(read_question(given))


def test_the_flops_and_the_share_of_scores_are_those_of_the_sizes() -> None:
    found = of(model=TINY, seq=5)
    # W 200, scores and values 2 x 2 x 4 x 5 = 80: 480 forward
    assert (found.forward_flops, found.training_flops) == (480, 1440)
    assert found.mixing_share == pytest.approx(80 / 480)
    assert found.mixing == ("scores", "values")
    costs = {cost.convention: cost.flops for cost in found.costs}
    assert (costs["6w"], costs["matmul"], costs["full-recompute"]) == (1200, 1440, 1920)
    assert [*costs.values()] == sorted(costs.values())


def test_a_known_model_has_its_length_and_its_source() -> None:
    found = of(model="llama-3-8b")
    assert (found.parameters, found.seq) == (8_030_261_248, 8192)
    assert found.forward_flops == 2 * 7_504_658_432 + 4 * 32 * 4096 * 8192
    assert "sequences of 8,192 tokens, as its source states" in found.assumptions
    text = render_profile(found)
    assert "8.03B (8,030,261,248)" in text
    assert "22.25 % of the forward in scores, values" in text
    assert max(map(len, text.splitlines())) <= 100


def test_of_a_mixture_the_active_parameters_are_printed() -> None:
    text = render_profile(of(model="mixtral-8x7b", seq=4096))
    assert "46.7B" in text and "12.88B that a token meets" in text


def test_without_a_length_parameters_are_known_and_scores_are_not() -> None:
    found = of(model=TINY)
    assert (found.parameters, found.forward_flops, found.mixing_share) == (240, None, None)
    assert [cost.convention for cost in found.costs] == ["6n"]
    assert any("no length of sequences is known" in line for line in found.assumptions)
    assert "None" not in render_profile(found)


def test_a_convention_that_is_asked_for_is_there_or_refused() -> None:
    assert "nanogpt" not in {cost.convention for cost in of(model=TINY, seq=5).costs}
    found = of(model=TINY, seq=5, convention="nanogpt")
    assert "nanogpt" in {cost.convention for cost in found.costs}
    with pytest.raises(InputError, match="nanogpt is for decoders"):
        of(model="bert-base", seq=128, convention="nanogpt")
    with pytest.raises(InputError, match="seq is missing"):
        of(model=TINY, convention="palm")


def test_formulas_that_presume_a_gpt_say_so() -> None:
    rows = render_profile(of(model="llama-3-8b")).splitlines()
    assert sum("of a GPT with this L and h" in row for row in rows) == 3
    assert max(map(len, rows)) <= 100


def test_a_model_of_samples_has_flops_of_a_sample_in_words() -> None:
    found = of(model="resnet-50")
    assert (found.unit, found.seq) == ("sample", None)
    formula = {cost.convention: cost.formula for cost in found.costs}
    assert formula["matmul"] == "2mnk of products, forward and backward"
    assert not any("LH" in text or "W" in text for text in formula.values())
    with pytest.raises(InputError, match="counted in samples"):
        of(model="resnet-50", seq=5)


def test_images_of_another_size_cost_more() -> None:
    small, large = of(model="vit-l/16"), of(model="vit-l/16", image_size=384)
    assert small.forward_flops is not None and large.forward_flops is not None
    assert large.forward_flops / small.forward_flops == pytest.approx(577 / 197, rel=0.1)
    assert "for 224 x 224 pixels" in small.notes and "for 384 x 384 pixels" in large.notes
    with pytest.raises(InputError, match="by its name or config"):
        of(model=TINY, image_size=384)
    with pytest.raises(InputError, match="takes no images"):
        of(model="layers=1 hidden=4 heads=2 ffn=8 vocab=10", image_size=384)


def test_more_tokens_than_positions_are_noted() -> None:
    notes = of(model="bert-base", seq=4096).notes
    assert "4096 tokens are beyond the 512 positions of bert-base" in notes


def test_letters_of_attention_are_used_where_a_model_has_nothing_else() -> None:
    matmul = formulas.CONVENTIONS["matmul"]
    assert matmul.formula_of(TINY) == "6W + 6LH(d+dv)s"
    mamba = formulas.model_of("mamba-2.8b").model
    assert matmul.formula_of(mamba) == "2mnk of products, forward and backward"
    assert formulas.CONVENTIONS["6n"].formula_of(mamba) == "6N"
    # Not a third: the backward of a first convolution has one product, not two.
    assert matmul.formula_of(mamba, training=False) == "2mnk of products, forward"
    assert matmul.formula_of(TINY, training=False) == "(6W + 6LH(d+dv)s) / 3"


@pytest.mark.parametrize(
    ("given", "alone"),
    [
        ({"model": TINY}, True),
        ({"model": TINY, "seq": 5, "convention": "palm"}, True),
        ({"model": TINY, "devices": 5}, False),
        ({"params": 7e9}, False),
    ],
)
def test_only_a_model_without_a_run_is_described(given: dict[str, Any], alone: bool) -> None:
    assert is_of_model_alone(read_question(given)) is alone


def test_models_are_found_by_series_name_or_other_name() -> None:
    families = known_families()
    assert sum(len(one.models) for one in chosen(families, "")) == sum(
        len(one.models) for one in families
    )
    (llama,) = [one for one in chosen(families, "LLAMA-3-8b") if one.name == "llama"]
    assert [model.name for model in llama.models] == ["llama-3-8b"]
    text = render_models(families)
    assert max(map(len, text.splitlines())) <= 100
    for family in families:
        assert family.name in text.splitlines()
    with pytest.raises(ValueError, match="series are"):
        chosen(families, "no such model")
