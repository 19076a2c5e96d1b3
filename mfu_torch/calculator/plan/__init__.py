"""Planning: an estimate of a training step's time and MFU, before it is run.

>>> from mfu_torch.calculator.plan import Layout, machine_of, plan
>>> from mfu_torch.flops import formulas
>>> gpt3 = formulas.dense_decoder(
...     layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200, is_gated=False
... )
>>> layout = Layout(gpus=64, tp=8, pp=8, micro_batches=64, seq=2048)
>>> round(plan(gpt3, layout, machine_of("h100-sxm")).memory.parameters / 1e9, 1)
5.6
"""

from mfu_torch.calculator.plan.collectives import Link
from mfu_torch.calculator.plan.estimate import Plan, PlanTerm, plan
from mfu_torch.calculator.plan.layout import ContradictionError, Layout
from mfu_torch.calculator.plan.machine import Machine, machine_of
from mfu_torch.calculator.plan.memory import Memory
from mfu_torch.calculator.plan.table import render, summary

__all__ = [
    "ContradictionError",
    "Layout",
    "Link",
    "Machine",
    "Memory",
    "Plan",
    "PlanTerm",
    "machine_of",
    "plan",
    "render",
    "summary",
]
