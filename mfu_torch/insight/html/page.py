"""A run as one page: self-contained, without scripts, the same bytes for the same run.

Every number comes from :mod:`mfu_torch.figures` in the words of the text report
(:mod:`mfu_torch.insight.report`); here they only become markup.
"""

from __future__ import annotations

from importlib.resources import files

from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.advice import advice
from mfu_torch.insight.breakdown_block import below
from mfu_torch.insight.device_block import device_block
from mfu_torch.insight.html.bars import Bar, bars, key
from mfu_torch.insight.html.curves import curves
from mfu_torch.insight.html.flops import flops
from mfu_torch.insight.html.markup import Markup, element, escaped, joined, pairs
from mfu_torch.insight.html.numbers import numbers
from mfu_torch.insight.html.provenance import provenance
from mfu_torch.insight.html.waterfall import waterfall
from mfu_torch.insight.parts_block import lead_text, parts_block, parts_rows, split_text
from mfu_torch.insight.report import headline, not_known, render_report, title
from mfu_torch.insight.text import share_text
from mfu_torch.ladder import NO_TELEMETRY, ladder
from mfu_torch.records import Run
from mfu_torch.records.losses import NO_LOSS, label, steps_text
from mfu_torch.tags import part_shares
from mfu_torch.units import rounded_parts, scaled, seconds

BEGIN = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="generator" content="mfu-torch report">\n'
)
"""How every page of ours begins: only such a file is written over."""

# Nothing is loaded from anywhere, and no script runs, even if a name should have got through.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_WAITING = ("data_wait", "rest", "between")
"""Parts of a step in which the model is not computed."""

_KINDS = {"MFU": "b1", "HFU": "b4"}


def render_page(run: Run) -> str:
    """The report of a run as HTML; it may still be going on."""
    now = run_figures(run)
    head = joined(
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"MFU report: {run.header.device.name}, {run.header.started}"),
        element("style", Markup(_css())),
    )
    body = element(
        "body",
        _summary(run, now),
        _section("Curves", curves(run)),
        _section("What the device did", _device(run)),
        _section("Where the wall time went", waterfall(run, now)),
        _section("Where the time of a step went", _parts(run, now)),
        _section("Where the time of traced steps went", _breakdown(run)),
        _section("FLOPs", flops(run)),
        _section("Where the numbers come from", provenance(run, now)),
        _section("Everything", _everything(run)),
    )
    return f"{BEGIN}{head}\n</head>\n{body}\n</html>\n"


def _css() -> str:
    return files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def _section(title: str, content: Markup | None) -> Markup | None:
    if content is None:
        return None
    return Markup(f"\n{element('section', element('h2', title), content)}")


def _summary(run: Run, now: Figures) -> Markup:
    return element(
        "header",
        element("h1", "MFU report"),
        _first(run, now),
        [element("p", line) for line in title(run)],
        element("div", _tiles(run, now), class_="tiles"),
        pairs(_with_labels(run, now)),
        [element("p", f"Not known: {line}", class_="warn") for line in not_known(run, now)],
    )


def _first(run: Run, now: Figures) -> Markup | None:
    """The answer, before all numbers."""
    found = advice(run, now)
    if found is None:
        return None
    text = found.text[:1].upper() + found.text[1:]
    return element("p", element("strong", "Fix first"), text, class_="first")


def _with_labels(run: Run, now: Figures) -> list[tuple[str, str]]:
    return [(label, " ".join(text.split())) for label, text in headline(run, now)]


def _tiles(run: Run, now: Figures) -> list[Markup]:
    """The figures that are looked at first, large."""
    attention = f"attention {run.header.attention}"
    found = [
        ("MFU", share_text(now.mfu), f"steady-state, {attention}"),
        ("end-to-end MFU", share_text(now.end_to_end), f"of the wall time, {attention}"),
        ("HFU", share_text(now.hfu), "with recompute"),
    ]
    if now.step_s is not None:
        found.append(("step time", seconds(now.step_s), "mean"))
    for noun in ("tokens", "samples"):
        rate = getattr(now, f"{noun}_per_s")
        if rate is not None:
            found.append((f"{noun}/s", scaled(rate, ""), "steady-state"))
            break
    return [
        element(
            "div", element("span", name), element("b", value), element("span", of), class_="tile"
        )
        for name, value, of in found
    ]


def _device(run: Run) -> Markup:
    rungs = ladder(run)
    rows = [
        Bar(
            rung.name,
            share_text(rung.share),
            None if rung.share is None else 0.0,
            rung.share,
            _KINDS.get(rung.name, "b3"),
            rung.meaning if rung.share is not None else f"not known, {rung.absent}",
        )
        for rung in rungs
    ]
    drawn = {rung.name for rung in rungs}
    words = [line for line in device_block(run) if line[2:].split("  ")[0] not in drawn]
    return joined(
        bars(rows) if rows else element("p", f"Not known: {NO_TELEMETRY}."),
        element("pre", "\n".join(words)) if words else None,
    )


def _parts(run: Run, now: Figures) -> Markup | None:
    """Of the steps that were split: every part from where the one before it ends."""
    split = now.split
    if split is None or not any(parts_block(run, now)):
        return None
    shares = part_shares(split)
    *texts, total = parts_rows(split)
    rows, end = [], 0.0
    for (name, share), (called, ms, percents, of_peak) in zip(shares.items(), texts, strict=True):
        start, end = end, end + share
        kind = "lost" if name in _WAITING else "b2"
        more = f"{ms} ms a step" + (f", {of_peak} % of the peak" if name in split.of_peak else "")
        rows.append(Bar(called, f"{percents} %", start, end, kind, more))
    below = [f"A step is {total[1]} ms; {split_text(now, split)}.", lead_text(split)]
    return joined(
        key((("b2", "computes"), ("lost", "waits, or does other work"))),
        bars(rows),
        [element("p", text, class_="soft") for text in below if text],
    )


def _breakdown(run: Run) -> Markup | None:
    """Of the steps that were traced last: every part from where the one before it ends."""
    if not run.breakdowns:
        return None
    entry = run.breakdowns[-1]
    found = entry.breakdown
    texts = rounded_parts([100 * part.time_ns / found.wall_ns for part in found.buckets], 1)
    rows, end = [], 0.0
    for part, text in zip(found.buckets, texts, strict=True):
        start, end = end, end + part.time_ns / found.wall_ns
        kind = "b1" if part.name in NO_LOSS else "lost" if part.name.startswith("idle") else "b2"
        ms = f"{part.time_ns / max(1, len(found.step_ns)) / 1e6:.2f} ms a step"
        more = f"{ms}; {part.hint}" if part.hint else ms
        rows.append(Bar(label(part.name), f"{text} %", start, end, kind, more))
    kinds = (("b1", "the model's FLOPs, or not known"), ("b2", "lost while the device works"))
    said = [f"{name}: {text}" if name else text for name, text in below(entry)]
    return joined(
        element("p", f"Of the {steps_text(entry.steps)}", class_="soft"),
        key((*kinds, ("lost", "lost while it is idle"))),
        bars(rows),
        [element("p", text, class_="soft") for text in said],
        [element("p", f"WARNING: {text}", class_="warn") for text in found.warnings],
    )


def _everything(run: Run) -> Markup:
    return joined(
        element("details", element("summary", "The report as text"), _pre(render_report(run))),
        element("details", element("summary", "Every number, unrounded"), numbers(run)),
    )


def _pre(text: str) -> Markup:
    return Markup(f"<pre>{escaped(text)}</pre>")
