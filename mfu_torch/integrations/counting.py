"""Counts a transformers config: the model without memory, its inputs, a step, and the result."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import nn

from mfu_torch.flops.crosscheck import Crosscheck, crosscheck
from mfu_torch.flops.meta_attention import FusedAttention
from mfu_torch.flops.modules import ModuleCounts, count_by_module
from mfu_torch.flops.ops.attention import MASK_NOT_READ, PLAIN_SCORES
from mfu_torch.flops.ops.attention_packages import CHUNKS_NOT_COUNTED
from mfu_torch.insight.count_table import ModelCount, Parameters
from mfu_torch.integrations.configs import Built
from mfu_torch.integrations.meta_masks import without_data
from mfu_torch.integrations.meta_run import Inputs
from mfu_torch.records import MFUError

METHOD = "counted on the meta device: shapes and dtypes, no weights and no data"

PLAIN_PRODUCTS = (
    "no attention kernel was seen, and in plain products no mask can be told: causal FLOPs count "
    "all of their scores, so they are an upper bound"
)
NOTHING_AGAIN = "--checkpoint had no effect: nothing ran again in the backward"

# Notes of a count whose causal FLOPs are no more than an upper bound.
_BOUNDS = (MASK_NOT_READ, PLAIN_SCORES, PLAIN_PRODUCTS, CHUNKS_NOT_COUNTED)

# What attention without a kernel takes; projections and convolutions do not.
_BATCHED = ("aten.bmm", "aten.baddbmm")

# What layers with a state have, each kind its own: Mamba and the delta nets, RWKV, lightning
# attention. Names of classes do not tell: "GptOssMLP" has an SSM in it.
_OF_A_STATE = ("A_log", "time_decay", "slope_rate")
_WITH_A_STATE = re.compile(r"LinearAttention|DeltaNet|Rglru|xLSTM(Layer|Block)$")


class CountError(MFUError):
    """The model does not run without data; the message says why."""


def count_model(
    built: Built, inputs: Inputs, *, dtype: str, train: bool = False, checkpoint: bool = False
) -> ModelCount:
    """Count one forward, or one forward and backward, of a model on the meta device.

    Args:
        built: From :func:`mfu_torch.integrations.configs.build`.
        inputs: From :func:`mfu_torch.integrations.meta_run.inputs_for`.
        dtype: Its name, for the record.
        train: Count a backward as well, from every differentiable output.
        checkpoint: Checkpoint the layers as ``gradient_checkpointing_enable()`` does.

    Raises:
        CountError: If the model cannot checkpoint, or its code asks for the values of tensors.
    """
    model, notes = built.model, [*built.notes, *inputs.notes]
    if checkpoint:
        _enable_checkpointing(model)
    starts: list[str] = []
    try:
        counts = count_by_module(model, _step, model, inputs, train, starts)
    except Exception as error:
        # Model code of every kind runs here; whatever it raises, there is no count.
        raise CountError(f"{type(model).__name__} cannot be counted: {_why(error)}") from None
    if train and not starts:
        raise CountError(f"{type(model).__name__} has no differentiable output to start from")
    if train and starts != ["logits"]:
        notes.append(f"the backward starts at {', '.join(starts)}")
    if checkpoint and not counts.total.recompute:
        notes.append(NOTHING_AGAIN)
    notes += [*_about(model), *_about_plain_products(counts)]
    bounds = [note for note in _BOUNDS if note in (*notes, *counts.total.notes)]
    return ModelCount(
        model=type(model).__name__,
        path=built.path,
        work=inputs.shapes,
        dtype=dtype,
        attention=_attention(model),
        train=train,
        checkpoint=checkpoint,
        samples=inputs.samples,
        tokens=inputs.tokens,
        one_pass=inputs.one_pass,
        parameters=_parameters(model, counts, inputs),
        count=msgspec.structs.replace(counts.total, method=METHOD),
        modules=counts.modules,
        causal_bounds=tuple(bounds),
        notes=tuple(notes),
    )


def crosscheck_model(built: Built, inputs: Inputs, *, dtype: str) -> Crosscheck:
    """The forward of a model on the meta device as ours and other counters see it.

    Attention runs as plain products, which is what they can count: fused, it would be an op that
    none of them knows. The forward has the same FLOPs either way.

    Args:
        built: From :func:`mfu_torch.integrations.configs.build`.
        inputs: From :func:`mfu_torch.integrations.meta_run.inputs_for`.
        dtype: Its name, for the record.
    """
    with without_data(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        checked = crosscheck(built.model, (), inputs.kwargs)
    notes = [*built.notes, *inputs.notes]
    attention = _attention(built.model)
    if attention != "eager":
        notes.append(
            f"attention {attention} was run as plain products, which the other counters can count; "
            "its forward has the same FLOPs"
        )
    return msgspec.structs.replace(
        checked, work=f"{inputs.shapes} | {dtype}, attention {attention}", notes=tuple(notes)
    )


def _attention(model: nn.Module) -> str:
    return str(getattr(model.config, "_attn_implementation", None) or "eager")


def _enable_checkpointing(model: nn.Module) -> None:
    # The name that transformers gives it from 5.24 on, and the one before.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    try:
        next(enable for name in names if (enable := getattr(model, name, None)))()
    except (AttributeError, StopIteration, ValueError) as error:
        raise CountError(
            f"{type(model).__name__} cannot checkpoint its layers ({_first_line(error)})"
        ) from None


def _step(model: nn.Module, inputs: Inputs, train: bool, starts: list[str]) -> None:
    with without_data(), FusedAttention(), warnings.catch_warnings(), torch.set_grad_enabled(train):
        warnings.simplefilter("ignore")
        outputs = dict(_differentiable(model(**inputs.kwargs)))
        if train and outputs:
            starts += outputs
            torch.autograd.backward([output.sum() for output in outputs.values()])


def _differentiable(value: Any, name: str = "its output") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _differentiable(item, str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _differentiable(item, f"{name}[{i}]")


def _why(error: Exception) -> str:
    text = _first_line(error)
    if "meta" in text.lower() and ("item" in text or "nonzero" in text or "no data" in text):
        return (
            f"its forward reads the values of tensors, so what runs depends on data ({text}); "
            "count a real step with mfu_torch.count_flops"
        )
    return f"its forward failed ({text})"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _about(model: nn.Module) -> Iterator[str]:
    if any(_keeps_a_state(module) for module in model.modules()):
        yield (
            "state-space and linear-attention layers are counted as transformers' own torch code "
            "runs them, not as a kernel package does"
        )


def _keeps_a_state(module: nn.Module) -> bool:
    return any(hasattr(module, name) for name in _OF_A_STATE) or bool(
        _WITH_A_STATE.search(type(module).__name__)
    )


def _about_plain_products(counts: ModuleCounts) -> Iterator[str]:
    ops = counts.total.by_op
    kernel = any("attention" in op for op in ops)
    if not kernel and any(op in ops for op in _BATCHED) and PLAIN_SCORES not in counts.total.notes:
        yield PLAIN_PRODUCTS


def _parameters(model: nn.Module, counts: ModuleCounts, inputs: Inputs) -> Parameters:
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    active, unknown = _active(model, counts, inputs)
    return Parameters(
        total=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        embedding=sum(table.numel() for table in tables),
        active=active,
        active_unknown=unknown,
    )


def _active(model: nn.Module, counts: ModuleCounts, inputs: Inputs) -> tuple[int | None, str]:
    """Parameters without the experts that a token is not sent to.

    How many experts a token is sent to is read off the count, so it is what ran: for weights
    (e, n, k) a token takes ``2 * n * k`` FLOPs in each of its experts.
    """
    experts = {
        path: module
        for path, module in model.named_modules()
        if "expert" in type(module).__name__.lower()
        and any(p.dim() == 3 for p in module.parameters(recurse=False))
    }
    if not experts:
        return None, ""
    if inputs.tokens is None or not inputs.one_pass:
        return None, "the tokens that reach each expert are not known"
    idle = 0
    for path, module in experts.items():
        weights = list(module.parameters(recurse=False))
        number = next(p.shape[0] for p in weights if p.dim() == 3)
        products = sum(p.numel() for p in weights if p.dim() == 3)
        part = counts.modules.get(path)
        flops = part.forward + part.forward_no_grad if part is not None else 0
        used, rest = divmod(flops * number, 2 * inputs.tokens * products)
        if rest or not 1 <= used <= number or any(p.shape[0] != number for p in weights):
            return None, f"the count of {path} is not that of a whole number of experts per token"
        idle += sum(p.numel() for p in weights) * (number - used) // number
    return sum(p.numel() for p in model.parameters()) - idle, ""
