"""The Lightning callback on several processes: each rank keeps its file, rank 0 logs."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_models import BATCH_FLOPS, PACKAGES, flops_of_steps, module, package, rows, trainer

from mfu_torch import read_run
from mfu_torch.figures import run_figures
from mfu_torch.integrations.lightning import MFUCallback

LIMIT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written, with each strategy."""
    where = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("lightning_ranks.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(program), str(where)],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    # Rank 0 says one line per fit, the other one nothing.
    assert done.stdout.count("mfu_torch: MFU 50.0 % steady-state") == 2
    assert done.stdout.count("mfu_torch:") == 2
    return where


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_each_rank_has_a_file_and_counts_its_own_batches(folder: Path, strategy: str) -> None:
    (logs,) = (folder / strategy).rglob("metrics.csv")
    assert sorted(path.name for path in logs.parent.glob("run*")) == [
        "run.jsonl",
        "run.rank1.jsonl",
    ]
    for rank, mfu in ((0, 0.5), (1, 1.0)):
        run = read_run(logs.with_name("run.rank1.jsonl" if rank else "run.jsonl"))
        assert (run.header.rank, run.header.world_size) == (rank, 2)
        # 16 batches, 8 on each rank, 2 in each step.
        assert flops_of_steps(run) == [2 * BATCH_FLOPS] * 4
        assert {step.samples for step in run.steps} == {16}
        assert run_figures(run).mfu == mfu
        assert run.end is not None and run.end.reason == "completed"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_rank_0_alone_logs(folder: Path, strategy: str) -> None:
    (logs,) = (folder / strategy).rglob("metrics.csv")
    with logs.open() as file:
        table = list(csv.DictReader(file))
    assert [(row["step"], row["mfu/mfu"]) for row in table] == [("1", "0.5"), ("3", "0.5")]


def test_lightnings_fsdp_strategy_wants_a_gpu(tmp_path: Path) -> None:
    """So it is tested below, on one."""
    with pytest.raises(Exception, match="GPU accelerator"):
        trainer(package(PACKAGES[0]), tmp_path, MFUCallback(), strategy="fsdp")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_fsdp_on_a_gpu_is_counted_and_waits_no_more_than_without(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = package(PACKAGES[0])
    waits: list[str] = []
    for owner, name in (
        (torch.cuda, "synchronize"),
        (torch.cuda.Event, "synchronize"),
        (torch.cuda.Stream, "synchronize"),
        (torch.Tensor, "item"),
    ):
        original = getattr(owner, name)

        def counted(*args: Any, of: Any = original, called: str = name, **kwargs: Any) -> Any:
            waits.append(called)
            return of(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    def fit(*callbacks: MFUCallback) -> list[str]:
        waits.clear()
        options: dict[str, Any] = {"accelerator": "gpu", "strategy": "fsdp"}
        made = trainer(pl, tmp_path, *callbacks, precision=precision, **options)
        during: list[str] = []

        def on_train_end(self: Any) -> None:  # closing waits for the device, once
            during.extend(waits)

        made.fit(module(pl, on_train_end=on_train_end), rows(12))
        return sorted(during)

    fit()  # what torch does once
    without = fit()
    assert fit(MFUCallback(peak=1e12, log_every=4)) == without
    assert flops_of_steps(read_run(tmp_path)) == [BATCH_FLOPS] * 12
