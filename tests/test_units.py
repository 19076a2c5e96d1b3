"""Numbers to text and back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mfu_torch.units import (
    bytes_,
    count_text,
    parse_bytes_per_s,
    parse_count,
    parse_days,
    parse_flops,
    parse_flops_per_s,
    parse_money,
    parse_per_s,
    parse_seconds,
    parse_share,
    parse_tflops_per_s,
    parse_whole,
    percent,
    percent_exact,
    rounded_parts,
    scaled,
    seconds,
    significant,
)

READERS: list[Callable[[float | str], float]] = [
    parse_count,
    parse_whole,
    parse_flops,
    parse_seconds,
    parse_days,
    parse_share,
    parse_per_s,
    parse_bytes_per_s,
    parse_tflops_per_s,
    parse_money,
]


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


# --- what people write on the command line -------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_count, "70B", 70e9),
        (parse_count, "70b", 70e9),
        (parse_count, "2.4e15", 2.4e15),
        (parse_count, "15T tokens", 15e12),
        (parse_count, "1_000", 1000),
        (parse_count, "8,192", 8192),
        (parse_count, "128k", 128_000),
        (parse_count, ".5M", 500_000),
        (parse_count, "66.9T", 66.9e12),  # 66.9 * 1e12 is 66900000000000.01
        (parse_count, 7e9, 7e9),
        (parse_whole, "8,192", 8192),
        (parse_whole, "1e3", 1000),
        (parse_flops, "2.4 EFLOP", 2.4e18),
        (parse_flops, "2.4EFLOPs", 2.4e18),
        (parse_flops, "2.4e18", 2.4e18),
        (parse_seconds, "1.2", 1.2),
        (parse_seconds, "1.2 s", 1.2),
        (parse_seconds, "350ms", 0.35),
        (parse_seconds, "2 h", 7200),
        (parse_seconds, "90 min", 5400),
        (parse_seconds, "3 days", 259_200),
        (parse_days, "60", 5_184_000),
        (parse_days, 0.5, 43_200),
        (parse_days, "36 h", 129_600),
        (parse_share, "40 %", 0.4),
        (parse_share, "40%", 0.4),
        (parse_share, "0.4", 0.4),
        (parse_share, "100 %", 1.0),
        (parse_per_s, "2000", 2000),
        (parse_per_s, "2000 tok/s", 2000),
        (parse_per_s, "1.2M tokens/s", 1.2e6),
        (parse_per_s, "5 tokens per second", 5),
        (parse_per_s, "272.8B tokens/day", 272.8e9 / 86400),
        (parse_bytes_per_s, "3.35 TB/s", 3.35e12),
        (parse_bytes_per_s, "900GB/s", 9e11),
        (parse_bytes_per_s, "3.35e12", 3.35e12),
        (parse_tflops_per_s, "989", 989e12),
        (parse_tflops_per_s, "66.9", 66.9e12),
        (parse_tflops_per_s, "989 TFLOP/s", 989e12),
        (parse_tflops_per_s, "0.989 PFLOP/s", 989e12),
        (parse_tflops_per_s, "989T", 989e12),
        (parse_money, "2.50", 2.5),
        (parse_money, "$2.50", 2.5),
        (parse_money, "2.50 USD", 2.5),
    ],
)
def test_quantities_are_read_as_people_write_them(
    read: Callable[[float | str], float], text: float | str, value: float
) -> None:
    assert read(text) == value


BAD = ["0", "-1", "nan", "inf", "1e400", "1e-400", "", " ", "abc", "1 parsec", "1,5", "1__0", "--5"]
NUMBERS = [0, -1.0, math.nan, math.inf, "1e999999999999", "9" * 5000]


@pytest.mark.parametrize("bad", [*BAD, *NUMBERS])
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_such_quantity_is_refused_in_one_line(
    read: Callable[[float | str], float], bad: float | str
) -> None:
    with pytest.raises(ValueError, match="expected ") as refused:
        read(bad)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (parse_share, "40", 'expected "40 %" or 0.40'),
        (parse_share, "1.4", 'expected "1.4 %" or 0.014'),
        (parse_count, "70e", "ends in its exponent"),  # 70e9, no 70 exa
        (parse_share, "101 %", "up to 100 %"),
        (parse_whole, "8k", "may be 8000 or 8192; expected the number itself"),
        (parse_whole, "0", "expected a whole number from 1 on"),
        (parse_days, "0", "e.g. 60 (days)"),
        (parse_whole, "1.5", "no whole number"),
        (parse_seconds, "5 m", '"350 ms" or "2 h"'),  # minutes or months
        (parse_flops, "2 TFLOP/s", '"2.4 PFLOP"'),
        (parse_per_s, "866.77 tok/s/GPU", "is the rate of one device"),
        (parse_per_s, "2000 samples/s", "tokens per second"),
        (parse_bytes_per_s, "3.35", "not in bytes per second"),
        (parse_bytes_per_s, "400 Gb/s", "not in bytes per second"),
        (parse_tflops_per_s, "989e12", "the peak of no device"),
    ],
)
def test_what_may_mean_two_things_is_refused(
    read: Callable[[float | str], float], text: str, says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        read(text)
    assert says in str(refused.value)


def test_a_time_beyond_all_clocks_is_no_row_of_digits() -> None:
    assert seconds(1e300) == "1e+300 s" and seconds(2.5e-13) == "2.5e-13 s"
    assert seconds(9.9e8) == "275000 h 00 min" and seconds(1e-12) == "0.00100 ns"


def test_the_rate_of_one_device_is_read_where_it_is_asked_for() -> None:
    assert parse_per_s("866.77 tok/s/GPU", per_device=True) == 866.77
    assert parse_per_s("866.77", per_device=True) == 866.77
    assert parse_per_s("24.5 t/s") == 24.5 and parse_per_s("2k t/s") == 2000  # no tera
    assert parse_per_s("15T tokens/day") == 15e12 / 86400
    assert parse_per_s("1.5k images/s", "samples") == 1500


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.28311, "28.31 %"), (195.3125, "19531.25 %"), (4.2e-6, "0.00042 %"), (0, "0.00 %")],
)
def test_a_share_beside_published_ones_has_two_decimals(share: float, text: str) -> None:
    assert percent_exact(share) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (70e9, "70B"),
        (70.5537e9, "70.55B"),
        (15e12, "15T"),
        (8192, "8,192"),
        (1e6, "1M"),
        (70, "70"),
    ],
)
def test_a_count_is_printed_as_people_write_it(count: float, text: str) -> None:
    assert count_text(count) == text
