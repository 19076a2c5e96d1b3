"""A breakdown as a line of the run file, as numbers that add up, on the console and in a report."""

from __future__ import annotations

import io
import random
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from explained_loop import HINT, MS, breakdown, entry
from samples import entries, header

from mfu_torch import read_run
from mfu_torch.insight.report import render_report
from mfu_torch.records import BreakdownEntry, End, Entry, Run
from mfu_torch.records.breakdown import BUCKETS, Bucket
from mfu_torch.records.losses import LABELS, losses, shares
from mfu_torch.run.runfile import RunFileSink
from mfu_torch.run.sinks import ConsoleSink
from mfu_torch.tags import breakdown_scalars


def written(folder: Path, *records: Entry) -> Run:
    sink = RunFileSink(folder)
    for record in records:
        sink.write(record)
    sink.close()
    return read_run(folder)


def test_a_breakdown_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = written(tmp_path, *entries(), entry(), entry(after_step=30, steps=(28, 29)))
    assert run.breakdowns == (entry(), entry(after_step=30, steps=(28, 29)))
    assert run.notes == ()


def test_a_run_file_without_one_has_none(tmp_path: Path) -> None:
    assert written(tmp_path, *entries()).breakdowns == ()


def test_a_version_that_knows_no_such_line_reads_the_others(tmp_path: Path) -> None:
    written(tmp_path, *entries(), entry())
    path = tmp_path / "run.jsonl"
    later = path.read_text(encoding="utf-8").replace('"breakdown",', '"breakdown_of_2031",', 1)
    path.write_text(later, encoding="utf-8")
    run = read_run(path)
    assert run.breakdowns == () and "'breakdown_of_2031' is not known" in run.notes[0]


def test_dilation_is_the_time_of_a_traced_step_over_that_of_another() -> None:
    assert entry().dilation == 1.25
    assert entry(untraced_s=None, untraced_steps=0).dilation is None


def test_shares_sum_to_exactly_1_also_in_single_precision() -> None:
    drawn = random.Random(1)
    for _ in range(200):
        names = drawn.sample(BUCKETS, drawn.randint(1, len(BUCKETS)))
        parts = {name: drawn.randint(1, 10**5) for name in names}
        if "matrix/below_peak" in parts and len(parts) > 1:
            parts["matrix/below_peak"] = -drawn.randint(1, 9) if drawn.random() < 0.5 else 3
        found = breakdown(parts)
        got = shares(found)
        total = np.float32(0)
        for share in got.values():
            total += np.float32(share)
        assert total == 1 and sum(map(Fraction, got.values())) == 1
        for bucket in found.buckets:
            off = abs(Fraction(got[bucket.name]) - Fraction(bucket.time_ns, found.wall_ns))
            assert off < Fraction(1, 2**20)


def test_every_part_and_the_dilation_have_a_tag() -> None:
    assert dict(breakdown_scalars(entry())) == {
        "breakdown/matrix": pytest.approx(0.3, abs=1e-6),
        "breakdown/other_compute": pytest.approx(0.15, abs=1e-6),
        "breakdown/idle/data_wait": pytest.approx(0.45, abs=1e-6),
        "breakdown/idle/launch_bound": pytest.approx(0.1, abs=1e-6),
        "breakdown/dilation": 1.25,
    }
    assert "breakdown/dilation" not in dict(breakdown_scalars(entry(untraced_s=None)))


def test_every_part_has_a_name_on_paper() -> None:
    assert LABELS.keys() == {"matrix", "precision", *BUCKETS}


def test_the_goal_and_what_nobody_knows_are_no_losses() -> None:
    parts = {"matrix/model_flops": 90, "matrix/unknown_flops": 80, "other_compute": 5}
    assert [bucket.name for bucket in losses(breakdown(parts))] == ["other_compute"]


def test_the_console_names_the_largest_loss_and_what_to_do_about_it() -> None:
    stream = io.StringIO()
    ConsoleSink(stream).write(entry())
    said = " ".join(stream.getvalue().split())
    assert said == (
        "steps 11-12: 45.0 % idle: data wait (traced steps took 1.25x as long as the steady ones "
        f"around them): {HINT}"
    )


def test_a_share_is_said_once() -> None:
    stream = io.StringIO()
    found = breakdown()
    hint = "45.0 % of the time: the loader is slow"
    told = msgspec.structs.replace(found.buckets[2], hint=hint)
    changed = msgspec.structs.replace(found, buckets=(told,), wall_ns=told.time_ns)
    ConsoleSink(stream).write(entry(breakdown=changed, untraced_s=None))
    assert stream.getvalue() == f"      steps 11-12: idle: data wait: {hint}\n"


def test_the_console_names_a_dtype_that_would_save_more_than_any_loss() -> None:
    stream = io.StringIO()
    hint = "70.0 % of the time matrix kernels run in fp32, where bf16 has 16 times the peak"
    ns = 190 * 10**6  # half of it is more than the 90 ms of waiting
    best = Bucket(name="precision", time_ns=ns, per_step_ns=(ns, 0), hint=hint)
    found = msgspec.structs.replace(breakdown(), precision=best)
    ConsoleSink(stream).write(entry(breakdown=found, untraced_s=None))
    said = " ".join(stream.getvalue().split())
    assert said == f"steps 11-12: mixed precision: {hint}"


def test_the_console_says_where_there_is_no_loss() -> None:
    stream = io.StringIO()
    perfect = entry(steps=(7,), breakdown=breakdown({"matrix": 60}), untraced_s=None)
    ConsoleSink(stream).write(perfect)
    assert stream.getvalue() == "      step 7: no loss stands out\n"


def test_a_name_of_a_kernel_cannot_move_the_cursor() -> None:
    stream = io.StringIO()
    found = breakdown()
    bad = msgspec.structs.replace(found.buckets[2], hint="\x1b[2Jkernel")
    buckets = (*found.buckets[:2], bad, found.buckets[3])
    changed = entry(breakdown=msgspec.structs.replace(found, buckets=buckets))
    ConsoleSink(stream).write(changed)
    report = render_report(run_with(changed))
    assert "\x1b" not in stream.getvalue() and "?[2Jkernel" in stream.getvalue()
    assert "\x1b" not in report and "?[2Jkernel" in report


def run_with(*found: BreakdownEntry) -> Run:
    return Run.from_entries([header(), *found, End(wall_s=20.0, reason="completed")])


def test_the_report_names_the_last_breakdown() -> None:
    report = render_report(run_with(entry(steps=(1, 2)), entry()))
    block = report[report.index("Where the time of traced") :].split("\n\n")[0].splitlines()
    slower = "traced steps took 1.25x as long as the steady ones around them"
    assert block == [
        "Where the time of traced steps 11-12 went, the last of 2 breakdowns",
        "  idle: data wait                  45.0 %",
        "  matrix kernels                   30.0 %",
        "  other compute                    15.0 %",
        "  idle: launch-bound               10.0 %",
        f"  tracing                         {slower}",
        "  all of it                       mfu-torch explain traces/run.steps-11-12.json.gz",
        "                                  in the folder of the run file",
    ]


def test_parts_that_are_not_named_are_summed_up_and_warnings_are_told() -> None:
    parts = {name: 10 * at for at, name in enumerate(BUCKETS[:8], 1)}  # 360 ms in all
    found = breakdown(parts, warnings=("below the peak is negative: the peak is wrong",))
    report = render_report(run_with(entry(breakdown=found, untraced_s=None, trace="")))
    assert "  3 smaller parts                  16.7 %" in report  # 10 + 20 + 30 of 360
    assert "  WARNING: below the peak is negative: the peak is wrong" in report
    assert "no steady step was near to compare the traced ones with" in report
    assert "mfu-torch explain" not in report


def test_the_sample_adds_up() -> None:
    assert sum(bucket.time_ns for bucket in breakdown().buckets) == 200 * MS == breakdown().wall_ns
