"""The table of published figures as text."""

from __future__ import annotations

import pytest

from mfu_torch.calculator.claims import Claim, Figures
from mfu_torch.calculator.published import published, recompute
from mfu_torch.calculator.published_table import COLUMNS, convention_of, render, summary

TEXT = render(published())


def line_of(id: str) -> str:
    (line,) = (line for line in TEXT.splitlines() if line.startswith(id + " "))
    return " ".join(line.split())


def test_no_line_is_wider_than_a_terminal_of_110_columns() -> None:
    assert max(map(len, TEXT.splitlines())) <= COLUMNS == 110


@pytest.mark.parametrize(
    "line",
    [
        "palm540-hfu palm MFU/HFU 46.2/57.8 46.23/57.83 +0.03pt 46.23",
        "sc21-529.6B megatron HFU 52 52.17 +0.17pt 39.15",
        "automodel-dsv3-256 matmul-half -router TFLOP/s 250 250.2 +0.02pt 28.47",
        "sc21-t2-ptdp-530-2240 megatron days 42 42.0 -0.03d 38.24",
        "seed-cli-128 not stated MFU 19.53 19531.25 +19512pt ?",
        "kort-175B-fullrecompute korthikanti MFU/HFU -/- 38.97/51.92 - 38.97",
        "opt-175b not stated TFLOP/s 147 ? - ?",
    ],
)
def test_a_line_shows_published_recomputed_and_ours(line: str) -> None:
    assert line_of(line.partition(" ")[0]) == line


def test_every_row_has_a_line_and_every_exception_its_reason() -> None:
    lines = TEXT.splitlines()
    words = " ".join(TEXT.split())
    for row in published():
        assert sum(line.startswith(row.id + " ") for line in lines) == 1, row.id
        if row.status == "explained":
            assert f"{row.id}: {row.reason}" in words
    assert "by rounding alone between 39.94 and 40.95 %" in words


def test_inputs_that_are_ours_are_named() -> None:
    words = " ".join(TEXT.split())
    assert "batch, vocab, peak, sizes: palm-gopher." in words
    assert next(r.assumed for r in published("llama3-405b-16384-8192")) == ("peak", "vocab")


def test_the_summary_counts_each_kind() -> None:
    rows = published()
    agree = sum(row.status == "agrees" for row in rows)
    assert summary(rows) == (
        f"{agree} of {agree + 8} published rows within 0.5 points (0.5 % without a peak; days "
        "within rounding); 8 explained; 14 more cannot be checked."
    )


def test_a_claim_that_disagrees_is_listed_as_such() -> None:
    row = recompute(
        Claim(
            id="mine",
            parameters=1e9,
            convention="6n",
            tokens_per_s=1e4,
            peak_flops_per_s=1e14,
            stated=Figures(mfu=0.5),
        )
    )
    text = render([row])
    words = " ".join(text.split())
    assert "Off by more than 0.5, for no known reason:\n  mine: " in text
    assert "0 of 1 published rows" in words and "; 1 not explained" in words
    assert convention_of(row) == "6n"
