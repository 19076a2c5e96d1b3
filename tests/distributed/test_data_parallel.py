"""Data-parallel training: every rank counts the work of its own batch, and no collective.

The model is two blocks of two linear layers, 16 x 64 and 64 x 16 on 8 rows, so in units of one
layer's forward a step is 4 forward and, as the input needs no gradient, 7 backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from counted import every_way
from ranks import case, run_cases
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

B, D = 8, 16
UNIT = 2 * B * D * 4 * D
PLAIN = {"forward": 4, "backward": 7}
# Muon, 5 Newton-Schulz steps for each matrix X of 16 x 64: X X^T, its square, and a product with X.
# The 64 x 16 weights are sharded along what is summed over in the first: the square is whole.
MUON_UP = 2 * 16 * 32 * 16 + 2 * 16 * 16 * 16 + 2 * 16 * 16 * 32
# The 16 x 64 weights are sharded along their rows, so each rank has half of every product.
MUON_DOWN = 2 * 8 * 64 * 16 + 2 * 8 * 16 * 16 + 2 * 8 * 16 * 64
MUON = 2 * 5 * (MUON_UP + MUON_DOWN) / UNIT


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """With a layer that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks()
        self.unused = nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def blocks() -> nn.Sequential:
    return nn.Sequential(Block(), Block())


def step_of(model: nn.Module, optimizer: Any = None) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(torch.randn(B, D)).sum().backward()
        if optimizer is not None:
            optimizer.step()

    return step


def of(model: nn.Module, optimizer: Any = None) -> list[Any]:
    return every_way(step_of(model, optimizer), UNIT, model)


# --- DistributedDataParallel -----------------------------------------------------------------


@case
def ddp() -> Any:
    return of(DistributedDataParallel(blocks()))


@case
def ddp_find_unused() -> Any:
    return of(DistributedDataParallel(Model(), find_unused_parameters=True))


@case
def ddp_static_graph() -> Any:
    return of(DistributedDataParallel(Model(), static_graph=True))


@case
def ddp_bucket_view() -> Any:
    return of(DistributedDataParallel(blocks(), gradient_as_bucket_view=True))


@case
def ddp_accumulation() -> Any:
    model = DistributedDataParallel(blocks())

    def step() -> None:
        with model.no_sync():
            for _ in range(2):
                model(torch.randn(B, D)).sum().backward()
        model(torch.randn(B, D)).sum().backward()

    return every_way(step, UNIT, model)


@case
def ddp_fp16_hook() -> Any:
    model = DistributedDataParallel(blocks())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return of(model)


@case
def ddp_zero_optimizer() -> Any:
    model = DistributedDataParallel(blocks())
    return of(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))


@case
def ddp_of_a_compiled_model() -> Any:
    torch._dynamo.reset()
    model = torch.compile(Model(), backend="aot_eager")
    return of(DistributedDataParallel(model, find_unused_parameters=True))


@case
def ddp_compiled() -> Any:
    torch._dynamo.reset()
    return of(torch.compile(DistributedDataParallel(blocks()), backend="aot_eager"))


@case
def ddp_power_sgd() -> Any:
    model = DistributedDataParallel(blocks())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):  # it starts later, and DDP makes its buckets anew after the first step
        step_of(model)()
    return of(model)


# --- FullyShardedDataParallel ----------------------------------------------------------------


def fsdp(model: nn.Module, **options: Any) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


@case
def fsdp_full() -> Any:
    return of(fsdp(blocks(), sharding_strategy=ShardingStrategy.FULL_SHARD))


@case
def fsdp_grad_op() -> Any:
    return of(fsdp(blocks(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))


@case
def fsdp_no_shard() -> Any:
    return of(fsdp(blocks(), sharding_strategy=ShardingStrategy.NO_SHARD))


@case
def fsdp_original_parameters() -> Any:
    return of(fsdp(blocks(), use_orig_params=True))


@case
def fsdp_nested() -> Any:
    return of(fsdp(nn.Sequential(*[fsdp(block) for block in blocks()])))


@case
def fsdp_mixed_precision() -> Any:
    return of(fsdp(blocks(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)))


# --- fully_shard -----------------------------------------------------------------------------


def fsdp2(model: nn.Sequential, **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@case
def fsdp2_resharding() -> Any:
    return of(fsdp2(blocks(), reshard_after_forward=True))


@case
def fsdp2_keeping() -> Any:
    return of(fsdp2(blocks(), reshard_after_forward=False))


@case
def fsdp2_mixed_precision() -> Any:
    return of(fsdp2(blocks(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))


@case
def fsdp2_checkpointed() -> Any:
    model = blocks()
    for i, block in enumerate(model):
        model[i] = checkpoint_wrapper(block)
    return of(fsdp2(model))


@case
def fsdp2_muon() -> Any:
    model = fsdp2(blocks())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    return of(model, torch.optim.Muon(matrices) if hasattr(torch.optim, "Muon") else None)


@case
def fsdp2_compiled() -> Any:
    torch._dynamo.reset()
    return of(torch.compile(fsdp2(blocks()), backend="aot_eager"))


@case
def fsdp2_of_compiled_blocks() -> Any:
    torch._dynamo.reset()
    model = blocks()
    for block in model:
        block.compile(backend="aot_eager")
    return of(fsdp2(model))


# --- what they counted -----------------------------------------------------------------------

SHARED = [
    "ddp",
    "ddp_find_unused",
    "ddp_static_graph",
    "ddp_bucket_view",
    "ddp_fp16_hook",
    "ddp_zero_optimizer",
    "ddp_of_a_compiled_model",
    "ddp_compiled",
    "fsdp_full",
    "fsdp_grad_op",
    "fsdp_no_shard",
    "fsdp_original_parameters",
    "fsdp_nested",
    "fsdp_mixed_precision",
    "fsdp2_resharding",
    "fsdp2_keeping",
    "fsdp2_mixed_precision",
    "fsdp2_compiled",
    "fsdp2_of_compiled_blocks",
]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_cases(__name__, 2, tmp_path_factory.mktemp("data_parallel"))


@pytest.mark.parametrize("name", SHARED)
def test_every_rank_counts_the_work_of_its_own_batch(
    counts: dict[str, list[Any]], name: str
) -> None:
    assert counts[name] == [[PLAIN] * 5] * 2


def test_accumulated_batches_add_up(counts: dict[str, list[Any]]) -> None:
    assert counts["ddp_accumulation"] == [[{"forward": 12, "backward": 21}] * 5] * 2


def test_a_checkpoint_of_a_sharded_block_repeats_its_first_layer(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["fsdp2_checkpointed"] == [[PLAIN | {"recompute": 2}] * 5] * 2


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_an_optimizer_of_sharded_matrices_counts_the_share_of_its_rank(
    counts: dict[str, list[Any]],
) -> None:
    assert counts["fsdp2_muon"] == [[PLAIN | {"optimizer": MUON}] * 5] * 2


def test_gradient_compression_is_no_backward_and_is_said_to_be_seen_in_part(
    counts: dict[str, list[Any]],
) -> None:
    for rank in counts["ddp_power_sgd"]:
        for count in rank:
            assert {phase: count[phase] for phase in PLAIN} == PLAIN
            assert count["optimizer"] > 0
        assert any("gradient compression" in note for note in rank[0]["notes"])
