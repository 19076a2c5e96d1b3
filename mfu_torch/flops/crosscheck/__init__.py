"""The same forward counted by independent witnesses, and why they differ where they do.

::

    ours          a dispatch mode, below autograd
    fvcore        the graph that torch.jit traces; 2 x its multiply-adds, contractions only
    torch         torch.utils.flop_counter.FlopCounterMode
    closed form   if one is given

Everything runs on a structural copy of the model: its buffers, hooks and random numbers stay as
they are. A reason for a difference is read off what a witness did with the ops of the module in
which it differs; where nothing there accounts for it, the difference is called not explained.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from mfu_torch.flops.crosscheck.fvcore_witness import by_fvcore
from mfu_torch.flops.crosscheck.text import render as render
from mfu_torch.flops.crosscheck.witnesses import Difference, Operands, Reading, explain_torch
from mfu_torch.flops.modules import ModuleCounts, count_by_module
from mfu_torch.flops.shadow import unwrapped
from mfu_torch.flops.shadow.untouched import saved_random_state
from mfu_torch.records import FlopCount, MFUError, Record


class CrosscheckError(MFUError):
    """The model could not be copied, or its forward did not run; the message says why."""


class Crosscheck(Record, frozen=True, kw_only=True):
    """One forward as ours and its witnesses count it.

    Attributes:
        model: The model's class.
        count: Ours, of the forward alone.
        readings: What each witness says.
        differences: Module by module, where a witness differs from ours. A module has what runs
            in it and in none of its children; ``""`` is the model itself.
        work: What ran: shapes and dtypes, in words.
        notes: What else has to be said of it.
    """

    model: str
    count: FlopCount
    readings: tuple[Reading, ...]
    differences: tuple[Difference, ...]
    work: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ours(self) -> int:
        """Forward FLOPs by this package."""
        return self.count.hardware

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences that nothing accounts for: a fault, here or there."""
        return tuple(found for found in self.differences if found.unexplained)

    def reading(self, witness: str) -> Reading:
        """What the witness of that name says."""
        return next(reading for reading in self.readings if reading.witness == witness)


def crosscheck(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    closed_form: int | None = None,
) -> Crosscheck:
    """Count ``model(*args, **kwargs)`` by every witness, gradients as they are enabled now.

    The model may live on any device, ``meta`` included. A compiled one is counted uncompiled, a
    Hugging Face one without its cache, which changes no FLOP.

    Args:
        model: It is not changed: a copy runs, which shares the parameters.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        closed_form: Forward FLOPs that a formula gives for it.

    Raises:
        CrosscheckError: If the model cannot be copied, or its forward raises.

    Example:
        For ``nn.Linear(16, 32)`` and a batch of 8 each witness says 2 * 8 * 16 * 32 = 8192.
    """
    run = _Run(model, args, kwargs or {})
    try:
        count, modules = _by_ours(run)
    except CrosscheckError:
        raise
    except Exception as error:  # model code of every kind runs here
        raise CrosscheckError(
            f"the forward of {run.name} does not run: {type(error).__name__}: {error}"
        ) from error
    ours = {module: Counter(part.by_op) for module, part in modules.items()}
    readings, differences = [], []
    for witness in (_fvcore, _torch):
        reading, found = witness(run, ours)
        readings.append(reading)
        differences.extend(found)
    if closed_form is not None:
        readings.append(Reading(witness="closed form", flops=closed_form))
        if closed_form != count.hardware:
            differences.append(_against_closed_form(count, closed_form))
    return Crosscheck(
        model=run.name,
        count=count,
        readings=tuple(readings),
        differences=tuple(differences),
        work=run.work,
    )


def _against_closed_form(count: FlopCount, closed_form: int) -> Difference:
    reasons = tuple(
        f"{op} was not counted here ({calls} calls)" for op, calls in count.uncounted.items()
    )
    missing = closed_form - count.hardware
    return Difference(
        witness="closed form",
        module="",
        ours=count.hardware,
        theirs=closed_form,
        reasons=reasons,
        unexplained=0 if reasons and missing > 0 else missing,
    )


# --- a forward that leaves nothing behind ----------------------------------------------------


class _Run:
    """A forward to be run, on a fresh copy each time."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._model, self._args, self._kwargs = unwrapped(model), args, kwargs
        self.name = type(self._model).__name__

    @property
    def work(self) -> str:
        """``"input_ids 2 x 32 int64 | bfloat16"``: arguments, dtypes of parameters."""
        named = [*(("", value) for value in self._args), *self._kwargs.items()]
        inputs = ", ".join(
            f"{name} {' x '.join(map(str, value.shape))} {_dtype_name(value.dtype)}".strip()
            for name, value in named
            if isinstance(value, torch.Tensor)
        )
        dtypes = dict.fromkeys(_dtype_name(p.dtype) for p in self._model.parameters())
        return " | ".join(filter(None, (inputs, ", ".join(dtypes))))

    def copied(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A copy of the model without the hooks of others, and of its arguments."""
        memo: dict[int, Any] = {id(p): p for p in self._model.parameters()}
        try:
            with _PlainCopy(), torch.no_grad():
                for module in self._model.modules():
                    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
                    if inner is not None:  # a block compiled on its own: copy what it wraps
                        memo[id(module)] = copy.deepcopy(inner, memo)
                model, args, kwargs = copy.deepcopy(
                    (self._model, self._args, dict(self._kwargs)), memo
                )
        except Exception as error:  # modules may define what copying them means
            raise CrosscheckError(
                f"{self.name} cannot be copied: {type(error).__name__}: {error}"
            ) from error
        for module in model.modules():
            module._compiled_call_impl = None
            _drop_hooks(module)
            config: Any = getattr(module, "config", None)
            if getattr(config, "use_cache", False):
                config.use_cache = False
        return model, args, kwargs

    def inside(self, mode: Any, at_boundary: Callable[[str], None]) -> None:
        """Run a copy inside a mode; the callback gets each module that ran until now."""
        model, args, kwargs = self.copied()
        with saved_random_state(), torch.compiler.set_stance("force_eager"):
            scopes = _Scopes(model, at_boundary)
            with mode:
                model(*args, **kwargs)
                scopes.end()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _PlainCopy(TorchFunctionMode):
    """Lets ``copy.deepcopy`` copy tensors that are the result of a computation as well."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__ and not isinstance(args[0], nn.Parameter):
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


def _drop_hooks(module: nn.Module) -> None:
    # Those of torch.nn itself are part of what the module computes (weight_norm, pruning).
    for table in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
        hooks = getattr(module, table, {})
        for key, hook in list(hooks.items()):
            if not type(hook).__module__.startswith("torch.nn."):
                del hooks[key]


class _Scopes:
    """Tells, at every border between modules, which of them ran until there."""

    def __init__(self, model: nn.Module, at_boundary: Callable[[str], None]) -> None:
        self._stack, self._at_boundary = [""], at_boundary
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(self._enters(name))
                module.register_forward_hook(self._leaves, always_call=True)

    def end(self) -> None:
        self._at_boundary(self._stack[-1])

    def _enters(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            self._at_boundary(self._stack[-1])
            self._stack.append(name)

        return hook

    def _leaves(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._at_boundary(self._stack.pop())


# --- the witnesses ---------------------------------------------------------------------------

Ops = dict[str, Counter[str]]
"""FLOPs by module and op."""


def _by_ours(run: _Run) -> ModuleCounts:
    model, args, kwargs = run.copied()
    with saved_random_state():
        return count_by_module(model, model, *args, **kwargs)


def _torch(run: _Run, ours: Ops) -> tuple[Reading, list[Difference]]:
    mode = FlopCounterMode(display=False)
    theirs: Ops = {}
    before: Counter[str] = Counter()

    def at_boundary(scope: str) -> None:
        now = Counter({str(op): flops for op, flops in mode.flop_counts["Global"].items()})
        theirs.setdefault(scope, Counter()).update(now - before)
        before.update(now - before)

    try:
        run.inside(mode, at_boundary)
    except Exception as error:  # a witness may fail in any way; it says how
        return Reading.failed("torch", error), []
    differing = [
        scope
        for scope in dict.fromkeys([*ours, *theirs])
        if ours.get(scope, Counter()).total() != theirs.get(scope, Counter()).total()
    ]
    evidence = Operands()
    if differing:
        # A run of its own, since some ops do not take a second mode. Without it nothing is
        # explained by what the operands were.
        with suppress(Exception):
            run.inside(evidence, lambda scope: None)
    found = [
        explain_torch(scope, ours.get(scope, Counter()), theirs.get(scope, Counter()), evidence)
        for scope in differing
    ]
    return Reading(witness="torch", flops=sum(ops.total() for ops in theirs.values())), found


def _fvcore(run: _Run, ours: Ops) -> tuple[Reading, list[Difference]]:
    model, args, kwargs = run.copied()
    try:
        with saved_random_state(), torch.compiler.set_stance("force_eager"):
            reading, scopes = by_fvcore(model, args, kwargs)
    except Exception as error:  # as above
        return Reading.failed("fvcore", error), []
    found = []
    for scope in dict.fromkeys([*ours, *scopes]):
        mine = ours.get(scope, Counter()).total()
        difference = scopes[scope].against(scope, mine) if scope in scopes else None
        if scope not in scopes and mine:
            difference = Difference(
                witness="fvcore", module=scope, ours=mine, theirs=0, unexplained=mine
            )
        if difference is not None:
            found.append(difference)
    return reading, found
