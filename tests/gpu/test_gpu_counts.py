"""Counting on a real GPU: the closed forms hold whichever kernels and threads run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch
from small_gpt import AGAIN, FORWARD, FORWARD_CAUSAL, small_gpt, train
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from mfu_torch import count_flops

pytestmark = pytest.mark.gpu

PLAIN = [name for name, build in models.ZOO.items() if build.__module__ == "models"]

FUSED = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
]


def has_tf32() -> bool:
    return torch.cuda.get_device_capability() >= (8, 0)


@pytest.fixture(autouse=True)
def fp32_settings_as_they_were() -> Iterator[None]:
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    yield
    for switch, allowed in zip(switches, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_model_counts_on_a_gpu_what_its_closed_form_says(name: str) -> None:
    torch.manual_seed(0)
    case = models.ZOO[name]()
    model, batch = case.model.cuda(), [x.cuda() for x in case.batch]
    assert count_flops(models.forward, model, *batch).forward == case.forward
    step = count_flops(models.train, model, *batch)
    assert step.model == case.step
    assert step.uncounted == {}


@pytest.mark.parametrize("backend", FUSED, ids=lambda backend: backend.name)
def test_bf16_gpt2_is_the_closed_form_with_every_fused_attention_kernel(
    backend: SDPBackend,
) -> None:
    model, ids = small_gpt()
    with sdpa_kernel(backend):
        try:
            train(model, ids)
        except RuntimeError as error:
            pytest.skip(f"{backend.name} does not run here: {str(error).splitlines()[0]}")
        count = count_flops(train, model, ids)
    assert count.forward == FORWARD
    assert count.backward == 2 * FORWARD
    assert count.model == 3 * FORWARD
    assert count.model_causal == 3 * FORWARD_CAUSAL
    assert count.hardware - count.model == count.kernel_recompute == AGAIN
    assert count.by_dtype == {"bf16": 3 * FORWARD + AGAIN}
    assert (count.uncounted, count.notes) == ({}, ())


def test_bf16_gpt2_is_the_closed_form_with_attention_made_of_matmuls() -> None:
    model, ids = small_gpt()
    with sdpa_kernel(SDPBackend.MATH):
        count = count_flops(train, model, ids)
    assert (count.forward, count.backward) == (FORWARD, 2 * FORWARD)
    assert count.hardware == count.model  # the scores are kept: nothing is computed again
    # By default this path computes the attention of bf16 inputs in fp32, and its dtype is that in
    # which its products really run. The linear layers are 2*201,326,592 + 33,554,432, three times.
    linear = 3 * 436_207_616
    assert count.by_dtype["bf16"] in (linear, 3 * FORWARD)
    assert sum(count.by_dtype.values()) == 3 * FORWARD


@pytest.mark.parametrize("multithreading", [True, False])
def test_the_backward_is_counted_on_whichever_thread_autograd_runs_it(multithreading: bool) -> None:
    threads = []
    model, ids = small_gpt()
    model.blocks.register_full_backward_hook(lambda *_: threads.append(threading.get_ident()))
    with torch.autograd.set_multithreading_enabled(multithreading):
        count = count_flops(train, model, ids)
    (thread,) = threads
    assert (thread != threading.get_ident()) is multithreading
    assert (count.forward, count.backward) == (FORWARD, 2 * FORWARD)
    assert count.recompute == count.optimizer == count.forward_no_grad == 0


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_on_the_device_thread_is_told_from_the_backward(use_reentrant: bool) -> None:
    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # It ends in an activation that needs its input, so that all of it is computed again.
            self.inner = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU()
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    model = Checkpointed().cuda()
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    count = count_flops(lambda: model(x).sum().backward())
    each = 2 * 16 * 64 * 64
    # The reentrant kind runs its first pass without gradients.
    assert count.forward + count.forward_no_grad == 2 * each
    assert count.backward == 4 * each
    assert count.recompute == 2 * each
    assert count.hardware - count.model == 2 * each


def test_contractions_of_the_optimizer_are_told_from_the_backward_before_it() -> None:
    class Orthogonal(torch.optim.SGD):
        """One product of each matrix with itself, as in Muon."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad @ p.grad.T @ p.grad, alpha=-1e-3)

    model = torch.nn.Linear(64, 64, bias=False).cuda()
    optimizer = Orthogonal(model.parameters(), lr=0.1)
    x = torch.randn(16, 64, device="cuda")

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    count = count_flops(step)
    assert (count.forward, count.backward) == (2 * 16 * 64 * 64, 2 * 16 * 64 * 64)
    assert count.optimizer == 2 * 2 * 64 * 64 * 64


# --- the dtype that really runs -----------------------------------------------------------------


@pytest.mark.parametrize("allowed", [True, False])
def test_fp32_matmuls_are_tf32_where_the_switch_allows_it(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    model, ids = small_gpt()
    with sdpa_kernel(SDPBackend.MATH):
        count = count_flops(train, model, ids, None)
    assert count.by_dtype == {"tf32" if allowed and has_tf32() else "fp32": 3 * FORWARD}


@pytest.mark.parametrize("allowed", [True, False])
def test_fp32_convolutions_have_a_switch_of_their_own(allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = not allowed
    conv = torch.nn.Conv2d(3, 8, 3, padding=1).cuda()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    count = count_flops(lambda: conv(x).sum().backward())
    # 2 * 2*16*16 positions * 8*3*3*3 weights, forward and for dW
    assert count.by_dtype == {"tf32" if allowed and has_tf32() else "fp32": 2 * 221_184}


@pytest.mark.parametrize("allowed", [True, False])
def test_a_cudnn_lstm_is_its_closed_form_in_the_dtype_of_its_switch(allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    lstm = torch.nn.LSTM(64, 128, num_layers=2, batch_first=True).cuda()
    x = torch.randn(4, 16, 64, device="cuda")
    count = count_flops(lambda: lstm(x)[0].sum().backward())
    # 4*16 positions meet (4*128, 64), (4*128, 128) and twice (4*128, 128) more:
    # 2*64 * 512*(64 + 128 + 128 + 128)
    assert count.forward == 29_360_128
    # As many for the weights; for the data without the gradient of x, 2*64 * 512*64.
    assert count.backward == 2 * 29_360_128 - 4_194_304
    assert count.by_dtype == {"tf32" if allowed and has_tf32() else "fp32": count.model}
    assert any("_cudnn_rnn" in op for op in count.by_op)


def test_a_bidirectional_cudnn_lstm_with_an_input_that_needs_a_gradient() -> None:
    lstm = torch.nn.LSTM(64, 128, bidirectional=True).cuda()
    x = torch.randn(16, 4, 64, device="cuda", requires_grad=True)
    count = count_flops(lambda: lstm(x)[0].sum().backward())
    assert count.forward == 2 * 64 * 2 * 512 * (64 + 128)
    assert count.backward == 2 * count.forward
