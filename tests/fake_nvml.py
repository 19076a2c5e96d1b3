"""NVML without a GPU: NVIDIA's own Python module, on a driver library made of Python.

``FakeNvml(...).module`` is a private copy of the real ``pynvml``: its functions, structures,
constants and exceptions are NVIDIA's. Only what it loads with ``ctypes`` is replaced, so whatever
the code under test passes goes through the real conversions, and an error is the number that the
real module makes an exception of.

    nvml = FakeNvml(FakeGpu(uuid="GPU-1", name="NVIDIA L4"))
    monkeypatch.setattr("mfu_torch.peak.nvml.pynvml", nvml.module)
    nvml.fail("nvmlDeviceGetPowerUsage", "NOT_SUPPORTED", after=2)
    nvml.gpus[0].lost = True
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pynvml as real_pynvml
from fake_nvml_library import Failure, FakeGpu, FakeSlice, NvmlLibrary

__all__ = ["FakeGpu", "FakeNvml", "FakeSlice"]


class _Call:
    """A function of the library. The real module sets ``restype`` on some."""

    def __init__(self, driver: FakeNvml, name: str, body: Callable[..., int]) -> None:
        self._driver, self._name, self._body = driver, name, body

    def __call__(self, *arguments: Any) -> Any:
        return self._driver.run(self._name, self._body, arguments)


class FakeNvml(NvmlLibrary):
    """A machine with the given GPUs, in NVML's order.

    Args:
        gpus: NVML's index is the position.
        driver: Without one, the library cannot be loaded.
        bytes_names: Names and UUIDs are ``bytes``, as in NVIDIA's modules before 11.515.
        without: Functions that the module or the driver is too old for.

    Attributes:
        module: Takes the place of ``pynvml``.
        calls: Names of the library's functions, in order.
        samples_out: GPM samples that were not given back.
        inside: Set once a function hangs.
    """

    def __init__(
        self,
        *gpus: FakeGpu,
        driver: bool = True,
        bytes_names: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        super().__init__(list(gpus))
        self.calls: list[str] = []
        self._failures: dict[str, tuple[int, float, float]] = {}  # error, from call, to call
        self._counts: Counter[str] = Counter()
        self.inside = threading.Event()
        self._hung: dict[str, threading.Event] = {}
        self.module = _private_copy()
        if driver:
            self.module.nvmlLib = self
        else:
            self.module.CDLL = _no_library  # type: ignore[attr-defined]
        for name in without:
            self.remove(name)
        if bytes_names:
            self._names_as_bytes()

    # --- what a test sets ---------------------------------------------------------------------

    def fail(self, call: str, error: str, *, after: int = 0, times: float = math.inf) -> None:
        """From its ``after``-th call on (0: the next one), for ``times`` calls, it fails.

        Args:
            call: Python's or the library's name; ``"*"`` for every function.
            error: Of NVML_ERROR_..., e.g. ``"GPU_IS_LOST"``.
        """
        name = call if call == "*" else self._library_name(call)
        first = self._counts[name] + after
        code = getattr(self.module, f"NVML_ERROR_{error}")
        self._failures[name] = (code, first, first + times)

    def heal(self) -> None:
        """Forget all that was made to fail."""
        self._failures.clear()

    def hang(self, call: str) -> threading.Event:
        """The function does not return before the event is set."""
        return self._hung.setdefault(self._library_name(call), threading.Event())

    def remove(self, call: str) -> None:
        """The driver is older than the function: Function Not Found."""
        name = self._library_name(call)
        setattr(self, f"_{name}", None)
        self.module._nvmlGetFunctionPointer_cache.pop(name, None)

    def remove_from_module(self, call: str) -> None:
        """The Python module is older than the function."""
        delattr(self.module, call)

    @property
    def samples_out(self) -> int:
        return len(self._samples)

    # --- the library --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> _Call:
        body = None if name.startswith("_") else getattr(self, f"_{name}", None)
        if body is None:
            raise AttributeError(name)
        return _Call(self, name, body)

    def run(self, name: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.calls.append(name)
        if name in self._hung:
            self.inside.set()
            self._hung[name].wait()
        for key in (name, "*"):
            count = self._counts[key]
            self._counts[key] += 1
            if key in self._failures:
                code, first, last = self._failures[key]
                if first <= count < last:
                    return code
        if name == "nvmlErrorString":
            return body(*arguments)
        try:
            if name != "nvmlInitWithFlags" and self._inits == 0:
                raise Failure("UNINITIALIZED")
            body(*arguments)
        except Failure as error:
            return getattr(real_pynvml, f"NVML_ERROR_{error}")
        return real_pynvml.NVML_SUCCESS

    def _library_name(self, call: str) -> str:
        call = {"nvmlInit": "nvmlInitWithFlags"}.get(call, call)
        for name in (f"{call}_v3", f"{call}_v2", call):
            if hasattr(type(self), f"_{name}"):
                return name
        raise ValueError(f"this fake has no {call}")

    def _names_as_bytes(self) -> None:
        for name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            real = getattr(self.module, name)
            setattr(self.module, name, lambda handle, real=real: real(handle).encode())


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def _private_copy() -> ModuleType:
    """The real module once more, with globals of its own."""
    spec = importlib.util.spec_from_file_location("pynvml_of_a_fake", real_pynvml.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # it looks itself up while it makes its exceptions
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
