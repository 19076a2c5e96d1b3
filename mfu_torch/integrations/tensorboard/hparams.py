"""HParams: one row per run, so that runs can be sorted by their MFU."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Iterator, Mapping

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import (
    PLUGIN_DATA_VERSION,
    PLUGIN_NAME,
    SESSION_END_INFO_TAG,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from torch.utils.tensorboard.summary import hparams as torch_hparams

from mfu_torch.integrations.tensorboard.totals import TAGS, Totals
from mfu_torch.records import PeakEntry, Peaks
from mfu_torch.units import scaled

Value = bool | int | float | str

SHOWN = ("model", "dtype", "tokens_per_step", "samples_per_step")


def of_run(totals: Totals, peaks: Peaks) -> dict[str, object]:
    """What the records of a run say it was made with; what they do not say has no entry."""
    header = totals.header
    known: dict[str, object] = {
        "model": header.model or None,
        "parameters": header.parameters,
        "dtype": ", ".join(peaks) or None,
        "attention": header.attention,
        "device": header.device.name,
        "peak": ", ".join(text for text in map(_peak, peaks.values()) if text) or None,
        "world_size": header.world_size,
        "tokens_per_step": totals.per_step("tokens"),
        "samples_per_step": totals.per_step("samples"),
        **{name: version for name, version in header.versions.items() if name != "python"},
    }
    return {name: value for name, value in known.items() if value is not None}


def _peak(entry: PeakEntry) -> str:
    if entry.peak is None:
        return ""
    rate = scaled(entry.peak.flops_per_s, "FLOP/s")
    return f"{entry.dtype} {rate} {entry.peak.provenance}"


def session_start(hparams: Mapping[str, object], shown: Collection[str]) -> Iterator[Summary]:
    """The row of a run: its hparams, and which of its scalars are its metrics.

    Args:
        hparams: By name.
        shown: Those that have a column before any is chosen, as far as there is room.
    """
    # Not SummaryWriter.add_hparams: that makes another run, with a folder of its own, of each run.
    values = {str(name): _value(value) for name, value in hparams.items()}
    experiment, start, _ = torch_hparams(values, dict.fromkeys(TAGS, 0.0))  # type: ignore[no-untyped-call]
    plugin = experiment.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    for info in content.experiment.hparam_infos:
        if hasattr(info, "differs"):  # not in old TensorBoards
            info.differs = info.name in shown  # these come first; the rest by name
    plugin.content = content.SerializeToString()
    yield experiment
    yield start


def _value(value: object) -> Value:
    """As TensorBoard can have it: it knows numbers, texts and truth values."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return float(value) if isinstance(value, numbers.Real) else str(value)  # numpy's, say


def session_end(reason: str) -> Summary:
    """That the run is over, and whether it was completed."""
    status = "STATUS_SUCCESS" if reason == "completed" else "STATUS_FAILURE"
    content = HParamsPluginData(
        session_end_info=SessionEndInfo(status=Status.Value(status)), version=PLUGIN_DATA_VERSION
    )
    plugin = SummaryMetadata.PluginData(
        plugin_name=PLUGIN_NAME, content=content.SerializeToString()
    )
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag=SESSION_END_INFO_TAG, metadata=metadata)])
