"""Setting up a run: where it runs, what is written, and what to do when something is not there."""

from __future__ import annotations

import logging
import numbers
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mfu_torch
from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.timeline import Timeline
from mfu_torch.peak.devices import detect_device
from mfu_torch.peak.table import check_dtype
from mfu_torch.records import (
    SCHEMA_VERSION,
    Attention,
    Device,
    Earlier,
    FlopCount,
    FlopTerm,
    Header,
)
from mfu_torch.run.recorder import Recorder
from mfu_torch.run.runfile import RunFileSink
from mfu_torch.run.sinks import ConsoleSink, Sink

logger = logging.getLogger(__name__)

EXPLAIN_LEAST = 10
"""Fewest steps between two recordings: their breakdown is compared with as many steps around."""


class Place:
    """Where a process of the run computes: its device, and its rank among the others."""

    def __init__(self, device: torch.device, described: Device, rank: int, world_size: int) -> None:
        self.device = device
        self.described = described
        self.rank = rank
        self.world_size = world_size

    def peak_memory_bytes(self) -> int | None:
        """Most memory allocated so far by torch's allocator on the device; ``None`` on the CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device)


def models_of(model: object) -> tuple[nn.Module, ...]:
    """The models given to a meter: one, several or none.

    Raises:
        TypeError: If it is neither a module, nor modules, nor ``None``.
    """
    if model is None:
        return ()
    several = isinstance(model, (list, tuple, nn.ModuleList))
    models: tuple[Any, ...] = tuple(model) if several else (model,)  # type: ignore[arg-type]
    for one in models:
        if not isinstance(one, nn.Module):
            raise TypeError(
                f"model is {'a sequence with ' if several else ''}a {type(one).__name__}; expected "
                "the torch.nn.Module that is trained, or a list of those that a step calls (or "
                "nothing: Meter() counts whatever runs in a step)"
            )
    return tuple(dict.fromkeys(models))


def check_arguments(
    attention: object,
    log_every: object,
    log_dir: object,
    device: torch.device | str | Device | None,
    explain_every: object,
) -> None:
    """Refuse what a meter cannot use, before anything runs.

    Raises:
        TypeError, ValueError: The message says what was given and what is expected.
    """
    if attention not in ("full", "causal"):
        raise ValueError(f"attention is {attention!r}; expected 'full' or 'causal'")
    if not _is_at_least(1, log_every):
        raise ValueError(f"log_every is {log_every!r}; expected a number of steps, at least 1")
    if explain_every is not None and not _is_at_least(EXPLAIN_LEAST, explain_every):
        raise ValueError(
            f"explain_every is {explain_every!r}; expected a number of steps, at least "
            f"{EXPLAIN_LEAST}, or None"
        )
    if not (log_dir is None or isinstance(log_dir, (str, os.PathLike))):
        raise TypeError(f"log_dir is {log_dir!r}; expected the path of a folder, or nothing")
    if device is not None and not isinstance(device, Device):
        check_device(device)


def _is_at_least(least: int, value: object) -> bool:
    """Whether it is a whole number, and large enough."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and value >= least  # type: ignore[operator]


def check_sinks(sinks: object) -> None:
    """Refuse what cannot take records.

    Raises:
        TypeError: If it is no list of objects with ``write`` and ``close``.
    """
    if sinks is None:
        return
    if not isinstance(sinks, Iterable) or isinstance(sinks, (str, bytes)):
        raise TypeError(f"sinks is {sinks!r}; expected a list of sinks")
    for sink in sinks:
        if isinstance(sink, type) or not callable(getattr(sink, "write", None)):
            raise TypeError(
                f"sinks has {sink!r}; expected an object with write(record) and close()"
            )


def place_of(
    models: Sequence[nn.Module], device: torch.device | str | Device | None, group: Any
) -> Place:
    """The device that a model trains on, described; and this process's rank.

    Raises:
        ValueError, RuntimeError: If ``device`` names none that there is.
    """
    rank, world_size = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank(group)
        world_size = torch.distributed.get_world_size(group)
    if isinstance(device, Device):
        kind = "cuda" if device.kind == "rocm" else device.kind
        where = torch.device(kind) if device.index is None else torch.device(kind, device.index)
        return Place(where, device, rank, world_size)
    where = (
        check_device(device) if device is not None else _device_of(models[0] if models else None)
    )
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device is {str(where)!r}, and torch sees no CUDA device here (driver, "
            "CUDA_VISIBLE_DEVICES, or a CPU build of torch?); expected one that there is, or none"
        )
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return Place(where, detect_device(index=where.index, kind=where.type), rank, world_size)


def timeline_of(
    clock: Clock, device: torch.device, on_error: Callable[[Exception], None], first: int
) -> Timeline:
    """The run's time from now on; ``first`` is the index of its first step.

    Raises:
        ValueError: If nothing can be timed on the device: a CPU build of torch, no driver.
    """
    try:
        return Timeline(clock, on_error, first)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device is {str(device)!r}, and torch can time nothing on it here "
            f"({str(error).partition('.')[0]}); expected a device of this machine"
        ) from error


def check_device(device: torch.device | str) -> torch.device:
    """The device of that name.

    Raises:
        ValueError: If torch knows no such name.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device is {device!r}; expected a torch.device, a name such as 'cuda:0' or 'cpu', or "
            "a mfu_torch.Device"
        ) from error


def _device_of(model: nn.Module | None) -> torch.device:
    parameter = next(model.parameters(), None) if model is not None else None
    if parameter is not None and parameter.device.type != "meta":
        return parameter.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def given_count(flops: FlopCount | Mapping[str, float] | None) -> FlopCount | None:
    """``Meter(flops=...)`` as a count.

    Raises:
        TypeError, ValueError: If it is neither a count nor positive FLOPs by dtype.
    """
    if flops is None or isinstance(flops, FlopCount):
        return flops
    if isinstance(flops, Mapping) and not flops:
        raise ValueError("flops is empty; expected model FLOPs of a step, e.g. {'bf16': 6.1e15}")
    if not isinstance(flops, Mapping):
        raise TypeError(
            f"flops is a {type(flops).__name__}; expected model FLOPs of a step by dtype, e.g. "
            "flops={'bf16': 6.1e15}, or a FlopCount"
        )
    terms = []
    for dtype, amount in flops.items():
        check_dtype(dtype)
        number = isinstance(amount, numbers.Real) and not isinstance(amount, bool)
        if not number or not (1 <= amount < float("inf")):
            raise ValueError(
                f"flops[{dtype!r}] is {amount!r}; expected a positive number of FLOPs, e.g. 6e15"
            )
        terms.append(
            FlopTerm(
                phase="given",
                op="given",
                dtype=dtype,
                flops=int(amount),
                causal_flops=int(amount),
                calls=1,
            )
        )
    return FlopCount(terms=tuple(terms), method="given by the user")


def open_recorder(
    place: Place,
    models: Sequence[nn.Module],
    *,
    log_dir: str | os.PathLike[str] | None,
    log_every: int,
    attention: Attention,
    clock: str,
    sinks: Sequence[Sink] | None,
    earlier: Earlier | None,
) -> tuple[Recorder, Path | None]:
    """The recorder with its run file and sinks, and the run file's path if there is one.

    What cannot be opened is left out with one warning that says what to do.
    """
    header = Header(
        schema=SCHEMA_VERSION,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions={
            "mfu_torch": mfu_torch.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        device=place.described,
        attention=attention,
        log_every=log_every,
        clock=clock,
        rank=place.rank,
        world_size=place.world_size,
        model=", ".join(dict.fromkeys(type(_unwrapped(model)).__name__ for model in models)),
        parameters=_parameters(models, trainable=False),
        trainable=_parameters(models, trainable=True),
        earlier=earlier,
    )
    folder, problems = _folder(log_dir)
    run_file = _run_file(folder, place.rank, problems)
    if sinks is None:
        sinks = _default_sinks(_events_folder(run_file), place.rank, problems)
    everything = [run_file, *sinks] if run_file else list(sinks)
    recorder = Recorder(header, everything, keep=run_file is None)
    for problem in problems:
        recorder.warn(problem)
    return recorder, run_file.path if run_file else None


def _unwrapped(model: nn.Module) -> nn.Module:
    """What torch.compile's and DistributedDataParallel's wrappers are around."""
    children = dict(model.named_children())  # a scripted module has no plain dict of them
    if len(children) == 1 and children.keys() <= {"_orig_mod", "module"}:
        return _unwrapped(*children.values())
    return model


def _parameters(models: Sequence[nn.Module], *, trainable: bool) -> int | None:
    """Elements of the parameters, shared ones once; ``None`` where some have no shape yet."""
    distinct = {id(p): p for model in models for p in model.parameters()}.values()
    if not models or any(torch.nn.parameter.is_lazy(p) for p in distinct):
        return None
    return sum(p.numel() for p in distinct if p.requires_grad or not trainable)


def _folder(log_dir: str | os.PathLike[str] | None) -> tuple[Path | None, list[str]]:
    if log_dir == "":
        return None, []
    if log_dir is None:
        return (Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute(), []
    return Path(log_dir).absolute(), []  # the program may change its directory


def _run_file(folder: Path | None, rank: int, problems: list[str]) -> RunFileSink | None:
    if folder is None:
        return None
    try:
        return RunFileSink(folder, rank=rank)
    except (OSError, ValueError) as error:  # ValueError: no path at all, such as one with a NUL
        why = getattr(error, "strerror", None) or error
        problems.append(
            f"log_dir {folder} cannot be written ({why}): the run is kept in memory only. Pass a "
            f"folder that can be written, e.g. log_dir={_suggestion()!r}"
        )
        return None


def _suggestion() -> str:
    return str(Path(tempfile.gettempdir()) / "runs")


def _events_folder(run_file: RunFileSink | None) -> Path | None:
    """Beside the run file; of a later run in the same folder apart, or TensorBoard mixes them."""
    if run_file is None:
        return None
    folder = run_file.path.parent
    return folder if run_file.path.stem == "run" else folder / run_file.path.stem


def _default_sinks(folder: Path | None, rank: int, problems: list[str]) -> list[Sink]:
    if rank != 0:
        return []
    sinks: list[Sink] = [ConsoleSink()]
    if folder is None:
        return sinks
    try:
        from mfu_torch.integrations.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(folder))
    except (ImportError, OSError) as error:
        problems.append(
            f"no TensorBoard events are written ({error}); `pip install tensorboard` provides it"
        )
    return sinks
