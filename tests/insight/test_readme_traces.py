"""The README's table of a real pair of traces is what they give."""

from __future__ import annotations

import re
from pathlib import Path

from traces import trace_path

from mfu_torch.insight import explain
from mfu_torch.insight.breakdown.diff import diff
from mfu_torch.records.losses import label

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_table_of_two_traces_in_the_readme_is_their_difference() -> None:
    before, after = (
        explain(trace_path(f"kineto_v100_rn50_workers{workers}"), edges="cpu") for workers in (0, 4)
    )
    rows = re.findall(
        r"^\| ([a-z: -]+) \| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) \| ([\d.]+) % \| ([-+][\d.]+) \|$",
        README.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    steps = len(before.steps)
    assert len(rows) == 7 and steps == len(after.steps) == 6
    change = diff(before, after)
    names = {label(bucket.name): bucket.name for bucket in (*before.buckets, *after.buckets)}
    for name, *numbers in rows:
        was, is_now = (
            next(b.time_ns for b in one.buckets if b.name == names[name]) for one in (before, after)
        )
        expected = (
            was / steps / 1e6,
            100 * was / before.wall_ns,
            is_now / steps / 1e6,
            100 * is_now / after.wall_ns,
            (is_now - was) / steps / 1e6,
        )
        for shown, value in zip(numbers, expected, strict=True):
            assert abs(float(shown) - value) <= 0.0101, (name, shown, value)  # rounded to sum
    assert f"{float(change.step_change_ns) / 1e6:.2f}" == "-35.14"
