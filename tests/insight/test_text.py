"""Lines of a report: what they begin with may be longer than a line."""

from __future__ import annotations

import pytest

from mfu_torch.insight.text import COLUMNS, field, wrap


def test_a_label_stands_before_its_text_and_the_text_goes_on_under_itself() -> None:
    assert field("label", "word " * 20, 14).splitlines() == [
        "label         " + " ".join(["word"] * 17),
        "              word word word",
    ]


def test_a_label_never_touches_its_text() -> None:
    assert field("y" * 14, "text", 14) == "y" * 14 + " text"


@pytest.mark.parametrize("text", ["  1.1 %", "54.6 % of the time", "word " * 40])
@pytest.mark.parametrize("length", [60, 71, 72, 99, 100, 101, 300, 5000])
def test_a_long_label_stands_on_lines_of_its_own(length: int, text: str) -> None:
    lines = field("  " + "y" * length, text, 34).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert "".join(lines).count("y") == length
    assert [word for line in lines for word in line.split() if "y" not in word] == text.split()


def test_an_indent_without_room_for_text_is_cut() -> None:
    for line in wrap("text", first=" " * 200 + "label"):
        assert len(line) <= COLUMNS
