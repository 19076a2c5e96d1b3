"""Modules of a model that stand at the same place, together: a row for all layers, not one each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Any, get_args

from mfu_torch.records import FlopCount, Phase, Record


class Family(Record, frozen=True, kw_only=True):
    """Modules of one place in the model, numbers aside, with all that runs inside them.

    Attributes:
        name: Their path below the family above, with ``*`` for numbers.
        path: Their whole path.
        modules: How many they are.
        forward: FLOPs of the forward, with or without gradients.
        backward: FLOPs of the backward.
        recompute: FLOPs that checkpoints repeat.
        kernel_recompute: FLOPs that attention kernels repeat in their backward.
        inside: The families below; what runs in none of them is one of its own.
    """

    name: str
    path: str
    modules: int
    forward: int
    backward: int
    recompute: int
    kernel_recompute: int
    inside: tuple[Family, ...] = ()

    @property
    def hardware(self) -> int:
        """All of it."""
        return self.forward + self.backward + self.recompute + self.kernel_recompute


def families(modules: dict[str, FlopCount]) -> tuple[Family, ...]:
    """Modules of the same place together, in the order in which they ran.

    ``layers.0.mlp`` and ``layers.1.mlp`` are two modules of ``layers.*.mlp``.
    """
    paths = [(tuple(path.split(".")) if path else (), part) for path, part in modules.items()]
    return _families([p for p in paths if p[1].terms], depth=0)


_Paths = list[tuple[tuple[str, ...], FlopCount]]


def _families(paths: _Paths, depth: int) -> tuple[Family, ...]:
    """Families of the modules that share their first ``depth`` names, numbers aside."""
    groups: dict[str, _Paths] = {}
    for path, part in paths:
        name = _starred(path[depth]) if len(path) > depth else ""
        groups.setdefault(name, []).append((path, part))
    return tuple(_family(name, group, depth) for name, group in groups.items())


def _family(name: str, group: _Paths, depth: int) -> Family:
    if not name:  # what runs in these modules themselves
        return _sum(_own_name(part for _, part in group), group, depth, ())
    names = [name]
    depth += 1
    # A place that only leads to one other is named together with it: model.layers.*
    while len({_starred(path[depth]) if len(path) > depth else "" for path, _ in group}) == 1:
        path = group[0][0]
        if len(path) == depth:
            return _sum(".".join(names), group, depth, ())
        names.append(_starred(path[depth]))
        depth += 1
    return _sum(".".join(names), group, depth, _families(group, depth))


def _sum(name: str, group: _Paths, depth: int, inside: tuple[Family, ...]) -> Family:
    parts = [part for _, part in group]
    return Family(
        name=name,
        path=".".join(map(_starred, group[0][0][:depth])),
        modules=len({path[:depth] for path, _ in group}),
        forward=sum(part.forward + part.forward_no_grad for part in parts),
        backward=sum(part.backward + part.optimizer for part in parts),
        recompute=sum(part.recompute for part in parts),
        kernel_recompute=sum(part.kernel_recompute for part in parts),
        inside=inside,
    )


def _own_name(parts: Iterable[FlopCount]) -> str:
    ops = {term.op for part in parts for term in part.terms}
    if all("attention" in op or "attn" in op for op in ops):
        return "(attention scores and values)"
    return "(its own products)"


def _starred(name: str) -> str:
    return re.sub(r"\d+", "*", name) if name.isdigit() else name


def grouped_modules(modules: dict[str, FlopCount]) -> dict[str, dict[str, Any]]:
    """FLOPs of each module by phase, those that are alike but for the numbers in their path as one.

    ``layers.0.mlp`` and ``layers.1.mlp`` become ``layers.0-1.mlp``, ``times`` 2, with the FLOPs of
    *each*. Modules that differ stand apart: ``layers.0,2-3.mlp`` and ``layers.1.mlp``.
    """
    groups: dict[tuple[str, tuple[tuple[str, int], ...]], list[list[str]]] = {}
    for path, part in modules.items():
        names = path.split(".")
        terms = tuple((p, flops) for p in get_args(Phase) if (flops := getattr(part, p)))
        key = (".".join(map(_starred, names)), terms)
        groups.setdefault(key, []).append(names)
    found: dict[str, dict[str, Any]] = {}
    for (_, alike), paths in groups.items():
        figures: dict[str, Any] = dict(alike)
        columns = [list(dict.fromkeys(column)) for column in zip(*paths, strict=True)]
        if prod(map(len, columns)) == len(paths):
            found[".".join(map(_ranges, columns))] = {"times": len(paths), **figures}
        else:  # no ranges of numbers say exactly these
            found |= {".".join(path): {"times": 1, **figures} for path in paths}
    return found


def _ranges(names: list[str]) -> str:
    """``0 1 2 5`` -> ``"0-2,5"``; a name that is no number stays as it is."""
    if not names[0].isdigit():
        return names[0]
    runs: list[list[int]] = []
    for number in sorted(map(int, names)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
