"""The pages in docs/: their code runs and prints what they show, and their numbers are right."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from test_readme import (
    ROOT,
    assert_all_shown,
    assert_links_lead_somewhere,
    blocks_of,
    check_document,
    demo_output,
)

from mfu_torch.figures import Figures
from mfu_torch.peak import benchmark
from mfu_torch.records import Device
from mfu_torch.run.sinks import ConsoleSink
from mfu_torch.utilization import ideal_time_s, utilization

# Beginning of what is run -> why its output is not compared.
NOT_RUN = {"mfu-torch bench": "measures for a minute"}

DOCS = sorted((ROOT / "docs").glob("*.md"))
NAMES = [path.stem for path in DOCS]


def text_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def drawings_of(name: str) -> list[str]:
    """The blocks without a language, which are not run."""
    return [block.text for block in blocks_of(text_of(name)) if not block.language]


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(NAMES) >= 9
    for name in NAMES:
        assert f"](docs/{name}.md)" in readme


@pytest.mark.parametrize("path", DOCS, ids=NAMES)
def test_a_page_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    assert_all_shown(check_document(path, tmp_path, NOT_RUN), not_shown={})


@pytest.mark.parametrize("path", DOCS, ids=NAMES)
def test_every_block_has_a_language_that_is_checked(path: Path) -> None:
    languages = {block.language for block in blocks_of(path.read_text(encoding="utf-8"))}
    assert languages <= {"python", "console", "text", "toml", ""}


@pytest.mark.parametrize("path", DOCS, ids=NAMES)
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    assert_links_lead_somewhere(path)


# --- what is shown without being run -------------------------------------------------------------


def test_the_report_that_is_read_line_by_line_is_that_of_the_demo() -> None:
    for shown in drawings_of("reading-the-numbers"):
        assert shown in demo_output()


def test_every_label_of_that_report_is_explained() -> None:
    page = text_of("reading-the-numbers")
    report, _ = drawings_of("reading-the-numbers")
    labels = set(re.findall(r"^(\w[\w ]*?)(?:  |$| \()", report, re.MULTILINE)) - {"AMD EPYC |"}
    labels = {label.removesuffix(", dense, per device") for label in labels}
    assert len(labels) >= 8
    for label in labels:
        assert f"**{label}**" in page, label


def test_the_refusal_of_a_peak_on_a_busy_machine_is_what_the_console_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "limiting_quota", lambda: "")
    reason = benchmark._why_disturbed(Device(name="AMD EPYC", kind="cpu"), "fp32", 0.5)
    stream = io.StringIO()
    ConsoleSink(stream).write(Figures(step=10, steps=9, time_s=1.0, absent={"mfu": reason}))
    (shown,) = drawings_of("wrong-numbers")
    assert shown == stream.getvalue().partition("\n")[2]


def test_the_table_of_the_page_gives_the_peaks_in_it(tmp_path: Path) -> None:
    from mfu_torch import peak_for

    (table,) = [b for b in blocks_of(text_of("peaks")) if b.language == "toml"]
    path = tmp_path / "mine.toml"
    path.write_text(table.text, encoding="utf-8")
    assert peak_for("My GPU 9000", "bf16", table=path).flops_per_s == 500e12
    assert peak_for("My GPU 9000", "fp8", table=path).flops_per_s == 1e15


# --- what the package says, quoted ---------------------------------------------------------------


def spoken() -> str:
    """The texts of the package, each on one line, with ``N`` for what is filled in."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "mfu_torch").rglob("*.py"))
    )
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    return re.sub(r"\{[^{}]*\}", "N", source)


def quoted(page: str, title: str) -> list[str]:
    """First cells of the table below a title, without what is left open."""
    table = page.partition(title)[2].partition("\n|---")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert cells, title
    return cells


def test_the_reasons_for_a_missing_mfu_are_those_that_are_given() -> None:
    source = spoken()
    for reason in quoted(text_of("wrong-numbers"), "## MFU is missing"):
        for part in reason.split("..."):
            part = re.sub(r"\b(bf16|fp32)\b", "N", part.strip(" :"))
            assert part in source, part


def test_the_rows_of_the_wall_time_are_those_that_are_printed() -> None:
    source = spoken()
    for row in quoted(text_of("reading-the-numbers"), "every second of the run is in one row"):
        name = row.partition(": ")[2] or row
        assert name == "NAME" or f'"{name}' in source, row


def test_the_ways_of_counting_are_those_that_are_recorded() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| the report's `how` |")[2].partition("\n\n")[0]
    ways = [row.split("|")[3].strip() for row in table.splitlines()[2:]]
    *ways, unknown = ways
    assert len(ways) == 3 and unknown == "not known, with the reason"
    source = spoken()
    for way in ways:
        assert re.sub(r"\d+|REASON", "N", way) in source, way


def test_a_quotation_that_nothing_says_would_be_found() -> None:
    assert "counted on step N as it trained" in spoken()
    assert "counted on step N while it trained" not in spoken()


# --- numbers worked by hand ----------------------------------------------------------------------

T = 10**12
ONE = ideal_time_s({"bf16": 40 * T}, {"bf16": 1e15})
MIXED = ideal_time_s({"bf16": 6 * T, "tf32": T}, {"bf16": 312e12, "tf32": 156e12})

WORKED = {
    "Its MFU is 0.04 / 0.1 = 40 %": (utilization(ONE, 0.1), 0.4),
    "6 / 312 + 1 / 156 = 25.6 ms": (MIXED, 0.0256),
    "its MFU 51.3 %": (utilization(MIXED, 0.05), 0.513),
    "7 / (0.05 · 312) = 44.9 %": (7 / (0.05 * 312), 0.449),
    "0.8 / 2.0 = 40 %": (utilization(0.4 + 0.4, 0.5 + 1.5), 0.4),
    "80 % and 26.7 %, would be 53 %": ((0.4 / 0.5 + 0.4 / 1.5) / 2, 0.533),
    "2.5 / 20 = 12.5 %": (utilization(5 * 0.5, 20), 0.125),
    "= 22.5 points": ((0.5 * 10 - 0.5) / 20, 0.225),
    "= 15 points": (0.5 * 6 / 20, 0.15),
    "`below_peak` is 2 / 20 = 10 %": ((4 - 4 * 0.5) / 20, 0.1),
    "9.5 / 20 = 47.5 %": ((10 - 0.5) / 20, 0.475),
    "140 / 600 = 23.3 %": (utilization(100 + 40, 500 + 100), 0.233),
    "4 · 2 · 786432 · 2048 | 12.88": (4 * 2 * 12 * 256**2 * 2048 / 1e9, 12.88),
    "2 · 65536 · 2048 | 0.27": (2 * 256 * 256 * 2048 / 1e9, 0.268),
    "4 · 8 · 4 · 2 · 2 · 256 · 256 · 64 | 2.15": (4 * 8 * 4 * 2 * 2 * 256 * 256 * 64 / 1e9, 2.15),
    "| forward | | 15.30 |": ((4 * 786432 + 65536) * 2 * 2048 / 1e9 + 2.1475, 15.30),
}


@pytest.mark.parametrize("words", WORKED)
def test_a_number_worked_by_hand_is_right(words: str) -> None:
    value, stated = WORKED[words]
    assert words in text_of("concepts")
    assert value == pytest.approx(stated, rel=2e-3, abs=5e-3 if stated > 0.5 else 5e-4)
