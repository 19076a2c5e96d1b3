"""The count of a model as text: where its FLOPs go, module by module, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mfu_torch.insight.module_families import Family, families, grouped_modules
from mfu_torch.insight.text import field, wrap
from mfu_torch.records import FlopCount, Phase, Record
from mfu_torch.units import percent, rounded_parts, scaled, significant

_NAME = 40  # columns of the modules' names
_LABEL = 34
_COLUMNS = ("modules", "forward", "backward", "recompute", "kernel", "share %")

_PHASES: tuple[tuple[Phase, str], ...] = (
    ("forward", "forward"),
    ("forward_no_grad", "forward, no gradient"),
    ("backward", "backward"),
    ("recompute", "recompute"),
    ("kernel_recompute", "recompute in attention kernels"),
)


class Parameters(Record, frozen=True, kw_only=True):
    """How many parameters a model has, each tensor once.

    Attributes:
        total: All.
        trainable: Those with a gradient.
        embedding: In look-up tables, which take no FLOPs; a head tied to one is among them.
        active: Without the experts that a token is not sent to; ``None`` if there are no experts
            or it cannot be told.
        active_unknown: Why ``active`` cannot be told.
    """

    total: int
    trainable: int
    embedding: int
    active: int | None = None
    active_unknown: str = ""


class ModelCount(Record, frozen=True, kw_only=True):
    """FLOPs of a model for one call, or one training step, split over its modules.

    Attributes:
        model: Its class.
        path: The config that it was built from.
        work: What was counted, in words ("batch 1, 8192 tokens").
        dtype: Of its parameters.
        attention: How transformers computes its attention.
        train: Forward and backward, not the forward alone.
        checkpoint: Layers run again in the backward.
        samples: Batch size.
        tokens: Of all samples, source and target; ``None`` where text is not all of it.
        one_pass: Every token goes through the whole model.
        modules: Path of a module -> what runs in it and in none of its children.
        causal_bounds: Why FLOPs under the causal convention are an upper bound, which notes of
            this or of the count say; empty if they are exact.
        notes: What else has to be said, besides the notes of the count.
    """

    model: str
    path: str
    work: str
    dtype: str
    attention: str
    train: bool
    checkpoint: bool
    samples: int
    tokens: int | None
    one_pass: bool
    parameters: Parameters
    count: FlopCount
    modules: dict[str, FlopCount]
    causal_bounds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tokens_are(self) -> str:
        """Which tokens ``tokens`` is the number of: those of two texts are not the same ones."""
        if self.tokens is None:
            return ""
        return "source" if self.one_pass else "source and target"

    @property
    def rule_of_thumb(self) -> int | None:
        """6 (2 without a backward) x parameters x tokens; active parameters where known."""
        if self.tokens is None or not self.one_pass or self.parameters.active_unknown:
            return None
        used = self.parameters.active or self.parameters.total
        return (6 if self.train else 2) * used * self.tokens


def render(found: ModelCount) -> str:
    """The count of a model, at most 100 columns wide."""
    blocks = (_title(found), _table(found), _totals(found), _notes(found))
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def summary(found: ModelCount) -> dict[str, Any]:
    """The same for programs. FLOPs are integers; what is not known is ``None``, with the reason."""
    count = found.count
    thumb = found.rule_of_thumb
    return {
        "model": found.model,
        "config": found.path,
        "work": found.work,
        "samples": found.samples,
        "tokens": found.tokens,
        "tokens_are": found.tokens_are,
        "dtype": found.dtype,
        "attention": found.attention,
        "train": found.train,
        "checkpoint": found.checkpoint,
        "parameters": found.parameters,
        "flops": {
            **{phase: getattr(count, phase) for phase, _ in _PHASES},
            "model": count.model,
            "model_causal": count.model_causal,
            "hardware": count.hardware,
            "hardware_causal": count.hardware_causal,
            "causal_is_upper_bound": bool(found.causal_bounds),
            "causal_bounds": found.causal_bounds,
            "by_dtype": count.by_dtype,
            "by_op": count.by_op,
            "model_per_token": count.model / found.tokens if found.tokens else None,
        },
        "rule_of_thumb": {
            "flops": thumb,
            "model_over_rule": count.model / thumb if thumb else None,
        },
        "families": families(found.modules),
        "modules": grouped_modules(found.modules),
        "uncounted": count.uncounted,
        "elementwise": count.elementwise,
        "notes": [*found.notes, *count.notes],
        "method": count.method,
    }


def _title(found: ModelCount) -> Iterator[str]:
    what = "training step" if found.train else "forward"
    if found.checkpoint:
        what += ", layers checkpointed"
    yield from wrap(
        f"{found.model} | {what} | {found.work} | {found.dtype}, attention {found.attention}"
    )
    n = found.parameters
    text = f"{_number(n.total)}, {_number(n.trainable)} trainable"
    if n.trainable == n.total:
        text = f"{_number(n.total)}, all trainable"
    text += f", {_number(n.embedding)} in embeddings"
    if n.active is not None:
        text += f"; {_number(n.active)} active per token"
    yield field("parameters", text, 14)
    if n.active_unknown:
        yield field("", f"active per token: not known, {n.active_unknown}", 14)


def _number(parameters: int) -> str:
    return scaled(parameters, "").replace("G", " B").replace("M", " M").replace("k", " k")


def _table(found: ModelCount) -> Iterator[str]:
    total = found.count.hardware
    if not total:
        return
    yield _row("FLOPs by module", *_COLUMNS)
    tree = list(_rows(families(found.modules), 1))
    leaves = [family for _, family in tree if not family.inside]
    shares = rounded_parts([100 * family.hardware / total for family in leaves], 1)
    tenths = {id(family): round(10 * float(s)) for family, s in zip(leaves, shares, strict=True)}
    for depth, family in tree:
        share = sum(tenths[id(leaf)] for _, leaf in _rows((family,), 0) if not leaf.inside)
        yield _row(
            "  " * depth + family.name,
            str(family.modules),
            *map(_short, _figures(family)),
            f"{share / 10:.1f}",
        )
    sums = (sum(column) for column in zip(*map(_figures, leaves), strict=True))
    yield _row("  total", "", *map(_short, sums), "100.0")
    about = "; kernel: what attention kernels repeat in their backward"
    yield f"  share: of hardware FLOPs{about if found.count.kernel_recompute else ''}"


def _figures(family: Family) -> tuple[int, int, int, int]:
    return family.forward, family.backward, family.recompute, family.kernel_recompute


def _rows(found: Iterable[Family], depth: int) -> Iterator[tuple[int, Family]]:
    for family in found:
        yield depth, family
        yield from _rows(family.inside, depth + 1)


def _short(flops: int) -> str:
    return scaled(flops, "") if flops else "-"


def _row(name: str, *columns: str) -> str:
    if len(name) > _NAME:
        name = "..." + name[3 - _NAME :]
    widths = (9, 10, 10, 11, 11, 9)
    return f"{name:<{_NAME}}" + "".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))


def _totals(found: ModelCount) -> Iterator[str]:
    count = found.count
    yield "FLOPs of one training step" if found.train else "FLOPs of one forward"
    for phase, name in _PHASES:
        flops = getattr(count, phase)
        if flops:
            share = percent(flops / count.hardware)
            yield _line(f"  {name}", f"{scaled(flops, 'FLOP')} ({share})")
    yield _line("  model FLOPs", f"{scaled(count.model, 'FLOP')}   ({_causal(found)})")
    yield _line("  hardware FLOPs", scaled(count.hardware, "FLOP"))
    if found.tokens:
        texts = [f"{scaled(count.model / found.tokens, 'FLOP')} model"]
        if count.hardware != count.model:
            texts.append(f"{scaled(count.hardware / found.tokens, 'FLOP')} hardware")
        if not found.one_pass:
            texts.append(f"of {found.tokens} tokens, source and target together")
        yield _line("  per token", ", ".join(texts))
    else:
        yield _line("  per sample", f"{scaled(count.model / found.samples, 'FLOP')} model")
    yield from _rule_of_thumb(found)
    shares = [f"{d} {percent(n / count.hardware)}" for d, n in count.by_dtype.items()]
    yield _line("  by dtype", ", ".join(shares) or "-")
    yield _line("  how", count.method)
    text = "nothing: every op that looks like a contraction has a formula"
    if count.uncounted:
        calls = Counter(count.uncounted).most_common()
        text = ", ".join(f"{op} ({n} calls)" for op, n in calls)
        text += "; the count is a lower bound -> mfu_torch.register_flops(op, formula)"
    yield _line("  not counted", text)


def _causal(found: ModelCount) -> str:
    count = found.count
    less = 1 - count.model_causal / count.model if count.model else 0
    text = f"{scaled(count.model_causal, 'FLOP')}, {percent(less)} less" if less else "the same"
    if found.causal_bounds:
        # An upper bound that excludes nothing is still true.
        return f"attention causal: at most {text}, see the notes"
    return f"attention causal: {text}"


def _rule_of_thumb(found: ModelCount) -> Iterator[str]:
    thumb = found.rule_of_thumb
    if not thumb:
        return
    n = found.parameters
    factor, kind = 6 if found.train else 2, "active parameters" if n.active else "parameters"
    ratio = significant(found.count.model / thumb, 4)
    yield _line(
        f"  rule of thumb {factor}N, to compare",
        f"{scaled(thumb, 'FLOP')} = {factor} x {_number(n.active or n.total)} {kind} x "
        f"{found.tokens} tokens; model FLOPs are {ratio} times that",
    )


def _notes(found: ModelCount) -> Iterator[str]:
    notes = dict.fromkeys((*found.notes, *found.count.notes))
    if notes:
        yield "Notes"
    for note in notes:
        yield from wrap(f"- {note}", "  ", "    ")


def _line(label: str, text: str) -> str:
    return field(label, text, _LABEL)
