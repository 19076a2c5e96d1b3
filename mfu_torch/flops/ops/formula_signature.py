"""Whether a formula can be called with what its op is called with: found when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch


def check_formula(op: object, fn: Callable[..., Any], schemas: Sequence[Any]) -> None:
    """Raise if no call ``fn(*args, result=result, **kwargs)`` of an op can succeed.

    Args:
        op: As it was given, for the message.
        fn: The formula. One without a signature that Python can read is not checked.
        schemas: Those of the op's overloads; empty if they are not known.

    Raises:
        TypeError: If ``fn`` does not take ``result``, or none of the schemas' arguments.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some functions that are written in C
        return
    wrong = ""
    if not _takes_result(signature):
        wrong = "takes no argument named result"
    elif schemas and not any(_fits(signature, schema) for schema in schemas):
        calls = " or ".join(dict.fromkeys(map(_arguments, schemas)))
        wrong = f"cannot be called with the arguments of the op, {calls}"
    if wrong:
        raise TypeError(
            f"register_flops({str(op)!r}, fn): fn{signature} {wrong}; it is called as "
            "fn(*args, result=result, **kwargs), so write it as fn(<the op's arguments>, *, "
            "result, **kwargs)"
        )


def schemas_of(name: str) -> list[Any]:
    """Schemas of the overloads of ``"library::op"``, or of one, ``"library::op.overload"``.

    Empty if there is no such op by now.
    """
    library, _, rest = name.partition("::")
    op_name, _, overload = rest.partition(".")
    with suppress(AttributeError, RuntimeError):  # torch.ops looks the op up, and says so if not
        packet = getattr(getattr(torch.ops, library), op_name)
        overloads = [overload] if overload else packet.overloads()
        return [getattr(packet, each)._schema for each in overloads]
    return []


def _takes_result(signature: inspect.Signature) -> bool:
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return True
        if parameter.name == "result" and parameter.kind is not parameter.POSITIONAL_ONLY:
            return parameter.kind is not parameter.VAR_POSITIONAL
    return False


def _fits(signature: inspect.Signature, schema: Any) -> bool:
    """Whether some way of calling the op, defaults left out or not, can be passed on."""
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    named = [argument for argument in schema.arguments if argument.kwarg_only]
    least = sum(not argument.has_default_value() for argument in positional)
    needed = {argument.name: None for argument in named if not argument.has_default_value()}
    for given in range(least, len(positional) + 1):
        for keywords in (needed, {argument.name: None for argument in named}):
            with suppress(TypeError):
                signature.bind(*[None] * given, result=None, **keywords)
                return True
    return False


def _arguments(schema: Any) -> str:
    return f"({', '.join(argument.name for argument in schema.arguments)})"
