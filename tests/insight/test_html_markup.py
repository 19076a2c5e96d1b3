"""Elements, charts and bars: what they are made of."""

from __future__ import annotations

import math

import pytest
from html_pages import Page

from mfu_torch.insight.html.bars import Bar, bars
from mfu_torch.insight.html.chart import Line, chart, ticks
from mfu_torch.insight.html.markup import Markup, element, escaped, joined, pairs, table


def test_an_element_escapes_its_text_and_attributes_and_keeps_markup() -> None:
    inner = element("b", "x < y & z")
    assert inner == "<b>x &lt; y &amp; z</b>"
    assert element("p", inner, " ", None, ["a", "b"], class_="c", title='"q"') == (
        '<p class="c" title="&quot;q&quot;"><b>x &lt; y &amp; z</b> ab</p>'
    )
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert element("p", hidden=None) == "<p></p>"


def test_text_that_only_looks_like_markup_is_text() -> None:
    assert isinstance(element("p", "<br>"), Markup)
    assert not isinstance("<p></p>", Markup)
    assert joined("<p>", Markup("<br>")) == "&lt;p&gt;<br>"
    assert Markup("<b>") + "<i>" == "<b><i>" and not isinstance(Markup("<b>") + "<i>", Markup)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a\\x00b"),
        ("\x1b[0m", "\\x1b[0m"),
        ("\x9b", "\\x9b"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("\ufffe", "\\ufffe"),
        ("line\nbreak\ttab", "line\nbreak\ttab"),
        ("Größe 試験 👩\u200d🔬", "Größe 試験 👩\u200d🔬"),
        ("it's", "it&#x27;s"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_tables_and_pairs_have_names_for_their_cells() -> None:
    assert table(("a", "b"), [("x", "1")]) == (
        '<div class="scroll"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr>'
        '</thead><tbody><tr><th scope="row">x</th><td>1</td></tr></tbody></table></div>'
    )
    assert pairs([("a", "1"), ("b", "")]) == "<dl><dt>a</dt><dd>1</dd></dl>"


# --- charts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0.43, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (5110.0, [0, 2000, 4000, 6000]),
        (7e-9, [0, 2e-9, 4e-9, 6e-9, 8e-9]),
        (0.0, [0, 1]),
        (math.inf, [0, 1]),
    ],
)
def test_ticks_are_round_and_reach_over_the_largest_value(
    high: float, expected: list[float]
) -> None:
    assert ticks(0.0, high) == pytest.approx(expected)


def drawn(*lines: Line, x: tuple[int, ...] = (10, 20, 30)) -> Page:
    found = chart("Title", "unit", list(x), lines, lambda value: f"{value:g} u")
    assert found is not None
    return Page(found)


def test_a_chart_has_a_unit_axes_a_legend_and_a_tooltip_for_every_point() -> None:
    page = drawn(Line("one", [1.0, 2.0, 4.0]), Line("two", [0.5, None, 0.5]))
    for text in ("Title", "unit", "steps", "0 u", "4 u", "10", "30"):
        assert text in page.text
    assert "step 20: one 2 u" in page.text and "step 20: two" not in page.text
    assert "one, 4 u at the end" in page.text
    assert len(page.of("circle")) == 5


def test_a_point_stands_where_its_value_is() -> None:
    # The plot is 344 wide from 62, and 146 high down to 172.
    found = [(a["cx"], a["cy"]) for a in drawn(Line("one", [0.0, 2.0, 4.0])).of("circle")]
    assert found == [("62.0", "172.0"), ("234.0", "99.0"), ("406.0", "26.0")]


def test_a_line_has_a_gap_where_a_value_is_missing() -> None:
    page = drawn(Line("one", [1.0, None, 1.0, 1.0]), x=(1, 2, 3, 4))
    (path,) = [a["d"] for a in page.of("path") if a["d"] and "M62" in a["d"]]
    assert path is not None and path.count("M") == 2 and path.count("L") == 1


def test_one_point_is_a_chart_and_none_is_not() -> None:
    assert len(drawn(Line("one", [1.0]), x=(5,)).of("circle")) == 1
    assert chart("Title", "unit", [1], [Line("one", [None])], str) is None
    assert chart("Title", "unit", [1], [Line("one", [math.nan])], str) is None


# --- bars ----------------------------------------------------------------------------------------


def rect(start: float, end: float) -> dict[str, str | None]:
    (found,) = Page(bars([Bar("name", "50 %", start, end)])).of("rect")
    return found


def test_a_bar_goes_from_its_start_to_its_end() -> None:
    assert (rect(0.25, 0.75)["x"], rect(0.25, 0.75)["width"]) == ("250.0", "500.0")
    assert rect(0.75, 0.25) == rect(0.25, 0.75)


def test_a_bar_stays_in_its_row_and_can_be_seen() -> None:
    assert (rect(-3.0, 0.5)["x"], rect(-3.0, 0.5)["width"]) == ("0.0", "500.0")
    assert rect(0.5, 1e9)["width"] == "500.0"
    assert (rect(1.0, 1.0)["x"], rect(1.0, 1.0)["width"]) == ("998.5", "1.5")


@pytest.mark.parametrize("end", [None, math.nan, math.inf])
def test_what_is_no_number_has_no_bar(end: float | None) -> None:
    page = Page(bars([Bar("name", "-", 0.0, end)]))
    assert page.of("rect") == [] and "name" in page.text
