"""The ``Callback`` class of the package whose ``Trainer`` is used.

``lightning`` and ``pytorch_lightning`` hold two copies of the same code, and a callback has to be
of the class that its Trainer knows. Both can be installed, and both be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def callback_classes() -> tuple[type, ...]:
    """Those of the packages that are imported; where none is, of one that is installed.

    Raises:
        ImportError: If neither is installed.
    """
    loaded = [name for name in _PACKAGES if f"{name}.callbacks" in sys.modules]
    if not loaded:
        loaded = [_installed()]
    modules: list[Any] = [importlib.import_module(f"{name}.callbacks") for name in loaded]
    return tuple(module.Callback for module in modules)


def base_class() -> type:
    """One class that is a ``Callback`` for each of them."""
    classes = callback_classes()
    return classes[0] if len(classes) == 1 else type("Callback", classes, {})


def _installed() -> str:
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return name
    raise ImportError(
        "MFUCallback is for Lightning's Trainer, and neither lightning nor pytorch_lightning is "
        "installed; `pip install lightning` provides it"
    )
