"""Numbers to text and back: the only place where either happens.

Inside mfu_torch everything is SI base units and fractions; ``"989 TFLOP/s"`` and ``"41.2 %"``
exist only here.
"""

from mfu_torch.units.parsers import (
    parse_bytes_per_s,
    parse_count,
    parse_days,
    parse_flops,
    parse_flops_per_s,
    parse_money,
    parse_per_s,
    parse_seconds,
    parse_share,
    parse_tflops_per_s,
    parse_whole,
)
from mfu_torch.units.printers import (
    bytes_,
    count_text,
    margin,
    percent,
    percent_exact,
    rounded_parts,
    scaled,
    seconds,
    significant,
)

__all__ = [
    "bytes_",
    "count_text",
    "margin",
    "parse_bytes_per_s",
    "parse_count",
    "parse_days",
    "parse_flops",
    "parse_flops_per_s",
    "parse_money",
    "parse_per_s",
    "parse_seconds",
    "parse_share",
    "parse_tflops_per_s",
    "parse_whole",
    "percent",
    "percent_exact",
    "rounded_parts",
    "scaled",
    "seconds",
    "significant",
]
