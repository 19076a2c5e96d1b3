"""fvcore as a witness: the forward that ``torch.jit`` traces, 2 FLOPs per multiply-add.

fvcore counts multiply-adds, of contractions and of norms alike. Here only its contractions are
asked for, and scaled dot-product attention, for which it has no formula, is given one. Its own
formulas are called one by one, beside the FLOPs that the shapes of the operands give: where the two
differ, or where fvcore's raises, the fault is known with its size. Ops that it leaves out are read
off its own list, which it makes for each module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from fvcore.nn import FlopCountAnalysis, jit_handles
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mfu_torch.flops.crosscheck.witnesses import Difference, Reading
from mfu_torch.flops.uncounted import may_contract

WITNESS = "fvcore"

Shape = list[int]
Values = list[Any]  # of torch._C.Value: nodes of the graph have no public type
Handle = Callable[[Values, Values], Any]

COMPOSITES = re.compile(
    r"""(lstm|gru|rnn_tanh|rnn_relu)(_cell)?|bilinear|tensordot|inner|chain_matmul|cdist|cov|corrcoef
    |matrix_(exp|power)|_sparse_mm|conv(_transpose)?[123]d|_convolution_mode|fft_.*|stft|istft
    |linalg_(?!norm|vector_norm|matrix_norm|cross|diagonal).*""",
    re.VERBOSE,
)
"""ATen ops that are made of others, among them contractions."""

# Multiply-adds to fvcore, elementwise work here.
_NO_CONTRACTIONS = """
    batch_norm group_norm layer_norm instance_norm upsample_nearest2d upsample_bilinear2d
    adaptive_avg_pool2d grid_sampler"""


class Scope:
    """What fvcore saw in one module."""

    def __init__(self) -> None:
        self.flops = 0
        self.faults: Counter[str] = Counter()  # what is wrong -> FLOPs that it lacks
        self.left_out: Counter[str] = Counter()  # ops without a formula -> calls

    def against(self, module: str, ours: int) -> Difference | None:
        """How it differs from our FLOPs of the same module, and why."""
        missing = ours - self.flops
        if not missing:
            return None
        rest = missing - self.faults.total()
        reasons = [
            f"fvcore: {fault} ({lacks:+,} FLOPs here)" for fault, lacks in self.faults.items()
        ]
        if rest and self.left_out:
            ops = ", ".join(f"{op} ({calls} calls)" for op, calls in self.left_out.items())
            reasons.append(f"fvcore has no formula for {ops}")
            rest = 0
        return Difference(
            witness=WITNESS,
            module=module,
            ours=ours,
            theirs=self.flops,
            reasons=tuple(reasons),
            unexplained=rest,
        )


def by_fvcore(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Reading, dict[str, Scope]]:
    """Trace ``model(*args, **kwargs)`` and count it by fvcore, in all and by module.

    Args:
        model: It is run as it is; give a copy.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    leaves, spec = tree_flatten((args, dict(kwargs)))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    analysis = FlopCountAnalysis(_Positional(model, leaves, spec), tensors)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings(
        "none"
    )
    scopes: dict[str, Scope] = {}
    failures: Counter[str] = Counter()
    handles: dict[str, Handle] = {f"aten::{op}": _nothing for op in _NO_CONTRACTIONS.split()}
    for op, (theirs, true) in _FORMULAS.items():
        handles[f"aten::{op}"] = _compared(op, theirs, true, scopes, failures)
    analysis.set_op_handle(**handles)
    analysis.total()
    for name, calls in _own(analysis).items():
        for op in calls:
            if contracts(op):
                scopes.setdefault(name, Scope()).left_out[op] += calls[op]
    reading = Reading(
        witness=WITNESS,
        flops=sum(scope.flops for scope in scopes.values()),
        remarks=tuple(failures),
    )
    return reading, scopes


def contracts(op: str) -> bool:
    """Whether an op of a traced graph, as ``"aten::lstm"``, may contract tensors."""
    library, _, name = op.partition("::")
    if library != "aten":
        return True  # a custom op, or an autograd.Function: nobody knows
    if COMPOSITES.fullmatch(name):
        return True
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    # TorchScript adds some of its own, for Python numbers: they have no kernel.
    return any(torch._C._dispatch_has_kernel(op._name) and may_contract(op) for op in overloads)


class _Positional(nn.Module):
    """Takes the tensors among a call's arguments one by one, and returns those of its output."""

    def __init__(self, model: nn.Module, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.model = model
        self._leaves, self._spec = leaves, spec

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        output = self.model(*args, **kwargs)
        return tuple(x for x in tree_flatten(output)[0] if isinstance(x, torch.Tensor))


def _own(analysis: FlopCountAnalysis) -> dict[str, Counter[str]]:
    """Ops without a formula in each module and in none of its children."""
    every = {name: analysis.unsupported_ops(name) for name in analysis.by_module()}
    own = {name: Counter(calls) for name, calls in every.items()}
    for name, calls in every.items():
        if name:
            own[name.rpartition(".")[0]] -= calls
    return {_without_wrapper(name): calls for name, calls in own.items() if calls}


def _without_wrapper(name: str) -> str:
    return name.partition(".")[2]  # "model.layers.0" -> "layers.0"


def _compared(
    op: str,
    theirs: Handle,
    true: Callable[[Values, Values], int],
    scopes: dict[str, Scope],
    failures: Counter[str],
) -> Handle:
    """The formula of fvcore for an op, which notes what it says and what the shapes say."""

    def handle(inputs: Values, outputs: Values) -> float:
        names = outputs[0].node().scopeName().split("/")
        scope = scopes.setdefault(_without_wrapper(names[-1]), Scope())
        operands = inputs if op != "einsum" else list(inputs[1].node().inputs())
        shapes = " and ".join(str(tuple(shape)) for shape in _shapes(operands))
        fault = f"its formula for {op} is wrong: {shapes}"
        try:
            counted = theirs(inputs, outputs)
        except Exception as error:  # its own checks, and its own slips
            fault = f"its formula for {op} raises {type(error).__name__}: {shapes}"
            failures[fault] += 1
            counted = 0
        flops = 2 * int(sum(counted.values()) if isinstance(counted, Counter) else counted)
        scope.flops += flops
        kind = _kind(inputs[0] if op != "einsum" else next(inputs[1].node().inputs()))
        expected = _PER_PRODUCT[kind] * true(inputs, outputs)
        if kind:
            fault = f"its formula for {op} takes {kind} numbers for real ones: {shapes}"
        if expected != flops:
            scope.faults[fault] += expected - flops
        return flops / 2

    return handle


def _kind(operand: Any) -> str:
    """What it multiplies, if not real numbers."""
    scalar = str(operand.type().scalarType())
    if scalar.startswith("Complex"):
        return "complex"
    return "integer" if scalar in ("Byte", "Char", "Short", "Int", "Long") else ""


_PER_PRODUCT = {"": 1, "complex": 4, "integer": 0}
"""A complex product is four real ones; an integer one is no FLOP."""


def _nothing(inputs: Values, outputs: Values) -> int:
    return 0


# --- what the shapes say ---------------------------------------------------------------------


def _shape(value: Any) -> Shape | None:
    shape: Shape | None = jit_handles.get_shape(value)
    return shape


def _shapes(values: Values) -> list[Shape]:
    return [shape for shape in map(_shape, values) if shape is not None]


def _times_columns(inputs: Values, outputs: Values) -> int:
    # (*, m, k) @ (*, k, n), broadcast: each element of the result is k multiply-adds
    left, _ = _shapes(inputs[:2])
    return 2 * prod(_shapes(outputs)[0]) * left[-1]


def _linear(inputs: Values, outputs: Values) -> int:
    x, weight = _shapes(inputs[:2])  # (*, k) @ (n, k)^T
    return 2 * prod(x) * prod(weight[:-1])


def _addmm(inputs: Values, outputs: Values) -> int:
    return _times_columns(inputs[1:], outputs)


def _convolution(inputs: Values, outputs: Values) -> int:
    x, weight = _shapes(inputs[:2])
    transposed = inputs[6].toIValue()
    spatial = (x if transposed else _shapes(outputs)[0])[2 - len(weight) :]
    batch = x[0] if len(x) == len(weight) else 1
    return 2 * batch * prod(spatial) * prod(weight)


def _einsum(inputs: Values, outputs: Values) -> int:
    # From left to right, as torch does it: each combination of the letters of two operands is one
    # multiply-add, if a letter is summed that both have. One that a single operand has is summed
    # before.
    shapes = _shapes(list(inputs[1].node().inputs()))
    operands, _, result = inputs[0].toIValue().replace(" ", "").partition("->")
    words = [_spelt_out(word, s) for word, s in zip(operands.split(","), shapes, strict=True)]
    sizes: dict[str, int] = {}
    for word, shape in zip(words, shapes, strict=True):
        for letter, size in zip(word, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    numbers = {letter for letter in sizes if letter.isdigit()}  # an ellipsis
    flops, left = 0, set(words[0])
    for place, word in enumerate(words[1:], start=2):
        right, later = set(word), numbers.union(result, *words[place:])
        summed = (left & right) - later
        left = (left | right) & later
        flops += 2 * prod(sizes[letter] for letter in left | summed) if summed else 0
    return flops


def _spelt_out(word: str, shape: Shape) -> str:
    """``"...d"`` of three dimensions -> ``"10d"``: the ellipsis is numbered from its right."""
    numbers = "".join(str(i) for i in reversed(range(len(shape) - len(word) + 3)))
    return word.replace("...", numbers)


def attention_macs(inputs: Values, outputs: Values) -> int:
    """Multiply-adds of ``scaled_dot_product_attention``: two products per query and key."""
    q, k, v = _shapes(inputs[:3])
    return prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention(inputs: Values, outputs: Values) -> int:
    return 2 * attention_macs(inputs, outputs)


_FORMULAS: dict[str, tuple[Handle, Callable[[Values, Values], int]]] = {
    "linear": (jit_handles.linear_flop_jit, _linear),
    "matmul": (jit_handles.matmul_flop_jit, _times_columns),
    "mm": (jit_handles.matmul_flop_jit, _times_columns),
    "bmm": (jit_handles.bmm_flop_jit, _times_columns),
    "addmm": (jit_handles.addmm_flop_jit, _addmm),
    "einsum": (jit_handles.einsum_flop_jit, _einsum),
    "_convolution": (jit_handles.conv_flop_jit, _convolution),
    "scaled_dot_product_attention": (attention_macs, _attention),
}
