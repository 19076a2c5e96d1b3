"""What is on TensorBoard's page is what stands in the run file, to the digits that are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensorboard_page import Page
from two_runs import EVERY, STEPS

from mfu_torch import read_run
from mfu_torch.figures import Figures, figures, run_figures
from mfu_torch.records import Run


def windows(run: Run) -> list[Figures]:
    return [figures(w.steps, run.counts, run.peaks, run.header.attention) for w in run.windows]


def as_shown(text: str) -> object:
    """What ``"0.1234"`` or ``"55,264"`` may stand for: half a unit of the last digit around it."""
    decimals = len(text.partition(".")[2])
    return pytest.approx(float(text.replace(",", "")), abs=0.5001 * 10**-decimals, rel=0)


def as_written(value: float) -> float:
    """Event files hold 32-bit floats."""
    return float(torch.tensor(value, dtype=torch.float32))


def cards(page: Page) -> dict[str, dict[str, tuple[str, int]]]:
    """Of the Time Series tab: tag -> run -> value and step, from the table below each curve."""
    code = """
        const text = e => e.innerText.trim();
        const cells = row => [...row.querySelectorAll('tb-data-table-content-cell')].map(text);
        const rows = card => [...card.querySelectorAll('tb-data-table-content-row')].map(cells);
        return found.map(card => [card.querySelector('tb-truncated-path').title, rows(card)]);"""
    return {  # a cell of colour, run, value, step, time
        tag: {run: (value, int(step)) for _, run, value, step, _ in rows}
        for tag, rows in page.script(code, "scalar-card")
    }


@pytest.mark.parametrize(
    ("tag", "figure"),
    [
        ("mfu/mfu", "mfu"),
        ("mfu/hfu", "hfu"),
        ("mfu/mfu_causal", "mfu_causal"),
        ("time/step_s", "step_s"),
        ("throughput/tokens_per_s", "tokens_per_s"),
    ],
)
def test_a_curve_has_the_values_of_the_run_file(
    page: Page, logs: Path, tag: str, figure: str
) -> None:
    page.open("timeseries", tagFilter=f"^{tag}$", smoothing="0")
    shown = page.until(lambda: (now := cards(page)) and all(now.values()) and now, tag)
    assert shown.keys() == {tag}
    for name in ("low", "high"):
        expected = windows(read_run(logs / name))
        value, step = shown[tag][name]
        assert step == STEPS
        assert as_written(getattr(expected[-1], figure)) == as_shown(value)
        curve = page.fetch(f"data/plugin/scalars/scalars?run={name}&tag={tag}")
        assert [step for _, step, _ in curve] == list(range(EVERY, STEPS + 1, EVERY))
        values = [getattr(each, figure) for each in expected]
        assert [value for _, _, value in curve] == pytest.approx(values, rel=1e-6)


def test_a_value_that_is_not_what_is_shown_would_be_found() -> None:
    assert as_shown("0.1234") == 0.12344 and as_shown("55,264") == 55_263.6
    assert as_shown("0.1234") != 0.1235 and as_shown("55,264") != 55_265


def test_every_group_of_curves_is_on_the_page(page: Page) -> None:
    page.open("timeseries")
    groups = page.until(lambda: page.texts(".group-title")[1:], "groups of cards")
    page.screenshot("timeseries")
    assert groups == [
        *("breakdown", "goodput", "goodput_stacked", "mfu", "run", "throughput", "time"),
    ]


def test_the_custom_scalars_are_laid_out_with_their_lines(page: Page) -> None:
    page.open("custom_scalars", size=(1400, 1600))
    # How many of so short steps are split into their parts is a matter of chance.
    by_chance = {"parts of the step time", "HFU of the parts"}

    def certain() -> list[str]:
        return [chart for chart in page.texts(".heading-label") if chart not in by_chance]

    charts = page.until(lambda: len(now := certain()) >= 8 and now, "charts of the layout")
    page.until(lambda: "Matches (8)" in page.texts(".matches-text"), "lines of two runs")
    page.screenshot("custom_scalars")
    assert page.texts(".category-name") == ["MFU"]
    assert charts == [
        "utilisation",
        "step time, s",
        "tokens per second",
        "samples per second",
        "model TFLOP/s per device",
        "shares of the step time",
        "shares of the wall time",
        "shares of the wall time, stacked",
    ]
    legends = page.script("return found.map(e => e.textContent);", ".match-list-entry")
    lines = {line.partition(" ")[2] for line in (" ".join(text.split()) for text in legends)}
    for tag in ("mfu/mfu", "mfu/end_to_end", "goodput/eval", "goodput_stacked/below_peak"):
        assert {f"{tag} (low)", f"{tag} (high)"} <= lines  # after the symbol of the line


def test_nothing_on_the_custom_scalars_is_an_error(page: Page) -> None:
    page.open("custom_scalars", size=(1400, 1600))
    page.until(lambda: "Matches (8)" in page.texts(".matches-text"), "lines of two runs")
    page.until(lambda: "Matches (14)" in page.texts(".collapsible-title-text"), "bands of both")
    assert page.texts(".collapsible-title-text") == ["Matches (14)"]  # and not "Missing Tags"
    assert [text for text in page.texts("[class*=error]") if text] == []
    assert "Matches (0)" not in page.texts(".matches-text")


def test_the_text_says_how_the_numbers_were_computed(page: Page) -> None:
    page.open("text", size=(1400, 1600))
    title = "How the numbers of this run were computed"
    page.until(lambda: page.texts("h3").count(title) == 2, "the texts of both runs")
    cells = page.texts("td")  # of tables, not markdown as it was written
    page.screenshot("text")
    for expected in (
        "every attention score is counted (convention full)",
        "counted on step 0 as it trained",
        "nothing: every op that looks like a contraction has a formula",
        "2.00 TFLOP/s",
        "20.0 GFLOP/s",
        "given",
        "Meter(peak=...)",
    ):
        assert expected in cells


def table(page: Page) -> list[dict[str, str]]:
    """The rows of the HParams tab by their column titles."""
    titles = [" ".join(text.split()) for text in page.texts(".table-header")]
    cells = page.texts("div.table-cell:not(.table-header)")
    titles = [title for title in titles if title != "Show Metrics"]  # a box to tick
    rows = [cells[i : i + len(titles)] for i in range(0, len(cells), len(titles) or 1)]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_runs_can_be_sorted_by_their_mfu(page: Page, logs: Path) -> None:
    page.open("hparams", size=(2400, 1000))
    page.until(lambda: len(table(page)) == 2, "two runs")
    orders = {}
    for direction in ("Ascending", "Descending"):
        page.click("paper-item", "run/mfu")
        page.click("paper-item", direction)
        best_last = direction == "Ascending"
        wanted = ["low", "high"] if best_last else ["high", "low"]
        page.until(lambda: [r["Trial ID"] for r in table(page)] == wanted, direction)  # noqa: B023
        orders[direction] = table(page)
    page.screenshot("hparams")
    high, low = orders["Descending"]
    assert float(high["run/mfu"]) > float(low["run/mfu"])
    for row, name in ((high, "high"), (low, "low")):
        run = run_figures(read_run(logs / name))
        assert float(row["run/mfu"]) == pytest.approx(run.mfu, rel=1e-4)
        assert float(row["run/end_to_end"]) == pytest.approx(run.end_to_end, rel=1e-4)
        assert float(row["run/step_s"]) == pytest.approx(run.step_s, rel=1e-4)
        assert row["model"] == "Decoder"


def test_the_picture_shows_where_the_wall_time_went(page: Page) -> None:
    page.open("images")
    page.until(lambda: page.texts("tf-image-loader"), "images")
    size = "return found.map(e => [e.naturalWidth, e.naturalHeight]).filter(s => s[0]);"
    page.until(lambda: len(page.script(size, "#main-image-container img")) == 2, "two pictures")
    page.screenshot("images")
    for width, height in page.script(size, "#main-image-container img"):
        assert width == 594 and height > 400
