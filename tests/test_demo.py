"""The demo: its FLOPs are the closed form to the digit, and a short run of it ends as promised.

For a GPT-2 of L layers, width d and vocabulary V on (B, S) tokens, a multiply-add being 2 FLOPs::

    queries, keys, values   (B*S, d) @ (d, 3d)           2 * B*S * d * 3d    =  6 B S d^2
    scores                  (B, H, S, d/H) @ (.., S)     2 * B*H * S*S * d/H =  2 B S^2 d
    scores @ values         (B, H, S, S) @ (.., d/H)                            2 B S^2 d
    projection              (B*S, d) @ (d, d)                                   2 B S d^2
    MLP, up and down        (B*S, d) @ (d, 4d), (4d, d)  2 * 2 * B*S * d * 4d = 16 B S d^2
    head, tied              (B*S, d) @ (d, V)                                   2 B S d V

    forward  = L (24 B S d^2 + 4 B S^2 d) + 2 B S d V;  look-ups of embeddings are 0
    training = 3 x forward: the backward of each matmul is two of its size

A fused attention kernel computes the scores once more in its backward: L * 2 B S^2 d FLOPs that are
hardware work only. A causal mask keeps S (S + 1) / 2 of the S^2 pairs of each head.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mfu_torch import count_flops, read_run
from mfu_torch.flops.counter import FlopCounter

pytest.importorskip("transformers", reason="the demo needs transformers")

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "examples" / "demo.py"


class Sizes(NamedTuple):
    """Of a GPT-2 and its batch."""

    layers: int
    width: int
    seq: int
    batch: int
    vocabulary: int = 256

    def forward(self, pairs: int | None = None) -> int:
        """FLOPs of the forward with so many query-key pairs a head; by default all S^2."""
        n, d, s, b, v = self
        pairs = s * s if pairs is None else pairs
        return n * (24 * b * s * d**2 + 4 * b * pairs * d) + 2 * b * s * d * v

    def kept(self) -> int:
        return self.seq * (self.seq + 1) // 2

    def again(self) -> int:
        n, d, s, b, _ = self
        return n * 2 * b * s * s * d


CPU = Sizes(layers=4, width=256, seq=256, batch=8)
GPU = Sizes(layers=12, width=768, seq=1024, batch=32)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Captured(Exception):
    """Ends the demo where it would begin to train."""

    def __init__(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        self.model, self.batch = model, batch


class CapturingMeter:
    """Takes the model and the first batch that the demo gives to its meter."""

    def __init__(self, model: torch.nn.Module, **_: Any) -> None:
        self.model = model

    def __enter__(self) -> CapturingMeter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def data(self, loader: Any) -> None:
        (ids,) = next(iter(loader))
        raise Captured(self.model, ids)


@pytest.fixture(scope="module")
def own(demo: ModuleType) -> Captured:
    """The model and the batch that the demo itself builds on a machine without a GPU."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Captured) as caught:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(demo, "Meter", CapturingMeter)
        patch.setattr(sys, "argv", ["demo.py"])
        demo.main()
    return caught.value


def gpt2(sizes: Sizes) -> torch.nn.Module:
    """As the demo builds it, of another size."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=sizes.vocabulary, n_positions=sizes.seq, n_layer=sizes.layers,
        n_embd=sizes.width, n_head=max(1, sizes.width // 64),
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def train(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def evaluate(model: torch.nn.Module, ids: torch.Tensor) -> None:
    with torch.no_grad():
        model(input_ids=ids, labels=ids, use_cache=False)


# --- the FLOPs ----------------------------------------------------------------------------------


def test_the_demo_trains_the_model_that_its_closed_form_is_written_for(own: Captured) -> None:
    config = own.model.config
    built = Sizes(config.n_layer, config.n_embd, own.batch.shape[1], len(own.batch))
    assert built == CPU and config.vocab_size == CPU.vocabulary
    assert own.model.lm_head.weight is own.model.transformer.wte.weight
    assert own.batch.dtype == torch.long and int(own.batch.max()) < 256


def test_the_forward_of_the_demo_is_the_closed_form_to_the_digit(own: Captured) -> None:
    count = count_flops(evaluate, own.model, own.batch)
    # 4 * (24*8*256*256^2 + 4*8*256^2*256) + 2*8*256*256*256
    #   = 4 * (3,221,225,472 + 536,870,912) + 268,435,456
    assert CPU.forward() == 15_300_820_992
    assert count.forward_no_grad == count.model == count.hardware == 15_300_820_992
    # 256*257/2 = 32,896 of 65,536 pairs: 4 * (3,221,225,472 + 4*8*32,896*256) + 268,435,456
    assert CPU.forward(pairs=32_896) == 14_231_273_472
    assert count.model_causal == 14_231_273_472
    assert count.uncounted == {}


def test_a_training_step_of_the_demo_is_three_times_its_forward_to_the_digit(own: Captured) -> None:
    count = count_flops(train, own.model, own.batch)
    assert count.forward == 15_300_820_992
    assert count.backward == 30_601_641_984
    assert count.model == 45_902_462_976
    assert count.model_causal == 3 * 14_231_273_472
    # The scores once more: 4 * 2*8*256*256*256
    assert count.hardware - count.model == count.kernel_recompute == CPU.again() == 1_073_741_824
    # 4 * 2*8*32,896*256
    assert count.hardware_causal - count.model_causal == 538_968_064
    assert count.recompute == count.optimizer == count.forward_no_grad == 0
    assert count.by_dtype == {"fp32": 46_976_204_800}
    assert count.uncounted == {}


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(layers=1, width=64, seq=16, batch=1, vocabulary=32),
        Sizes(layers=3, width=128, seq=33, batch=2, vocabulary=50),
        Sizes(layers=2, width=192, seq=7, batch=5, vocabulary=257),
    ],
    ids=str,
)
def test_the_closed_form_holds_at_other_sizes(sizes: Sizes) -> None:
    ids = torch.randint(sizes.vocabulary, (sizes.batch, sizes.seq))
    count = count_flops(train, gpt2(sizes), ids)
    assert count.forward == sizes.forward()
    assert count.model == 3 * sizes.forward()
    assert count.model_causal == 3 * sizes.forward(pairs=sizes.kept())
    assert count.hardware - count.model == sizes.again()


def test_the_closed_form_holds_at_the_sizes_that_the_demo_has_on_a_gpu() -> None:
    with FakeTensorMode() as fake_mode:
        model = gpt2(GPU)
        ids = torch.zeros(GPU.batch, GPU.seq, dtype=torch.long)
        with FlopCounter(fake_mode=fake_mode) as counter:
            train(model, ids)
    count = counter.take()
    # 12 * (24*32*1024*768^2 + 4*32*1024^2*768) + 2*32*1024*768*256
    #   = 12 * (463,856,467,968 + 103,079,215,104) + 12,884,901,888
    assert GPU.forward() == 6_816_113_098_752
    assert count.forward == 6_816_113_098_752
    assert count.model == 3 * 6_816_113_098_752
    # 12 * 2*32*1024^2*768
    assert count.hardware - count.model == 618_475_290_624


# --- a short run --------------------------------------------------------------------------------


class Short(NamedTuple):
    """What a run of 12 steps has printed and left behind."""

    lines: list[str]
    folder: Path


# Other work on the machine can spoil the measurement of the peak, which is then refused: here it is
# made up, and takes a while.
MEASURING_S = 0.25
RUNNER = f"""
import runpy, sys, time
import mfu_torch.peak.resolve
from mfu_torch import Peak

def measured(device, dtype, **_):
    time.sleep({MEASURING_S})
    source = f"{{dtype}} matmul 512x512x512 on 2 threads, torch 2.6.0, best of 31"
    return Peak(flops_per_s=1e12, dtype=dtype, source=source, provenance="measured")

mfu_torch.peak.resolve.measured_peak = measured
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Short]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(DEMO), "--steps", "12", "--log-dir", str(folder)],
        cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield Short(done.stdout.splitlines(), folder)


def test_the_demo_prints_a_line_per_window_and_none_is_wider_than_100_columns(
    short: Short,
) -> None:
    windows = [line for line in short.lines if re.match(r"step +\d+  ", line)]
    assert [int(line.split()[1]) for line in windows] == [10, 12]  # every ten steps, and the rest
    for line in windows:
        assert re.search(r"/step  MFU \d.* %  HFU \d.* %  .*FLOP/s  .* tok/s  data wait .* %", line)
    # The command at the end has a path in it that is as long as it is.
    assert max(len(line) for line in short.lines if "--logdir" not in line) <= 100


def test_the_run_file_of_the_demo_holds_the_pauses_and_the_counted_steps(short: Short) -> None:
    run = read_run(short.folder)
    assert run.end is not None and run.end.reason == "completed"
    steps = list(run.steps)
    assert [step.index for step in steps] == list(range(12))
    assert {(step.tokens, step.samples, step.micro_batches) for step in steps} == {(2048, 8, 1)}
    assert [step.index for step in steps if step.excluded] == [0, 9, 10]  # counted, and again
    pauses = [(pause.name, pause.after_step) for pause in run.pauses if pause.name != "init"]
    assert pauses == [
        ("peak", 1), ("eval", 6), ("checkpoint", 6), ("eval", 12), ("checkpoint", 12),
        ("finish", 12),
    ]  # fmt: skip
    (peak,) = [pause for pause in run.pauses if pause.name == "peak"]
    assert peak.duration_s >= MEASURING_S
    assert all(pause.duration_s > 0 for pause in run.pauses)
    (entry,) = run.counts.values()  # the forwards of the evaluation are not among them
    assert entry.count is not None and entry.count.model == 45_902_462_976


def test_the_demo_leaves_a_checkpoint_and_an_event_file(short: Short, demo: ModuleType) -> None:
    state = torch.load(short.folder / "checkpoint.pt", weights_only=True)
    assert state["transformer.wte.weight"].shape == (256, 256)
    assert [path.name for path in short.folder.glob("events.out.tfevents.*")]


def test_the_report_of_the_demo_says_how_its_numbers_came_about(short: Short) -> None:
    report = "\n".join(short.lines)
    headline = re.search(
        r"MFU +([\d.]+) % steady-state, ([\d.]+) % end-to-end +\(attention full; causal: ([\d.]+)",
        report,
    )
    assert headline is not None
    steady, end_to_end, causal = map(float, headline.groups())
    assert end_to_end < steady  # evaluations and checkpoints take time
    # causal / full = 3*14,231,273,472 / 45,902,462,976 = 0.9301
    assert causal == pytest.approx(0.9301 * steady, abs=0.11)  # both are rounded to 0.1
    assert "model FLOPs                     45.9 GFLOP   (attention causal: 42.7 GFLOP)" in report
    assert "how                             counted on step 0 as it trained" in report
    assert "not counted                     nothing" in report
    assert re.search(r"fp32 +[\d.]+ .?FLOP/s, measured: fp32 matmul", report)
    assert "Where the wall time went" in report
    for name in ("peak (1)", "eval (2)", "checkpoint (2)"):
        assert f"pause: {name}" in report


def test_the_demo_ends_with_the_command_that_shows_its_curves(short: Short) -> None:
    command = Path(sys.executable).with_name("tensorboard")
    assert command.is_file()
    assert (
        short.lines[-1] == f"The curves: {command} --logdir {short.folder.name}"
    )  # run in its parent


def test_the_loss_on_held_out_text_is_finite_and_goes_down(short: Short) -> None:
    found = [re.match(r"step (\d+): (\S+) bits per byte", line) for line in short.lines]
    losses = {int(match[1]): float(match[2]) for match in found if match}
    # Before training it is that of a uniform guess, 8 bits. Data, weights and order are fixed, and
    # the sixth of these updates is far from where rounding could decide.
    assert list(losses) == [6, 12]
    assert all(math.isfinite(loss) for loss in losses.values())
    assert losses[12] < losses[6] < 8.0
