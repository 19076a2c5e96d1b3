"""Where each step begins and ends on the clock of the trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mfu_torch.insight.breakdown.own_steps import maybe_steps
from mfu_torch.insight.trace.events import KERNEL, DeviceWork, Ints, Spans, Trace
from mfu_torch.units import percent

MODES = ("gpu", "cpu", "trace")

_NUMBER = re.compile(r"#(\d+)$")
_RANGE = re.compile(r"(\d*):(\d*)|(\d+)")
_FRAGMENT = 0.1
"""A last step shorter than this share of the median of the others is none."""

_EVER, _NEVER = np.iinfo(np.int64).max, np.iinfo(np.int64).min

_MUCH = 0.01
"""From this share of the device's work on, what is outside the host's edges is a warning."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Steps side by side: step i is [bounds_ns[i], bounds_ns[i + 1]).

    Attributes:
        mode: ``gpu``: a step begins with the first work that it launched, once the main stream is
            done with the step before; the last one ends with the last work of all. ``cpu``: with
            its annotation. ``trace``: the whole trace is one.
        names: Of the steps.
        bounds_ns: One more than there are steps, ascending.
        notes: What is left out.
        warnings: What may mislead.
    """

    mode: str
    names: tuple[str, ...]
    bounds_ns: Ints
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class NoSuchSteps(ValueError):
    """The edges or steps that are asked for cannot be followed; the message says why."""


def find_edges(trace: Trace, mode: str = "gpu", steps: str | None = None) -> Edges:
    """The steps of a trace.

    A step lasts until the next one begins, so that the wait between two steps belongs to the
    first of them.

    Args:
        trace: It.
        mode: One of :data:`MODES`. Without steps it is always ``trace``; without device work or
            launch records ``gpu`` becomes ``cpu``.
        steps: ``"3:8"`` for steps 3 to 7, ``"3:"``, ``":8"``, ``"3"``: by the number in
            ``ProfilerStep#N``; from 0 where the names hold no ascending numbers.

    Raises:
        NoSuchSteps: ``mode`` is unknown, or ``steps`` names none that the trace has.
    """
    if mode not in MODES:
        raise NoSuchSteps(f"edges is {mode!r}; expected one of {', '.join(MODES)}")
    if mode == "trace" or not len(trace.steps):
        if steps is not None:
            why = 'edges="trace" makes them one' if len(trace.steps) else "the trace has none"
            raise NoSuchSteps(f"steps is {steps!r}, but there are no steps to choose from: {why}")
        return _whole(trace)
    note = ""
    if steps is None:
        trace, note = _without_fragment(trace)
    found = _gpu(trace) if mode == "gpu" else None
    edges = _cpu(trace) if found is None else found
    if found is None and mode == "gpu" and len(trace.work):
        edges = _with(edges, warning="no step has a launch record, so steps begin on the host")
    edges = _account(trace, _with(edges, note=note))
    return edges if steps is None else _chosen(edges, steps)


def _with(edges: Edges, *, note: str = "", warning: str = "") -> Edges:
    return replace(
        edges,
        notes=edges.notes + ((note,) if note else ()),
        warnings=edges.warnings + ((warning,) if warning else ()),
    )


def _without_fragment(trace: Trace) -> tuple[Trace, str]:
    """Without a last step in which the loop, or the recording, ended; and the sentence for it."""
    spans = trace.steps
    step_ns = np.diff(np.append(spans.start_ns, spans.end_ns[-1]))
    if len(spans) < 2 or step_ns[-1] >= _FRAGMENT * np.median(step_ns[:-1]):
        return trace, ""
    columns = {name: column[:-1] for name, column in vars(spans).items()}
    note = (
        f"the last step, {_names(trace)[-1]}, takes {step_ns[-1] / 1e6:.3f} ms on the host, less "
        "than a tenth of the others: the loop or the recording ended in it, so it is left out"
    )
    return replace(trace, steps=Spans(**columns)), note


def _whole(trace: Trace) -> Edges:
    """From the first to the last work; on a CPU, from the first to the last op."""
    of = trace.work if len(trace.work) else trace.ops
    bounds = [of.start_ns.min(), of.end_ns.max()] if len(of) else [0, 0]
    reason = "asked for" if len(trace.steps) else "there are no step annotations"
    note = f"the whole trace is one step ({reason}), whatever it holds beside training steps"
    if not len(trace.steps) and (suggested := maybe_steps(trace)):
        note = f"{note}; {suggested}"
    return Edges(
        mode="trace", names=("trace",), bounds_ns=np.array(bounds, np.int64), notes=(note,)
    )


def _cpu(trace: Trace) -> Edges:
    bounds = np.append(trace.steps.start_ns, trace.steps.end_ns[-1])
    return Edges(mode="cpu", names=_names(trace), bounds_ns=bounds)


def _names(trace: Trace) -> tuple[str, ...]:
    return tuple(trace.names[i] for i in trace.steps.name.tolist())


def _gpu(trace: Trace) -> Edges | None:
    """By launches; ``None`` if no step launched anything that is recorded.

    A step begins with the first work that it launched, but not before the main stream is done
    with the step before: copies and collectives for the next batch run ahead on other streams.
    The last step ends when all that the steps launched is done.
    """
    begins = np.append(trace.steps.start_ns, trace.steps.end_ns[-1])
    work = trace.work
    by_launch = np.argsort(work.launch_ns, kind="stable")
    first = np.searchsorted(work.launch_ns[by_launch], begins, side="left")
    launched = np.flatnonzero(np.diff(first) > 0)
    if not len(launched):
        return None
    mine = by_launch[first[0] : first[-1]]
    at = first[launched] - first[0]
    main = work.stream == _main_stream(work, mine)
    # Of a step or a later one: where a later step overtakes it, the edges still ascend.
    begin_ns = _earliest(work.start_ns[mine])[at]
    on_main_ns = _earliest(np.where(main[mine], work.start_ns[mine], _EVER))[at]
    free = np.append(_NEVER, np.maximum.accumulate(work.end_ns[main]))
    free_ns = free[np.searchsorted(work.start_ns[main], on_main_ns)]
    end_ns = work.end_ns[mine].max()
    bounds = np.minimum(np.minimum(on_main_ns, end_ns), np.maximum(free_ns, begin_ns))
    bounds = np.append(bounds, end_ns)
    names = _names(trace)
    edges = Edges(mode="gpu", names=tuple(names[i] for i in launched), bounds_ns=bounds)
    if len(launched) == len(names):
        return edges
    idle = ", ".join(name for i, name in enumerate(names) if i not in launched)
    return _with(edges, note=f"steps that launched no work are no steps of their own: {idle}")


def _earliest(start_ns: Ints) -> Ints:
    """Of each entry and all after it."""
    return np.minimum.accumulate(start_ns[::-1])[::-1]


def _main_stream(work: DeviceWork, mine: Ints) -> int:
    """On which the steps launched most kernels.

    Not that with most time: a collective that waits for its peers runs long.
    """
    kernels = mine[work.kind[mine] == KERNEL]
    streams, count = np.unique(work.stream[kernels if len(kernels) else mine], return_counts=True)
    return int(streams[count.argmax()])


def _chosen(edges: Edges, steps: str) -> Edges:
    match = _RANGE.fullmatch(steps.strip())
    if match is None or steps.strip() == ":":
        raise NoSuchSteps(f'steps is {steps!r}; expected a range like "3:8", "3:", ":8" or "3"')
    numbers = _numbers(edges.names)
    low = int(match[1] or match[3] or 0)
    high = low + 1 if match[3] else int(match[2] or numbers[-1] + 1)
    chosen = [i for i, number in enumerate(numbers) if low <= number < high]
    if not chosen:
        raise NoSuchSteps(
            f"steps {steps!r} names none; the trace has {numbers[0]}:{numbers[-1] + 1}"
        )
    first, last = chosen[0], chosen[-1]
    names = edges.names[first : last + 1]
    chosen_edges = replace(edges, names=names, bounds_ns=edges.bounds_ns[first : last + 2])
    if len(names) == len(edges.names):
        return chosen_edges
    return _with(chosen_edges, note=f"{len(names)} of {len(edges.names)} steps were chosen")


def _numbers(names: tuple[str, ...]) -> list[int]:
    """Of the steps: those in their names if they ascend, else from 0."""
    found = [int(match[1]) for name in names if (match := _NUMBER.search(name))]
    ascend = all(a < b for a, b in pairwise(found))
    return found if len(found) == len(names) and ascend else list(range(len(names)))


def _account(trace: Trace, edges: Edges) -> Edges:
    """Says what is outside the edges: work of the device, and waits for the loader."""
    outside, total = _outside(trace.work, edges)
    if outside:
        text = (
            f"{outside / 1e6:.3f} ms of kernels and copies ({percent(outside / total)}) run "
            "outside the steps and are left out"
        )
        if edges.mode == "cpu" and outside > _MUCH * total:
            edges = _with(edges, warning=f'{text}; edges="gpu" follows the work of a step')
        else:
            edges = _with(edges, note=text)
    waits, _ = _outside(trace.data_waits, edges)
    if waits and edges.mode == "gpu":
        edges = _with(
            edges,
            note=f"{waits / 1e6:.3f} ms of waiting for the loader, before the first work of the "
            'first step or after the last work of the last, are left out; edges="cpu" has them',
        )
    return edges


def _outside(spans: DeviceWork | Spans, edges: Edges) -> tuple[int, int]:
    """How much of the time of some spans is outside the edges; and all of it."""
    low, high = edges.bounds_ns[0], edges.bounds_ns[-1]
    inside = np.minimum(spans.end_ns, high) - np.maximum(spans.start_ns, low)
    total = int((spans.end_ns - spans.start_ns).sum())
    return total - int(np.maximum(inside, 0).sum()), total
