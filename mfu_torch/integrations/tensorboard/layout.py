"""Custom scalars: the charts of the category "MFU", and the shares of wall time one on another."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME

from mfu_torch.records.names import FURTHER_PAUSES, PAUSE

CATEGORY = "MFU"

# Title -> the tags on it, as a regular expression.
_LINES = {
    "utilisation": r"mfu/(mfu|hfu|mfu_causal|mfu_of_measured_peak|end_to_end)$",
    "step time, s": r"time/(step_s|step_s_p95)$",
    "tokens per second": r"throughput/tokens_per_s$",
    "samples per second": r"throughput/samples_per_s$",
    "model TFLOP/s per device": r"throughput/model_tflops_per_s_per_device$",
    "device ladder": r"(device/(gpu_util|cpu_util|sm_active|tensor_active)|mfu/(hfu|mfu))$",
    "shares of the step time": r"time/(phase_.*|data_wait)_share$",
    "parts of the step time": (
        r"time/(forward|loss|backward|optimizer|data_wait|rest|between)_share$"
    ),
    "HFU of the parts": r"mfu/hfu_(forward|backward|optimizer)$",
    "shares of the wall time": r"goodput/",
    "shares of the traced steps": r"breakdown/(?!dilation$)",
}

# What a chart is there for, where that is not everything on it.
_NEEDED = {
    "device ladder": r"device/(gpu_util|cpu_util|sm_active|tensor_active)$",
    "parts of the step time": r"time/(forward|backward|optimizer|rest|between)_share$",
}

STACKED = "shares of the wall time, stacked"
_STACK = "goodput_stacked/"

# From the bottom to the top.
_BANDS = ("model", "recompute", "below_peak", "excluded", "pauses", "earlier_attempts", "other")
_FILLED = ("model", "below_peak", "other")  # the others have a line as their upper edge


def stacked(shares: Mapping[str, float], pauses: Collection[str]) -> Iterator[tuple[str, float]]:
    """Tag and height of every band, from 0 up: each is the sum of the shares up to its own.

    Shares of model 0.5, ``eval`` 0.2 and other 0.3: bands up to 0.5, 0.7 and 1.0. All bands have a
    value, since TensorBoard warns of a chart that names a tag without one. Where the MFU is not
    known there are none.

    Args:
        shares: Of the wall time, by name.
        pauses: Which of the names are pauses; what is not known by name are excluded steps.
    """
    if "model" not in shares:
        return
    bands = dict.fromkeys(_BANDS, 0.0)
    for name, share in shares.items():
        bands[_band(name, pauses)] += share
    yield f"{_STACK}zero", 0.0
    for band, height in zip(_BANDS, itertools.accumulate(bands.values()), strict=True):
        yield f"{_STACK}{band}", height


def _band(name: str, pauses: Collection[str]) -> str:
    band = name.replace(" ", "_")
    if band in _BANDS and band not in ("excluded", "pauses"):
        return band
    # A pause that is called like another part has its name with "pause" before it, or more of them.
    while name not in pauses and name.startswith(PAUSE):
        name = name.removeprefix(PAUSE)
    return "pauses" if name in pauses or name == FURTHER_PAUSES else "excluded"


class Layout:
    """The charts that have something to show: TensorBoard draws an empty one where nothing is."""

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._stale = False
        self._written: list[str] = []

    def saw(self, tag: str) -> None:
        """There is a value under this tag."""
        if tag not in self._tags:
            self._tags.add(tag)
            self._stale = True

    def summary(self) -> Summary | None:
        """The layout, if it is another one than the last; TensorBoard uses the newest of a run."""
        if not self._stale:
            return None
        self._stale = False
        titles = [
            title
            for title, pattern in (*_LINES.items(), (STACKED, _STACK))
            if any(re.match(_NEEDED.get(title, pattern), tag) for tag in self._tags)
        ]
        if titles == self._written:
            return None
        self._written = titles
        category = layout_pb2.Category(title=CATEGORY, chart=map(_chart, titles))
        layout = layout_pb2.Layout(category=[category]).SerializeToString()
        tensor = TensorProto(
            dtype="DT_STRING", string_val=[layout], tensor_shape=TensorShapeProto()
        )
        plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME)
        metadata = SummaryMetadata(plugin_data=plugin)
        return Summary(
            value=[Summary.Value(tag=CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata)]
        )


def _chart(title: str) -> layout_pb2.Chart:
    if title != STACKED:
        lines = layout_pb2.MultilineChartContent(tag=[_LINES[title]])
        return layout_pb2.Chart(title=title, multiline=lines)
    # All curves of a run have one colour. Areas that all begin at 0 lie one on another: what went
    # into the model is the darkest, then come the rest of the steady steps, and all else.
    series = [
        layout_pb2.MarginChartContent.Series(
            value=_STACK + band,
            lower=_STACK + ("zero" if band in _FILLED else band),
            upper=_STACK + band,
        )
        for band in _BANDS
    ]
    return layout_pb2.Chart(title=title, margin=layout_pb2.MarginChartContent(series=series))
