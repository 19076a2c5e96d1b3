"""torch.profiler around a few steps: begun, stopped and undone wherever that is interrupted."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as torch_profiler
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profiler as kineto

from mfu_torch.flops.patches import Method, Patches

# Set in a process that Nsight Systems runs: it has the one connection to the driver's events.
_NSYS = "NSYS_PROFILING_SESSION_ID"


class Recording:
    """One trace in the making: warm-up, steps, and then its file.

    Args:
        on_cuda: Record the GPU's work, too.

    Attributes:
        started: What runs is recorded, and no warm-up any more.
        broken: Why it cannot go on; empty while it can.
    """

    def __init__(self, on_cuda: bool) -> None:
        wanted = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
        supported = torch._C._autograd._supported_activities()
        activities = [one for one in wanted if one in supported]
        self.started = False
        self.broken = ""
        self._ready = False  # torch is ready to start
        self._flag_is_ours = False  # by which torch knows that something profiles
        self._thread = threading.get_ident()
        self._step: Any = None
        self._profile: Any = kineto._KinetoProfile(activities=activities, record_shapes=True)

    def warm_up(self) -> None:
        """Get ready: the first step under a profiler is slower than the others."""
        self._profile.prepare_trace()
        self._ready = True

    def start(self) -> None:
        """Record from here on."""
        self._flag_is_ours = True
        self._profile.start_trace()
        self.started = True

    def begin_step(self, index: int) -> None:
        """What follows is this step's, until :meth:`end_step`."""
        if self.started:
            self._step = record_function(f"ProfilerStep#{index}")
            self._step.__enter__()

    def end_step(self) -> None:
        """The step is over, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def stop(self, path: Path) -> None:
        """End it, and write the trace.

        Raises:
            OSError: If the file cannot be written.
        """
        self.end_step()
        self._ready = False
        self._profile.stop_trace()
        self._flag_is_ours = False
        self._profile.export_chrome_trace(str(path))
        if not path.is_file() or not path.stat().st_size:  # torch only logs that it failed
            raise OSError(f"torch.profiler wrote no trace to {path}")

    def abandon(self) -> None:
        """End it wherever it stands, and drop what was recorded; on its own thread only.

        What was interrupted may have been done or not: torch is asked, and never made to stop or
        to start what is not there, which ends the process in some of its versions.
        """
        ready, self._ready = self._ready, False
        with contextlib.suppress(Exception):
            self.end_step()
        if ready and not _is_enabled_here():
            with contextlib.suppress(Exception):  # as torch.profiler itself leaves a warm-up
                self._flag_is_ours = True
                self._profile.start_trace()
        if _is_enabled_here():
            with contextlib.suppress(Exception):
                self._profile.stop_trace()
        if self._flag_is_ours and not _is_enabled_here():  # interrupted before it was taken back
            take_back: Any = torch_profiler._run_on_profiler_stop
            take_back()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that records: a profiler can be stopped there only."""
        return threading.get_ident() == self._thread

    def is_made_of(self, profile: object) -> bool:
        """Whether this is the profiler inside."""
        return self._profile.profiler is profile


class OtherProfilers:
    """Knows of the profilers that the program itself uses, from when they get ready on.

    torch has one profiler at a time: a second raises where it begins. So ours steps aside.

    Args:
        is_ours: Whether a profiler is ours.
        begins: Called before another one gets ready or begins.
    """

    def __init__(self, is_ours: Callable[[object], bool], begins: Callable[[], None]) -> None:
        self._is_ours, self._begins = is_ours, begins
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._patches = Patches()

    def attach(self) -> None:
        """Watch from now on."""
        for method in ("_prepare_trace", "_start_trace"):
            self._patches.wrap("torch.autograd.profiler", "profile", method, self._watched)
        for holder in ("emit_nvtx", "emit_itt"):
            self._patches.wrap("torch.autograd.profiler", holder, "__enter__", self._watched)

    def detach(self) -> None:
        """Leave nothing behind."""
        self._patches.remove()
        self._begins = _nothing

    def active(self) -> str:
        """What profiles this process now, or is about to; empty if nothing does."""
        if os.environ.get(_NSYS):
            return "Nsight Systems"
        enabled = getattr(torch_profiler, "_is_profiler_enabled", False)
        if enabled or _is_enabled_here() or any(map(_is_ready, self._seen)):
            return "another torch.profiler"
        return ""

    def _watched(self, before: Method) -> Method:
        def noticed(one: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_ours(one):
                self._seen.add(one)
                self._begins()
            return before(one, *args, **kwargs)

        return noticed


def _is_enabled_here() -> bool:
    return bool(torch._C._autograd._profiler_enabled())


def _is_ready(one: Any) -> bool:
    """Whether it got ready and is not over: one with a schedule does so some steps before."""
    return bool(getattr(one, "entered", False)) and getattr(one, "kineto_results", one) is None


def _nothing() -> None:
    """Called in place of what is not told any more."""
