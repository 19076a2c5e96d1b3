"""What device names and dtypes are to the table of peaks: how they compare, what may differ."""

from __future__ import annotations

import re

from mfu_torch.records import Device, UnknownPeak

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""The dtypes that a peak can be of."""

SUPPLY_PEAK = 'Supply the dense figure yourself: peak="989 TFLOP/s"'
"""The line that ends every refusal."""

_VENDORS = ("nvidia", "amd")
"""Prefixes that drivers added or dropped over the years: Tesla T4, NVIDIA T4."""


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that no peak can be of.

    Raises:
        ValueError: If the dtype is none of :data:`DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")


def unknown(device: Device, dtype: str, reason: str) -> UnknownPeak:
    """The refusal, to be raised: what was asked for, why there is none, what to do."""
    return UnknownPeak(f"no {dtype} peak for {device.name!r}: {reason}. {SUPPLY_PEAK}")


def split_vendor(name: str) -> tuple[str | None, str]:
    """``"NVIDIA A100-SXM4-40GB"`` -> ``("nvidia", "a100 sxm4 40gb")``.

    The second part is what names are compared by: case, white space (also around a slash) and
    hyphens do not count.
    """
    words = re.split(r"[\s_-]+", re.sub(r"\s*/\s*", " / ", name).strip().casefold())
    if words[0] in _VENDORS:
        return words[0], " ".join(words[1:])
    return None, " ".join(words)


def split_mig(name: str) -> tuple[str, str | None]:
    """``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"`` -> ``("NVIDIA A100-SXM4-40GB", "1g.5gb")``."""
    whole, *profile = re.split(r"\s+MIG\s+", name, maxsplit=1)
    return whole, profile[0].strip() if profile else None


def mig_profile(device: Device) -> str | None:
    """The MIG profile that a device has, by its own account or by its name."""
    return device.mig or split_mig(device.name)[1]


def slice_name(device: Device) -> str | None:
    """``"NVIDIA H100 80GB HBM3 MIG 1g.10gb"``: the whole name of a slice; of others ``None``."""
    profile = mig_profile(device)
    return None if profile is None else f"{split_mig(device.name)[0]} MIG {profile}"


def is_laptop(name: str) -> bool:
    """Whether a driver's name is that of a laptop or embedded part.

    The driver spells the laptops' "GeForce RTX 2080 Super" so, and the desktop card "... SUPER";
    the name in any other letters could be either, and counts as the laptop's, with "GeForce" or
    without. Only the table's own short name, ``rtx-2080-super``, is the desktop card's.
    """
    if re.fullmatch(r"rtx-20[78]0-super", name.strip()):
        return False
    if re.search(r"\b(laptop|embedded|mobile|max-q design)\b", name, re.IGNORECASE):
        return True
    spelled = re.search(r"\brtx[\s_-]+20[78]0[\s_-]+(super)\b", name, re.IGNORECASE)
    return spelled is not None and spelled.group(1) != "SUPER"
