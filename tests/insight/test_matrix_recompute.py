"""Which ops inside a backward repeat a forward."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from matmuls import analysed, times_of
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from trace_builder import TraceBuilder

from mfu_torch import count_flops
from mfu_torch.insight.breakdown.explain import explain

NODE = "autograd::engine::evaluate_function: "
SIZES = [[1000, 1000], [1000, 1000]]
TYPES = ["c10::BFloat16"] * 3


def _nested(names: list[str]) -> TraceBuilder:
    """One 2 GFLOP product in these ops, the outermost first; the innermost launches it."""
    trace = TraceBuilder()
    for depth, name in enumerate(names):
        dims = [[1000], *SIZES] if name == "aten::addmm" else SIZES
        known = name.startswith("aten::")
        trace.op(
            name,
            *(100 + 10 * depth, 1000 - 20 * depth),
            thread=2,
            dims=dims if known else None,
            types=TYPES if known else None,
        )
    trace.kernel("sm90_xmma_gemm", 10_000, 10_000, launch_ns=400, thread=2)
    return trace


@pytest.mark.parametrize(
    "names",
    [
        [NODE + "ReluBackward0", "ReluBackward0", "aten::linear", "aten::addmm"],
        [NODE + "ReluBackward0", "ReluBackward0", "aten::matmul", "aten::mm"],
        [NODE + "MulBackward0", "MulBackward0", "aten::addmm"],
        [NODE + "RMSNormFnBackward", "RMSNormFnBackward", "aten::linear", "aten::mm"],
        ["CheckpointFunctionBackward", "aten::mm"],
        [NODE + "ReluBackward0", "ReluBackward0", "aten::mm"],
        [NODE + "NativeLayerNormBackward0", "NativeLayerNormBackward0", "aten::mm"],
        ["AddmmBackward", "aten::linear", "aten::addmm"],  # torch 1.8 has no numbers
    ],
)
def test_a_forward_in_a_backward_is_recompute(names: list[str], tmp_path: Path) -> None:
    times = times_of(analysed(_nested(names), tmp_path))
    assert times == {"matrix/recompute": 2021, "matrix/below_peak": 7979}


@pytest.mark.parametrize(
    "names",
    [
        ["aten::linear", "aten::addmm"],
        [NODE + "AddmmBackward0", "AddmmBackward0", "aten::mm"],
        [NODE + "MyReluBackward", "MyReluBackward", "aten::mm"],
        [NODE + "MyLinearBackward", "MyLinearBackward", "aten::matmul", "aten::mm"],
        [NODE + "LinalgSolveExBackward0", "LinalgSolveExBackward0", "aten::matmul", "aten::mm"],
        # the nested backward of a checkpoint
        ["CheckpointFunctionBackward", NODE + "AddmmBackward0", "AddmmBackward0", "aten::mm"],
        ["Adam.step#linear", "aten::mm"],
    ],
)
def test_what_a_backward_multiplies_itself_is_no_recompute(
    names: list[str], tmp_path: Path
) -> None:
    times = times_of(analysed(_nested(names), tmp_path))
    assert times == {"matrix/model_flops": 2021, "matrix/below_peak": 7979}


def test_the_fifth_product_of_an_attention_backward_is_recompute(tmp_path: Path) -> None:
    trace = TraceBuilder()
    q = [1, 1000, 1, 100]  # b, s, h, d: 1e6 pairs
    dims = [q, q, q, q, q, [1, 1, 1000], [], [], [], [], [], [], [], []]
    types = [*["c10::BFloat16"] * 5, "float", *[""] * 2, *["Scalar"] * 4, "", ""]
    concrete = [*[""] * 8, "1000", "1000", "0.", "False", "", ""]
    name = "aten::_flash_attention_backward"
    trace.op(NODE + "X0", 0, 900)
    trace.op(name, 100, 500, dims=dims, types=types, concrete=concrete)
    trace.kernel("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 10_000, 10_000, launch_ns=200)
    found = analysed(trace, tmp_path)
    assert found.breakdown.model_flops == 8 * 10**8  # 4 products of 2 * 1e6 * 100
    assert found.breakdown.hardware_flops == 10**9
    # 0.8 and 0.2 GFLOP at 989.4 TFLOP/s
    assert times_of(found)["matrix/model_flops"] == 809
    assert times_of(found)["matrix/recompute"] == 202


def test_a_compiled_backward_says_that_its_recompute_cannot_be_told(tmp_path: Path) -> None:
    names = [NODE + "CompiledFunctionBackward", "CompiledFunctionBackward", "aten::mm"]
    found = analysed(_nested(names), tmp_path).breakdown
    assert found.model_flops == found.hardware_flops == 2 * 10**9
    assert any("torch.compile made" in note for note in found.notes)


class Block(nn.Module):
    """A transformer block of 16 channels, its attention fused or by plain products."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.fused = nn.LayerNorm(16), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 8, 3, 4, 4).permute(2, 0, 3, 1, 4)
        if self.fused:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            heads = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return x + F.gelu(self.out(heads.transpose(1, 2).reshape(2, 8, 16)))


class Experts(nn.Module):
    """Products that are called as bmm, behind a router."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.router = nn.Parameter(torch.randn(2, 16, 16)), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(self.router(x), self.weight))


class Convolution(nn.Module):
    """Over the features as if they were a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)))


LAYERS = {
    "fused attention": lambda: Block(fused=True),
    "plain attention": lambda: Block(fused=False),
    "experts": Experts,
    "convolution": Convolution,
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reentrant", [True, False, None])
def test_a_step_of_torch_has_the_model_flops_of_its_count(
    name: str, reentrant: bool | None, tmp_path: Path
) -> None:
    layers = [LAYERS[name](), LAYERS[name]()]
    x = torch.randn(2, 8, 16, requires_grad=True)

    def step() -> None:
        y = x
        for layer in layers:
            y = layer(y) if reentrant is None else checkpoint(layer, y, use_reentrant=reentrant)
        y.sum().backward()

    count = count_flops(step)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = explain(tmp_path / "trace.json")
    assert found.model_flops == count.model
    # Recomputing stops in the op that saves the last tensor: a record without its work.
    assert found.hardware_flops == count.hardware


@pytest.mark.parametrize("saved", [(), (torch.ops.aten.addmm.default,)])
def test_what_selective_checkpointing_saved_is_not_computed_again(
    saved: tuple[torch._ops.OpOverload, ...], tmp_path: Path
) -> None:
    layer, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), torch.randn(8, 16)
    contexts = partial(create_selective_checkpoint_contexts, list(saved))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        checkpoint(layer, x, use_reentrant=False, context_fn=contexts).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = explain(tmp_path / "trace.json")
    # Forward two products of 8 x 16 x 32; backward two weights and one input.
    each = 2 * 8 * 16 * 32
    assert found.model_flops == 5 * each
    # The first is computed again where nothing is saved; recomputing stops in the second.
    assert found.hardware_flops == (5 if saved else 6) * each
