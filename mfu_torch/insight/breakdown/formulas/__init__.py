"""FLOPs of each op from the shapes that a trace records of it; one file per kind of op.

The same figures as :mod:`mfu_torch.flops.ops`, which counts live tensors and needs torch; a test
runs every family under the profiler and compares the two to the digit.
"""

from __future__ import annotations

from mfu_torch.insight.breakdown.formulas.attention import ATTENTION
from mfu_torch.insight.breakdown.formulas.attention_packages import ATTENTION_PACKAGES
from mfu_torch.insight.breakdown.formulas.convolutions import CONVOLUTIONS
from mfu_torch.insight.breakdown.formulas.products import PRODUCTS
from mfu_torch.insight.breakdown.formulas.recurrent import RECURRENT
from mfu_torch.insight.breakdown.formulas.work import Formula

FORMULAS: dict[str, Formula] = {
    **PRODUCTS,
    **CONVOLUTIONS,
    **ATTENTION,
    **ATTENTION_PACKAGES,
    **RECURRENT,
}
"""Name of an op -> its formula."""
