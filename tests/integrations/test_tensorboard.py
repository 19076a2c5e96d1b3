"""TensorBoard: the event file is read back, tag by tag and value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples import count, header, peak
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mfu_torch.figures import Figures
from mfu_torch.integrations.tensorboard import Counted, TensorBoardSink
from mfu_torch.integrations.tensorboard.counted import LIMIT
from mfu_torch.records import CountEntry, Entry, Peak, PeakEntry, Telemetry

TEXT = "mfu/how_computed/text_summary"

EVERYTHING = Figures(
    step=40,
    steps=10,
    time_s=3.12,
    mfu=0.412,
    hfu=0.419,
    mfu_full=0.412,
    mfu_causal=0.38,
    end_to_end=0.35,
    model_flops_per_s=408e12,
    tokens_per_s=13_100.0,
    samples_per_s=6.4,
    step_s=0.312,
    step_s_p95=0.33,
    data_wait_share=0.021,
    memory_bytes=61 * 10**9,
    phases={"forward": 0.3, "all reduce/2": 0.1},
)


def events(directory: Path, *records: Entry | Figures) -> EventAccumulator:
    sink = TensorBoardSink(directory)
    for record in records:
        sink.write(record)
    sink.close()
    read = EventAccumulator(str(directory))
    read.Reload()
    return read


def texts(read: EventAccumulator) -> list[tuple[int, str]]:
    tensors: list[Any] = read.Tensors(TEXT)
    return [(each.step, each.tensor_proto.string_val[0].decode()) for each in tensors]


def test_every_known_figure_is_a_scalar_at_its_step(tmp_path: Path) -> None:
    read = events(tmp_path, EVERYTHING)
    found = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    expected = {
        "mfu/mfu": 0.412,
        "mfu/hfu": 0.419,
        "mfu/mfu_causal": 0.38,
        "mfu/end_to_end": 0.35,
        "throughput/model_tflops_per_s_per_device": 408.0,
        "throughput/tokens_per_s": 13_100.0,
        "throughput/samples_per_s": 6.4,
        "time/step_s": 0.312,
        "time/step_s_p95": 0.33,
        "time/data_wait_share": 0.021,
        "time/phase_forward_share": 0.3,
        "time/phase_all_reduce_2_share": 0.1,
        "device/memory_bytes": 61e9,
    }
    # Event files hold 32-bit floats: 7 digits.
    assert found == {tag: [(40, pytest.approx(v, rel=1e-6))] for tag, v in expected.items()}


def test_what_is_not_known_writes_no_scalar(tmp_path: Path) -> None:
    compiling = Figures(step=1, steps=0, time_s=0.0, absent={"mfu": "no steady step"})
    known = Figures(step=2, steps=1, time_s=1.0, step_s=1.0, mfu=0.0)
    read = events(tmp_path, compiling, known)
    assert sorted(read.Tags()["scalars"]) == ["mfu/mfu", "time/step_s"]
    assert [each.step for each in read.Scalars("mfu/mfu")] == [2]  # 0 is a value, None is none


def test_windows_make_a_curve(tmp_path: Path) -> None:
    windows = [Figures(step=n, steps=10, time_s=1.0, mfu=n / 100) for n in (10, 20, 30)]
    curve = [(e.step, e.value) for e in events(tmp_path, *windows).Scalars("mfu/mfu")]
    assert curve == [(n, pytest.approx(n / 100)) for n in (10, 20, 30)]


def test_scalars_can_be_read_before_the_sink_is_closed(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(EVERYTHING)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Scalars("mfu/mfu")[0].step == 40
    sink.close()


def test_the_text_says_how_the_numbers_were_computed(tmp_path: Path) -> None:
    unknown = PeakEntry(dtype="fp8", unknown="no fp8 row")
    counted = count(uncounted={"my::scan": 4}, notes=("An upper bound: a|b.",))
    read = events(tmp_path, header(), peak(), unknown, counted, EVERYTHING)
    ((step, text),) = texts(read)
    assert step == 40
    assert text.split("\n\n") == [
        "### How the numbers of this run were computed",
        "| figure | what it is |\n"
        "|---|---|\n"
        "| MFU | ideal time of the model FLOPs at the peak / step time; "
        "1 multiply-add = 2 FLOPs |\n"
        "| HFU | the same with hardware FLOPs: what is computed twice counts twice |\n"
        "| end-to-end MFU | ideal time of the model FLOPs of all steps / wall time of the run |",
        "#### Time and FLOPs",
        "|  | of this run |\n"
        "|---|---|\n"
        "| attention | every attention score is counted (convention `full`) |\n"
        "| device | NVIDIA H100 80GB HBM3 |\n"
        "| time | CUDA events |\n"
        "| began | 2026-01-02T03:04:05+00:00 |\n"
        "| versions | mfu_torch 0.1.0, torch 2.13.0, python 3.12.1 |\n"
        "| FLOPs | counted on the first step as it trained |\n"
        "| not counted | my::scan: no FLOP formula, so that MFU is a lower bound |\n"
        "| notes | An upper bound: a\\|b. |",
        "#### Peaks, dense, of one device",
        "| dtype | FLOP/s | how it is known | source |\n"
        "|---|---|---|---|\n"
        "| bf16 | 100 TFLOP/s | given | Made-up sheet |\n"
        "| fp8 | unknown |  | no fp8 row |",
    ]


def test_the_text_names_the_rank_the_convention_and_an_unknown_count(tmp_path: Path) -> None:
    first = header(attention="causal", rank=3, world_size=8)
    ((_, text),) = texts(events(tmp_path, first, CountEntry(id=0, unknown="it failed")))
    assert "| rank | 3 of 8 |" in text
    assert "only the attention scores that the mask keeps are counted" in text
    assert "| FLOPs unknown | it failed |" in text
    assert "not counted" not in text  # nothing was counted at all
    assert "None was needed yet." in text


def test_the_text_tells_a_peak_that_is_off_and_one_that_was_measured(tmp_path: Path) -> None:
    off = Peak(flops_per_s=100e12, dtype="bf16", provenance="derived", source="A", uncertainty=0.09)
    measured = Peak(flops_per_s=80e12, dtype="bf16", provenance="measured", source="B")
    both = PeakEntry(dtype="bf16", peak=off, measured=measured)
    ((_, text),) = texts(events(tmp_path, header(), both))
    assert "| bf16 | 100 TFLOP/s | derived (up to 9.0 % off) | A |" in text
    assert "| bf16, of `mfu_of_measured_peak` | 80.0 TFLOP/s | measured | B |" in text


def test_the_text_says_what_is_trained(tmp_path: Path) -> None:
    lora = header(model="Llama", parameters=8_030_000_000, trainable=3_400_000)
    ((_, text),) = texts(events(tmp_path, lora))
    assert "| model | Llama, 8.03 B parameters, 3.40 M of them trainable |" in text


def test_the_text_is_written_again_only_when_it_changed(tmp_path: Path) -> None:
    windows = [Figures(step=n, steps=10, time_s=1.0, mfu=0.4) for n in (10, 20, 30, 40)]
    read = events(
        tmp_path,
        *(header(), peak(), count(0), windows[0]),
        *(count(1), windows[1]),  # another shape, counted in the same way
        *(count(2, uncounted={"my::scan": 1}), windows[2]),
        *(peak("fp8"), windows[3]),
    )
    assert [step for step, _ in texts(read)] == [10, 30, 40]
    assert "my::scan" in texts(read)[1][1]
    assert "| fp8 | 100 TFLOP/s |" in texts(read)[2][1]


def shape(index: int) -> CountEntry:
    """Of a loop in which every step has a shape of its own, and a word to say of it."""
    return count(
        index,
        method=f"counted on step {index} as it trained",
        notes=(f"A mask of shape ({index}, {index}) is counted in full.",),
    )


def test_a_thousand_shapes_do_not_make_the_text_longer(tmp_path: Path) -> None:
    records: list[Entry | Figures] = [header(), peak()]
    for index in range(1000):
        records.append(shape(index))
        if index % 10 == 9:
            records.append(Figures(step=index + 1, steps=10, time_s=1.0, mfu=0.4))
    first, last = texts(events(tmp_path, *records))
    assert (first[0], last[0]) == (10, 1000)
    assert "| FLOPs | counted on steps 0, 1, 2 and 7 others as they trained |" in first[1]
    assert "| FLOPs | counted on steps 0, 1, 2 and 997 others as they trained |" in last[1]
    assert "| notes | A mask of shape (0 to 999, 0 to 999) is counted in full. |" in last[1]
    assert len(last[1]) < 2000


def test_the_text_is_written_again_for_another_way_to_count_and_for_another_note(
    tmp_path: Path,
) -> None:
    window = [Figures(step=n, steps=10, time_s=1.0, mfu=0.4) for n in range(10, 70, 10)]
    read = events(
        tmp_path,
        *(header(), peak(), shape(0), window[0]),
        *(shape(1), shape(5), window[1]),
        *(count(3, method="counted on step 7, which ran eagerly: new"), window[2]),
        *(count(4, method="given by the user", notes=("An upper bound.",)), window[3]),
        *(CountEntry(id=5, unknown="it failed on step 9"), window[4]),
        *(CountEntry(id=6, unknown="it failed on step 10"), window[5]),
    )
    assert [step for step, _ in texts(read)] == [10, 30, 40, 50, 60]  # 60 is the end
    assert "| FLOPs unknown | it failed on step 9 |" in texts(read)[3][1]
    _, text = texts(read)[-1]
    methods = "counted on steps 0, 1 and 5 as they trained; counted on step 7, which ran eagerly"
    assert f"| FLOPs | {methods}: new; given by the user |" in text
    assert "| FLOPs unknown | it failed on step 9 to 10 |" in text
    assert "is counted in full. An upper bound. |" in text


def test_numbers_that_differ_are_said_from_the_smallest_to_the_largest() -> None:
    how = "estimated from {} shapes that were counted, each within {} % of it"
    notes = ("a bf16 mask", "a bf8 mask")  # names, and no numbers
    texts = [how.format(64, 9.8), how.format(100, 10.4), how.format(64, 0.31)]
    counted = Counted(count(n, method=text, notes=notes) for n, text in enumerate(texts))
    expected = "estimated from 64 to 100 shapes that were counted, each within 0.31 to 10.4 % of it"
    assert dict(counted.rows())["FLOPs"] == expected
    assert dict(counted.rows())["notes"] == "a bf16 mask a bf8 mask"
    one = Counted([count(0, method=texts[0]), count(1, method=texts[0])])
    assert dict(one.rows())["FLOPs"] == texts[0]


def test_more_ops_and_notes_than_can_be_read_are_a_number() -> None:
    letters = [chr(ord("a") + n) for n in range(LIMIT + 3)]
    counted = Counted(
        count(n, uncounted={f"my::{letter}": 1}, notes=(f"Note {letter}.", letter * 1000))
        for n, letter in enumerate(letters)
    )
    rows = dict(counted.rows())
    assert rows["not counted"].count("my::") == LIMIT
    assert "my::a, my::b, " in rows["not counted"] and ", and 3 other ops: " in rows["not counted"]
    assert rows["notes"].endswith(f"and {2 * (LIMIT + 3) - LIMIT} other notes.")
    assert len(rows["notes"]) < LIMIT * 520
    before = counted.kinds()
    counted.add(count(99, uncounted={"my::z": 1}, notes=("One more.",)))
    assert counted.kinds() == before  # nothing that is shown has changed, but for a number


def test_a_run_without_a_window_has_its_text_all_the_same(tmp_path: Path) -> None:
    assert [step for step, _ in texts(events(tmp_path, header()))] == [0]


def test_what_the_device_did_is_under_device(tmp_path: Path) -> None:
    seen = Telemetry(
        after_step=40,
        samples=10,
        time_s=10.0,
        gpu_util=0.75,
        tensor_active=0.5,
        sm_clock_hz=1.5e9,
        power_w=698.0,
        throttle={"power cap": 0.25},
    )
    read = events(tmp_path, header(), seen)
    assert {
        tag: (event.step, event.value)
        for tag in read.Tags()["scalars"]
        for event in read.Scalars(tag)
    } == {
        "device/gpu_util": (40, 0.75),
        "device/tensor_active": (40, 0.5),
        "device/sm_clock_mhz": (40, 1500.0),
        "device/power_w": (40, 698.0),
        "device/throttle_power_cap": (40, 0.25),
    }
