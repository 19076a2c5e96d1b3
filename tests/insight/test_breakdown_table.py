"""A breakdown on paper: its numbers add up, and it says what to fix first."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal

import msgspec
import pytest
from breakdowns import MS, PARTS, breakdown

from mfu_torch.insight.breakdown_export import csv_text, markdown, summary
from mfu_torch.insight.breakdown_table import decimals_of, render
from mfu_torch.insight.breakdown_words import fix_first
from mfu_torch.records import Peak
from mfu_torch.records.breakdown import BUCKETS, Breakdown, Coverage, Kernel
from mfu_torch.records.losses import LABELS, losses

_ROW = re.compile(r"^[-=] (.+?) {2,}(-?[\d.]+) +(-?[\d.]+) %", re.MULTILINE)
_SUM = re.compile(r"^  SUM +([\d.]+) +([\d.]+) %  = wall time, ([\d,]+) ns$", re.MULTILINE)


def rows(text: str) -> dict[str, tuple[Decimal, Decimal]]:
    return {name: (Decimal(ms), Decimal(share)) for name, ms, share in _ROW.findall(text)}


def thirds() -> Breakdown:
    return breakdown(
        {"matrix/model_flops": 1, "other_compute": 1, "idle/data_wait": 1}, unit=1, steps=1
    )


# --- the waterfall ---------------------------------------------------------------------------


def test_every_bucket_stands_with_its_milliseconds_and_share_of_a_mean_step() -> None:
    found = rows(render(breakdown()))
    assert found["idle: data wait"] == (Decimal("30.00"), Decimal("30.0"))  # 60 of 200 ms
    assert found["model FLOPs at peak (MFU)"] == (Decimal("25.00"), Decimal("25.0"))
    assert len(found) == len(PARTS)


def test_it_goes_from_idle_time_down_to_the_mfu() -> None:
    names = list(rows(render(breakdown())))
    assert names[0] == "idle: launch-bound"
    assert names[-1] == "model FLOPs at peak (MFU)"


@pytest.mark.parametrize(
    "parts",
    [
        PARTS,
        dict.fromkeys(PARTS, 1),
        {name: 7 + 13 * i for i, name in enumerate(BUCKETS)},
        {"matrix/model_flops": 70, "matrix/below_peak": -20, "other_compute": 33},
    ],
)
@pytest.mark.parametrize("unit", [1, 1_234_567])
def test_the_printed_parts_add_up_to_the_printed_sum(parts: dict[str, int], unit: int) -> None:
    text = render(breakdown(parts, unit=unit, steps=3))
    printed, whole = rows(text), _SUM.search(text)
    assert whole is not None
    assert sum(ms for ms, _ in printed.values()) == Decimal(whole[1])
    assert sum(share for _, share in printed.values()) == Decimal(whole[2]) == 100
    assert whole[3] == f"{sum(parts.values()) * unit:,}"


def test_thirds_add_up_to_one() -> None:
    assert [share for _, share in rows(render(thirds())).values()] == [
        Decimal("33.33"),
        Decimal("33.33"),
        Decimal("33.34"),
    ]


def test_a_sum_that_is_not_the_wall_time_is_said_to_be_wrong() -> None:
    found = breakdown(wall_ns=200 * MS + 1)
    assert "WRONG: 200,000,000 ns of 200,000,001 ns" in render(found)


def test_a_bar_begins_where_the_rest_of_the_step_ends() -> None:
    parts = {"matrix/model_flops": 25, "other_compute": 25, "idle/data_wait": 50}
    text = render(breakdown(parts, steps=1)).replace("fix first ->", " " * 12)
    whole, wait, other, model = (line[55:] for line in text.splitlines() if "#" in line)
    size = len(whole)
    assert wait == " " * round(size / 2) + "#" * (size - round(size / 2))
    assert other == " " * round(size / 4) + "#" * (round(size / 2) - round(size / 4))
    assert model == "#" * round(size / 4)


def test_a_part_too_small_for_a_bar_still_shows() -> None:
    text = render(breakdown({"matrix": 100_000, "exposed_memcpy": 1}, peak=None))
    (line,) = [line for line in text.splitlines() if line.startswith("- exposed copies")]
    assert line.endswith("|")


def test_hundredths_of_a_percent_of_a_step_have_digits() -> None:
    assert [decimals_of(ms) for ms in (195.3, 1211, 10, 9.9, 0.5, 0)] == [2, 1, 3, 4, 5, 3]


# --- what to fix first -----------------------------------------------------------------------


def test_the_line_after_the_title_says_what_to_fix_first() -> None:
    first = render(breakdown()).splitlines()[1:3]
    assert " ".join(map(str.strip, first)) == (
        "Fix first: idle: data wait, 30.0 % of the time. The loop waits for its loader: raise "
        "num_workers (now 0)."
    )


def test_neither_the_goal_nor_what_nobody_knows_is_a_loss() -> None:
    parts = {"matrix/model_flops": 60, "matrix/unknown_flops": 30, "other_compute": 10}
    assert [one.name for one in losses(breakdown(parts))] == ["other_compute"]
    assert "other compute, 10.0 %" in fix_first(breakdown(parts))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("matrix", "without a peak (--peak, or --device)"),
        ("matrix/unknown_flops", "for their FLOPs are not"),
    ],
)
def test_matrix_time_that_is_not_divided_may_hide_a_larger_loss(name: str, why: str) -> None:
    text = fix_first(breakdown({name: 80, "other_compute": 20}, peak=None))
    assert text.startswith("Fix first: other compute, 20.0 % of the time. But 80.0 % are matrix")
    assert why in text
    assert "But" not in fix_first(breakdown({name: 20, "other_compute": 80}, peak=None))


def test_without_shapes_no_peak_is_asked_for() -> None:
    seen = Coverage(launches=1, work=1, matrix_known_ns=0, matrix_ns=80 * MS)
    parts = {"matrix": 80, "other_compute": 20}
    found = breakdown(parts, peak=None, coverage=seen, model_flops=None)
    assert "not known without shapes (record_shapes=True), or --model-flops" in fix_first(found)
    assert "MFU: not known without shapes (record_shapes=True)" in render(found)
    given = breakdown(parts, peak=None, coverage=seen, model_flops=10**12)
    assert "MFU: not known without a peak (--peak), or a dtype that has one" in render(given)


def test_with_few_known_flops_a_peak_is_not_enough() -> None:
    seen = Coverage(launches=1, work=1, matrix_known_ns=30 * MS, matrix_ns=80 * MS)
    found = breakdown({"matrix": 80, "other_compute": 20}, peak=None, coverage=seen)
    assert "without a peak (--peak, or --device), and FLOPs (--model-flops)" in render(found)


def test_without_matrix_work_no_note_is_promised_to_say_why_there_is_no_mfu() -> None:
    seen = Coverage(launches=1, work=1, matrix_known_ns=0, matrix_ns=0)
    found = breakdown({"other_compute": 20}, peak=None, coverage=seen, model_flops=None)
    assert "MFU: there is no matrix work in these steps\n" in render(found)


def test_a_given_peak_is_called_given_once() -> None:
    given = Peak(flops_per_s=100e12, dtype="bf16", source="given")
    assert "100.0 TFLOP/s bf16, given\n" in render(breakdown(peak=given))


def test_a_whole_trace_has_no_times_per_step() -> None:
    assert "ms per step" not in render(breakdown(edges="trace", steps=1))


def test_a_hint_that_begins_with_the_share_does_not_say_it_twice() -> None:
    hint = "20.0 % of the time, in 9 kernels."
    found = breakdown({"other_compute": 20, "matrix/model_flops": 80})
    buckets = tuple(msgspec.structs.replace(one, hint=hint) for one in found.buckets)
    found = msgspec.structs.replace(found, buckets=buckets)
    assert fix_first(found) == f"Fix first: other compute. {hint}"
    assert render(found).count(hint) == 1  # there; "see above" below the loss


def test_without_a_loss_nothing_is_to_be_fixed() -> None:
    assert "no loss was found" in fix_first(breakdown({"matrix/model_flops": 60}))


def test_the_largest_loss_is_marked_in_the_waterfall() -> None:
    early = {"idle/data_wait": 60, "matrix/model_flops": 40}
    late = {"idle/data_wait": 10, "other_compute": 20, "exposed_memcpy": 10}
    for parts, name, mark in (
        (early, "idle: data wait", "fix first -> ###"),
        (late, "other", "fix"),
    ):
        (line,) = [line for line in render(breakdown(parts)).splitlines() if mark in line]
        assert line.startswith(f"- {name}")
        assert len(line) <= 100


def test_every_bucket_has_a_label_of_its_own() -> None:
    assert set(LABELS) == {"matrix", "precision", *BUCKETS}
    assert len(set(LABELS.values())) == len(LABELS)


# --- around it -------------------------------------------------------------------------------


def test_the_title_names_file_device_steps_and_edges() -> None:
    title = render(breakdown(step_ns=(90 * MS, 110 * MS))).splitlines()[0]
    assert title == (
        "trace.json.gz | NVIDIA H100 80GB HBM3 | 2 steps, 100.0 ms per step (90.00 to 110.0) | "
        "gpu edges"
    )


def test_communication_beside_compute_and_exposed_add_up() -> None:
    assert (
        "Communication: 20.00 ms per step, of it 12.00 ms (60.0 %) beside compute, 8.00 ms exposed"
    ) in render(breakdown())


def test_the_mfu_stands_with_its_peak_and_where_that_comes_from() -> None:
    assert (
        "MFU 25.0 %, HFU 30.0 %: 25 TFLOP per step, of 1 PFLOP/s bf16, datasheet (a table)"
    ) in render(breakdown()).replace("25.00", "25").replace("1.000", "1")


def test_an_mfu_with_unknown_flops_is_a_lower_bound() -> None:
    parts = {"matrix/model_flops": 60, "matrix/unknown_flops": 30}
    assert "MFU 66.7 % or more" in render(breakdown(parts))


def test_without_a_peak_no_mfu_is_printed() -> None:
    text = render(breakdown({"matrix": 50, "other_compute": 50}, peak=None))
    assert "MFU: not known" in text
    assert summary(breakdown({"matrix": 1}, peak=None))["mfu"] is None


def test_coverage_is_always_printed() -> None:
    text = render(breakdown())
    assert "launches known of 90 of 100 kernels and copies (90.0 %)" in text
    assert "FLOPs of 100.0 % of matrix time" in text
    nothing = Coverage(launches=0, work=0, matrix_known_ns=0, matrix_ns=0)
    assert "Coverage: there is no work of a device" in render(breakdown(coverage=nothing))


def test_warnings_and_notes_are_sentences_of_their_own() -> None:
    lines = render(breakdown(warnings=("the peak is wrong",), notes=("rounded",))).splitlines()
    assert "WARNING: the peak is wrong" in lines
    assert lines[-1] == "Note: rounded"


def test_the_kernels_that_ended_idle_gaps_are_named_per_step() -> None:
    text = render(breakdown())
    assert "idle: data wait: the kernels for which the GPU waited" in text
    assert re.search(r"^ +30\.00 +1x  copy_ +Memcpy HtoD$", text, re.MULTILINE)
    assert "Memcpy HtoD" not in render(breakdown(), top=0)


def test_kernels_of_less_than_a_hundredth_of_the_time_are_not_named() -> None:
    small = breakdown({"matrix/model_flops": 9900, "other_compute": 98})
    small = msgspec.structs.replace(
        small,
        buckets=tuple(
            msgspec.structs.replace(one, top=(Kernel(name="k", op=None, count=1, time_ns=1),))
            for one in small.buckets
        ),
    )
    assert "What took it" not in render(small)
    assert "What took it" in render(msgspec.structs.replace(small, wall_ns=9_800 * MS))


def test_no_line_is_wider_than_100_columns() -> None:
    long = Kernel(
        name="void " + "at::native::k<float4, " * 30, op="x::" + "o" * 90, count=9, time_ns=9
    )
    found = breakdown(device="D" * 90, notes=("word " * 60,))
    buckets = tuple(msgspec.structs.replace(one, top=(long,)) for one in found.buckets)
    lines = render(msgspec.structs.replace(found, buckets=buckets)).splitlines()
    assert max(map(len, lines)) == 100


def test_a_name_cannot_move_the_cursor_or_add_a_line() -> None:
    evil = Kernel(name="k\x1b[2J\r\nSUM", op="o\np", count=1, time_ns=1)
    found = breakdown(file="a\x1b]0;b\n.json", warnings=("w\nx",))
    buckets = tuple(msgspec.structs.replace(one, top=(evil,)) for one in found.buckets)
    text = render(msgspec.structs.replace(found, buckets=buckets))
    assert all(line.isprintable() for line in text.splitlines())
    assert "k?[2J??SUM" in text


def test_a_trace_without_steps_says_so() -> None:
    title = render(breakdown(edges="trace", steps=1)).splitlines()[0]
    assert "no steps are marked" in title


# --- other forms -----------------------------------------------------------------------------


def test_csv_has_whole_nanoseconds_of_every_step() -> None:
    header, *lines, last = csv.reader(io.StringIO(csv_text(breakdown())))
    assert header == ["bucket", "time_ns", "ms_per_step", "share", *breakdown().steps]
    assert ["idle/data_wait", "60000000", "30.0", "0.3", "30000000", "30000000"] in lines
    assert last[:2] == ["SUM", str(sum(int(line[1]) for line in lines))]
    for column in (4, 5):
        assert sum(int(line[column]) for line in lines) == int(last[column])


def test_markdown_shows_a_kernel_name_as_it_is() -> None:
    odd = Kernel(name="gemm<float|half*>_", op=None, count=2, time_ns=60 * MS)
    found = breakdown()
    buckets = tuple(msgspec.structs.replace(one, top=(odd,)) for one in found.buckets)
    text = markdown(msgspec.structs.replace(found, buckets=buckets))
    assert "gemm&lt;float\\|half\\*&gt;\\_" in text
    assert "| **SUM** | 100.00 | 100.00 % | wall time, 200,000,000 ns |" in text


def test_the_values_for_programs_have_shares_and_the_first_thing_to_fix() -> None:
    found = summary(breakdown())
    assert found["mfu"] == pytest.approx(0.25)
    assert found["hfu"] == pytest.approx(0.30)
    assert found["fix_first"]["bucket"] == "idle/data_wait"
    assert sum(one["time_ns"] for one in found["buckets"]) == found["wall_ns"]
    assert sum(one["share"] for one in found["buckets"]) == pytest.approx(1)


def test_markdown_of_a_whole_trace_has_no_steps_and_tells_the_mfu() -> None:
    text = markdown(breakdown(edges="trace", steps=1))
    assert "per step" not in text
    assert "the whole trace is one" in text.splitlines()[0]
    assert "MFU 25.0 %" in text
