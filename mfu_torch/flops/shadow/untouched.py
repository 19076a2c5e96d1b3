"""What a count on fake tensors must leave as it was, beside the model: put back, and cleaned.

Model code may draw random numbers, store on its classes, fill caches of its own. What it keeps of
the shadow would fail much later, in the user's step.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import logging
import random
import warnings
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_CONTAINERS = (dict, list, set)


@contextlib.contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Autocast keeps the weights that it cast until the user's outermost context is left."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def saved_random_state() -> Iterator[None]:
    """Put back the generators of torch, NumPy and Python.

    Fake random ops draw nothing from torch's, but model code may use the others, or seed torch's;
    a model that runs for a witness draws from all.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextlib.contextmanager
def saved_classes(real: nn.Module) -> Iterator[None]:
    """Put back what a forward stores on the classes of its modules, which no copy separates."""
    saved = []
    for cls in {base for module in real.modules() for base in type(module).__mro__}:
        if not cls.__module__.startswith(("torch.", "builtins")):
            names = {name: item for name, item in vars(cls).items() if not name.startswith("__")}
            contents = {
                name: copy.copy(item) for name, item in names.items() if type(item) in _CONTAINERS
            }
            saved.append((cls, names, contents))
    try:
        yield
    finally:
        for cls, names, contents in saved:
            _put_back(cls, names, contents)


def _put_back(cls: type, names: dict[str, Any], contents: dict[str, Any]) -> None:
    for name in [name for name in vars(cls) if not name.startswith("__") and name not in names]:
        delattr(cls, name)
    for name, item in names.items():
        if vars(cls).get(name) is not item:
            setattr(cls, name, item)
    for name, content in contents.items():
        item = names[name]
        if _same_items(item, content):
            continue
        if isinstance(item, list):
            item[:] = content
        else:
            item.clear()
            item.update(content)


def _same_items(one: Any, other: Any) -> bool:
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in other}
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)  # an equal order: nothing was added or taken out
    values = isinstance(one, dict) and zip(one.values(), other.values(), strict=True)
    return all(a is b for a, b in pairs) and all(a is b for a, b in values or ())


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Silence about what fails on fake tensors, which is raised and named, and what is our doing.

    Torch logs the traceback of the former, and warns of arrays that were made read-only.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(_nothing)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


@contextlib.contextmanager
def others_frozen() -> Iterator[None]:
    """What is there already cannot be the shadow's: the collector need not look at it."""
    if gc.get_freeze_count():  # frozen by the user: to unfreeze is not for us
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def all_unfrozen() -> Iterator[None]:
    """The collector finds what holds an object only among what it looks at."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def forget_fakes(fake_mode: FakeTensorMode) -> str:
    """Take the shadow's tensors out of what model code keeps; name what still holds one."""
    held_by = ""
    left = alive(fake_mode)
    while left:
        tensor = left.pop()  # so that this list is none of its holders
        for holder in gc.get_referrers(tensor):
            if not isinstance(holder, FrameType):
                held_by = held_by or _name_of(holder)
                _drop_from(holder, tensor)
        del tensor
    gc.collect()
    return (held_by or "a place that cannot be seen from Python") if alive(fake_mode) else ""


def alive(fake_mode: FakeTensorMode) -> list[FakeTensor]:
    """The fake tensors of a mode that something still holds."""
    return [
        thing
        for thing in gc.get_objects()
        if type(thing) is FakeTensor and thing.fake_mode is fake_mode
    ]


def _name_of(holder: Any) -> str:
    name = getattr(holder, "__qualname__", None)
    return f"{name}, a {type(holder).__name__}" if name else f"a {type(holder).__name__}"


def _drop_from(holder: Any, tensor: FakeTensor) -> None:
    """Undo what keeping a tensor did: a cache forgets it, a list loses what was appended."""
    if isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
    elif isinstance(holder, dict):
        owned = any(getattr(user, "__dict__", None) is holder for user in gc.get_referrers(holder))
        for key in [key for key, value in holder.items() if value is tensor]:
            if owned:  # an attribute: the usual sign for "not built yet", where a missing one fails
                holder[key] = None
            else:
                del holder[key]
    elif isinstance(holder, set):
        holder.discard(tensor)
    elif isinstance(holder, (list, deque)):
        for place in reversed([i for i, item in enumerate(holder) if item is tensor]):
            del holder[place]
