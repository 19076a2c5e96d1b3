"""MFU = FLOPs x rate / (devices x peak), for whichever of them is not given."""

from __future__ import annotations

import math
from typing import Any

import pytest
from llama_sizes import LLAMA_70B, LLAMA_TOKEN, TINY, TINY_TOKEN

from mfu_torch.calculator import Answer, InputError, calculate

# 1440 FLOPs a token, 100 tokens/s on 2 devices of 1e6 FLOP/s: 144,000 / 2,000,000 = 7.2 %.
RUN: dict[str, Any] = {"model": TINY, "seq": 5, "tokens_per_s": 100, "devices": 2}
PEAK: dict[str, Any] = {"peak_flops_per_s": 1e6}


def refusal(**given: Any) -> str:
    with pytest.raises(InputError) as caught:
        calculate(**given)
    text = str(caught.value)
    assert "\n" not in text and "{" not in text
    return text


# --- the figures of the issue --------------------------------------------------------------------


def test_flops_of_a_step_a_factor_of_1000_too_high_are_impossible_and_say_so() -> None:
    answer = calculate(
        model_flops_per_step="2.4e18",
        step_s="1.2 s",
        devices=128,
        peak_flops_per_s="80 TFLOP/s",
        samples_per_step=8192,
    )
    assert answer.mfu == pytest.approx(195.3125)  # 2e18 / 1.024e16
    assert not answer.possible
    assert answer.cluster_peak_flops_per_s == 1.024e16
    assert answer.samples_per_s == pytest.approx(6826.6667)
    (slip,) = answer.slips
    assert slip.text == "a factor of 1000: 2.4e15 FLOPs per step"
    assert slip.share == pytest.approx(0.1953125)


def test_parameters_and_tokens_per_second_of_an_inference() -> None:
    answer = calculate(params="70e9", tokens_per_s=2000, peak_flops_per_s=989e12, mode="inference")
    assert answer.mfu == pytest.approx(2 * 70e9 * 2000 / 989e12)
    assert f"{answer.mfu:.4f}" == "0.2831"
    assert answer.possible and answer.slips == ()


def test_a_model_has_attention_in_it_and_an_hfu_where_it_computes_again() -> None:
    answer = calculate(
        model=LLAMA_70B,
        seq=8192,
        tokens_per_s_per_device="866.77 tok/s/GPU",
        devices=512,
        peak_flops_per_s=989e12,
        recompute="selective",
    )
    assert answer.work.model_flops == LLAMA_TOKEN == 481_434_796_032
    assert answer.mfu == pytest.approx(LLAMA_TOKEN * 866.77 / 989e12)
    # One more forward of the scores: 2 x 80 x 64 x 256 x 8192.
    again = 2 * 80 * 64 * 256 * 8192
    assert answer.hfu == pytest.approx((LLAMA_TOKEN + again) * 866.77 / 989e12)
    assert answer.tokens_per_s == pytest.approx(512 * 866.77)


# --- each of the four ----------------------------------------------------------------------------


def test_the_share_is_what_the_other_three_give() -> None:
    answer = calculate(**RUN, **PEAK)
    assert answer.solved_for == "share"
    assert answer.mfu == pytest.approx(0.072)
    assert answer.work.flops == TINY_TOKEN == 1440
    assert answer.flops_per_s == 144_000
    assert answer.flops_per_s_per_device == 72_000


@pytest.mark.parametrize(
    ("left_out", "asked", "value"),
    [
        ("tokens_per_s", "rate", 100),
        ("devices", "devices", 2),
        ("peak_flops_per_s", "peak", 1e6),
    ],
)
def test_each_term_is_found_again_from_the_others(left_out: str, asked: str, value: float) -> None:
    given = {**RUN, **PEAK, "mfu": "7.2 %"}
    del given[left_out]
    answer = calculate(**given)
    found = {
        "rate": answer.tokens_per_s,
        "devices": answer.devices_exact,
        "peak": answer.peak.flops_per_s,
    }
    assert answer.solved_for == asked
    assert found[asked] == pytest.approx(value)
    assert answer.mfu == pytest.approx(0.072)


def test_the_time_of_a_step_is_found_where_flops_of_a_step_are_given() -> None:
    answer = calculate(
        model_flops_per_step=2.4e15, mfu=0.1953125, devices=128, peak_flops_per_s=80e12
    )
    assert answer.solved_for == "rate"
    assert answer.step_s == pytest.approx(1.2)


def test_devices_are_rounded_up_and_the_share_that_they_need_is_beside_them() -> None:
    # 1440 x 1000 / (0.4 x 1e6) = 3.6 devices; on 4 the same throughput is 36 %.
    answer = calculate(model=TINY, seq=5, tokens_per_s=1000, mfu=0.4, **PEAK)
    assert answer.devices_exact == pytest.approx(3.6)
    assert answer.devices == 4
    assert answer.mfu == pytest.approx(0.36)
    assert answer.flops_per_s_per_device / 1e6 == pytest.approx(answer.mfu)
    # At the 40 % that are given, the 4 reach 4 x 0.4 x 1e6 / 1440.
    assert answer.share_asked == 0.4
    assert answer.units_per_s_at_asked == pytest.approx(4 * 0.4e6 / 1440)
    assert answer.cluster_peak_flops_per_s == 4e6


def test_devices_by_an_hfu_have_the_hfu_of_the_whole_number() -> None:
    # Full: 1840 hardware FLOPs a token, 1840 x 1000 / (0.5 x 1e6) = 3.68 devices.
    answer = calculate(model=TINY, seq=5, tokens_per_s=1000, hfu=0.5, recompute="full", **PEAK)
    assert (answer.devices, answer.devices_exact) == (4, pytest.approx(3.68))
    assert answer.hfu == pytest.approx(0.46) and answer.mfu == pytest.approx(0.36)
    assert answer.share_asked == 0.5


def test_a_contradiction_that_is_impossible_as_well_says_both_and_the_nearest_slip() -> None:
    # 6 x 70e9 x 3000 / 989e12 = 127.40 %; as an inference 42.47 %.
    text = refusal(
        params=70e9, tokens_per_s=3000, devices=1, mfu=0.5, peak_flops_per_s="989 TFLOP/s"
    )
    assert "a share of 50.00 % is given" in text
    assert "give 127.40 %, impossible: no device runs above its peak (inference (2N)" in text
    assert "gives 42.47 %" in text and text.endswith("leave one of them out")


def test_a_budget_and_its_time_are_named_where_they_are_what_was_given() -> None:
    run = {"model": TINY, "seq": 5, "token_budget": 8.64e6, "within_s": "1 d", "devices": 2}
    assert "token_budget over within_s, devices and peak give 7.20 %" in refusal(
        mfu=0.3, **run, **PEAK
    )
    assert "token_budget over within_s contradict each other" in refusal(
        tokens_per_s=3, **run, **PEAK
    )
    assert "token_budget over device_hours contradict" in refusal(
        tokens_per_s=3, **(run | {"within_s": None, "device_hours": 7}), **PEAK
    )


def test_a_budget_of_a_few_tokens_is_noted() -> None:
    notes = calculate(**RUN, **PEAK, token_budget=15).notes
    assert "the budget is 15 tokens; trillions are written 15T" in notes
    assert not calculate(**RUN, **PEAK, token_budget="15T").notes


def test_a_share_of_100_percent_stays_possible_when_it_is_computed_back() -> None:
    for devices in range(1, 50):
        assert calculate(params=7e9, mfu="100 %", devices=devices, peak_flops_per_s=3e14).possible


def test_an_hfu_gives_the_mfu_that_belongs_to_it() -> None:
    # Full: the layer's forward again, 2 x 160 + 80 = 400 FLOPs more than 1440.
    answer = calculate(
        model=TINY, seq=5, devices=2, hfu="18.4 %", recompute="full", peak_flops_per_s=1e6
    )
    assert answer.hfu == pytest.approx(0.184)
    assert answer.mfu == pytest.approx(0.184 * 1440 / 1840)
    assert answer.tokens_per_s == pytest.approx(200)


def test_all_four_may_be_given_where_they_agree() -> None:
    answer = calculate(**RUN, **PEAK, mfu="7.2 %")
    assert answer.solved_for == "nothing"
    rounded = calculate(**RUN, **PEAK, mfu="7 %")  # as tables print it
    assert rounded.mfu == pytest.approx(0.072)
    assert "the 7.00 % that are given agree with the other three terms" in rounded.notes


def test_without_their_number_the_figures_are_those_of_one_device() -> None:
    answer = calculate(params=70e9, tokens_per_s=400, peak_flops_per_s=989e12)
    assert answer.devices == 1
    assert any("1 device" in sentence for sentence in answer.assumptions)


# --- throughput in other words -------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"tokens_per_s": 100},
        {"tokens_per_s_per_device": 50},
        {"samples_per_s": 20},
        {"step_s": 0.5, "tokens_per_step": 50},
        {"step_s": 0.5, "batch": 10},
        {"step_s": 0.5, "samples_per_step": 10},
        {"tokens_per_s": "360k tokens/hour"},
        {"token_budget": 8.64e6, "within_s": "1 d"},
        {"token_budget": 8.64e6, "device_hours": 48},
        {"achieved_flops_per_s": 72_000},
        {"tokens_per_s": 100, "step_s": 0.5, "batch": 10, "tokens_per_step": 50},
    ],
)
def test_the_same_throughput_is_known_by_many_words(given: dict[str, Any]) -> None:
    answer = calculate(model=TINY, seq=5, devices=2, **PEAK, **given)
    assert answer.mfu == pytest.approx(0.072)
    assert answer.tokens_per_s == pytest.approx(100)
    assert answer.samples_per_s == pytest.approx(20)


def test_a_step_is_as_long_as_its_tokens_take() -> None:
    answer = calculate(**RUN, **PEAK, batch=10)
    assert answer.step_s == pytest.approx(0.5)


def test_the_throughput_of_one_device_and_of_all_gives_their_number() -> None:
    answer = calculate(
        model=TINY, seq=5, tokens_per_s_per_device=60, token_budget=8.64e6, within_s="1 d", **PEAK
    )
    assert answer.solved_for == "devices"
    assert (answer.devices_exact, answer.devices) == (pytest.approx(100 / 60), 2)
    assert answer.mfu == pytest.approx(0.072)
    assert answer.share_asked == pytest.approx(1440 * 60 / 1e6)
    assert answer.units_per_s_at_asked == pytest.approx(120)


def test_a_run_is_known_by_its_tokens_and_device_hours() -> None:
    # Llama 3 70B, as its model card has it: 15T tokens in 6.4M hours are 651 tokens/s on each.
    answer = calculate(
        model=LLAMA_70B, seq=8192, token_budget="15T", device_hours="6.4M", peak_flops_per_s=989e12
    )
    assert answer.tokens_per_s_per_device == pytest.approx(15e12 / (6.4e6 * 3600))
    assert answer.mfu == pytest.approx(LLAMA_TOKEN * 651.04 / 989e12, rel=1e-4)
    assert answer.budget is not None
    assert answer.budget.device_hours == pytest.approx(6.4e6)


# --- what it costs -------------------------------------------------------------------------------


def test_a_budget_of_tokens_takes_days_device_hours_and_money() -> None:
    answer = calculate(**RUN, **PEAK, token_budget="8.64M", price_per_device_hour="$2.50")
    assert answer.budget is not None
    assert answer.budget.time_s == pytest.approx(86400)
    assert answer.budget.device_hours == pytest.approx(48)
    assert answer.budget.cost == pytest.approx(120)
    assert answer.budget.model_flops == pytest.approx(8.64e6 * 1440)
    # 2 devices for 10^4 s: 5.56 hours for a million tokens.
    assert answer.device_hours_per_million == pytest.approx(2e4 / 3600)
    assert answer.cost_per_million == pytest.approx(2e4 / 3600 * 2.5)


def test_hours_are_for_samples_or_steps_where_nothing_says_how_many_tokens_there_are() -> None:
    step: dict[str, Any] = {"model_flops_per_step": 1e5, "step_s": 1.0, "devices": 3}
    assert calculate(**step, **PEAK).per == "step"
    answer = calculate(**step, **PEAK, samples_per_step=6)
    assert answer.per == "sample"
    assert answer.device_hours_per_million == pytest.approx(3 * 1e6 / 6 / 3600)
    assert calculate(**step, **PEAK, batch=6) == answer
    assert calculate(**step, **PEAK, samples_per_step=6, tokens_per_step=60).per == "token"


# --- the peak of a device ------------------------------------------------------------------------


def test_the_peak_of_a_device_is_that_of_the_table_with_its_source() -> None:
    answer = calculate(params=70e9, tokens_per_s=400, device="h100-sxm")
    assert (answer.peak.flops_per_s, answer.peak.provenance) == (989.4e12, "datasheet")
    assert "the peak is that of bf16" in answer.assumptions
    assert calculate(params=7e9, tokens_per_s=9, device="h100-sxm", dtype="fp8").peak.dtype == "fp8"


def test_a_peak_that_is_the_devices_own_but_for_its_digits_is_no_contradiction() -> None:
    run: dict[str, Any] = {"params": 70e9, "tokens_per_s": 400, "device": "h100-sxm"}
    assert calculate(**run, peak_flops_per_s="989 TFLOP/s").peak.flops_per_s == 989.4e12
    assert "is not the bf16 peak" in refusal(**run, peak_flops_per_s="1979 TFLOP/s")


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("h100", "h100-sxm (H100 SXM5, 989.4 TFLOP/s)"),
        ("h100sxm", "did you mean h100-sxm"),
        ("t4", "the T4 has no bf16 units"),
        ("", "device: '' is empty"),
    ],
)
def test_a_device_without_such_a_peak_is_refused_with_the_reason(device: str, says: str) -> None:
    assert says in refusal(params=7e9, tokens_per_s=9, device=device)


# --- what cannot be ------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_an_example() -> None:
    nothing = refusal()
    assert "model (llama-3-70b, or a config.json), params (70B)" in nothing
    assert "tokens_per_s 2000" in refusal(params=7e9, device="h100-sxm")
    assert "peak (device h100-sxm" in refusal(params=7e9, tokens_per_s=5)
    assert "not two" in refusal(params=7e9, mfu=0.4)
    assert "give tokens_per_step 4M" in refusal(params=7e9, step_s=1, device="h100-sxm")
    assert "give seq 8192" in refusal(model=TINY, tokens_per_s=1, **PEAK)
    assert "give token_budget" in refusal(model=TINY, seq=5, within_s=60, **PEAK)
    budget = refusal(model_flops_per_step=1, step_s=1, token_budget=9, **PEAK)
    assert "give tokens_per_step" in budget


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"params": 7e9, "model": TINY}, "params and model both say"),
        ({"params": 7e9, "convention": "palm"}, "convention says nothing beside params"),
        ({"model_flops_per_step": 1e9, "mode": "training"}, "mode says nothing beside"),
        ({"params": 7e9, "batch": 8, "step_s": 1}, "does not say how many tokens a step has"),
        ({**RUN, "step_s": 1, "batch": 10}, "100 and 50 tokens per second; leave one out"),
        ({**RUN, "tokens_per_s_per_device": 60}, "contradict each other"),
        ({**RUN, "achieved_flops_per_s": 90_000}, "contradict each other"),
        ({**RUN, "device_hours": 5}, "give token_budget"),
        ({**RUN, "batch": 10, "samples_per_step": 11}, "differ; give one"),
        ({**RUN, "batch": 10, "tokens_per_step": 51}, "is not 10 samples of 5 tokens, 50"),
        ({**RUN, "mfu": 0.2}, "a share of 20.00 % is given, and the throughput"),
        ({**RUN, "tokens_per_s": 4, "mfu": 0.005}, "0.50 % is given, and the throughput"),
        ({**RUN, "mfu": 0.072, "hfu": 0.1}, "give one of them"),
        ({**RUN, "hfu": 0.1}, "hfu needs what is computed again"),
        ({**RUN, "convention": "megatron", "mfu": 0.1}, "whose share is an HFU"),
        ({**RUN, "convention": "megatron", "recompute": "full"}, "already"),
        ({**RUN, "mode": "inference", "recompute": "full"}, "no backward"),
        ({**RUN, "mode": "inference", "convention": "megatron"}, "for training"),
        ({**RUN, "mode": "inference", "convention": "lora"}, "for training"),
        ({**RUN, "convention": "none"}, "expected matmul, matmul-causal"),
        ({"model": 5}, "model is a int"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], says: str) -> None:
    assert says in refusal(**given, **PEAK)


@pytest.mark.parametrize(
    "given",
    [
        {"params": 1e300, "tokens_per_s": 1e300, "peak_flops_per_s": 1e12},
        {"params": 1e300, "mfu": 0.5, "devices": 1, "peak_flops_per_s": 1e-300},
        {"params": 1e308, "achieved_flops_per_s": 1e-20, "tokens_per_s": 1e-300, "mfu": 0.1},
        {"model_flops_per_step": 1e308, "mfu": 0.4, "batch": 1, "peak_flops_per_s": 1e-16},
        {"params": 7e9, "samples_per_s": 1, "tokens_per_step": 1e-300, "samples_per_step": 1e308},
        {
            **{"model": LLAMA_70B, "seq": 8192, "batch": 10**15, "step_s": 1e308},
            **{"tokens_per_s_per_device": 1e15, "mfu": 1e-30},
        },
        {"params": 1e30, "mfu": 1e-9, "tokens_per_s": 1e30, "peak_flops_per_s": 1e12},
        {"model_flops_per_step": 1e-300, "step_s": 1e300, "peak_flops_per_s": 1e12},
        {"model": TINY, "seq": 10**15, "tokens_per_s": 1e300, "peak_flops_per_s": 1e12},
    ],
)
def test_results_beyond_all_numbers_are_refused(given: dict[str, Any]) -> None:
    assert "check the units" in refusal(**given)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "1e400", "", "abc", "1 parsec"])
@pytest.mark.parametrize("name", ["params", "step_s", "devices", "mfu", "seq", "token_budget"])
def test_a_number_that_cannot_be_is_refused_by_its_name(name: str, bad: float | str) -> None:
    assert refusal(**{name: bad}).startswith(f"{name}: ")


def test_no_figure_of_an_answer_is_other_than_finite() -> None:
    answer: Answer = calculate(**RUN, **PEAK, batch=3, token_budget=5, price_per_device_hour=1)
    values = [getattr(answer, name) for name in answer.__struct_fields__]
    assert all(math.isfinite(value) for value in values if isinstance(value, float))
