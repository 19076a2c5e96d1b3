"""Live, honest MFU for PyTorch training: what share of the hardware goes into the model.

The names below are imported when they are first used, so that neither ``import mfu_torch`` nor
the command line waits for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mfu_torch.flops.counter import count_flops
    from mfu_torch.flops.ops import register_flops
    from mfu_torch.meter import Meter
    from mfu_torch.peak.devices import detect_device
    from mfu_torch.peak.table import peak_for
    from mfu_torch.records import Device, FlopCount, MFUError, Peak, Run, UnknownPeak
    from mfu_torch.run.runfile import read_run

    __version__: str

__all__ = [
    "Device",
    "FlopCount",
    "MFUError",
    "Meter",
    "Peak",
    "Run",
    "UnknownPeak",
    "__version__",
    "count_flops",
    "detect_device",
    "peak_for",
    "read_run",
    "register_flops",
]

_HOME = {
    "Device": "records",
    "FlopCount": "records",
    "MFUError": "records",
    "Meter": "meter",
    "Peak": "records",
    "Run": "records",
    "UnknownPeak": "records",
    "count_flops": "flops.counter",
    "detect_device": "peak.devices",
    "peak_for": "peak.table",
    "read_run": "run.runfile",
    "register_flops": "flops.ops",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _version()
    elif name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    import re
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        # A checkout that is not installed: the file that the metadata would be made from.
        project = Path(__file__).parent.parent / "pyproject.toml"
        text = project.read_text(encoding="utf-8") if project.is_file() else ""
        found = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
        return found.group(1) if found else "unknown"
