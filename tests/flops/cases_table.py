"""Writes docs/counted-cases.md: every case, what it should count, and what four counters say.

    python tests/flops/cases_table.py            shows the table
    python tests/flops/cases_table.py --write    writes it

The expected FLOPs are the closed forms that stand beside the cases. Reasons for what the other
counters say are found by :mod:`mfu_torch.flops.crosscheck`, not written here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import cases_attention
import cases_layers
import cases_linalg
import cases_matmul
import cases_optimizers
import cases_phases
import cases_shapes
import cases_wrappers
import models
import other_models
import torch
import transformer_models
from cases import PHASES, WORK, Work, by_phase, work_of
from models import ZOO
from torch.utils.flop_counter import FlopCounterMode

from mfu_torch.flops.counter import NO_CONTRACTION
from mfu_torch.flops.crosscheck import crosscheck
from mfu_torch.flops.crosscheck.witnesses import Operands, explain_torch
from mfu_torch.flops.ops.attention import MASK_READ, PLAIN_SCORES
from mfu_torch.records import FlopCount

PAGE = Path(__file__).parents[2] / "docs" / "counted-cases.md"
COMMAND = "python tests/flops/cases_table.py --write"

SECTIONS: dict[str, ModuleType] = {
    "Layers and single calls": models,
    "Matrix products": cases_matmul,
    "Convolutions and recurrent layers": cases_layers,
    "Attention": cases_attention,
    "Transforms, decompositions, distances": cases_linalg,
    "Phases of a step": cases_phases,
    "Optimizers": cases_optimizers,
    "Around the model": cases_wrappers,
    "Batches of different shapes": cases_shapes,
    "Transformers, checkpoints": transformer_models,
    "Models of other fields": other_models,
}

SIGNS = dict(zip(PHASES, ("F", "N", "B", "R", "K", "O"), strict=True))

INTRO = f"""# Every case that is counted, and what others say

Written by `{COMMAND}`; a test holds that this page is what the code produces.
torch {{torch}}, transformers {{transformers}}, fvcore 0.1.5; all on the CPU or, for kernels of
other devices, on meta tensors.

*Expected* is a closed form that stands beside the case, in `tests/flops/`. A multiply-add is 2
FLOPs. Phases: `F` forward, `N` forward without gradients, `B` backward, `R` recomputation by a
checkpoint, `K` recomputation inside fused attention kernels, `O` contractions of the optimizer.
*torch* is `FlopCounterMode` around the same work, held against all phases together; *fvcore* is
twice its multiply-adds, contractions only, with a formula for `scaled_dot_product_attention`
(it has none), held against the forward. `=` means equal, and a number is followed by its ratio.
Where a witness is wrong, the last column says which of its formulas is missing or wrong: read off
what it did by `mfu_torch.flops.crosscheck`, or called *not explained*.

One more witness has no column: the CPU's own libraries. oneDNN and MKL log every product with its
sizes, and `tests/witness/` holds all phases of dozens of these cases against that log, to the FLOP.
One kernel does more than is counted: oneDNN's LSTM computes the gradient of the first layer's input
also where nothing wants it. The step does not need that, and it repeats nothing: it is in no phase,
and on the CPU the hardware FLOPs of such a layer are too low by 2 x positions x gates x inputs.
"""


NO_LIMITS = (
    NO_CONTRACTION,
    MASK_READ,
    PLAIN_SCORES,
    "the backward of the compiled model is counted as from",
)
"""Notes of counts that are exact all the same."""


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        verdict: ``"exact"``, ``"as stated"`` (right by a convention or as an upper bound, and it
            says so), ``"unknown"`` (and it says why), or ``"wrong"``.
    """

    name: str
    verdict: str
    expected: str
    counted: str
    torch: str
    fvcore: str
    reasons: tuple[str, ...]


def cases_of(module: ModuleType) -> Iterator[tuple[str, Callable[[], Work]]]:
    """The cases that a file defines, as work."""
    for name, build in WORK.items():
        if build.__module__ == module.__name__:
            yield name, build
    for name, model in ZOO.items():
        if model.__module__ == module.__name__:
            yield name, lambda model=model: work_of(model())  # type: ignore[misc]


def row(name: str, build: Callable[[], Work]) -> Row:
    """Count one case by every counter, each on a case of its own."""
    torch.manual_seed(0)
    work = build()
    count = work.counted()
    verdict, counted = _ours(work, count)
    theirs, reasons = _by_torch(build, count)
    forward, more = _by_fvcore(build())
    return Row(
        name=name.replace("_", " "),
        verdict=verdict,
        expected=_phases(work.expected()),
        counted=counted,
        torch=theirs,
        fvcore=forward,
        reasons=tuple(dict.fromkeys([*reasons, *more])),
    )


def _ours(work: Work, count: FlopCount) -> tuple[str, str]:
    got = by_phase(count)
    notes = [*count.uncounted, *count.notes]
    limits = [*count.uncounted, *(note for note in count.notes if not note.startswith(NO_LIMITS))]
    if work.unknown:
        said = next((note for note in notes if note.startswith(work.unknown)), "")
        return ("unknown" if said else "wrong"), f"unknown: {_short(said)}"
    expected_limits = [note for note in limits if work.says and note.startswith(work.says)]
    if got != work.expected() or limits != expected_limits or bool(limits) != bool(work.says):
        return "wrong", f"**{'; '.join([_phases(got), *limits])}**"
    if limits:
        return "as stated", f"{_phases(got)}; {_short(limits[0])}"
    return "exact", _phases(got)


def _by_torch(build: Callable[[], Work], ours: FlopCount) -> tuple[str, list[str]]:
    mode, work = FlopCounterMode(display=False), build()
    try:
        with mode:
            work.run()
    except Exception as error:  # a witness may fail in any way; the table says how
        return f"raises {type(error).__name__}", [f"torch raises: {_first_line(error)}"]
    expected = sum(work.expected().values())
    if mode.get_total_flops() == expected:
        return "=", []
    work, evidence = build(), Operands()
    with evidence:
        work.run()
    found = explain_torch("", Counter(ours.by_op), _by_op(mode), evidence)
    reasons = [*found.reasons, *(["torch: not explained"] if found.unexplained else [])]
    return _ratio(mode.get_total_flops(), expected), reasons


def _by_op(mode: FlopCounterMode) -> Counter[str]:
    return Counter({str(op): n for op, n in mode.get_flop_counts().get("Global", {}).items()})


def _by_fvcore(work: Work) -> tuple[str, list[str]]:
    if work.call is None:
        return "", []
    model, args = work.call
    check = crosscheck(model, args)
    reading = check.reading("fvcore")
    if reading.flops is None:
        kind, _, text = reading.failure.partition(": ")
        return f"raises {kind}", [f"fvcore raises: {text.partition('. ')[0]}"]
    expected = work.forward + work.forward_no_grad
    if reading.flops == expected:
        return "=", []
    reasons = []
    for found in check.differences:
        if found.witness == "fvcore":
            # Without the shapes and the sizes, which the table has no room for.
            reasons += [re.split(r":? \(", reason)[0] for reason in found.reasons]
            reasons += ["fvcore: not explained"] if found.unexplained else []
    return _ratio(reading.flops, expected), reasons


def _ratio(theirs: int, expected: int) -> str:
    return f"{theirs:,} ({theirs / expected:.4f})" if expected else f"{theirs:,}"


def _first_line(error: Exception) -> str:
    # Up to what differs between runs and machines: addresses, paths.
    return re.split(r"[<:(]| at 0x", str(error).strip())[0].strip()


def _joined(reasons: Iterable[str]) -> str:
    """``"torch has no formula for a", ".. for b"`` -> ``"torch has no formula for a, b"``."""
    together: dict[str, list[str]] = {}
    for reason in reasons:
        start, between, op = reason.rpartition(" for ")
        if " " in op or not start:
            start, between, op = reason, "", ""
        together.setdefault(start + between, []).append(op)
    return "; ".join(start + ", ".join(ops) for start, ops in together.items())


def _phases(flops: dict[str, int]) -> str:
    return " ".join(f"{SIGNS[phase]} {count:,}" for phase, count in flops.items()) or "0"


def _short(note: str) -> str:
    return re.split(r"[,:;(]", note)[0].strip()


# --- the page --------------------------------------------------------------------------------


def sections() -> dict[str, list[Row]]:
    """Every case, counted; nothing is printed by the way."""
    # Some cases print or warn: none of it is about the count.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return {
                title: [row(name, build) for name, build in cases_of(module)]
                for title, module in SECTIONS.items()
            }
    finally:
        logging.disable(logging.NOTSET)


def page(found: dict[str, list[Row]]) -> str:
    import transformers

    rows = [row for section in found.values() for row in section]
    intro = INTRO.format(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__
    )
    parts = [intro, _summary(rows)]
    for title, section in found.items():
        parts.append(f"## {title}\n\n{_table(section)}")
    return "\n".join(parts)


def _summary(rows: list[Row]) -> str:
    verdicts = Counter(row.verdict for row in rows)
    torch_wrong = sum(row.torch != "=" for row in rows)
    forwards = [row for row in rows if row.fvcore]
    fvcore_wrong = sum(row.fvcore != "=" for row in forwards)
    lines = [
        f"{len(rows)} cases.",
        f"mfu_torch: {verdicts['exact']} exact; {verdicts['as stated']} by a convention or as an "
        f"upper bound, and it says so; {verdicts['unknown']} unknown, and it says so; "
        f"{verdicts['wrong']} wrong.",
        f"torch's counter: {len(rows) - torch_wrong} right, {torch_wrong} wrong.",
        f"fvcore: {len(forwards) - fvcore_wrong} of {len(forwards)} forwards right, "
        f"{fvcore_wrong} wrong.",
    ]
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _table(rows: Iterable[Row]) -> str:
    lines = [
        "| case | expected | counted | torch | fvcore, forward | why they differ |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        counted = "=" if row.counted == row.expected else row.counted
        cells = (row.name, row.expected, counted, row.torch, row.fvcore, _joined(row.reasons))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    text = page(sections())
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
