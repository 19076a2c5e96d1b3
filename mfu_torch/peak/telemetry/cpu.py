"""The CPU by the operating system's account, through psutil."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfu_torch.peak.drivers import Raw, checked, said
from mfu_torch.peak.telemetry.source import (
    Fault,
    Found,
    NoSource,
    Reader,
    Readers,
    Reading,
)

WHO = "the operating system"

MOST_CLOCKS = 8
"""Clocks are read of so many CPUs at most: each one is a file."""


class CpuSource:
    """Busy time and clock of the CPUs that the process may use, and the machine's memory.

    Args:
        sysfs: Where Linux states the clocks; psutil reads the clocks and limits of every CPU of the
            machine, three files each, and takes a nominal clock for the present one.
    """

    def __init__(self, sysfs: Path = Path("/sys/devices/system/cpu")) -> None:
        self._sysfs = sysfs
        self._psutil: Any = None
        self._before: tuple[float, float] | None = None
        self._readers = Readers(
            [
                Reader(("cpu_util",), self._util, counts=True),
                Reader(("sm_clock_hz",), self._clock),
                Reader(("memory_used_bytes",), self._memory),
            ],
            judge=lambda error: Fault(f"the operating system refused it ({said(error)})"),
            otherwise="not read on a CPU",
            who=WHO,
        )

    def open(self) -> None:
        """Import psutil; raises NoSource where it is missing or broken."""
        try:
            import psutil
        except ModuleNotFoundError as error:
            raise NoSource("the module psutil is missing; run: pip install psutil") from error
        # Built for another Python or system, it may raise anything.
        except Exception as error:
            raise NoSource(
                f"psutil cannot be imported ({said(error)}); run: pip install --force-reinstall "
                "psutil"
            ) from error
        self._psutil = psutil

    def close(self) -> None:
        """Nothing to close."""

    def read(self, elapsed_s: float | None) -> Reading:
        """One reading; raises nothing."""
        return self._readers.read(elapsed_s).reading

    def _util(self, elapsed_s: float | None) -> Mapping[str, Found]:
        now = _busy_and_total_s(self._psutil)
        if now is None:
            return {"cpu_util": "some CPUs are offline, and psutil does not tell which"}
        before, self._before = self._before, now
        if elapsed_s is None or before is None:
            return {}
        busy_s, total_s = now[0] - before[0], now[1] - before[1]
        if not total_s > 0:
            return {"cpu_util": "the operating system's counters have not moved"}
        # Ticks as floats, and Linux lets iowait run backwards: a hair outside 0 to 1.
        return {"cpu_util": Raw(min(max(busy_s / total_s, 0.0), 1.0))}

    def _clock(self, elapsed_s: float | None) -> Mapping[str, Found]:
        cpus = _usable_cpus(self._psutil) if sys.platform == "linux" else []
        files = [self._sysfs / f"cpu{n}" / "cpufreq" / "scaling_cur_freq" for n in cpus]
        files = [f for f in files[:: max(1, len(files) // MOST_CLOCKS)][:MOST_CLOCKS] if f.exists()]
        if not files:
            return {"sm_clock_hz": "the operating system does not tell the present clock"}
        found = [checked("sm_clock_hz", Raw(int(f.read_text()), 1e3, "kHz"), WHO) for f in files]
        known = [clock_hz for clock_hz in found if isinstance(clock_hz, float)]
        if not known:
            return {"sm_clock_hz": str(found[0])}
        return {"sm_clock_hz": Raw(sum(known) / len(known), 1.0, "Hz")}

    def _memory(self, elapsed_s: float | None) -> Mapping[str, Found]:
        memory = self._psutil.virtual_memory()
        return {"memory_used_bytes": Raw(memory.total - memory.available, 1.0, "bytes")}


def _usable_cpus(psutil: Any) -> list[int]:
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return sorted(process.cpu_affinity())
    return list(range(psutil.cpu_count() or 1))


def _busy_and_total_s(psutil: Any) -> tuple[float, float] | None:
    """Of the CPUs that the process may use, since the machine was started."""
    times = psutil.cpu_times(percpu=True)
    cpus = _usable_cpus(psutil)
    if cpus[-1] >= len(times):  # psutil lists the CPUs that are online, without their numbers
        return None
    busy_s = total_s = 0.0
    for cpu in cpus:
        fields = times[cpu]._asdict()
        # Linux counts the time of guests as time of users too.
        total = sum(fields.values()) - fields.get("guest", 0.0) - fields.get("guest_nice", 0.0)
        total_s += total
        busy_s += total - fields["idle"] - fields.get("iowait", 0.0)
    return busy_s, total_s
