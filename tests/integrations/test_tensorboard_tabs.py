"""TensorBoard beside the curves: the layout, the table of runs, another's writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import NOW, put, read
from msgspec.structs import replace
from samples import count, entries, header, peak, step
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter

from mfu_torch.figures import Figures, run_figures
from mfu_torch.integrations.tensorboard import TensorBoardSink
from mfu_torch.integrations.tensorboard.layout import stacked
from mfu_torch.records import End, Run, Telemetry, Window
from mfu_torch.step_parts import SplitSteps

# --- the layout ----------------------------------------------------------------------------------


def layouts(folder: Path) -> Iterator[dict[str, Any]]:
    """Every layout that was written, by the titles of its charts."""
    for event in read(folder).Tensors("custom_scalars__config__"):
        layout = Layout.FromString(event.tensor_proto.string_val[0])
        (category,) = layout.category
        assert category.title == "MFU"
        yield {chart.title: chart for chart in category.chart}


def test_the_layout_has_a_chart_for_what_has_values_and_for_nothing_else(tmp_path: Path) -> None:
    put(TensorBoardSink(tmp_path), NOW)
    (charts,) = layouts(tmp_path)
    assert list(charts) == ["utilisation", "step time, s"]


def test_the_layout_grows_with_what_has_values(tmp_path: Path) -> None:
    late = Figures(step=10, steps=5, time_s=5.0, mfu=0.4, step_s=1.0, tokens_per_s=1.0)
    seen = Telemetry(after_step=10, samples=1, time_s=1.0, gpu_util=0.9)
    put(TensorBoardSink(tmp_path), NOW, NOW, seen, late)
    first, second = layouts(tmp_path)
    assert list(second) == [*first, "tokens per second", "device ladder"]


def test_the_parts_of_a_step_have_a_chart_and_so_have_their_hfus(tmp_path: Path) -> None:
    wait = Figures(step=5, steps=5, time_s=5.0, data_wait_share=0.1)
    parts_s = {"backward": 3.0, "rest": 1.0}
    split = SplitSteps(steps=1, time_s=4.0, parts_s=parts_s, of_peak={"backward": 0.5})
    parts = Figures(step=10, steps=5, time_s=5.0, split=split)
    put(TensorBoardSink(tmp_path), wait, parts)
    first, second = layouts(tmp_path)
    assert list(first) == ["shares of the step time"]
    assert list(second) == [*first, "parts of the step time", "HFU of the parts"]


def test_a_chart_is_the_same_in_every_run(tmp_path: Path) -> None:
    # TensorBoard joins the layouts of several runs, and shows twice what differs.
    short = {"model": 0.5, "other": 0.5}
    long = {"model": 0.5, "recompute": 0.1, "eval": 0.1, "other": 0.3}
    for name, goodput in (("a", short), ("b", long)):
        put(TensorBoardSink(tmp_path / name), Figures(step=1, steps=0, time_s=0.0, goodput=goodput))
    ((one,), (other,)) = (layouts(tmp_path / name) for name in "ab")
    assert one == other


def test_the_areas_of_the_stacked_chart_lie_one_on_another(tmp_path: Path) -> None:
    goodput = {"model": 0.5, "other": 0.5}
    put(TensorBoardSink(tmp_path), Figures(step=1, steps=0, time_s=0.0, goodput=goodput))
    (charts,) = layouts(tmp_path)
    series = charts["shares of the wall time, stacked"].margin.series
    filled = {area.value: area.lower for area in series if area.lower != area.upper}
    assert filled == {
        f"goodput_stacked/{band}": "goodput_stacked/zero"
        for band in ("model", "below_peak", "other")
    }
    assert all(area.value == area.upper for area in series)
    named = {area.value for area in series} | {area.lower for area in series}
    # A tag without a value makes TensorBoard warn of "Missing Tags".
    assert named == {tag for tag in read(tmp_path).Tags()["scalars"] if "stacked" in tag}


def test_bands_are_sums_of_the_shares_below() -> None:
    shares = {
        **{"model": 0.25, "recompute": 0.125, "below peak": 0.125},
        **{"FLOPs were being counted": 0.0625, "first step": 0.0625},
        **{"eval": 0.125, "pause other": 0.125, "earlier attempts": 0.0625, "other": 0.0625},
    }
    assert dict(stacked(shares, {"eval", "other"})) == {
        "goodput_stacked/zero": 0.0,
        "goodput_stacked/model": 0.25,
        "goodput_stacked/recompute": 0.375,
        "goodput_stacked/below_peak": 0.5,
        "goodput_stacked/excluded": 0.625,
        "goodput_stacked/pauses": 0.875,
        "goodput_stacked/earlier_attempts": 0.9375,
        "goodput_stacked/other": 1.0,
    }


def test_without_the_share_of_the_model_there_are_no_bands() -> None:
    assert list(stacked({}, {"eval"})) == []
    assert list(stacked({"steady steps": 0.5, "eval": 0.5}, {"eval"})) == []


# --- hparams -------------------------------------------------------------------------------------


def hparams(folder: Path) -> dict[str, HParamsPluginData]:
    found = read(folder).PluginTagToContent("hparams")
    return {tag: HParamsPluginData.FromString(content) for tag, content in found.items()}


def values(folder: Path) -> dict[str, object]:
    info = hparams(folder)["_hparams_/session_start_info"].session_start_info
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}


def test_a_run_has_one_row_in_its_own_event_file(tmp_path: Path) -> None:
    first = header(model="GPT2LMHeadModel", parameters=3_300_000, world_size=8)
    put(TensorBoardSink(tmp_path), first, *entries()[1:])
    assert values(tmp_path) == {
        "model": "GPT2LMHeadModel",
        "parameters": 3_300_000,
        "dtype": "bf16, fp32",
        "attention": "full",
        "device": "NVIDIA H100 80GB HBM3",
        "peak": "bf16 100 TFLOP/s given, fp32 50.0 TFLOP/s given",
        "world_size": 8,
        "tokens_per_step": 1000,
        "samples_per_step": 2,
        "torch": "2.13.0",
        "mfu_torch": "0.1.0",
    }
    assert [path.is_file() for path in tmp_path.iterdir()] == [True]  # no folder, no second run


def test_the_metrics_of_a_row_are_the_figures_of_the_whole_run(tmp_path: Path) -> None:
    put(TensorBoardSink(tmp_path), *entries())
    metrics = hparams(tmp_path)["_hparams_/experiment"].experiment.metric_infos
    events = read(tmp_path)
    found = {info.name.tag: events.Scalars(info.name.tag)[-1].value for info in metrics}
    assert found == {
        "run/mfu": pytest.approx(1.2 / 4.0),  # 4 steps of 0.3 s at the peak took 4.0 s
        "run/hfu": pytest.approx(1.64 / 4.0),  # 0.41 s
        "run/end_to_end": pytest.approx(1.5 / 20.0),  # all 5 steps
        "run/step_s": pytest.approx(1.0),
        "run/tokens_per_s": pytest.approx(1000.0),
    }
    expected = run_figures(Run.from_entries(entries()))
    for tag, value in found.items():
        assert value == pytest.approx(getattr(expected, tag.partition("/")[2]), rel=1e-6)


def test_a_run_that_was_killed_has_its_row_as_well(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for record in entries()[:7]:  # up to the first window
        sink.write(record)
    sink.write(NOW)
    assert values(tmp_path)["dtype"] == "bf16, fp32"
    assert read(tmp_path).Scalars("run/mfu")[-1].value == pytest.approx(0.6 / 1.9)
    assert "_hparams_/session_end_info" not in hparams(tmp_path)
    sink.close()


def test_an_end_to_end_mfu_that_the_windows_do_not_know_is_not_that_of_the_run(
    tmp_path: Path,
) -> None:
    lost = replace(NOW, absent={"end_to_end": "records were dropped"})
    put(TensorBoardSink(tmp_path), *entries()[:7], lost, entries()[-1])
    tags = read(tmp_path).Tags()["scalars"]
    assert "run/mfu" in tags
    assert [e.value for e in read(tmp_path).Scalars("run/end_to_end")] == [
        pytest.approx(0.9 / 15.4)  # of the window before
    ]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("completed", "STATUS_SUCCESS"), ("KeyboardInterrupt", "STATUS_FAILURE")],
)
def test_a_row_says_how_its_run_ended(tmp_path: Path, reason: str, status: str) -> None:
    put(TensorBoardSink(tmp_path), *entries()[:-1], End(wall_s=20.0, reason=reason))
    end = hparams(tmp_path)["_hparams_/session_end_info"].session_end_info
    assert end.status == Status.Value(status)


def test_hparams_of_the_user_stand_beside_ours_and_win(tmp_path: Path) -> None:
    given = {"lr": np.float32(0.25), "fused": True, "model": "mine", "schedule": (1, 2), "n": None}
    put(TensorBoardSink(tmp_path, hparams=given), *entries())
    found = values(tmp_path)
    assert {name: found[name] for name in given} == {
        **{"lr": 0.25, "fused": True, "model": "mine", "schedule": "(1, 2)", "n": "None"},
    }
    assert found["attention"] == "full"
    infos = hparams(tmp_path)["_hparams_/experiment"].experiment.hparam_infos
    assert {info.name for info in infos if info.differs} >= given.keys()


def test_what_a_run_is_not_told_has_no_hparam(tmp_path: Path) -> None:
    steps = (step(0, 1.0, tokens=None, samples=None),)
    window = Window(steps=steps, wall_s=1.0)
    put(TensorBoardSink(tmp_path), header(), peak(), peak("fp32"), count(), window)
    assert not values(tmp_path).keys() & {
        *("model", "parameters", "tokens_per_step", "samples_per_step"),
    }


def test_a_run_without_a_steady_step_has_no_row(tmp_path: Path) -> None:
    window = Window(steps=(step(0, 9.0, excluded="first step"),), wall_s=9.0)
    put(TensorBoardSink(tmp_path), header(), peak(), count(), window)
    with pytest.raises(KeyError):
        hparams(tmp_path)
    assert "run/mfu" not in read(tmp_path).Tags()["scalars"]


# --- the writer of somebody else -----------------------------------------------------------------


def test_the_writer_of_somebody_else_is_flushed_and_stays_open(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    put(TensorBoardSink(writer=writer), *entries())
    assert read(tmp_path).Scalars("mfu/mfu")[-1].value == pytest.approx(0.4)
    writer.add_scalar("loss", 1.0, 1)
    writer.close()
    assert "loss" in read(tmp_path).Tags()["scalars"]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_owner_of_a_writer_writes_the_hparams(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "without")) as writer:
        put(TensorBoardSink(writer=writer), *entries())
    with pytest.raises(KeyError):
        hparams(tmp_path / "without")
    with SummaryWriter(str(tmp_path / "with")) as writer:
        put(TensorBoardSink(writer=writer, hparams={}), *entries())
    assert values(tmp_path / "with")["attention"] == "full"


def test_a_writer_that_its_owner_closed_first_is_not_left_open(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    sink = TensorBoardSink(writer=writer)
    for record in entries()[:7]:
        sink.write(record)
    sink.write(NOW)
    writer.close()
    sink.write(NOW)  # opens it again
    sink.write(entries()[-1])
    sink.close()
    assert writer.file_writer is None
    # Two files of one second are read in the order of their numbers as texts: 10 before 9.
    points = read(tmp_path).Scalars("run/end_to_end")
    last = max(points, key=lambda point: point.wall_time)
    assert last.value == pytest.approx(0.9 / 20.0)


@pytest.mark.parametrize("both", [True, False])
def test_a_sink_needs_a_folder_or_a_writer(tmp_path: Path, both: bool) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        arguments = {"log_dir": tmp_path, "writer": writer} if both else {}
        with pytest.raises(TypeError, match="expected one of them"):
            TensorBoardSink(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"writer": 5}, "writer is 5; expected a torch.utils.tensorboard.SummaryWriter"),
        ({"log_dir": 5}, "log_dir is 5; expected a path"),
        ({"log_dir": "x", "hparams": 5}, "hparams is 5; expected a dict"),
    ],
)
def test_an_argument_of_another_kind_is_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message):
        TensorBoardSink(**arguments)
    assert list(tmp_path.iterdir()) == []
