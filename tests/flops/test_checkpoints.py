"""What is computed a second time is recompute, whoever computes it: torch or a library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks import PLAIN, UNIT, B, Block, D, Net, Product, inputs, phases, step_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from mfu_torch.flops.counter import count_flops

# --- of libraries, each rewritten in short -----------------------------------------------------


class OfDeepSpeed(torch.autograd.Function):
    """Its backward calls the module, and the engine once more."""

    @staticmethod
    def forward(ctx: Any, fn: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.fn = fn
        ctx.save_for_backward(x)
        with torch.no_grad():
            return fn(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class OfMegatron(torch.autograd.Function):
    """Repeats what was random, too."""

    @staticmethod
    def forward(ctx: Any, fn: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.fn, ctx.rng = fn, torch.get_rng_state()
        with torch.no_grad():
            y = fn(x)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        state = torch.get_rng_state()
        torch.set_rng_state(ctx.rng)
        with torch.enable_grad():
            y = ctx.fn(x)
        torch.set_rng_state(state)
        torch.autograd.backward((y,), (gradient,))
        return None, x.grad


class OfUnsloth(torch.autograd.Function):
    """Keeps the input on another device meanwhile."""

    @staticmethod
    def forward(ctx: Any, fn: Any, x: torch.Tensor) -> torch.Tensor:
        saved = x.to("cpu", non_blocking=True)
        with torch.no_grad():
            y = fn(x)
        ctx.save_for_backward(saved)
        ctx.fn = fn
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = ctx.fn(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


def of_fairscale(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Passes the forward itself, so that no module is called in the backward."""
    return OfDeepSpeed.apply(block.forward, x)


# --- of torch ----------------------------------------------------------------------------------


def nested(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    return checkpoint(inner, x, use_reentrant=False)


def to_the_end(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return checkpoint(block, x, use_reentrant=False)


def selective(saved: Callable[[int], bool]) -> Callable[..., torch.Tensor]:
    """Save the addmm calls of a block for whose position ``saved`` holds."""

    def context() -> Any:
        seen = {False: 0, True: 0}

        def policy(ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            if op is not torch.ops.aten.addmm.default:
                return CheckpointPolicy.PREFER_RECOMPUTE
            position = seen[ctx.is_recompute]
            seen[ctx.is_recompute] += 1
            must_save = saved(position)
            return CheckpointPolicy.MUST_SAVE if must_save else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return functools.partial(checkpoint, use_reentrant=False, context_fn=context)


reentrant = functools.partial(checkpoint, use_reentrant=True)
non_reentrant = functools.partial(checkpoint, use_reentrant=False)


@pytest.mark.parametrize(
    ("run", "recomputed"),
    [
        (reentrant, 6),
        # Stops with the last tensor that is needed: the second layer of a block is not run again.
        (non_reentrant, 3),
        (to_the_end, 6),
        (nested, 3),
        (selective(lambda position: True), 0),
        (selective(lambda position: position == 0), 0),
        (selective(lambda position: position == 1), 3),
        (OfDeepSpeed.apply, 6),
        (OfMegatron.apply, 6),
        (OfUnsloth.apply, 6),
        (of_fairscale, 6),
    ],
    ids=["reentrant", "early_stop", "no_early_stop", "nested", "save_all", "save_first",
         "save_second", "deepspeed", "megatron", "unsloth", "fairscale"],
)  # fmt: skip
def test_what_a_checkpoint_repeats_is_recompute(
    run: Callable[..., torch.Tensor], recomputed: int
) -> None:
    expected = PLAIN | ({"recompute": recomputed} if recomputed else {})
    assert phases(step_of(Net(run))) == expected


@pytest.mark.parametrize(
    ("wrap", "recomputed"),
    [
        (functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT), 6),
        (functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT), 3),
        (offload_wrapper, 0),
    ],
    ids=["reentrant", "non_reentrant", "offload"],
)
def test_a_wrapper_of_blocks_counts_what_it_repeats(
    wrap: Callable[[nn.Module], nn.Module], recomputed: int
) -> None:
    net = Net()
    for i, block in enumerate(net.blocks):
        net.blocks[i] = wrap(block)
    expected = PLAIN | ({"recompute": recomputed} if recomputed else {})
    assert phases(step_of(net)) == expected


@pytest.mark.parametrize(("use_reentrant", "recomputed"), [(True, 4), (False, 3)])
def test_the_last_segment_of_a_sequence_is_not_repeated(
    use_reentrant: bool, recomputed: int
) -> None:
    model = nn.Sequential(*[Block() for _ in range(4)])

    def forward(x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant)

    expected = {"forward": 8, "backward": 16, "recompute": recomputed}
    assert phases(step_of(forward)) == expected


@pytest.mark.parametrize(
    ("run", "recomputed"),
    [(reentrant, 2), (non_reentrant, 1), (OfDeepSpeed.apply, 2), (OfMegatron.apply, 2)],
)
def test_a_function_that_is_no_module_is_repeated_alike(
    run: Callable[..., torch.Tensor], recomputed: int
) -> None:
    a, b = (torch.randn(D, D, requires_grad=True) for _ in range(2))
    step = step_of(lambda x: run(lambda x: torch.tanh(x @ a) @ b, x))
    assert phases(step) == {"forward": 2, "backward": 4, "recompute": recomputed}


@pytest.mark.parametrize("run", [reentrant, non_reentrant])
def test_an_autograd_function_is_repeated_by_a_checkpoint(
    run: Callable[..., torch.Tensor],
) -> None:
    w = torch.randn(D, D, requires_grad=True)
    step = step_of(lambda x: run(lambda x: Product.apply(Product.apply(x, w), w), x))
    assert phases(step) == {"forward": 2, "recompute": 2, "backward": 4}


@pytest.mark.parametrize("run", [reentrant, non_reentrant, OfDeepSpeed.apply])
def test_a_teacher_inside_a_checkpoint_is_repeated_with_it(
    run: Callable[..., torch.Tensor],
) -> None:
    teacher, student = nn.Linear(D, D), nn.Linear(D, D)

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = teacher(x)
            return (student(x) - target).square()

    counted = phases(step_of(lambda x: run(Both(), x)))
    first = "forward" if run is not non_reentrant else "forward_no_grad"  # no_grad all over
    without = {"forward": 2} if first == "forward" else {"forward": 1, "forward_no_grad": 1}
    assert counted == without | {"recompute": 2, "backward": 2}


@pytest.mark.parametrize("use_reentrant", [None, False])
def test_a_backward_whose_graph_is_kept_is_no_recompute(use_reentrant: bool | None) -> None:
    net = Net(None if use_reentrant is None else non_reentrant)

    def step() -> None:
        loss = net(inputs()).pow(2).sum()
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        sum(g.pow(2).sum() for g in gradients).backward()

    expected = {"forward": 6, "backward": 45}
    # Early stop does not apply: the first backward needs the whole block's graph.
    assert phases(step) == expected | ({} if use_reentrant is None else {"recompute": 6})


def test_attention_inside_a_checkpoint_is_recomputed_and_repeated() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)

    def step() -> None:
        attention = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, q)
        checkpoint(attention, q, use_reentrant=False).sum().backward()

    count = count_flops(step)
    product = 2 * 2 * 8 * 8 * 4
    assert (count.recompute, count.kernel_recompute) == (2 * product, product)
    assert count.model == 6 * product


# --- without a checkpoint ----------------------------------------------------------------------


class Reversible(torch.autograd.Function):
    """Keeps its output only, and computes its input from it: a module runs without gradients."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        y = torch.cat([left + module(right), right], dim=-1)
        ctx.module = module
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        left, right = ctx.saved_tensors[0].chunk(2, dim=-1)
        left = left - ctx.module(right)  # what the input was
        with torch.enable_grad():
            right = right.detach().requires_grad_()
            ctx.module(right).backward(gradient.chunk(2, dim=-1)[0])
        return None, torch.cat([gradient.chunk(2, dim=-1)[0], right.grad], dim=-1)


def test_a_reversible_layer_recomputes_what_it_did_not_keep() -> None:
    layer = nn.Linear(D, D)
    x = torch.randn(B, 2 * D, requires_grad=True)
    step = phases(lambda: Reversible.apply(layer, x).sum().backward())
    assert step == {"forward": 1, "recompute": 2, "backward": 2}


class Repeating(torch.autograd.Function):
    """Multiplies again in its backward, with gradients off: that looks like a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        slope = gradient * (1 - torch.tanh(x @ w).square())
        return slope @ w.T, x.T @ slope


def test_what_a_function_hides_in_its_backward_is_said() -> None:
    w = torch.randn(D, D, requires_grad=True)
    step = step_of(lambda x: Repeating.apply(x, w))
    counted = phases(step, "at least 33% of the backward of the autograd.Function Repeating")
    assert counted == {"forward": 1, "backward": 3}
    step = step_of(lambda x: Product.apply(x, w))
    assert phases(step) == {"forward": 1, "backward": 2}


def test_a_function_whose_backward_cannot_be_split_says_so() -> None:
    w = torch.randn(D, D, requires_grad=True)

    def step() -> None:
        torch.autograd.grad(Product.apply(inputs(), w).sum(), [w], create_graph=True)

    expected = {"forward": 1, "backward": 2}
    assert phases(step, "what the backward of the autograd.Function Product recompute") == expected


def test_transformers_repeats_its_layers_and_not_its_head() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=D, intermediate_size=2 * D, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, vocab_size=3 * D, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    tokens, length = B, B // 2
    layer = 4 + 3 * 2 + 2 * 2 * tokens * length * D / UNIT  # q k v o, the MLP, scores and values
    last = 2  # the layer's last product, D wide to 2 D: early stop leaves it out
    ids = torch.randint(0, 3 * D, (2, length))
    for use_reentrant, recomputed in ((True, 2 * layer), (False, 2 * (layer - last))):
        model = transformers.LlamaForCausalLM(config).train()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.enable_input_require_grads()  # a reentrant checkpoint needs it
        forward = 2 * layer + 3
        counted = phases(functools.partial(_train, model, ids), "plain products")
        assert counted == {"forward": forward, "backward": 2 * forward, "recompute": recomputed}


def _train(model: Any, ids: torch.Tensor) -> None:
    model(input_ids=ids, labels=ids).loss.backward()
