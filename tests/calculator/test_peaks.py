"""Which documented figure a peak is that is given without a device."""

from __future__ import annotations

import pytest
from llama_sizes import TINY

from mfu_torch.calculator import InputError, calculate, read_question, spread
from mfu_torch.calculator.peaks import figure_note, has_sparsity
from mfu_torch.records import Peak


def notes(peak: str, **given: object) -> str:
    run: dict[str, object] = {"params": 7e9, "tokens_per_s": 15_000, **given}
    return "\n".join(calculate(peak_flops_per_s=peak, **run).notes)  # type: ignore[arg-type]


@pytest.mark.parametrize("peak", ["1979 TFLOP/s", "1978.9 TFLOP/s", "1.98 PFLOP/s"])
def test_the_sparse_figure_of_an_h100_is_named_with_the_dense_one(peak: str) -> None:
    text = notes(peak)
    assert "is the fp8 dense, bf16 and fp16 sparse figure of h100-sxm" in text
    # 6 x 7e9 x 15000 / 989.4e12
    assert "its bf16 dense peak is 989.4 TFLOP/s, by which the share is 63.67 %" in text


@pytest.mark.parametrize(
    ("peak", "device", "dense"),
    [
        ("624 TFLOP/s", "a100-sxm-40gb", "312"),
        ("1513 TFLOP/s", "h100-pcie", "756"),
        ("4500 TFLOP/s", "b200-sxm", "2.250 P"),
        ("2614.9 TFLOP/s", "mi300x", "1.307 P"),
        ("3957.8 TFLOP/s", "h100-sxm", "989.4"),  # fp8 with sparsity
        ("494.7 TFLOP/s", "h100-sxm", "989.4"),  # tf32
    ],
)
def test_figures_of_other_kinds_are_named(peak: str, device: str, dense: str) -> None:
    text = notes(peak)
    assert f"figure of {device}; its bf16 dense peak is {dense}" in text


@pytest.mark.parametrize(
    "peak", ["989 TFLOP/s", "989.4 TFLOP/s", "312 TFLOP/s", "459 TFLOP/s", "2250 TFLOP/s"]
)
def test_a_dense_bf16_peak_needs_no_word(peak: str) -> None:
    assert "figure of" not in notes(peak)


@pytest.mark.parametrize("peak", ["80 TFLOP/s", "300 TFLOP/s", "400 TFLOP/s", "1000 TFLOP/s"])
def test_a_round_number_is_not_taken_for_a_figure(peak: str) -> None:
    assert "figure of" not in notes(peak)


def test_a_dtype_that_is_named_is_the_one_that_is_meant() -> None:
    assert "figure of" not in notes("1979 TFLOP/s", dtype="fp8")
    assert "its fp8 dense peak is 1.979 PFLOP/s" in notes("3957.8 TFLOP/s", dtype="fp8")


def test_a_peak_that_was_solved_for_is_compared_more_loosely() -> None:
    # 6 x 7e9 x 15000 / 0.32 = 1968.75e12, half a percent below 1978.9e12
    answer = calculate(params=7e9, tokens_per_s=15_000, mfu=0.32, devices=1)
    (note, _) = answer.notes
    assert note.startswith("1.969 PFLOP/s is within 1 % of the") and "h100-sxm" in note
    assert "by which the share" not in note
    given = Peak(flops_per_s=1968.75e12, dtype="", source="given")
    assert figure_note(given, 0.32) == ()


def test_a_peak_that_is_not_the_devices_is_said_to_be_its_other_figure() -> None:
    with pytest.raises(InputError, match="it is its fp8 dense, bf16 and fp16 sparse"):
        calculate(
            params=7e9, tokens_per_s=15_000, device="h100-sxm", peak_flops_per_s="1979 TFLOP/s"
        )


def test_sparsity_is_of_the_devices_whose_documents_have_it() -> None:
    assert has_sparsity("h100-sxm") and has_sparsity("a100-sxm-80gb") and has_sparsity("mi300x")
    assert not has_sparsity("v100") and not has_sparsity("mi250x") and not has_sparsity("tpu-v4")


def test_the_spread_of_conventions_says_it_as_well() -> None:
    run = {"model": TINY, "seq": 5, "tokens_per_s": 1e9, "peak_flops_per_s": "1979 TFLOP/s"}
    assert any("sparse figure of h100-sxm" in note for note in spread(read_question(run)).notes)
