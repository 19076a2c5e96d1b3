"""What device names and dtypes are to the table of peaks: how they compare, what may differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from mfu_torch.records import Device, UnknownPeak

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""The dtypes that a peak can be of."""

SUPPLY_PEAK = 'Supply the dense figure yourself: peak="... TFLOP/s"'
"""The line that ends a refusal. No card's figure: it would be copied for another card."""

NO_PEAK_HERE = "Contractions in this dtype have no peak here"
"""The line that ends a refusal where the hardware has no units: nobody can state a figure."""

_TORCH_NAMES = {
    **{"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32"},
    **{"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float4_e2m1fn_x2": "fp4"},
    **{"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"},
    **{"float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8"},
}
"""What torch calls a dtype -> what a peak is of."""

_VENDORS = ("nvidia", "amd")
"""Prefixes that drivers added or dropped over the years: Tesla T4, NVIDIA T4."""


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that no peak can be of.

    Raises:
        ValueError: If the dtype is none of :data:`DTYPES`.
    """
    if dtype not in DTYPES:
        text = f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}"
        meant = _meant(str(dtype))
        raise ValueError(f"{text} (here {meant!r})" if meant in DTYPES else text)


def canonical_dtype(dtype: object) -> str:
    """``"BF16"``, ``"bfloat16"`` and ``torch.bfloat16`` -> ``"bf16"``.

    Raises:
        TypeError: If it is neither text nor a dtype of torch.
        ValueError: If it is none of :data:`DTYPES` by any of its names.
    """
    if not isinstance(dtype, str) and not str(dtype).startswith("torch."):
        raise TypeError(f'dtype is {dtype!r}; expected text ("bf16") or a dtype of torch')
    meant = _meant(str(dtype))
    if meant not in DTYPES:
        check_dtype(str(dtype))
    return meant


def _meant(dtype: str) -> str:
    folded = dtype.strip().casefold().removeprefix("torch.")
    return _TORCH_NAMES.get(folded, folded)


def unknown(device: Device, dtype: str, reason: str) -> UnknownPeak:
    """The refusal, to be raised: what was asked for, why there is none, what to do."""
    end = NO_PEAK_HERE if f"no {dtype} units" in reason else SUPPLY_PEAK
    return UnknownPeak(f"no {dtype} peak for {device.name!r}: {reason}. {end}")


def reason_of(text: str) -> str:
    """The reason alone, of what :func:`unknown` made: without its first and last words."""
    text = text.removesuffix(f". {SUPPLY_PEAK}").removesuffix(f". {NO_PEAK_HERE}")
    return re.sub(r"""\Ano \w+ peak for (?:'.*?'|".*?"): """, "", text)


def likest(text: str, names: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The spellings of the names that look like a compared one: same model first, then letters.

    "h100 80gb" resembles "a100 80gb" by its letters, but names another model.

    Args:
        text: As names are compared, see :func:`split_vendor`.
        names: Compared name -> spelling.
        count: At most so many.
    """
    asked = _models(text)
    shared = {key: len(asked & _models(key)) for key in names}
    most = max(shared.values(), default=0)
    if not most:
        found = difflib.get_close_matches(text, names, n=count, cutoff=0.5)
        return tuple(names[key] for key in found)
    same = [key for key in names if shared[key] == most]
    same.sort(key=lambda key: difflib.SequenceMatcher(None, text, key).ratio(), reverse=True)
    return tuple(names[key] for key in same[:count])


def _models(key: str) -> frozenset[str]:
    """``"h100 80gb hbm3"`` -> ``{"h100"}``: words with digits that name no size or form."""
    words = re.findall(r"[a-z]*\d+[a-z]*", key)
    return frozenset(
        word
        for word in words
        if len(word) > 1 and not re.fullmatch(r"\d+(gb?|core)|(sxm|hbm|ddr|v)\d+\w?", word)
    )


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
