"""Runs cases in a process whose BLAS logs, counted at the same time; the log goes to stdout.

    MKL_VERBOSE=1 ONEDNN_VERBOSE=1 python run_cases.py fp32:mlp onednn:gpt2_eager bf16:mlp

Before each case stands a line ``## CASE``, after it a line ``## {..}``: what was counted, and the
sizes (b, m, k, n) of the batched products, which MKL does not print. ``onednn`` runs float32
products in oneDNN, by allowing bfloat16 inside them; ``bf16`` casts the model.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "flops"))

from cases import Work, work_of
from cases_table import WORK, ZOO
from torch.utils._python_dispatch import TorchDispatchMode

from mfu_torch.flops.counter import FlopCounter

BATCHED = {"aten.bmm": 0, "aten.baddbmm": 1}
"""Ops and the position of their left operand."""


class BatchedProducts(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int, int, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = BATCHED.get(str(getattr(func, "overloadpacket", func)))
        if first is not None:
            (b, m, k), n = args[first].shape, args[first + 1].shape[2]
            self.sizes.append((b, m, k, n))
        return func(*args, **(kwargs or {}))


def build(name: str, precision: str) -> Callable[[], object]:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("medium" if precision == "onednn" else "highest")
    if name in WORK:
        work: Work = WORK[name]()
        return work.run
    case = ZOO[name]()
    if precision == "bf16":
        batch = tuple(t.bfloat16() if t.is_floating_point() else t for t in case.batch)
        case = case._replace(model=case.model.bfloat16(), batch=batch)
    return work_of(case).run


def main(cases: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in cases:
        precision, name = case.split(":")
        run = build(name, precision)
        print(f"## {case}", flush=True)
        with FlopCounter() as counter, BatchedProducts() as batched:
            run()
        count = counter.take()
        counted = {"hardware": count.hardware, "ops": count.by_op, "batched": batched.sizes}
        print(f"## {json.dumps(counted)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
