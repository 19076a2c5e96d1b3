"""Ops with the names and argument lists of kernel packages, without their kernels.

The lists are interfaces: what the dispatcher hands to a formula has this form and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def defined(namespace: str, *schemas: str, result: Any = None) -> Iterator[Any]:
    """Define ops for as long as the block runs; each returns ``result`` (a function of its args).

    By default an op returns an empty tensor like its first one.
    """
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        for schema in schemas:
            library.define(schema)
            name = schema.split("(")[0]
            library.impl(name, result or _like_the_first, "CompositeExplicitAutograd")
        yield getattr(torch.ops, namespace)
    finally:
        library._destroy()


def _like_the_first(*args: Any, **kwargs: Any) -> Any:
    return next(torch.empty_like(a) for a in args if isinstance(a, torch.Tensor))
