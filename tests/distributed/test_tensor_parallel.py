"""Tensor parallelism on two ranks: each counts the shapes that it works on, on every call alike.

In units of one rank's share of a layer, 16 x 64 on 8 rows with half of the 64, so that a block of
two layers is 2 forward and 4 backward. Its first layer's input needs a gradient, for the norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from counted import counted, every_way, metered
from ranks import case, run_cases
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

B, D, RANKS = 8, 16, 2
UNIT = 2 * B * D * 4 * D // RANKS
PLAIN = {"forward": 2, "backward": 4}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Heads of 16, two for each rank, on 2 sequences of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, 4 * D) for _ in range(3))
        self.out = nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, 16)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def mesh() -> Any:
    return init_device_mesh("cpu", (distributed.get_world_size(),))


def sharded() -> nn.Module:
    return parallelize_module(Block(), mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})


def step_of(model: Callable[..., torch.Tensor], *shape: int) -> Callable[[], None]:
    def step() -> None:
        x = torch.randn(*(shape or (B, D)), requires_grad=True)
        model(x).sum().backward()

    return step


@case
def columns_and_rows() -> Any:
    model = sharded()
    return every_way(step_of(model), UNIT, model)


@case
def metered_from_the_first_call() -> Any:
    model = sharded()
    return every_way(step_of(model), UNIT, model, metered_first=True)


@case
def sequence_parallel() -> Any:
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    model = parallelize_module(Block(), mesh(), plan)
    return every_way(step_of(model), UNIT, model)


@case
def checkpointed() -> Any:
    model = sharded()
    return every_way(step_of(lambda x: checkpoint(model, x, use_reentrant=False)), UNIT, model)


@case
def compiled() -> Any:
    torch._dynamo.reset()
    model = torch.compile(sharded(), backend="aot_eager")
    return every_way(step_of(model), UNIT, model)


@case
def compiled_and_metered_from_the_first_call() -> Any:
    torch._dynamo.reset()
    model = torch.compile(sharded(), backend="aot_eager")
    return metered(model, step_of(model), UNIT)


@case
def attention_by_heads() -> Any:
    plan = {name: ColwiseParallel() for name in "qkv"} | {"out": RowwiseParallel()}
    model = parallelize_module(Attention(), mesh(), plan)
    return every_way(step_of(model, 2, B // 2, D), UNIT, model)


@case
def head_with_its_loss_sharded() -> Any:
    model = nn.Sequential(nn.Embedding(4 * D, D), nn.Linear(D, 4 * D))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh(), plan)
    ids = torch.randint(0, 4 * D, (B,))

    def step() -> None:
        with loss_parallel():
            F.cross_entropy(model(ids), ids).backward()

    return every_way(step, UNIT, model)


@case
def products() -> Any:
    here, found = mesh(), []
    a, b = torch.randn(B, D, requires_grad=True), torch.randn(D, 4 * D, requires_grad=True)

    def product(left: Placement, right: Placement) -> torch.Tensor:
        return distribute_tensor(a, here, [left]) @ distribute_tensor(b, here, [right])

    for left, right in (
        (Shard(0), Replicate()),
        (Replicate(), Shard(1)),
        (Shard(1), Shard(0)),
        (Replicate(), Replicate()),
    ):
        for _ in range(2):
            step = lambda: product(left, right).square().sum().backward()  # noqa: B023, E731
            found.append(counted(step, UNIT))
    return found


@case
def collectives() -> Any:
    x, world = torch.randn(4, 4), distributed.group.WORLD

    def step() -> None:
        distributed.all_reduce(x)
        distributed.broadcast(x, 0)
        distributed.all_gather([torch.empty(4, 4) for _ in range(RANKS)], x)
        distributed.all_gather_into_tensor(torch.empty(4 * RANKS, 4), x)
        distributed.reduce_scatter_tensor(torch.empty(4 // RANKS, 4), x.clone())
        distributed.all_to_all_single(torch.empty(4, 4), x)
        distributed.all_reduce(x, async_op=True).wait()
        functional.all_reduce(x, "sum", world)
        functional.all_gather_tensor(x, 0, world)
        functional.reduce_scatter_tensor(x, "sum", 0, world)
        distributed.all_gather_object([None] * RANKS, {"rank": distributed.get_rank()})
        (distributed.send if distributed.get_rank() == 0 else distributed.recv)(
            x, 1 - distributed.get_rank()
        )
        distributed.barrier()
        x @ x

    return counted(step, 2 * 4**3)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_cases(__name__, RANKS, tmp_path_factory.mktemp("tensor_parallel"))


@pytest.mark.parametrize(
    "name", ["columns_and_rows", "metered_from_the_first_call", "sequence_parallel", "compiled"]
)
def test_a_rank_counts_its_share_on_the_first_call_and_on_later_ones(
    counts: dict[str, list[Any]], name: str
) -> None:
    assert counts[name] == [[PLAIN] * 5] * RANKS


def test_a_compiled_sharded_model_is_counted_through_a_step_that_runs_eagerly(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["compiled_and_metered_from_the_first_call"] == [[PLAIN] * 3] * RANKS


def test_a_checkpoint_of_a_sharded_block_repeats_its_first_layer(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["checkpointed"] == [[PLAIN | {"recompute": 1}] * 5] * RANKS


def test_attention_counts_the_heads_of_its_rank(counts: dict[str, list[Any]]) -> None:
    product = 2 * 2 * (4 * 4) * 16 * 2 / UNIT  # sequences, scores, width of a head, heads
    forward = 4 + 2 * product
    expected = {"forward": forward, "backward": 2 * forward, "kernel_recompute": product}
    assert counts["attention_by_heads"] == [[expected] * 5] * RANKS


def test_a_head_with_its_loss_counts_the_vocabulary_of_its_rank(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["head_with_its_loss_sharded"] == [[{"forward": 1, "backward": 2}] * 5] * RANKS


def test_a_product_of_sharded_tensors_counts_what_is_on_the_rank(
    counts: dict[str, list[Any]],
) -> None:
    half, whole = {"forward": 1, "backward": 2}, {"forward": 2, "backward": 4}
    # Of partial sums torch squares the whole sum, so the gradient of it is whole, too: with one
    # operand sharded both products of the backward are halves.
    assert counts["products"] == [[half, half, half, half, half, half, whole, whole]] * RANKS


def test_collectives_are_neither_counted_nor_suspected(counts: dict[str, list[Any]]) -> None:
    assert counts["collectives"] == [{"forward": 1}] * RANKS
