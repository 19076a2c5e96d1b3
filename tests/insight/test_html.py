"""The report as a page: the words and numbers of the text report, and nothing from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from html_pages import Page
from samples import T, count, entries, header, peak, run, step, term

from mfu_torch.figures import run_figures
from mfu_torch.insight.html import render_page
from mfu_torch.insight.html.curves import POINTS, window_figures
from mfu_torch.insight.html.numbers import flat
from mfu_torch.insight.html.waterfall import STEPS, drops
from mfu_torch.insight.report import count_rows, headline, notes_of, usual_count, wall_rows
from mfu_torch.insight.summary import summary
from mfu_torch.records import (
    CountEntry,
    Device,
    Earlier,
    End,
    Pause,
    PeakEntry,
    Run,
    Telemetry,
    Window,
)
from mfu_torch.records.breakdown import Breakdown, BreakdownEntry, Bucket, Coverage


def words(text: str) -> str:
    return " ".join(text.split())


def sampled() -> Run:
    """The run of samples, with what the device did."""
    told = Telemetry(
        after_step=5,
        samples=12,
        time_s=4.0,
        gpu_util=0.99,
        sm_clock_hz=1.41e9,
        power_w=690.0,
        absent={"sm_active": "needs Hopper or newer"},
    )
    return run(telemetry=(told,))


def nothing() -> Run:
    return Run.from_entries([header()])


RUNS = {
    "complete": run(),
    "sampled": sampled(),
    "empty": nothing(),
    "going on": run(end=None),
    "no peak": run(peaks={"bf16": PeakEntry(dtype="bf16", unknown="no peak of Foo 9")}),
    "no count": run(counts={0: CountEntry(id=0, unknown="the count failed")}),
    "resumed": run(
        header=header(
            earlier=Earlier(started="2026-01-01", wall_s=9.0, steps=3, ideal_s={"full": 0.9}),
            world_size=8,
            rank=3,
        )
    ),
    "faster than its peak": run(peaks={"bf16": peak("bf16", 1e12), "fp32": peak("fp32", 1e12)}),
    "parts that overlap": run(end=End(wall_s=12.0, reason="completed")),
}


@pytest.mark.parametrize("of", RUNS.values(), ids=RUNS)
def test_a_page_is_well_formed_and_has_every_figure_of_the_report(of: Run) -> None:
    page = Page(render_page(of))
    now = run_figures(of)
    for label, text in headline(of, now):
        assert label in page.text and words(text) in page.text
    for row in wall_rows(of, now):
        assert " ".join(row) in page.text  # the cells of one row of a table
    counted, _ = usual_count(of)
    for label, text in count_rows(counted) if counted else ():
        assert f"{label} {words(text)}" in page.text
    for note in notes_of(of):
        assert note in page.text


@pytest.mark.parametrize("of", RUNS.values(), ids=RUNS)
def test_every_number_of_the_summary_is_on_the_page(of: Run) -> None:
    page = Page(render_page(of))
    leaves = list(flat(msgspec.to_builtins(summary(of))))
    assert len(leaves) > 25
    for name, value in leaves:
        assert words(f"{name} {value}") in page.text


@pytest.mark.parametrize("of", RUNS.values(), ids=RUNS)
def test_a_page_loads_nothing_and_runs_nothing(of: Run) -> None:
    text = render_page(of)
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "a", "form", "base"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")]
    assert "url(" not in text and "@import" not in text and "://" not in text
    policy = next(a["content"] for a in page.of("meta") if "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none';")


def test_the_same_run_is_the_same_page() -> None:
    assert render_page(sampled()) == render_page(sampled())
    assert render_page(sampled()) != render_page(run())


def test_a_page_has_colours_for_dark_and_light_and_paper() -> None:
    text = render_page(run())
    for query in ("(prefers-color-scheme: dark)", "@media print", "(max-width: 40rem)"):
        assert query in text
    used = set(re.findall(r"var\((--\w+)\)", text))
    for block in text.partition("</style>")[0].split(":root {")[1:]:
        assert used <= set(re.findall(r"(--\w+):", block.partition("}")[0]))


# --- its parts -----------------------------------------------------------------------------------


def test_curves_are_those_of_the_windows() -> None:
    page = Page(render_page(run()))
    # Windows of the steps 1, 2 (0.9 and 1.0 s) and 3, 4 (1.0 and 1.1 s): 0.6 / 1.9 and 0.6 / 2.1.
    assert "step 3: MFU 31.6 %" in page.text and "step 5: MFU 28.6 %" in page.text
    assert "step 5: mean 1.05 s" in page.text and "step 5: p95 1.10 s" in page.text
    # Until the end of the first window 3 steps in 15.4 s, of the second 5 in 19.0.
    assert "step 3: end-to-end MFU 5.8 %" in page.text
    assert "step 5: end-to-end MFU 7.9 %" in page.text
    titles = [a["aria-label"] for a in page.of("svg") if "aria-label" in a]
    assert [str(title).partition(" over")[0] for title in titles] == [
        "Utilisation",
        "Throughput, tokens",
        "Throughput, samples",
        "Step time",
        "Data wait",
    ]


def test_a_long_run_has_points_over_several_windows() -> None:
    windows = tuple(Window(steps=(step(i, 1.0),), wall_s=i + 1.0) for i in range(1000))
    long = run(windows=windows)
    found = window_figures(long)
    assert len(found) <= POINTS
    assert [now.steps for now in found[:-1]] == [7] * (len(found) - 1)
    assert sum(now.steps for now in found) == 1000
    assert found[0].end_to_end == pytest.approx(7 * 0.3 / 7.0)
    assert "each point is over 7 windows of 10 steps" in Page(render_page(long)).text
    assert len(render_page(long)) < 400_000


def test_the_waterfall_ends_at_the_end_to_end_mfu() -> None:
    for name in ("complete", "sampled", "resumed", "faster than its peak", "parts that overlap"):
        now = run_figures(RUNS[name])
        assert now.end_to_end is not None
        left = 1 - sum(drop.share for drop in drops(RUNS[name], now))
        assert left == pytest.approx(now.end_to_end), name


def test_every_part_of_the_waterfall_is_what_the_model_did_not_get() -> None:
    found = {drop.name: drop.share for drop in drops(run(), run_figures(run()))}
    # Of 20 s: 10 s compiling with 0.3 s of model FLOPs, 4 steady s with 1.2, 1.64 with recompute.
    assert found == pytest.approx(
        {
            "excluded: first step, compiling (1)": 9.7 / 20,
            "pause: init (1)": 2 / 20,
            "pause: eval (2)": 3 / 20,
            "other": 1 / 20,
            "steady steps: below peak": (4 - 1.64) / 20,
            "steady steps: recompute": (1.64 - 1.2) / 20,
        }
    )


def test_many_pauses_are_few_bars_that_still_sum() -> None:
    pauses = tuple(Pause(name=f"p{i}", after_step=i, duration_s=0.01 * i) for i in range(1, 40))
    many = run(pauses=pauses)
    now = run_figures(many)
    found = drops(many, now)
    assert len(found) == STEPS and "smaller parts" in found[0].name
    assert 1 - sum(drop.share for drop in found) == pytest.approx(now.end_to_end)


def test_without_an_mfu_the_waterfall_ends_at_the_steady_steps_and_says_why() -> None:
    text = Page(render_page(RUNS["no peak"])).text
    assert "Only down to the steady steps, since MFU is not known: no peak of Foo 9" in text
    # 10 s compiling, init 2 s, eval 3 s and 1 s other of 20 s; 4 s are left.
    for bar in ("compiling (1) -50.0 %", "eval (2) -15.0 %", "other -5.0 %", "steady steps 20.0 %"):
        assert bar in text
    assert "MFU, HFU, end-to-end MFU: no peak of Foo 9 -> Meter(..., peak=" in text


def test_the_ladder_has_its_rungs_and_why_some_are_missing() -> None:
    text = Page(render_page(sampled())).text
    assert "GPU-Util 99.0 % of the time any kernel ran, however small" in text
    assert "SM active - not known, needs Hopper or newer" in text
    assert "held down" not in text and "690 W" in text
    assert "the device was not sampled" in Page(render_page(run())).text


def test_provenance_names_convention_peak_clock_versions_counts_and_notes() -> None:
    of = run(
        header=header(model="GPT", parameters=124_439_808, trainable=1000),
        counts={0: count(uncounted={"my::op": 3}, notes=("an upper bound",), uncertainty=0.1)},
        notes=("the last line was cut short",),
    )
    text = Page(render_page(of)).text
    for expected in (
        "full: every attention score is counted",
        "time CUDA events",
        "4 of 5 steps; excluded: first step, compiling (1)",
        "GPT, 124,439,808 parameters, 1,000 of them trainable",
        "bf16 100 TFLOP/s given Made-up sheet",
        "mfu_torch 0.1.0, torch 2.13.0, python 3.12.1",
        "counted on the first step as it trained; within 10.0 %; not counted: my::op (3 calls)",
        "an upper bound",
        "the last line was cut short",
        "Nothing: every figure above is known.",
    ):
        assert expected in text, expected


def test_the_parts_of_traced_steps_have_a_bar_each_with_its_hint() -> None:
    parts = {"matrix/model_flops": 400, "matrix/below_peak": 350, "idle/data_wait": 250}
    hints = {"idle/data_wait": "more workers <b>"}
    found = Breakdown(
        file="t.json",
        device=None,
        rank=None,
        edges="gpu",
        steps=("1",),
        step_ns=(1000,),
        wall_ns=1000,
        peak=None,
        model_flops=None,
        hardware_flops=None,
        communication_ns=0,
        overlapped_ns=0,
        coverage=Coverage(launches=1, work=1, matrix_known_ns=1, matrix_ns=1),
        buckets=tuple(
            Bucket(name=name, time_ns=ns, per_step_ns=(ns,), hint=hints.get(name, ""))
            for name, ns in parts.items()
        ),
    )
    entry = BreakdownEntry(after_step=3, steps=(2,), breakdown=found, traced_s=1.0)
    page = Page(render_page(run(breakdowns=(entry,))))
    for text in (
        "Where the time of traced steps went",
        "model FLOPs at peak (MFU) 40.0 %",
        "matrix below peak 35.0 %",
        "idle: data wait 25.0 % 0.00 ms a step; more workers <b>",
        "Fix first",
    ):
        assert text in page.text
    assert "Where the time of traced steps went" not in Page(render_page(run())).text


def test_a_run_with_very_many_counts_has_a_short_table() -> None:
    counts = {i: count(i) for i in range(200)}
    text = Page(render_page(run(counts=counts))).text
    assert "and 170 further counts, all among the numbers below" in text


def test_ops_beyond_the_largest_are_one_bar() -> None:
    terms = tuple(term("forward", (40 - i) * T, T, op=f"op{i}") for i in range(40))
    text = Page(render_page(run(counts={0: count(terms=terms)}))).text
    assert "29 smaller ops" in text


# --- what is not to be trusted -------------------------------------------------------------------

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></pre><script>alert(1)</script>",
    "<!-- ",
    "]]>",
    "&lt;b&gt;&#60;",
    "\x00\x1b[31mred\x07\x85",
    "\u202egnp.exe",
    "half of a character: \ud800",
    "\ufeff\u200b\u2028",
    "x" * 5000,
]


def attacked(text: str) -> Run:
    """A run in which every text is one of these."""
    device = Device(name=text, kind="cuda", uuid=text, mig=text, compute_capability=text)
    known = peak("bf16").peak
    assert known is not None
    fields: dict[str, Any] = {
        "header": header(
            device=device,
            clock=text,
            model=text,
            versions={text: text},
            started=text,
            earlier=Earlier(started=text, wall_s=1.0, steps=1, unknown=text),
        ),
        "peaks": {
            "bf16": PeakEntry(
                dtype="bf16", peak=msgspec.structs.replace(known, source=text, device=text)
            ),
            text: PeakEntry(dtype=text, unknown=text),
        },
        "counts": {
            0: count(
                terms=(term("forward", T, T, op=text), term("backward", T, T, op="mm", dtype=text)),
                uncounted={text: 1},
                notes=(text,),
                method=text,
            ),
            1: CountEntry(id=1, unknown=text),
        },
        "pauses": (Pause(name=text, after_step=0, duration_s=1.0),),
        "windows": (
            Window(
                steps=(
                    step(0, 1.0, excluded=text),
                    *(step(i, 1.0, phases={text: 0.1}) for i in (1, 2)),
                ),
                wall_s=5.0,
            ),
        ),
        "telemetry": (
            Telemetry(
                after_step=3,
                samples=3,
                time_s=2.0,
                gpu_util=0.5,
                power_w=1.0,
                throttle={text: 0.5},
                absent={"sm_active": text, "sm_clock_hz": text},
            ),
        ),
        "end": End(wall_s=9.0, reason=text, notes=(text,)),
        "notes": (text,),
    }
    return Run(**fields)


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_of_a_run_becomes_markup(text: str) -> None:
    harmless, page = Page(render_page(attacked("x"))), render_page(attacked(text))
    parsed = Page(page)
    assert {tag for tag, _ in parsed.tags} == {tag for tag, _ in harmless.tags}
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert names == {name for _, attributes in harmless.tags for name in attributes}
    page.encode("utf-8")
    unseen = [c for c in page if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)]
    assert not unseen and not set(page) & set("\u202e\u200b\u2028\ufeff\ud800")


def test_what_cannot_be_seen_is_shown_as_an_escape() -> None:
    text = Page(render_page(attacked("a\x1b[31m\u202eb\ud800"))).text
    assert "a\\x1b[31m\\u202eb\\ud800" in text


def test_an_attack_is_shown_as_it_was_written() -> None:
    for text in ATTACKS[:7]:
        assert words(text) in Page(render_page(attacked(text))).text


def test_numbers_that_are_not_finite_draw_no_curve_and_break_nothing() -> None:
    for value in (float("nan"), float("inf"), -1.0, 0.0):
        steps = (step(0, 1.0), step(1, value, data_wait_s=value))
        of = run(windows=(Window(steps=steps, wall_s=value), Window(steps=steps, wall_s=value)))
        page = Page(render_page(of))
        for tag in ("path", "circle", "rect", "line"):
            drawn = [v for a in page.of(tag) for k, v in a.items() if k not in ("class", "style")]
            assert not [v for v in drawn if "nan" in str(v) or "inf" in str(v)], (value, tag)


def test_a_text_that_is_not_escaped_would_be_found() -> None:
    page = render_page(run()).replace("CUDA events", "<script>alert(1)</script>")
    assert "script" in {tag for tag, _ in Page(page).tags}
    with pytest.raises(AssertionError, match="closes"):
        Page(render_page(run()).replace("</section>", "", 1))


def test_the_entries_of_a_run_file_are_enough() -> None:
    assert render_page(Run.from_entries(entries())) == render_page(run())
