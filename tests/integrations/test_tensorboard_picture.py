"""TensorBoard's picture of the wall time: what is drawn, and that it never costs the curves."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import put, read
from matplotlib.axes import Axes
from PIL import Image
from samples import entries, header

from mfu_torch.figures import Figures
from mfu_torch.integrations.tensorboard import Counted, TensorBoardSink, how_computed
from mfu_torch.integrations.tensorboard.picture import PARTS, draw

ROOT = Path(__file__).parent.parent.parent

SHARES = {"model": 0.5, "below peak": 0.25, "eval": 0.25, "other": 0.0}


def colours(image: Any, share: float) -> tuple[int, ...]:
    """The colour of the bar at a share of its length."""
    # The bar is the only thing that is as wide as this; its corner is the first pixel of it.
    filled = (image != 255).any(axis=2)
    rows = np.flatnonzero(filled.mean(axis=1) > 0.9)
    columns = np.flatnonzero(filled[rows].all(axis=0))
    left, right = columns[0], columns[-1]
    return tuple(image[rows[3], round(left + share * (right - left))].tolist())


def test_the_bar_is_divided_as_the_wall_time_is() -> None:
    image = draw(SHARES)
    assert image is not None and image.dtype == np.uint8
    model, below, pause = (colours(image, share) for share in (0.25, 0.6, 0.9))
    assert model == (0x00, 0x72, 0xB2)
    assert below == (0xBF, 0xD9, 0xEA)
    assert pause == (0xE6, 0x9F, 0x00)
    for edge in (0.49, 0.74):  # just before a part ends and just after
        assert colours(image, edge) != colours(image, edge + 0.02)


def test_the_picture_is_in_the_event_file(tmp_path: Path) -> None:
    now = Figures(step=7, steps=1, time_s=1.0, goodput=SHARES)
    put(TensorBoardSink(tmp_path), now)
    (image,) = read(tmp_path).Images("breakdown/wall_time")
    assert image.step == 7
    drawn = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert (drawn == draw(SHARES)).all()


def test_a_name_of_any_kind_and_number_can_be_drawn() -> None:
    names = ["$x^2", "eval\nagain", "e" * 500, *(f"eval {n}" for n in range(100))]
    image = draw({"model": 0.5, **dict.fromkeys(names, 0.5 / len(names)), "other": -0.01})
    few = draw({f"eval {n}": 1 / (PARTS + 1) for n in range(PARTS + 1)})
    assert image is not None and few is not None
    assert image.shape == few.shape


def test_without_matplotlib_the_text_says_how_to_get_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = "pip install 'mfu_torch[plot]'"
    assert extra not in how_computed(header(), {}, Counted())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert extra in how_computed(header(), {}, Counted())
    assert draw(SHARES) is None
    put(TensorBoardSink(tmp_path), header(), Figures(step=7, steps=1, time_s=1.0, goodput=SHARES))
    assert read(tmp_path).Tags()["images"] == []


def test_a_share_below_zero_or_not_finite_is_not_drawn_and_the_legend_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    real = Axes.text

    def noted(self: Any, x: float, y: float, text: str, **style: Any) -> Any:
        texts.append(text)
        return real(self, x, y, text, **style)

    monkeypatch.setattr(Axes, "text", noted)
    nan, inf = float("nan"), float("inf")
    # Of what is drawn, 0.75 + 0.25, the model is three quarters.
    image = draw({"model": 0.75, "below peak": -0.5, "eval": 0.25, "a": nan, "b": inf, "c": -inf})
    assert colours(image, 0.70) == (0x00, 0x72, 0xB2)
    assert colours(image, 0.80) == (0xE6, 0x9F, 0x00)
    lines = [text for text in texts if "(not drawn)" in text]
    assert lines == [f"{name} (not drawn)" for name in ("below peak", "a", "b", "c")]
    assert draw({"model": nan, "other": -0.1}) is None
    texts.clear()
    draw({"model": 1.0, "other": -1e-17})  # what is left of subtracting
    assert not any("not drawn" in text for text in texts)


def test_figures_that_are_not_finite_do_not_cost_the_event_file(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    odd = Figures(
        **{"step": 5, "steps": 5, "time_s": 1.0, "mfu": nan, "hfu": inf, "step_s": nan},
        goodput={"model": nan, "recompute": inf, "other": -inf},
    )
    put(TensorBoardSink(tmp_path), *entries()[:6], odd, *entries()[6:])
    assert [event.step for event in read(tmp_path).Scalars("mfu/mfu")] == [5, 5, 5]
    assert "run/mfu" in read(tmp_path).Tags()["scalars"]


@pytest.mark.parametrize("error", [RuntimeError("no font"), OverflowError(), ImportError("ABI")])
def test_a_picture_that_fails_costs_the_picture_and_one_warning(
    tmp_path: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("matplotlib.figure.Figure", failing)
    sink = TensorBoardSink(tmp_path)
    put(sink, *entries()[:-1], Figures(step=7, steps=1, time_s=1.0, goodput=SHARES))
    assert sink._writer.file_writer is None
    assert read(tmp_path).Scalars("run/mfu")[-1].value == pytest.approx(1.2 / 4.0)
    assert caplog.messages == [
        "TensorBoard has no picture of the wall time, and everything else "
        f"({type(error).__name__}: {error})"
    ]


def test_settings_of_matplotlib_that_are_wrong_cost_the_picture_only(tmp_path: Path) -> None:
    code = (
        "from mfu_torch.figures import Figures\n"
        "from mfu_torch.integrations.tensorboard import TensorBoardSink\n"
        f"sink = TensorBoardSink({str(tmp_path)!r})\n"
        f"sink.write(Figures(step=7, steps=1, time_s=1.0, mfu=0.5, goodput={SHARES!r}))\n"
        "sink.close()\n"
    )
    environ = {**os.environ, "MPLBACKEND": "garbage", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    (line,) = [line for line in done.stderr.splitlines() if "TensorBoard has no picture" in line]
    assert "ValueError" in line and "garbage" in line
    assert read(tmp_path).Scalars("mfu/mfu")[0].value == 0.5


def test_a_module_that_only_bears_the_name_of_matplotlib_costs_the_picture_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    put(TensorBoardSink(tmp_path), header(), Figures(step=7, steps=1, time_s=1.0, goodput=SHARES))
    (message,) = caplog.messages
    assert message.startswith("TensorBoard has no picture of the wall time, and everything else")
    assert read(tmp_path).Scalars("goodput/model")[0].value == 0.5
