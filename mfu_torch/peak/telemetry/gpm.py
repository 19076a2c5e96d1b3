"""GPM: counters of the multiprocessors, which NVML has on Hopper and newer GPUs.

What a counter did between two samples is a metric. The samples are buffers of the driver: two are
kept and used in turn, and given back at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mfu_torch.peak.drivers import Raw, said
from mfu_torch.peak.nvml import Nvml
from mfu_torch.peak.telemetry.source import Found

logger = logging.getLogger(__name__)

METRICS: dict[str, tuple[str, float]] = {
    # Field: pynvml's name without NVML_GPM_METRIC_, factor. Percent, and MiB/s.
    "sm_active": ("SM_UTIL", 1e-2),
    "tensor_active": ("ANY_TENSOR_UTIL", 1e-2),
    "dram_active": ("DRAM_BW_UTIL", 1e-2),
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", 2.0**20),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", 2.0**20),
    "nvlink_rx_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", 2.0**20),
    "nvlink_tx_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", 2.0**20),
}


class Gpm:
    """The metrics of one GPU, or of the GPU instance that a MIG slice is."""

    def __init__(self, gpu: Nvml) -> None:
        self._api: Any = gpu.api
        self._gpu = gpu
        self._supported: bool | None = None  # not asked yet
        self._samples: list[Any] = []  # the newest first
        self._has_newest = False
        self._metrics: Any = None

    def read(self, elapsed_s: float | None) -> Mapping[str, Found]:
        """Take a sample; the metrics since the one before, unless ``elapsed_s`` is ``None``."""
        refusal = self._refusal()
        if refusal:
            return dict.fromkeys(METRICS, refusal)
        while len(self._samples) < 2:
            self._samples.append(self._api.nvmlGpmSampleAlloc())
        before = self._has_newest and elapsed_s is not None
        self._has_newest = False  # until the call below has returned
        self._samples.reverse()
        self._take(self._samples[0])
        self._has_newest = True
        return self._metrics_between() if before else {}

    def close(self) -> None:
        """Give the samples back to the driver; the handle may be gone, so it may refuse."""
        while self._samples:
            try:
                self._api.nvmlGpmSampleFree(self._samples.pop())
            # Nothing can be done about it, and the others are freed all the same.
            except Exception as error:
                logger.info("A GPM sample could not be freed: %s.", said(error))
        self._has_newest = False

    def _refusal(self) -> str:
        if self._gpu.card is None or (self._gpu.is_slice and self._gpu.gpu_instance is None):
            return "NVML does not say which GPU instance the MIG slice is"
        if self._gpu.shares_instance:
            return "GPM covers the whole GPU instance, and this MIG slice is a part of it"
        if self._supported is None:
            support = self._api.nvmlGpmQueryDeviceSupport(self._gpu.card)
            self._supported = bool(support.isSupportedDevice)
        return "" if self._supported else "this GPU has no GPM counters; Hopper and newer have"

    def _take(self, sample: Any) -> None:
        if self._gpu.is_slice:
            self._api.nvmlGpmMigSampleGet(self._gpu.card, self._gpu.gpu_instance, sample)
        else:
            self._api.nvmlGpmSampleGet(self._gpu.card, sample)

    def _metrics_between(self) -> Mapping[str, Found]:
        api = self._api
        if self._metrics is None:
            self._metrics = api.c_nvmlGpmMetricsGet_t()
            self._metrics.version = api.NVML_GPM_METRICS_GET_VERSION
            self._metrics.numMetrics = len(METRICS)
            for entry, (name, _) in zip(self._metrics.metrics, METRICS.values(), strict=False):
                entry.metricId = getattr(api, f"NVML_GPM_METRIC_{name}")
        self._metrics.sample2, self._metrics.sample1 = self._samples
        api.nvmlGpmMetricsGet(self._metrics)
        found: dict[str, Found] = {}
        for entry, (field, (_, factor)) in zip(
            self._metrics.metrics, METRICS.items(), strict=False
        ):
            if entry.nvmlReturn != api.NVML_SUCCESS:
                found[field] = f"GPM: {api.NVMLError(entry.nvmlReturn)}"
            else:
                found[field] = Raw(entry.value, factor, "%" if factor < 1 else "MiB/s")
        return found
