"""What is known of an inference: read from text as people write it, with its device's peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from mfu_torch.calculator.peaks import figure_note, peak_of
from mfu_torch.calculator.question import InputError, Question, Reader, read_question, read_values
from mfu_torch.calculator.serving import Serving, serve
from mfu_torch.calculator.throughput import agree
from mfu_torch.calculator.work import described, of_positions
from mfu_torch.units import parse_bytes_per_s, parse_count, parse_whole

_READERS: dict[str, Reader] = {
    "context": parse_whole,
    "weight_bytes": parse_count,
    "kv_bytes": parse_count,
    "bytes_per_s": parse_bytes_per_s,
}
_BESIDE = {
    *("model", "image_size", "batch", "devices", "peak_flops_per_s", "device", "dtype"),
    *("tokens_per_s", "tokens_per_s_per_device", "samples_per_s", "step_s"),
}

_MEASURED = ("tokens_per_s", "tokens_per_s_per_device", "samples_per_s", "step_s")

SERVING_ONLY = tuple(_READERS)
"""The inputs that only inference has."""


class _Named(NamedTuple):
    name: str
    model: Any


def serving_of(mode: Literal["prefill", "decode"], given: Mapping[str, Any]) -> Serving:
    """A step of inference, from texts and numbers; ``None`` is not given.

    Args:
        mode: ``prefill`` or ``decode``.
        given: ``model``, ``context`` (not of a model that is counted in samples) and the peak
            (``device`` or ``peak_flops_per_s``); else ``batch``, ``devices``, ``dtype``,
            ``weight_bytes``, ``kv_bytes``, ``bytes_per_s`` (memory bandwidth of one device), and
            what was measured: ``tokens_per_s``, ``tokens_per_s_per_device``, ``step_s``, or
            ``samples_per_s`` where samples are counted.

    Raises:
        InputError: If one is malformed, superfluous or missing.
    """
    own = read_values({n: v for n, v in given.items() if n in _READERS}, _READERS)
    question = read_question({n: v for n, v in given.items() if n not in _READERS})
    _check(mode, question)
    peak, assumed = peak_of(question)
    if peak is None:
        raise InputError("the peak is missing; give {device} h100-sxm, or {peak_flops_per_s}")
    name, model, known = described(question.model, question.image_size)
    context = _context(mode, model, own)
    measured = _measured(mode, question, model, context)
    bandwidth, memory = _memory(question.device)
    try:
        found = serve(
            _Named(name, model),
            mode=mode,
            batch=question.batch or 1,
            context=context,
            devices=question.devices or 1,
            flops_per_s=peak.flops_per_s,
            bytes_per_s=own.get("bytes_per_s", bandwidth),
            weight_bytes=own.get("weight_bytes", 2),
            kv_bytes=own.get("kv_bytes", 2),
            tokens_per_s=measured,
            memory_bytes=memory,
        )
    except (ValueError, OverflowError) as problem:
        raise InputError(str(problem)) from None
    notes = (*of_positions(name, model, context, known), *getattr(known, "notes", ()))
    return msgspec.structs.replace(
        found,
        assumptions=(*assumed, *found.assumptions),
        notes=(*notes, *figure_note(peak, found.mfu)),
    )


def _check(mode: str, question: Question) -> None:
    superfluous = [
        name
        for name in Question.__struct_fields__
        if name not in _BESIDE and getattr(question, name) is not None
    ]
    if superfluous:
        raise InputError(f"{{{superfluous[0]}}} has no place beside {{mode}} {mode}; leave it out")
    if question.model is None:
        raise InputError(f"{{mode}} {mode} needs the sizes of the model; give {{model}}")


def _context(mode: str, model: Any, own: Mapping[str, Any]) -> int:
    """Tokens; 1 of a sample, which has none."""
    context: int | None = own.get("context")
    if model.per == "sample":
        if context is not None:
            raise InputError(
                f"{{context}} is {context}; a sample of this model is computed whole: leave it out"
            )
        return 1
    if context is None:
        what = "tokens of a prompt" if mode == "prefill" else "tokens that a new one sees"
        raise InputError(f"{{mode}} {mode} needs the {what}; give {{context}} 4096")
    return context


def _measured(mode: str, question: Question, model: Any, context: int) -> float | None:
    """Tokens (samples) per second of all devices, by whatever of them was given."""
    unit, other = ("sample", "token") if model.per == "sample" else ("token", "sample")
    wrong = [name for name in _MEASURED if name.startswith(other) and getattr(question, name)]
    if wrong:
        raise InputError(
            f"{{{wrong[0]}}} are {other}s, and this model is counted in {unit}s; give "
            f"{{{unit}s_per_s}}"
        )
    each, step_s = question.tokens_per_s_per_device, question.step_s
    if each is not None and question.devices is None:
        raise InputError("{tokens_per_s_per_device} is that of one device; give {devices} as well")
    of_step = (question.batch or 1) * (1 if mode == "decode" else context)
    found = {
        "tokens_per_s": question.tokens_per_s,
        "samples_per_s": question.samples_per_s,
        "tokens_per_s_per_device": None if each is None else each * (question.devices or 1),
        "step_s": None if step_s is None else of_step / step_s,
    }
    said = [(name, value) for name, value in found.items() if value is not None]
    for name, value in said[1:]:
        if not agree(value, said[0][1]):
            raise InputError(
                f"{{{said[0][0]}}} and {{{name}}} contradict each other: {said[0][1]:.6g} and "
                f"{value:.6g} {unit}s per second; leave one out"
            )
    return said[0][1] if said else None


def _memory(device: str | None) -> tuple[float | None, float | None]:
    """Bandwidth and size of a device's memory, where the table has one row of that name."""
    from mfu_torch.peak.table import rows_named

    rows = rows_named(device) if device is not None else ()
    if len(rows) != 1:
        return None, None
    return rows[0].bytes_per_s, rows[0].memory_bytes
