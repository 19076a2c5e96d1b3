"""The page with every case is what the code produces, and nothing in it is wrong."""

from __future__ import annotations

import difflib

import cases_table
import pytest
import torch
import transformers


@pytest.fixture(scope="module")
def sections() -> dict[str, list[cases_table.Row]]:
    return cases_table.sections()


@pytest.fixture(scope="module")
def rows(sections: dict[str, list[cases_table.Row]]) -> list[cases_table.Row]:
    return [row for section in sections.values() for row in section]


def test_every_row_is_exact_or_says_what_it_is(rows: list[cases_table.Row]) -> None:
    assert [row for row in rows if row.verdict == "wrong"] == []
    assert len(rows) >= 80
    unknown = [row.name for row in rows if row.verdict == "unknown"]
    assert unknown == [
        "forward in another thread",
        "custom op without a formula",
        "hidden in numpy",
    ]


def test_every_wrong_number_of_a_witness_has_a_reason(rows: list[cases_table.Row]) -> None:
    unexplained = [row for row in rows if "not explained" in "; ".join(row.reasons)]
    assert unexplained == []
    for row in rows:
        differs = row.torch != "=" or row.fvcore not in ("=", "")
        assert bool(row.reasons) == differs or row.verdict == "unknown", row


def test_a_case_stands_in_one_section(rows: list[cases_table.Row]) -> None:
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) == len(cases_table.WORK) + len(cases_table.ZOO)


def test_the_page_is_what_the_code_produces(sections: dict[str, list[cases_table.Row]]) -> None:
    written = cases_table.PAGE.read_text(encoding="utf-8")
    produced = cases_table.page(sections)
    for version in (torch.__version__.split("+")[0], transformers.__version__):
        if version not in written:
            pytest.skip(f"the page was written with other versions than {version}")
    difference = difflib.unified_diff(written.splitlines(), produced.splitlines(), n=0, lineterm="")
    assert list(difference) == [], f"write it again: {cases_table.COMMAND}"
