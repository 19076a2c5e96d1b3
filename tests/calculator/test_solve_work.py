"""What a unit costs, by every convention and kind of model; the slips; the spread."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from llama_sizes import LLAMA_70B, LLAMA_TOKEN, LLAMA_W, TINY

from mfu_torch.calculator import InputError, calculate, read_question, spread
from mfu_torch.calculator.work import work_of
from mfu_torch.flops.formulas import CONVENTIONS, ClosedForm, Parameters, Term
from mfu_torch.records import Record


class Pictures(Record, frozen=True, kw_only=True):
    """A model that is counted in samples: 10 FLOPs forward and 15 backward for each."""

    @property
    def per(self) -> Literal["sample"]:
        return "sample"

    @property
    def parameters(self) -> Parameters:
        return Parameters(weights=7, used=7, embedding=0)

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: str = "full"
    ) -> ClosedForm:
        term = Term(name="patch", role="linear", forward=10 * batch, backward=15 * batch)
        return ClosedForm(terms=(term,))


class Known(Record, frozen=True, kw_only=True):
    name: str
    model: Any
    seq: int | None = None
    source: str = "a paper"
    notes: tuple[str, ...] = ()
    stated_parameters: float | None = None


# --- conventions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("convention", "flops"),
    [
        ("matmul", 1440),
        ("matmul-causal", 1200 + 240 * 6 / 10),  # (s + 1) / 2 of s keys
        ("matmul-half", 1200 + 120),
        ("6w", 1200),
        ("6n", 1200 + 6 * 40),  # the embedding as well
        ("palm", 1200 + 240 + 6 * 40),
    ],
)
def test_a_token_costs_what_the_convention_says(convention: str, flops: float) -> None:
    work = work_of(read_question({"model": TINY, "seq": 5, "convention": convention}))
    assert work.model_flops == pytest.approx(flops)
    assert work.formula == CONVENTIONS[convention].formula
    assert work.hardware_flops is None


@pytest.mark.parametrize(
    ("convention", "recompute", "flops"),
    [
        ("matmul", "none", 1440),
        ("matmul", "selective", 1440 + 80),
        ("matmul", "full", 1440 + 320 + 80),
        ("matmul-half", "selective", 1320 + 40),
        ("6w", "full", 1200 + 320),  # who leaves out the scores leaves them out twice
    ],
)
def test_what_is_computed_again_is_counted_as_the_convention_counts(
    convention: str, recompute: str, flops: float
) -> None:
    given = {"model": TINY, "seq": 5, "convention": convention, "recompute": recompute}
    assert work_of(read_question(given)).hardware_flops == pytest.approx(flops)


def test_a_convention_of_hardware_flops_has_an_hfu_and_no_mfu() -> None:
    answer = calculate(
        model=TINY, seq=5, convention="full-recompute", tokens_per_s=100, peak_flops_per_s=1e6
    )
    assert answer.mfu is None
    assert answer.hfu == pytest.approx(1440 * 4 / 3 * 100 / 1e6)


@pytest.mark.parametrize(
    ("convention", "flops"), [("matmul", 480), ("matmul-half", 440), ("palm", 560), ("6n", 480)]
)
def test_inference_is_the_forward_alone(convention: str, flops: float) -> None:
    given = {"model": TINY, "seq": 5, "convention": convention, "mode": "inference"}
    work = work_of(read_question(given))
    assert work.model_flops == pytest.approx(flops)
    assert not work.training


def test_parameters_alone_cost_6_or_2_flops_each() -> None:
    training = work_of(read_question({"params": "70B"}))
    assert (training.flops, training.of) == (420e9, "70B parameters")
    assert training.assumptions == ("it is training, k = 6; of inference k is 2",)
    assert work_of(read_question({"params": "70B", "mode": "inference"})).flops == 140e9


# --- other models --------------------------------------------------------------------------------


def test_a_model_that_is_counted_in_samples_takes_samples_per_second() -> None:
    answer = calculate(model=Pictures(), samples_per_s=40, devices=2, peak_flops_per_s=1000)
    assert answer.work.unit == "sample"
    assert answer.mfu == pytest.approx(25 * 40 / 2000)
    stepped = calculate(model=Pictures(), step_s=0.5, batch=20, devices=2, peak_flops_per_s=1000)
    assert stepped.mfu == answer.mfu
    inference = calculate(
        model=Pictures(), mode="inference", samples_per_s=40, peak_flops_per_s=1000
    )
    assert inference.mfu == pytest.approx(0.4)


def test_tokens_say_nothing_about_a_model_that_is_counted_in_samples() -> None:
    with pytest.raises(InputError, match="give samples_per_s"):
        calculate(model=Pictures(), tokens_per_s=40, peak_flops_per_s=1000)
    with pytest.raises(InputError, match="palm is for decoders"):
        calculate(model=Pictures(), samples_per_s=4, convention="palm", peak_flops_per_s=1000)
    with pytest.raises(InputError, match="is counted per sample"):
        calculate(model=Pictures(), samples_per_s=4, token_budget=9, peak_flops_per_s=1000)


def test_of_two_texts_it_is_said_whose_tokens_are_meant() -> None:
    work = work_of(read_question({"model": "t5-small", "seq": 100}))
    said = "tokens are those of the decoder; for each 100 of them the encoder has 100"
    assert said in work.assumptions


def test_the_length_that_a_source_states_is_taken_and_said() -> None:
    known = Known(name="Tiny", model=TINY, seq=5, notes=("No biases.",), stated_parameters=200)
    work = work_of(read_question({"model": known, "convention": "palm"}))
    assert work.seq == 5
    assert work.assumptions == ("sequences of 5 tokens, as its source states",)
    assert "No biases." in work.notes
    assert "N is 240, from the sizes; the source says 200" in work.notes
    assert work_of(read_question({"model": known, "seq": 6})).assumptions == ()


# --- slips ---------------------------------------------------------------------------------------


def texts(**given: Any) -> list[str]:
    return [slip.text for slip in calculate(**given).slips]


def test_a_share_that_can_be_has_no_slips() -> None:
    assert texts(params=70e9, tokens_per_s=900, peak_flops_per_s=989e12) == []
    assert texts(params=70e9, tokens_per_s=9, peak_flops_per_s=989e12) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # The tokens/s of 512 GPUs, taken for that of one: 36.8 % x 512.
        ({"tokens_per_s": 443_786, "devices": 1}, "the throughput is that of several devices"),
        ({"tokens_per_s_per_device": 443_786, "devices": 512}, "tokens/s of all devices"),
        ({"tokens_per_s": 8 * 8 * 866, "devices": 8}, "nodes of 8 devices, not devices"),
        ({"tokens_per_s": 4000, "devices": 1}, "inference (2N), not training (6N)"),
        ({"tokens_per_s": 2500}, "a peak of twice as much"),
        ({"tokens_per_s": 866, "peak_flops_per_s": 0.989e12}, "a peak of 989 TFLOP/s"),
        ({"tokens_per_s": 866, "params": 70e12}, "7e10 parameters"),
    ],
)
def test_a_share_above_1_names_what_may_have_been_meant(given: dict[str, Any], says: str) -> None:
    base: dict[str, Any] = {"params": 70e9, "peak_flops_per_s": 989e12}
    assert any(says in text for text in texts(**{**base, **given}))


def test_the_dtypes_of_a_device_are_tried() -> None:
    found = calculate(params=70e9, tokens_per_s=2500, device="h100-sxm").slips
    shares = {slip.text: slip.share for slip in found}
    name = "fp8 or int8 or bf16 with 2:4 sparsity, whose peak is 1.979 PFLOP/s"
    assert shares[name] == pytest.approx(6 * 70e9 * 2500 / 1979e12, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"params": 70, "tokens_per_s": 866}, "a factor of 1000000000: 7e10 parameters"),
        ({"params": 70e9, "tokens_per_s": 0.866}, "a factor of 1000: 866 tokens/s"),
        ({"params": 70e9, "tokens_per_s": 866, "devices": 1024}, "tokens/s of each device"),
        ({"model_flops_per_step": 2.4e15, "step_s": 3600}, "a step of 3.60 s"),
    ],
)
def test_a_share_of_next_to_nothing_names_them_too_and_stays_possible(
    given: dict[str, Any], says: str
) -> None:
    answer = calculate(peak_flops_per_s=989e12, **given)
    assert answer.possible
    assert any(says in slip.text for slip in answer.slips)


@pytest.mark.parametrize(
    ("given", "says", "share"),
    [
        # 6 x 7e9 x 1900 / (16 x 312e12) = 1.60 %
        ({"tokens_per_s": 1900, "devices": 16}, "tokens/s of each device, not of all", 0.2558),
        ({"step_s": 2, "tokens_per_step": 8192, "devices": 16}, "tokens per step of each", 0.5514),
        ({"tokens_per_s": 6000, "devices": 32}, "devices counted as nodes of 8", 0.2019),
    ],
)
def test_a_low_share_names_what_one_device_was_said_to_do_and_stays_possible(
    given: dict[str, Any], says: str, share: float
) -> None:
    answer = calculate(params=7e9, peak_flops_per_s=312e12, **given)
    assert answer.possible
    (slip,) = (slip for slip in answer.slips if says in slip.text)
    assert slip.share == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize(
    "given",
    [
        {"tokens_per_s": 1900, "devices": 1},  # 25.6 %
        {"tokens_per_s": 120},  # 1.6 %, on one device: nothing says that it is less
        {"tokens_per_s": 1900, "devices": 16, "mode": "inference"},
        {"tokens_per_s": 1900, "devices": 128},  # 0.20 %, of each 25.6 %, as nodes 1.6 %
    ],
)
def test_a_low_share_has_no_hint_without_evidence(given: dict[str, Any]) -> None:
    slips = calculate(params=7e9, peak_flops_per_s=312e12, **given).slips
    assert all(slip.share is not None and 0.15 <= slip.share <= 0.8 for slip in slips)
    assert len(slips) <= (1 if given.get("devices") == 128 else 0)


def test_a_model_above_100_percent_may_be_an_inference() -> None:
    # 1440 x 900 / 1e6 = 129.6 %; its forward is a third.
    found = calculate(model=TINY, seq=5, tokens_per_s=900, peak_flops_per_s=1e6).slips
    shares = {slip.text: slip.share for slip in found}
    assert shares["inference (the forward alone), not training"] == pytest.approx(0.432)
    assert any("2:4 sparsity" in text for text in shares)


def test_the_forward_alone_is_by_model_flops_where_an_hfu_is_above_100_percent() -> None:
    found = calculate(
        model=TINY, seq=5, tokens_per_s=900, recompute="full", peak_flops_per_s=1e6
    ).slips
    shares = {slip.text: slip.share for slip in found}
    assert shares["inference (the forward alone), not training"] == pytest.approx(0.432)


def test_a_sources_own_hfu_is_noted_where_it_counts_other_flops() -> None:
    run = {"model": LLAMA_70B, "seq": 8192, "tokens_per_s": 100, "peak_flops_per_s": 989e12}
    # 12Lhs for what runs again in 4Lhs
    (note,) = calculate(**run, convention="korthikanti", recompute="selective").notes
    assert "korthikanti-selective, 72Lh²(1 + s/3h + V/12hL), has 521.7 GFLOP per token" in note
    assert not calculate(**run, convention="matmul", recompute="selective").notes
    assert not calculate(**run, convention="korthikanti").notes


def test_an_hfu_above_1_is_impossible_also_where_the_mfu_is_not() -> None:
    answer = calculate(model=TINY, seq=5, recompute="full", tokens_per_s=600, peak_flops_per_s=1e6)
    assert answer.mfu == pytest.approx(0.864) and answer.hfu == pytest.approx(1.104)
    assert not answer.possible


# --- the spread ----------------------------------------------------------------------------------

RUN = {
    "model": LLAMA_70B,
    "seq": 8192,
    "tokens_per_s_per_device": "866.77",
    "peak_flops_per_s": 989e12,
}


def test_one_run_is_between_36_and_56_percent_by_its_convention() -> None:
    found = spread(read_question(RUN))
    shares = {row.convention: row.share for row in found.rows}
    assert [*shares.values()] == sorted(shares.values())
    assert (found.rows[0].convention, found.rows[-1].convention) == ("6w", "full-recompute")
    expected = {
        "6w": 6 * LLAMA_W,
        "6n": 6 * 70_553_706_496,  # what its checkpoint holds
        "matmul": LLAMA_TOKEN,
        "matmul-half": (6 * LLAMA_W + LLAMA_TOKEN) / 2,
        "full-recompute": LLAMA_TOKEN * 4 / 3,
    }
    for name, flops in expected.items():
        assert shares[name] == pytest.approx(flops * 866.77 / 989e12), name
    rounded = {name: f"{share:.4f}" for name, share in shares.items()}
    assert (rounded["6w"], rounded["full-recompute"]) == ("0.3655", "0.5626")
    assert (rounded["6n"], rounded["matmul-half"], rounded["matmul"]) == (
        *("0.3710", "0.3937"),
        "0.4219",
    )


def test_conventions_of_one_way_to_train_are_shown_where_they_are_asked_for() -> None:
    assert "lora" not in {row.convention for row in spread(read_question(RUN)).rows}
    asked = spread(read_question({**RUN, "convention": "lora"}))
    assert "lora" in {row.convention for row in asked.rows}


def test_every_general_convention_has_a_row_or_a_reason() -> None:
    general = {name for name, one in CONVENTIONS.items() if one.is_general}
    found = spread(read_question(RUN))
    assert {row.convention for row in found.rows} == general and not found.absent
    pictures = spread(
        read_question({"model": Pictures(), "samples_per_s": 4, "peak_flops_per_s": 1000})
    )
    assert {row.convention for row in pictures.rows} | set(pictures.absent) == general
    assert "is for decoders" in pictures.absent["palm"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mfu": 0.4}, "mfu has no place"),
        ({"token_budget": 1e12}, "token_budget has no place"),
        ({"recompute": "full"}, "say themselves what runs again"),
        ({"mode": "inference"}, "those of training"),
        ({"model": None, "params": 7e9}, "need the sizes of the model"),
        ({"tokens_per_s_per_device": None}, "is missing"),
    ],
)
def test_the_spread_takes_a_run_with_a_model(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        spread(read_question({**RUN, **more}))
