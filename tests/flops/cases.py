"""Pieces of work whose FLOPs are known phase by phase: what the zoo of models cannot hold.

A case is built by a function, so that each use gets fresh tensors, and says in plain arithmetic,
with named sizes, what it expects. Models with one forward and one backward stand in ``models.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from models import Case, train
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.records import FlopCount


class Work(NamedTuple):
    """Something that runs, and the FLOPs of each of its phases.

    Attributes:
        run: The work itself.
        call: A module and its arguments, whose forward is the work's: for forward-only witnesses.
        says: What the count has to say of its limits: the beginning of a note.
        unknown: The count need not be right, but has to say this: the beginning of a note, or the
            name of an op that has no formula.
        count: How it is counted, where that is not by running it.
    """

    run: Callable[[], object]
    forward: int = 0
    forward_no_grad: int = 0
    backward: int = 0
    recompute: int = 0
    kernel_recompute: int = 0
    optimizer: int = 0
    call: tuple[nn.Module, tuple[Any, ...]] | None = None
    says: str = ""
    unknown: str = ""
    count: Callable[[], FlopCount] | None = None

    def counted(self) -> FlopCount:
        return self.count() if self.count else count_flops(self.run)

    def expected(self) -> dict[str, int]:
        """FLOPs by phase; phases without any are left out."""
        return {phase: flops for phase in PHASES if (flops := getattr(self, phase))}


PHASES = (
    "forward", "forward_no_grad", "backward", "recompute", "kernel_recompute", "optimizer",
)  # fmt: skip

WORK: dict[str, Callable[[], Work]] = {}


def work(build: Callable[[], Work]) -> Callable[[], Work]:
    WORK[build.__name__] = build
    return build


def by_phase(count: FlopCount) -> dict[str, int]:
    """A count in the form of :meth:`Work.expected`."""
    return {phase: flops for phase in PHASES if (flops := getattr(count, phase))}


class Call(nn.Module):
    """A function as a module; the tensors are its inputs, ``layer`` is what it uses besides."""

    def __init__(self, fn: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.fn, self.layer = fn, layer

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.fn(*inputs)


def op(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    forward: int,
    layer: nn.Module | None = None,
    **expected: Any,
) -> Work:
    """One call of a function, and its backward if one is expected."""

    def run() -> None:
        out = fn(*inputs)
        if "backward" in expected:
            out = out if isinstance(out, torch.Tensor) else out[0]
            out.sum().abs().backward()

    return Work(run, forward=forward, call=(Call(fn, layer), inputs), **expected)


def weight(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """A tensor that wants a gradient."""
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """For kernels that only other devices have: shapes and dtypes are all that counts."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def work_of(case: Case) -> Work:
    """A model of the zoo as work: a forward and a backward."""
    hardware = case.step if case.hardware is None else case.hardware
    return Work(
        functools.partial(train, case.model, *case.batch),
        forward=case.forward,
        backward=case.step - case.forward,
        recompute=case.recompute,
        kernel_recompute=hardware - case.step - case.recompute,
        call=(case.model, case.batch),
    )
