"""Sharding along two dimensions on four ranks, in units of one rank's share of a layer.

A layer is 16 x 64 on 8 rows; with tensor parallelism a rank has half of the 64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from counted import every_way
from ranks import case, run_cases
from test_tensor_parallel import UNIT, Block, step_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

RANKS = 4
PLAIN = {"forward": 4, "backward": 8}  # of two blocks


def mesh(*names: str) -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def sharded_twice() -> nn.Module:
    here = mesh("dp", "tp")
    model = nn.Sequential(Block(), Block())
    for block in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, here["tp"], plan)
        fully_shard(block, mesh=here["dp"])
    return fully_shard(model, mesh=here["dp"])


@case
def fsdp2_and_tp() -> Any:
    model = sharded_twice()
    return every_way(step_of(model), UNIT, model)


@case
def fsdp2_and_tp_metered_from_the_first_call() -> Any:
    model = sharded_twice()
    return every_way(step_of(model), UNIT, model, metered_first=True)


@case
def fsdp2_and_tp_trained() -> Any:
    model = sharded_twice()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        step_of(model)()
        optimizer.step()

    return every_way(step, UNIT, model)


@case
def fsdp2_and_tp_compiled() -> Any:
    torch._dynamo.reset()
    model = torch.compile(sharded_twice(), backend="aot_eager")
    return every_way(step_of(model), UNIT, model)


@case
def fsdp2_and_tp_checkpointed() -> Any:
    model = sharded_twice()

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    return every_way(step_of(forward), UNIT, model)


@case
def fsdp2_with_replicas() -> Any:
    here = mesh("replicas", "shards")
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block, mesh=here)
    return every_way(step_of(fully_shard(model, mesh=here)), 2 * UNIT, model)


@case
def fsdp1_with_replicas() -> Any:
    model = FullyShardedDataParallel(
        nn.Sequential(Block(), Block()),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=mesh("replicas", "shards"),
        device_id=torch.device("cpu"),
    )
    return every_way(step_of(model), 2 * UNIT, model)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_cases(__name__, RANKS, tmp_path_factory.mktemp("mesh"))


@pytest.mark.parametrize(
    "name",
    [
        "fsdp2_and_tp",
        "fsdp2_and_tp_metered_from_the_first_call",
        "fsdp2_and_tp_trained",
        "fsdp2_and_tp_compiled",
        "fsdp2_with_replicas",
        "fsdp1_with_replicas",
    ],
)
def test_a_rank_counts_its_share_of_a_doubly_sharded_model(
    counts: dict[str, list[Any]], name: str
) -> None:
    assert counts[name] == [[PLAIN] * 5] * RANKS


def test_a_checkpoint_of_a_doubly_sharded_block_repeats_its_first_layer(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["fsdp2_and_tp_checkpointed"] == [[PLAIN | {"recompute": 2}] * 5] * RANKS
