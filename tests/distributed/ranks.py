"""Runs cases on several processes, and brings back what each of them counted.

A test module marks functions with :func:`case`; :func:`run_cases` starts one process per rank, each
of which runs all cases of the module in order. Starting torch takes seconds, a case milliseconds.
Ranks meet in a file, so no port has to be found, and those that outlive their time are ended.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT_S = 120
COLLECTIVE_LIMIT_S = 20

Case = Callable[[], Any]
_cases: dict[str, dict[str, Case]] = {}


def case(fn: Case) -> Case:
    """Run the function on every rank; what it returns has to be fit for JSON."""
    _cases.setdefault(fn.__module__, {})[fn.__name__] = fn
    return fn


def run_cases(module: str, world_size: int, folder: Path) -> dict[str, list[Any]]:
    """The results of a module's cases: by case, then by rank.

    Raises:
        AssertionError: If a rank did not come back in time, or did not get as far as its cases.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_run_rank, args=(module, rank, world_size, str(folder)))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    ends = time.monotonic() + LIMIT_S
    try:
        for process in processes:
            process.join(max(0.0, ends - time.monotonic()))
    finally:
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            processes[rank].kill()
            processes[rank].join()
    assert not late, f"ranks {late} of {module} were still running after {LIMIT_S} s"
    files = [folder / f"{rank}.json" for rank in range(world_size)]
    missing = [rank for rank, file in enumerate(files) if not file.exists()]
    assert not missing, f"ranks {missing} of {module} ended without a result"
    ranks = [json.loads(file.read_text()) for file in files]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def _run_rank(module: str, rank: int, world_size: int, folder: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(os.path.join(folder, "store"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_LIMIT_S),
    )
    importlib.import_module(module)
    results: dict[str, Any] = {}
    for name, run in _cases[module].items():
        torch.manual_seed(0)
        try:
            results[name] = run()
        except BaseException as error:  # the test that reads this result fails, and says why
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
    file = Path(folder) / f"{rank}.json"
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as written:
        json.dump(results, written)
    os.replace(written.name, file)
    # Destroying the group waits for ranks that may have failed.
    os._exit(0)
