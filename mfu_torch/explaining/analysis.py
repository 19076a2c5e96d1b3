"""The analysis of a trace, in a process of its own: the training keeps its time and its memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mfu_torch.explaining.files import packed
from mfu_torch.messages import first_line
from mfu_torch.records import Breakdown, Peak

TIME_LIMIT_S = 120.0
"""For one trace. A hundred megabytes take about a second on a quiet core."""

OUTPUT_LIMIT = 2**24
"""Bytes that are read of what the process prints; a breakdown has some ten thousand."""

_QUOTED = 80  # characters of an output that makes no sense

# What is imported is found where this process finds it, and nowhere else: the folder in which it
# was started can hold modules of any name.
_ENTRY = (
    "import json, sys\n"
    "job = json.load(sys.stdin)\n"
    "sys.path[:] = job['path']\n"
    "from mfu_torch.insight.live import main\n"
    "main(job)\n"
)


class Outcome(msgspec.Struct):
    """What the process prints as its last line: a breakdown, or why there is none."""

    breakdown: Breakdown | None = None
    problem: str = ""


def command() -> Sequence[str]:
    """What analyses: it reads a job from its standard input, and prints an :class:`Outcome`."""
    return [sys.executable, "-I", "-c", _ENTRY]


def job_of(
    trace: Path,
    steps: tuple[int, ...],
    peak: Peak | None,
    dtype: str | None,
    model_flops: float | None,
    recompute_flops: float | None = None,
) -> bytes:
    """What the process has to know.

    Args:
        trace: Path of the trace.
        steps: Indices of the steps in it: all of them are whole, also a short last one.
        peak: Of the device for ``dtype``.
        dtype: In which most FLOPs are.
        model_flops: Of one step.
        recompute_flops: Of one step, recomputed by the program or inside of kernels.
    """
    job = {
        "trace": str(trace),
        "packed": str(packed(trace)),
        "peak": None if peak is None else msgspec.to_builtins(peak),
        "dtype": dtype,
        "steps": f"{steps[0]}:{steps[-1] + 1}",
        "model_flops": model_flops,
        "recompute_flops": recompute_flops,
        "time_limit_s": TIME_LIMIT_S,
        "path": sys.path,
    }
    return json.dumps(job).encode()


class Analysis:
    """A process that is waited for on a thread.

    Args:
        job: What it reads.
        limit_s: Time after which it is killed.

    Attributes:
        result: The breakdown, or why there is none. Not there before :attr:`done`.
    """

    def __init__(self, job: bytes, limit_s: float = TIME_LIMIT_S) -> None:
        self.result: Breakdown | str = "it was not finished when the run ended"
        self._job, self._limit_s = job, limit_s
        self._pid = os.getpid()
        self._done = threading.Event()
        self._killed = ""  # why
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="mfu_torch explain", daemon=True)

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self._done.is_set()

    def start(self) -> None:
        """Begin; where there can be no further thread, that is the result."""
        atexit.register(self.kill, "the program ended")  # closing the run may be interrupted, too
        try:
            self._thread.start()
        except RuntimeError as error:
            self.result = f"RuntimeError: {first_line(error)}"
            self._ends()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the result; false if it has not come."""
        return self._done.wait(max(0.0, timeout_s))

    def kill(self, why: str) -> None:
        """End the process, whatever it does; the result says why."""
        if os.getpid() != self._pid:  # it is the process's that this one was forked from
            return
        # No lock: Ctrl-C can come while it is held. The thread looks for this after it began one.
        self._killed = self._killed or why
        process = self._process
        if process is not None and process.poll() is None:
            _kill(process)

    # --- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        # Nobody sees a thread die, and the run waits for a result.
        try:
            self.result = self._analyse()
        except Exception as error:
            self.result = f"{type(error).__name__}: {first_line(error)}"
        finally:
            self._ends()

    def _ends(self) -> None:
        self._done.set()
        atexit.unregister(self.kill)

    def _analyse(self) -> Breakdown | str:
        if self._killed:
            return self._killed
        # In a session of its own: Ctrl-C is for the training, which then ends it.
        self._process = process = subprocess.Popen(
            list(command()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self._killed:
            _kill(process)
        limit = threading.Timer(
            self._limit_s, self.kill, [f"it took longer than {self._limit_s:g} s"]
        )
        limit.daemon = True
        limit.start()
        try:
            output, code = self._output(process)
        finally:
            limit.cancel()
            self.kill("")
            process.wait()
        return self._killed or _outcome(output, code)

    def _output(self, process: subprocess.Popen[bytes]) -> tuple[bytes, int]:
        assert process.stdin is not None and process.stdout is not None
        with process.stdout as printed:
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(self._job)
            output = printed.read(OUTPUT_LIMIT)
            if len(output) == OUTPUT_LIMIT:
                self.kill(f"it printed more than {OUTPUT_LIMIT >> 20} MiB")
            return output, process.wait()


def _kill(process: subprocess.Popen[Any]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # it is not the leader of its group yet, or is gone
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _outcome(output: bytes, code: int) -> Breakdown | str:
    lines = output.strip().splitlines()
    last = lines[-1] if lines else b""
    try:
        outcome = msgspec.json.decode(last, type=Outcome)
    except msgspec.ValidationError as error:
        return f"the analysis ended with exit code {code}, and its result has another form: {error}"
    except msgspec.DecodeError:
        said = ascii(last[:_QUOTED].decode("utf-8", "replace")) if last else "nothing"
        return f"the analysis ended with exit code {code} and printed {said} in place of a result"
    found = outcome.breakdown
    if found is None:
        return outcome.problem or "the analysis found nothing, and does not say why"
    total = sum(bucket.time_ns for bucket in found.buckets)
    if found.wall_ns <= 0 or total != found.wall_ns:
        return f"its parts sum to {total} ns, and the steps took {found.wall_ns} ns"
    return found
