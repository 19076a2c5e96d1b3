"""A run as one page: self-contained, without scripts, the same bytes for the same run.

Every number comes from :mod:`mfu_torch.figures` in the words of the text report
(:mod:`mfu_torch.insight.report`); here they only become markup.
"""

from __future__ import annotations

from importlib.resources import files

from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.breakdown_block import breakdown_block
from mfu_torch.insight.device_block import device_block
from mfu_torch.insight.html.bars import Bar, bars
from mfu_torch.insight.html.curves import curves
from mfu_torch.insight.html.flops import flops
from mfu_torch.insight.html.markup import Markup, element, escaped, joined, pairs
from mfu_torch.insight.html.numbers import numbers
from mfu_torch.insight.html.provenance import provenance
from mfu_torch.insight.html.waterfall import waterfall
from mfu_torch.insight.parts_block import NAMES, parts_block
from mfu_torch.insight.report import headline, not_known, render_report, title
from mfu_torch.insight.text import share_text
from mfu_torch.ladder import NO_TELEMETRY, ladder
from mfu_torch.records import Run
from mfu_torch.records.losses import NO_LOSS, label
from mfu_torch.tags import part_shares
from mfu_torch.units import rounded_parts, scaled, seconds

BEGIN = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="generator" content="mfu-torch report">\n'
)
"""How every page of ours begins: only such a file is written over."""

# Nothing is loaded from anywhere, and no script runs, even if a name should have got through.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

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
        [element("p", line) for line in title(run)],
        element("div", _tiles(run, now), class_="tiles"),
        pairs(_with_labels(run, now)),
        [element("p", f"Not known: {line}", class_="warn") for line in not_known(run, now)],
    )


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
    words = "\n".join(device_block(run))
    return joined(
        bars(rows) if rows else element("p", f"Not known: {NO_TELEMETRY}."),
        element("pre", words) if words else None,
    )


def _parts(run: Run, now: Figures) -> Markup | None:
    """Of the steps that were split: every part from where the one before it ends."""
    words = "\n".join(parts_block(run, now))
    if not words or now.split is None:
        return None
    shares = part_shares(now.split)
    texts = rounded_parts([100 * share for share in shares.values()], 1)
    rows, end = [], 0.0
    for (name, share), text in zip(shares.items(), texts, strict=True):
        start, end = end, end + share
        kind = "lost" if name in ("data_wait", "rest", "between") else "b2"
        rows.append(Bar(NAMES[name], f"{text} %", start, end, kind))
    return joined(bars(rows), element("pre", words))


def _breakdown(run: Run) -> Markup | None:
    """Of the steps that were traced last: every part from where the one before it ends."""
    words = "\n".join(breakdown_block(run))
    if not words:
        return None
    found = run.breakdowns[-1].breakdown
    texts = rounded_parts([100 * part.time_ns / found.wall_ns for part in found.buckets], 1)
    rows, end = [], 0.0
    for part, text in zip(found.buckets, texts, strict=True):
        start, end = end, end + part.time_ns / found.wall_ns
        kind = "b1" if part.name in NO_LOSS else "lost" if part.name.startswith("idle") else "b2"
        rows.append(Bar(label(part.name), f"{text} %", start, end, kind, part.hint))
    return joined(bars(rows), element("pre", words))


def _everything(run: Run) -> Markup:
    return joined(
        element("details", element("summary", "The report as text"), _pre(render_report(run))),
        element("details", element("summary", "Every number, unrounded"), numbers(run)),
    )


def _pre(text: str) -> Markup:
    return Markup(f"<pre>{escaped(text)}</pre>")
