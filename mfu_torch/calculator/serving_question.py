"""What is known of an inference: read from text as people write it, with its device's peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from mfu_torch.calculator.question import InputError, Question, Reader, read_question, read_values
from mfu_torch.calculator.serving import Serving, serve
from mfu_torch.calculator.solve import peak_of
from mfu_torch.calculator.work import described
from mfu_torch.units import parse_bytes_per_s, parse_count, parse_whole

_READERS: dict[str, Reader] = {
    "context": parse_whole,
    "weight_bytes": parse_count,
    "kv_bytes": parse_count,
    "bytes_per_s": parse_bytes_per_s,
}
_BESIDE = {"model", "batch", "devices", "peak_flops_per_s", "device", "dtype", "tokens_per_s"}

SERVING_ONLY = tuple(_READERS)
"""The inputs that only inference has."""


class _Named(NamedTuple):
    name: str
    model: Any


def serving_of(mode: Literal["prefill", "decode"], given: Mapping[str, Any]) -> Serving:
    """A step of inference, from texts and numbers; ``None`` is not given.

    Args:
        mode: ``prefill`` or ``decode``.
        given: ``model``, ``context`` and the peak (``device`` or ``peak_flops_per_s``); else
            ``batch``, ``devices``, ``dtype``, ``tokens_per_s``, ``weight_bytes``, ``kv_bytes``,
            ``bytes_per_s`` (memory bandwidth of one device).

    Raises:
        InputError: If one is malformed, superfluous or missing.
    """
    own = read_values({n: v for n, v in given.items() if n in _READERS}, _READERS)
    question = read_question({n: v for n, v in given.items() if n not in _READERS})
    _check(mode, question, own)
    peak, assumed = peak_of(question)
    if peak is None:
        raise InputError("the peak is missing; give {device} h100-sxm, or {peak_flops_per_s}")
    name, model, _ = described(question.model)
    bandwidth, memory = _memory(question.device)
    try:
        found = serve(
            _Named(name, model),
            mode=mode,
            batch=question.batch or 1,
            context=own["context"],
            devices=question.devices or 1,
            flops_per_s=peak.flops_per_s,
            bytes_per_s=own.get("bytes_per_s", bandwidth),
            weight_bytes=own.get("weight_bytes", 2),
            kv_bytes=own.get("kv_bytes", 2),
            tokens_per_s=question.tokens_per_s,
            memory_bytes=memory,
        )
    except (ValueError, OverflowError) as problem:
        raise InputError(str(problem)) from None
    return _with(found, assumed)


def _check(mode: str, question: Question, own: Mapping[str, Any]) -> None:
    superfluous = [
        name
        for name in Question.__struct_fields__
        if name not in _BESIDE and getattr(question, name) is not None
    ]
    if superfluous:
        raise InputError(f"{{{superfluous[0]}}} has no place beside {{mode}} {mode}; leave it out")
    if question.model is None:
        raise InputError(f"{{mode}} {mode} needs the sizes of the model; give {{model}}")
    if "context" not in own:
        what = "tokens of a prompt" if mode == "prefill" else "tokens that a new one sees"
        raise InputError(f"{{mode}} {mode} needs the {what}; give {{context}} 4096")


def _memory(device: str | None) -> tuple[float | None, float | None]:
    """Bandwidth and size of a device's memory, where the table has one row of that name."""
    from mfu_torch.peak.table import rows_named

    rows = rows_named(device) if device is not None else ()
    if len(rows) != 1:
        return None, None
    return rows[0].bytes_per_s, rows[0].memory_bytes


def _with(found: Serving, assumed: tuple[str, ...]) -> Serving:
    import msgspec

    return msgspec.structs.replace(found, assumptions=(*assumed, *found.assumptions))
