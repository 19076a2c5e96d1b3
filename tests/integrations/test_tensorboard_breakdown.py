"""What TensorBoard shows of a breakdown: curves that sum to 1, a table, and a waterfall."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import NOW, put, read
from explained_loop import HINT, breakdown, entry
from msgspec.structs import replace
from PIL import Image
from samples import header

from mfu_torch.integrations.tensorboard import TensorBoardSink, sink, waterfall
from mfu_torch.integrations.tensorboard.breakdown import escaped, table
from mfu_torch.integrations.tensorboard.layout import Layout


def values(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in events.Scalars(tag)]


def test_the_parts_are_curves_that_sum_to_exactly_1(tmp_path: Path) -> None:
    put(TensorBoardSink(tmp_path), header(), entry())
    events = read(tmp_path)
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("breakdown/")]
    assert sorted(tags) == [
        "breakdown/dilation",
        "breakdown/idle/data_wait",
        "breakdown/idle/launch_bound",
        "breakdown/matrix",
        "breakdown/other_compute",
    ]
    assert values(events, "breakdown/dilation") == [(13, 1.25)]
    parts = [values(events, tag)[0] for tag in tags if tag != "breakdown/dilation"]
    assert {step for step, _ in parts} == {13}
    assert sum(share for _, share in parts) == 1.0


def test_a_part_that_is_gone_is_0_and_its_curve_goes_on(tmp_path: Path) -> None:
    better = breakdown({"matrix": 60, "other_compute": 60})
    put(
        TensorBoardSink(tmp_path),
        header(),
        entry(),
        entry(after_step=40, breakdown=better, untraced_s=None),
    )
    events = read(tmp_path)
    assert values(events, "breakdown/idle/data_wait")[1] == (40, 0.0)
    assert values(events, "breakdown/matrix")[1] == (40, 0.5)
    assert len(values(events, "breakdown/dilation")) == 1  # it is not known, and not 0


def test_the_table_says_what_to_try_and_how_far_to_trust_it(tmp_path: Path) -> None:
    found = breakdown(warnings=("the peak is wrong",), notes=("a | b",))
    put(TensorBoardSink(tmp_path), header(), entry(breakdown=found))
    (text,) = read(tmp_path).Tensors("breakdown/table/text_summary")
    assert text.step == 13
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert lines[0] == "### Where the time of steps 11-12 went"
    assert "| part | per step | share | what to try |" in lines
    assert f"| idle: data wait | 45.0&nbsp;ms | 45.0&nbsp;% | {escaped(HINT)} |" in lines
    assert "| **step time** | 100&nbsp;ms | 100.0&nbsp;% | &nbsp; |" in lines
    first = "| **fix first** | 45.0&nbsp;ms | 45.0&nbsp;% |"
    assert f"{first} **idle: data wait**: {escaped(HINT)} |" in lines
    assert any(line.startswith("Traced steps took 1.25x as long as the steady") for line in lines)
    assert "Known: the launch of 90.0 % of the device's work, the FLOPs of 0.0 %" in " ".join(lines)
    assert "**Warning**: the peak is wrong" in lines
    assert "Trace: `traces/run.steps-11-12.json.gz`, for `mfu-torch explain`" in lines


def test_the_names_in_the_table_are_shown_as_they_are() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ <a> *b* `c`"
    found = entry().breakdown
    told = [
        replace(one, hint=name) if one.name == "other_compute" else one for one in found.buckets
    ]
    text = table(entry(breakdown=replace(found, buckets=tuple(told), notes=("__init__",))))
    shown = (
        r"enumerate(DataLoader)\#\_SingleProcessDataLoaderIter.\_\_next\_\_ &lt;a&gt; \*b\* \`c\`"
    )
    assert shown in text
    assert r"Note: \_\_init\_\_" in text


def test_where_nothing_is_lost_the_table_says_so() -> None:
    assert "| **fix first** |  |  | nothing stands out |" in table(
        entry(breakdown=breakdown({"matrix": 60}))
    )


def test_the_waterfall_is_in_the_event_file(tmp_path: Path) -> None:
    put(TensorBoardSink(tmp_path), header(), entry())
    (image,) = read(tmp_path).Images("breakdown/waterfall")
    assert image.step == 13
    drawn = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert (drawn == waterfall.draw(entry())).all()


def spans(image: Any, colour: str) -> tuple[int, int]:
    """First and last column of a colour."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    # Text has pixels of any grey, and a bar is higher than that.
    columns = np.flatnonzero((image == wanted).all(axis=2).sum(axis=0) > 9)
    return int(columns[0]), int(columns[-1])


def test_each_part_begins_where_the_one_above_it_ends() -> None:
    parts = {"matrix": 25, "other_compute": 25, "idle/data_wait": 50}
    image = waterfall.draw(entry(breakdown=breakdown(parts)))
    step, idle = spans(image, "#9A9A9A"), spans(image, "#D55E00")
    compute, goal = spans(image, "#009E73"), spans(image, "#0072B2")
    width = step[1] - step[0]
    assert abs(idle[1] - step[1]) <= 1 and abs(goal[0] - step[0]) <= 1
    assert abs((idle[0] - step[0]) / width - 0.5) < 0.01
    assert abs(compute[1] - idle[0]) <= 1 and abs(goal[1] - compute[0]) <= 1
    assert abs((goal[1] - step[0]) / width - 0.25) < 0.01


def test_a_part_below_0_is_drawn_to_the_other_side() -> None:
    parts = {"matrix/model_flops": 110, "matrix/below_peak": -30, "other_compute": 20}
    image = waterfall.draw(entry(breakdown=breakdown(parts)))
    goal, below, step = (spans(image, one) for one in ("#0072B2", "#56B4E9", "#9A9A9A"))
    assert goal[1] > step[1] and abs(below[1] - goal[1]) <= 1


def test_without_matplotlib_everything_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waterfall, "can_draw", lambda: False)
    put(TensorBoardSink(tmp_path), header(), entry())
    events = read(tmp_path)
    assert "breakdown/waterfall" not in events.Tags()["images"]
    assert values(events, "breakdown/dilation") == [(13, 1.25)]


def test_a_picture_that_cannot_be_drawn_costs_the_curves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(found: object) -> None:
        raise ValueError("no such font")

    monkeypatch.setattr(sink.waterfall, "draw", fails)
    put(TensorBoardSink(tmp_path), header(), entry())
    assert values(read(tmp_path), "breakdown/dilation") == [(13, 1.25)]
    assert "no picture of the traced steps, and everything else (ValueError: no such font)" in (
        caplog.text
    )


def test_there_is_a_chart_of_the_parts_and_the_dilation_is_not_on_it(tmp_path: Path) -> None:
    layout = Layout()
    layout.saw("breakdown/dilation")
    assert layout.summary() is None
    layout.saw("breakdown/idle/data_wait")
    summary = layout.summary()
    assert summary is not None and b"shares of the traced steps" in summary.SerializeToString()
    put(TensorBoardSink(tmp_path), header(), entry(), NOW)
    assert "custom_scalars__config__" in read(tmp_path).Tags()["tensors"]
