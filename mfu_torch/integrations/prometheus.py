"""Prometheus: the newest figures of a run, as text on a port that a server scrapes.

    Meter(model, sinks=[ConsoleSink(), PrometheusSink(port=9108)])

Names follow Prometheus' conventions: base units, ``_ratio`` for shares, ``_total`` for counters.
What is not known has no sample. The ranks together: ``avg by (run) (mfu_torch_mfu_ratio)``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mfu_torch.figures import Figures
from mfu_torch.records import Entry, Header, PeakEntry, Telemetry
from mfu_torch.step_parts import SplitSteps
from mfu_torch.tags import part_shares

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "PrometheusSink needs prometheus-client: pip install 'mfu_torch[prometheus]'"
    ) from error

PORT = 9108
"""Where rank 0 of a host listens, unless another port is given."""

_LABELS = ("device", "rank", "attention", "run")

# Field of Figures -> name, and help.
_FIGURES = {
    "mfu": ("mfu_ratio", "Ideal time of the model FLOPs at the peak over the step time"),
    "hfu": ("hfu_ratio", "Ideal time of the hardware FLOPs at the peak over the step time"),
    "mfu_causal": ("mfu_causal_ratio", "MFU with only the attention scores that the mask keeps"),
    "mfu_of_measured": ("mfu_of_measured_peak_ratio", "MFU of the rate measured on the device"),
    "end_to_end": ("end_to_end_mfu_ratio", "MFU of the run so far, over all of its wall time"),
    "model_flops_per_s": ("model_flops_per_second", "Model FLOPs over step time, per device"),
    "tokens_per_s": ("tokens_per_second", "Tokens trained on over step time, per rank"),
    "samples_per_s": ("samples_per_second", "Samples trained on over step time, per rank"),
    "step_s": ("step_seconds", "Mean step time of the last window"),
    "step_s_p95": ("step_p95_seconds", "95th percentile of the step time of the last window"),
    "data_wait_share": ("data_wait_ratio", "Share of the step time spent waiting for data"),
    "memory_bytes": ("memory_allocated_max_bytes", "Most memory allocated by torch so far"),
}

# Field of Telemetry -> name, and help.
_DEVICE = {
    "gpu_util": ("gpu_utilization_ratio", "Share of the time in which any kernel ran"),
    "cpu_util": ("cpu_utilization_ratio", "Busy time of the CPUs that the process may use"),
    "sm_active": ("sm_active_ratio", "Multiprocessors with a warp in flight"),
    "tensor_active": ("tensor_active_ratio", "Tensor pipes that are busy"),
    "dram_active": ("dram_active_ratio", "Bandwidth of the device memory in use"),
    "sm_clock_hz": ("sm_clock_hertz", "Clock of the multiprocessors"),
    "memory_clock_hz": ("memory_clock_hertz", "Clock of the memory"),
    "power_w": ("power_watts", "Power drawn"),
    "temperature_c": ("temperature_celsius", "Highest temperature"),
    "memory_used_bytes": ("memory_used_bytes", "Memory in use by all processes"),
    "pcie_rx_bytes_per_s": ("pcie_receive_bytes_per_second", "Over PCIe into the device"),
    "pcie_tx_bytes_per_s": ("pcie_transmit_bytes_per_second", "Over PCIe out of the device"),
    "nvlink_rx_bytes_per_s": ("nvlink_receive_bytes_per_second", "Over NVLink into the device"),
    "nvlink_tx_bytes_per_s": ("nvlink_transmit_bytes_per_second", "Over NVLink out of the device"),
}

# What else there can be.
_OTHERS = (
    *("run_info", "peak_flops_per_second"),
    *("phase_ratio", "goodput_ratio", "device_throttle_ratio"),
    *("step_part_ratio", "step_part_hfu_ratio", "host_lead_seconds"),
)

_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
"""Where torchrun, srun and mpirun say which process of its host this one is."""


class PrometheusSink(Collector):
    """Serves the newest figures of this rank, until the run is over.

    Every rank has a port of its own, as scraped targets do: ``port`` plus its number among the
    processes of its host (``LOCAL_RANK``). Eight GPUs a host: ports 9108 to 9115.

    Attributes:
        port: Where it listens; with ``port=0`` any free one, known once the run has begun.
    """

    def __init__(
        self,
        port: int | None = PORT,
        addr: str = "0.0.0.0",
        registry: CollectorRegistry | None = None,
        *,
        run: str = "",
    ) -> None:
        """The server starts with the run; a port that is in use costs the run this sink only.

        Args:
            port: Of the first process of a host. ``None``: no server, for a program that serves
                ``registry`` itself.
            addr: Interface to listen on; by default all, so that another machine can scrape.
                ``"127.0.0.1"``: this machine only.
            registry: Where the metrics are registered; by default one of their own. A registry
                takes the metrics of one sink at a time.
            run: The label ``run``; by default the time at which the run started.

        Raises:
            ValueError: If ``port`` is no port, there is neither a port nor a registry, or the
                environment's ``LOCAL_RANK`` is no number.
            TypeError: If ``addr``, ``registry`` or ``run`` is something else.
        """
        if port is None and registry is None:
            raise ValueError("port is None and no registry is given; expected one of them")
        if port is not None and not (type(port) is int and 0 <= port <= 65535):
            raise ValueError(f"port is {port!r}; expected a number from 0 to 65535, or None")
        if not isinstance(addr, str):
            raise TypeError(f'addr is {addr!r}; expected a text, such as "0.0.0.0" or "127.0.0.1"')
        if not (registry is None or hasattr(registry, "register")):
            raise TypeError(f"registry is {registry!r}; expected a CollectorRegistry, or None")
        if not isinstance(run, str):
            raise TypeError(f"run is {run!r}; expected a text, the value of the label `run`")
        self.port = port + _local_rank() if port else port
        self._addr = addr
        self._registry = CollectorRegistry() if registry is None else registry
        self._run = run
        self._server: tuple[Any, threading.Thread] | None = None
        self._labels: tuple[str, ...] = ()
        # Each is replaced as a whole: a scrape in another thread sees one window or the next.
        self._header: Header | None = None
        self._figures: Figures | None = None
        self._device: Telemetry | None = None
        self._peaks: Mapping[str, PeakEntry] = {}

    def write(self, record: Entry | Figures) -> None:
        """Keep the newest of each; start serving with the first.

        Raises:
            OSError: If the port cannot be listened on.
            ValueError: If the registry has the metrics of another sink.
        """
        if isinstance(record, Figures):
            self._figures = record
        elif isinstance(record, Telemetry):
            self._device = record
        elif isinstance(record, PeakEntry):
            self._peaks = {**self._peaks, record.dtype: record}
        elif isinstance(record, Header):
            run = self._run or record.started
            self._labels = (record.device.name, str(record.rank), record.attention, run)
            self._header = record
            self._register()
            self._serve()

    def close(self) -> None:
        """Stop serving: what is over must not look as if it went on."""
        if self._header is not None:
            self._registry.unregister(self)
            self._header = None
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()

    def _register(self) -> None:
        try:
            self._registry.register(self)
        except ValueError as error:  # its own text lists all the names
            self._header = None
            raise ValueError(
                "the registry has the metrics of another PrometheusSink that is not closed; "
                "expected one at a time: give each a registry and a port of its own"
            ) from error

    def _serve(self) -> None:
        if self.port is not None:
            try:
                self._server = start_http_server(self.port, self._addr, self._registry)
            except (OSError, OverflowError) as error:  # OverflowError: above 65535 by its rank
                self.close()
                why = getattr(error, "strerror", None) or error
                raise OSError(
                    f"port {self.port} on {self._addr} cannot be listened on ({why}); nothing is "
                    "served to Prometheus. Pass a free one: PrometheusSink(port=...)"
                ) from error
            self.port = self._server[0].server_port

    # --- a scrape, in a thread of the server ----------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Every metric that there can be: the registry then refuses those of a second sink.

        Prometheus' text format has each metric once, with the samples of all.
        """
        device = (f"device_{name}" for name, _ in _DEVICE.values())
        for name in (*_OTHERS, *(name for name, _ in _FIGURES.values()), *device):
            yield GaugeMetricFamily(f"mfu_torch_{name}", "")
        yield CounterMetricFamily("mfu_torch_steps", "")

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a value now."""
        header, now, seen = self._header, self._figures, self._device
        if header is not None:
            versions = {key: text for key, text in header.versions.items() if key != "python"}
            facts = {**versions, "clock": header.clock, "world_size": str(header.world_size)}
            yield self._gauge("run_info", "What the run is", facts, {tuple(facts.values()): 1.0})
        rates: dict[tuple[str, ...], float] = {
            (dtype, entry.peak.provenance): entry.peak.flops_per_s
            for dtype, entry in self._peaks.items()
            if entry.peak is not None
        }
        if rates:
            named = ("dtype", "provenance")
            yield self._gauge("peak_flops_per_second", "Dense peak, per device", named, rates)
        if now is not None:
            steps = CounterMetricFamily("mfu_torch_steps", "Steps completed", labels=_LABELS)
            steps.add_metric(self._labels, now.step)
            yield steps
            yield from self._fields("", _FIGURES, now)
            if now.split is not None:
                yield from self._parts(now.split)
            text = "Share of the step time in a phase of the user's"
            yield from self._shares("phase_ratio", text, "phase", now.phases)
            text = "Share of the run's wall time so far; all of them sum to 1"
            yield from self._shares("goodput_ratio", text, "share", now.goodput)
        if seen is not None:
            yield from self._fields("device_", _DEVICE, seen)
            text = "Share of the samples in which something held the clock down"
            yield from self._shares("device_throttle_ratio", text, "reason", seen.throttle)

    def _parts(self, split: SplitSteps) -> Iterator[Metric]:
        text = "Share of the step time in a part of the step; all of them sum to 1"
        yield from self._shares("step_part_ratio", text, "part", part_shares(split))
        text = "Ideal time of a part's hardware FLOPs at the peak over its time"
        yield from self._shares("step_part_hfu_ratio", text, "part", split.of_peak)
        if split.lead_s is not None:
            text = "Work queued on the GPU when the loop leaves a step, at least"
            yield self._gauge("host_lead_seconds", text, (), {(): split.lead_s})

    def _fields(
        self, prefix: str, table: Mapping[str, tuple[str, str]], record: object
    ) -> Iterator[Metric]:
        for field, (name, text) in table.items():
            value = getattr(record, field)
            if value is not None:
                yield self._gauge(prefix + name, text, (), {(): value})

    def _shares(
        self, name: str, text: str, label: str, shares: Mapping[str, float]
    ) -> Iterator[Metric]:
        if shares:
            yield self._gauge(name, text, (label,), {(key,): v for key, v in shares.items()})

    def _gauge(
        self, name: str, text: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        family = GaugeMetricFamily(f"mfu_torch_{name}", text, labels=(*_LABELS, *labels))
        for label, value in values.items():
            family.add_metric((*self._labels, *label), value)
        return family


def _local_rank() -> int:
    """Which process of its host this is, from 0; 0 where nobody says."""
    for name in _LOCAL_RANKS:
        text = os.environ.get(name, "")
        if text and text != "-1":  # -1: some launchers say so of a process that is alone
            if not (text.isascii() and text.isdigit()):
                raise ValueError(
                    f"{name} is {text!r}; expected which process of its host this is, from 0: set "
                    "it as torchrun does, or unset it"
                )
            return int(text)
    return 0
