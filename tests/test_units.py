"""Numbers to text and back."""

from __future__ import annotations

import math

import pytest

from mfu_torch.units import (
    bytes_,
    parse_flops_per_s,
    percent,
    rounded_parts,
    scaled,
    seconds,
    significant,
)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (989e12, 989e12),
        ("989e12", 989e12),
        ("989 TFLOP/s", 989e12),
        ("989 TFLOPS", 989e12),
        ("989TFLOPs/sec", 989e12),
        ("312T", 312e12),
        ("1,979 TFLOP/s", 1979e12),
        ("1.5 PFLOP/s", 1.5e15),
        (" 19.5 TFLOP/s ", 19.5e12),
    ],
)
def test_a_rate_is_read_as_people_write_it(text: float | str, rate: float) -> None:
    assert parse_flops_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "989 TB/s", "989 tokens", "T", "9 8 T"])
def test_text_that_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected e\.g\. 989e12"):
        parse_flops_per_s(text)


@pytest.mark.parametrize("text", ["989", " 989 ", "312.5", "9.89e8", "999,999,999"])
def test_text_without_a_unit_that_no_device_could_mean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f'has no unit.*"{text.strip()} TFLOP/s" or 989e12'):
        parse_flops_per_s(text)


@pytest.mark.parametrize(
    ("value", "rate"),
    [("1e9", 1e9), ("989 FLOP/s", 989.0), ("989 kFLOPS", 989e3), ("5k", 5e3), (989, 989.0)],
)
def test_numbers_and_texts_with_a_unit_stay_as_they_are(value: float | str, rate: float) -> None:
    assert parse_flops_per_s(value) == rate


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "0", "-3 TFLOP/s"])
def test_a_rate_that_no_device_has_is_refused(value: float | str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        parse_flops_per_s(value)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (9.894e14, "FLOP/s", "989 TFLOP/s"),
        (9.996e14, "FLOP/s", "1.00 PFLOP/s"),  # three digits make it 1000 T
        (13_100, "", "13.1k"),
        (999.6, "", "1.00k"),
        (999.4, "", "999"),
        (2.5, "B", "2.50 B"),
        (1000, "B", "1.00 kB"),
        (5e21, "FLOP", "5000 EFLOP"),
    ],
)
def test_quantities_have_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (2, "B", "2 B"),
        (64, "FLOP", "64 FLOP"),
        (512.0, "FLOP/s", "512 FLOP/s"),
        (7, "", "7"),
        (999, "", "999"),
        (-3, "B", "-3 B"),
    ],
)
def test_small_whole_quantities_have_no_decimals(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_quantity_that_is_not_finite_is_text_too(value: float) -> None:
    assert str(value) in scaled(value, "B")


def test_significant_digits_never_need_an_exponent() -> None:
    assert significant(989.4) == "989"
    assert significant(0.0412) == "0.0412"
    assert significant(math.inf) == "inf"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.4123, "41.2 %"),
        (0.00042, "0.042 %"),
        (0, "0.0 %"),
        (0.0094, "0.94 %"),
        (0.0097, "0.97 %"),
        (0.00996, "1.0 %"),  # two digits make it 1.0
        (1.234, "123.4 %"),
    ],
)
def test_shares_become_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3.4e-9, "3.40 ns"),
        (56e-6, "56.0 us"),
        (0.3124, "312 ms"),
        (0.9996, "1.00 s"),
        (75, "75.0 s"),
        (754, "12 min 34 s"),
        (3599.7, "1 h 00 min"),  # not 60 min 00 s
        (7260, "2 h 01 min"),
        (-75, "-75.0 s"),
        (math.nan, "nan s"),
    ],
)
def test_times_have_the_unit_that_people_would_use(value: float, text: str) -> None:
    assert seconds(value) == text


def test_bytes_are_in_powers_of_1000() -> None:
    assert bytes_(85e9) == "85.0 GB"


@pytest.mark.parametrize(
    ("parts", "decimals", "texts"),
    [
        ([1 / 3, 1 / 3, 1 / 3], 1, ["0.4", "0.3", "0.3"]),
        ([33.33, 33.33, 33.34], 0, ["33", "33", "34"]),
        ([0.29, 0.71], 2, ["0.29", "0.71"]),  # 0.29 * 100 is 28.999999999999996
        ([2.5, -0.5], 1, ["2.5", "-0.5"]),
        ([], 1, []),
    ],
)
def test_printed_parts_sum_to_the_printed_total(
    parts: list[float], decimals: int, texts: list[str]
) -> None:
    assert rounded_parts(parts, decimals) == texts
    printed = sum(round(float(text) * 10**decimals) for text in texts)
    assert printed == round(sum(parts) * 10**decimals)


def test_parts_that_are_not_finite_have_no_text_of_their_own() -> None:
    assert rounded_parts([1.26, float("nan"), float("inf")], 1) == ["1.3", "-", "-"]
