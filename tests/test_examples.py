"""The examples: short, quick on a CPU, and their FLOPs are closed forms to the digit.

Each runs once, as a user runs it: in a process and a folder of its own. What it prints and the run
file that it leaves are then read. A multiply-add is 2 FLOPs; the backward of a matmul is two of its
size, but for a first layer, whose input needs no gradient. The demo has tests of its own.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from test_readme import blocks_of, without_measured

from mfu_torch import Device, Run, detect_device, read_run
from mfu_torch.figures import run_figures
from mfu_torch.units import bytes_, percent
from mfu_torch.utilization import mbu

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "demo")
NAMES = [path.stem for path in EXAMPLES]

LINES_LIMIT = 60
TIME_LIMIT_S = 60

NEEDS = ("lightning", "transformers", "accelerate", "peft", "datasets", "trl")
"""What an example may need besides torch; where it is not installed its test is skipped."""


class Done(NamedTuple):
    """What an example printed, and the run files that it left, rank 0's first."""

    printed: str
    runs: list[Run]


Runner = Callable[..., Done]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def ran(folder: Path) -> Runner:
    """Runs an example by its name, the first time that it is asked for."""
    return lambda name, *launcher: run_example(folder, name, launcher)


@cache
def run_example(folder: Path, name: str, launcher: tuple[str, ...]) -> Done:
    path = ROOT / "examples" / f"{name}.py"
    for library in NEEDS:
        imported = re.search(rf"^(?:from|import) {library}\b", path.read_text(), re.MULTILINE)
        if imported and importlib.util.find_spec(library) is None:
            pytest.skip(f"{name}.py needs {library}")
    own = folder / "-".join([name, *launcher[-1:]]).replace("/", "_")
    own.mkdir()
    environ = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, *launcher, str(path)],
        cwd=own,
        env={
            **environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "MFU_TORCH_PEAKS": str(peaks_in(folder)),
        },
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    runs = [read_run(found) for found in sorted(own.rglob("run*.jsonl"))]
    return Done(done.stdout, sorted(runs, key=lambda run: run.header.rank))


def peaks_in(folder: Path) -> Path:
    """A peak for this machine's CPU, made up: on a busy machine none can be measured."""
    path = folder / "peaks.toml"
    peaks = 'fp32 = "200 GFLOP/s"\nbf16 = "200 GFLOP/s"\nsource = "made up"\n'
    path.write_text(f'[[device]]\nname = "{detect_device(kind="cpu").name}"\n{peaks}')
    return path


def model_flops(run: Run) -> set[int]:
    """Of the steps."""
    counts = [run.count_of(step) for step in run.steps]
    assert not [count for count in counts if isinstance(count, str)]
    return {count.model for count in counts if not isinstance(count, str)}


# --- all of them ---------------------------------------------------------------------------------


def test_the_examples_are_there() -> None:
    assert {"plain_loop", "recsys_dlrm", "vision_cnn", "ddp", "inference"} <= set(NAMES)


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_the_mfu_that_is_in_its_run_file(name: str, ran: Runner) -> None:
    printed, runs = ran(name)
    run = runs[0]
    now = run_figures(run)
    assert now.steps > 0
    assert now.mfu is not None, now.absent["mfu"]
    assert percent(now.mfu) in printed
    assert run.end is not None and run.end.reason == "completed"


# --- plain_loop ----------------------------------------------------------------------------------


def test_the_plain_loop_counts_both_micro_batches(ran: Runner) -> None:
    printed, (run,) = ran("plain_loop")
    n, d, s, b, v = 2, 128, 128, 16, 64
    forward = n * (24 * b * s * d**2 + 4 * b * s**2 * d) + 2 * b * s * d * v
    assert model_flops(run) == {2 * 3 * forward}
    assert {step.micro_batches for step in run.steps} == {2}
    assert {step.tokens for step in run.steps} == {2 * b * s}
    assert [pause.name for pause in run.pauses if pause.name == "checkpoint"]
    assert loss(printed) < 4.16  # log(64): it learns


def loss(printed: str) -> float:
    found = re.search(r"^loss (\d+\.\d+)", printed, re.MULTILINE)
    assert found is not None
    return float(found[1])


# --- recsys_dlrm ---------------------------------------------------------------------------------


def test_the_flops_of_the_dlrm_are_those_of_its_mlps_and_dot_products(ran: Runner) -> None:
    printed, (run,) = ran("recsys_dlrm")
    b, vectors, width = 1024, 9, 32
    first = 2 * b * 13 * 128
    bottom = first + 2 * b * (128 * 64 + 64 * 32)
    dots = 2 * b * vectors * vectors * width
    top = 2 * b * ((32 + 36) * 128 + 128 * 64 + 64 * 1)
    assert model_flops(run) == {3 * (bottom + dots + top) - first}
    assert loss(printed) < 0.69


def test_the_report_of_the_dlrm_says_where_the_time_went(ran: Runner) -> None:
    printed, (run,) = ran("recsys_dlrm")
    assert {tuple(step.phases) for step in run.steps} == {
        ("look-ups", "MLPs", "backward", "optimizer")
    }
    assert all(step.data_wait_s is not None for step in run.steps)
    line = r"^phases +look-ups .+ %, MLPs .+ %, backward .+ %, optimizer .+ % of the step time$"
    assert re.search(line, printed, re.MULTILINE)
    assert re.search(r"^data wait +\S+ % of the step time$", printed, re.MULTILINE)
    shares = run_figures(run).phases
    assert shares["MLPs"] < shares["look-ups"] + shares["optimizer"]  # where there are no FLOPs


# --- vision_cnn ----------------------------------------------------------------------------------


def test_the_flops_of_the_cnn_are_those_of_its_convolutions(ran: Runner) -> None:
    _, (run,) = ran("vision_cnn")
    b = 64

    def convolution(side: int, kernel: int, into: int, out: int) -> int:
        return 2 * b * side**2 * kernel**2 * into * out  # `side` of the output

    def block(side: int, into: int, out: int) -> int:
        first, second = convolution(side, 3, into, out), convolution(side, 3, out, out)
        return first + second + convolution(side, 1, into, out)

    stem = convolution(32, 3, 3, 16)
    forward = stem + block(16, 16, 32) + block(8, 32, 64) + 2 * b * 64 * 10
    assert model_flops(run) == {3 * forward - stem}


def test_the_cnn_is_validated_in_pauses_and_learns(ran: Runner) -> None:
    printed, (run,) = ran("vision_cnn")
    assert [pause.after_step for pause in run.pauses if pause.name == "eval"] == [20, 40]
    right = [int(share) for share in re.findall(r"^epoch \d: (\d+)% of", printed, re.MULTILINE)]
    assert right[1] > 50  # 10 by chance


# --- ddp -----------------------------------------------------------------------------------------

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

WIDTH, HIDDEN = 256, 1024
LAYERS = (WIDTH * HIDDEN, HIDDEN * HIDDEN, HIDDEN * WIDTH)
OF_A_RANK = 2 * 256 * (3 * sum(LAYERS) - WIDTH * HIDDEN)


def test_the_data_parallel_example_runs_alone(ran: Runner) -> None:
    printed, (run,) = ran("ddp")
    assert model_flops(run) == {OF_A_RANK}
    assert len(list(run.steps)) == 80
    assert printed.splitlines()[-1].startswith("rank 0: MFU ")


def test_under_torchrun_every_rank_measures_its_own_device(ran: Runner) -> None:
    printed, runs = ran("ddp", *TORCHRUN)
    assert [(run.header.rank, run.header.world_size) for run in runs] == [(0, 2), (1, 2)]
    for run in runs:
        assert model_flops(run) == {OF_A_RANK}
        assert len(list(run.steps)) == 40  # half of the batches each
    assert [line[:12] for line in printed.splitlines()[-2:]] == ["rank 0: MFU ", "rank 1: MFU "]


# --- inference -----------------------------------------------------------------------------------

BATCH, DEPTH, D, KV, MLP, VOCABULARY, LENGTH = 4, 6, 512, 2 * 64, 1408, 4096, 64 + 64
MATRICES = DEPTH * (2 * D * D + 2 * D * KV + 3 * D * MLP) + D * VOCABULARY


def test_a_generated_token_is_a_forward_through_weights_and_cache(ran: Runner) -> None:
    _, (run,) = ran("inference")
    attention = DEPTH * 4 * BATCH * LENGTH * D  # scores, and values by them, 8 heads of 64
    assert model_flops(run) == {2 * BATCH * MATRICES + attention}
    count = run.count_of(next(run.steps))
    assert not isinstance(count, str) and count.backward == 0
    assert {step.tokens for step in run.steps} == {BATCH}


def test_mbu_is_weights_and_cache_over_what_the_memory_could_deliver(ran: Runner) -> None:
    printed, (run,) = ran("inference")
    norms = (2 * DEPTH + 1) * D
    kept_bytes = 4 * (MATRICES + norms + DEPTH * 2 * BATCH * KV * LENGTH)
    line = r"MBU (\d+\.\d+) %: (.+) a step,\nof (\d+\.\d+) GB/s \(measured: a copy of 128 MiB, "
    found = re.search(line, printed)
    assert found is not None
    assert found[2] == bytes_(kept_bytes)
    step_s = run_figures(run).step_s
    assert step_s is not None
    share = mbu(kept_bytes, step_s, float(found[3]) * 1e9)
    assert float(found[1]) / 100 == pytest.approx(share, rel=0.02)  # the rate has 3 digits


def test_the_bandwidth_of_a_known_gpu_is_that_of_its_data_sheet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    source = ast.parse((ROOT / "examples" / "inference.py").read_text(encoding="utf-8"))
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    source.body = [node for node in source.body if isinstance(node, kept)]
    namespace: dict[str, Any] = {}
    exec(compile(source, "inference.py", "exec"), namespace)
    h200 = Device(name="NVIDIA H200", kind="cuda", index=0)
    namespace["detect_device"] = lambda kind: h200
    assert namespace["bandwidth"](torch.device("cuda")) == (4.8e12, "datasheet")


# --- docs/examples.md ----------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Of docs/examples.md, by example."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\w+)\.py$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def comparable(text: str) -> list[str]:
    """Its lines, without what is measured."""
    text = re.sub(r"\d+\.\d+ GB/s", "<bandwidth>", without_measured(text))
    return text.splitlines()


def test_every_example_has_a_section_and_a_row() -> None:
    assert sorted(sections()) == sorted([*NAMES, "demo"])
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for name in sections():
        assert f"| [{name}.py](#{name}py) |" in page


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_that_the_documentation_shows_are_printed(name: str, ran: Runner) -> None:
    printed, _ = ran(name, *(TORCHRUN if name == "ddp" else ()))
    shown = [line for block in blocks_of(sections()[name]) for line in comparable(block.text)]
    assert shown
    there = comparable(printed)
    assert [line for line in shown if line not in there] == []


def test_the_lightning_example_counts_both_micro_batches(ran: Runner) -> None:
    _, (run,) = ran("lightning_fit")
    tokens, d, s, v, layers = 2 * 16 * 64, 128, 64, 256, 2
    forward = layers * (24 * tokens * d**2 + 4 * tokens * s * d) + 2 * tokens * d * v
    assert model_flops(run) == {3 * forward}
    assert {step.tokens for step in run.steps} == {tokens}
