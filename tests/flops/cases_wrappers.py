"""The same work under what training loops put around a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from cases import Work, work
from cases_phases import UNIT, B, D, layers, x
from torch import distributed, nn

from mfu_torch.flops.shadow import shadow_count


def _train(model: nn.Module, batch: torch.Tensor) -> None:
    model(batch).float().sum().backward()


def _two_layers(model: nn.Module) -> Work:
    return Work(lambda: _train(model, x()), forward=2 * UNIT, backward=3 * UNIT)


@work
def autocast_to_bf16() -> Work:
    model = layers(2)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x())
        out.float().sum().backward()

    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def gradient_scaler() -> Work:
    model = layers(2)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")

    def run() -> None:
        scaler.scale(model(x()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def four_accumulated_batches() -> Work:
    model = layers(2)

    def run() -> None:
        for _ in range(4):
            _train(model, x())

    return Work(run, forward=4 * 2 * UNIT, backward=4 * 3 * UNIT)


@work
def compiled_model_run_eagerly() -> Work:
    return _two_layers(torch.compile(layers(2), backend="eager", fullgraph=True))


@work
def compiled_model_by_its_shadow() -> Work:
    model, batch = torch.compile(layers(2), backend="eager"), x()
    return _two_layers(model)._replace(count=lambda: shadow_count(model, (batch,), {}))


@work
def model_compiled_in_place() -> Work:
    model = layers(2)
    model.compile(backend="eager")
    return _two_layers(model)


@work
def one_compiled_block() -> Work:
    model = layers(2)
    model[1] = torch.compile(model[1], backend="eager")
    return _two_layers(model)


@work
def traced_by_torch_jit() -> Work:
    return _two_layers(torch.jit.trace(layers(2), x()))


@work
def activations_kept_on_the_host() -> Work:
    model = layers(2)

    def run() -> None:
        with torch.autograd.graph.save_on_cpu():
            _train(model, x())

    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def data_parallel_without_a_gpu() -> Work:
    # It calls the module itself. With several GPUs its replicas run in threads of their own.
    return _two_layers(nn.DataParallel(layers(2)))


@work
def forward_in_another_thread() -> Work:
    # A dispatch mode belongs to its thread. Nothing is counted, and the count says so.
    model = layers(2)

    def run() -> None:
        thread = threading.Thread(target=model, args=(x(),))
        thread.start()
        thread.join()

    return Work(run, forward=2 * UNIT, unknown="no contraction was seen")


@contextmanager
def one_process() -> Iterator[None]:
    """A process group of its own, if there is none yet."""
    if distributed.is_initialized():
        yield
        return
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@work
def distributed_data_parallel() -> Work:
    def run() -> None:
        with one_process():
            _train(nn.parallel.DistributedDataParallel(layers(2)), x())

    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def fully_sharded() -> Work:
    from torch.distributed.fsdp import fully_shard

    def run() -> None:
        with one_process():
            mesh = distributed.init_device_mesh("cpu", (1,))
            model = layers(2)
            for layer in model:
                fully_shard(layer, mesh=mesh)
            _train(fully_shard(model, mesh=mesh), x())

    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def first_step_of_a_pipeline() -> Work:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def run() -> None:
        with one_process():
            stage = PipelineStage(layers(2), 0, 1, torch.device("cpu"))
            schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: out.sum())
            schedule.step(x(), target=x())

    # Two micro-batches of half the batch, and before them one of these forward only: the first
    # step finds out the shapes that are sent.
    return Work(run, forward=(2 + 1) * UNIT, backward=3 * UNIT)


@work
def tensor_parallel() -> Work:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module as parallelize

    def run() -> None:
        with one_process():
            mesh = distributed.init_device_mesh("cpu", (1,))
            plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            _train(parallelize(layers(2), mesh, plan), x())

    # One process has all of it; with more, each counts its own shard.
    return Work(run, forward=2 * UNIT, backward=3 * UNIT)


@work
def generation_with_a_cache() -> Work:
    from transformer_models import llama

    case = llama("sdpa", layers=2)
    prompt, new, vocab = 7, 3, 1000
    b, d, ffn, d_kv, layers = 2, 64, 176, 16, 2
    per_token = 2 * b * (2 * d * d + 2 * d * d_kv + 3 * d * ffn)
    head = 2 * b * d * vocab  # of the last position only
    flops = layers * (prompt * per_token + 4 * b * prompt**2 * d) + head
    for seen in range(prompt + 1, prompt + new):  # one query each, and all keys so far
        flops += layers * (per_token + 4 * b * seen * d) + head

    def run() -> None:
        case.model.eval().generate(
            case.batch[0][:, :prompt], max_new_tokens=new, do_sample=False, use_cache=True,
            eos_token_id=-1, attention_mask=torch.ones(b, prompt, dtype=torch.int64),
        )  # fmt: skip

    return Work(run, forward_no_grad=flops)


@work
def custom_op_without_a_formula() -> Work:
    multiply = _library().opaque_mm
    name = "cases_of_mfu_torch.opaque_mm"
    return Work(lambda: multiply(x(), torch.ones(D, D)), forward=UNIT, unknown=name)


@work
def hidden_in_numpy() -> Work:
    # No op of torch runs: nothing can see it.
    def run() -> None:
        torch.from_numpy(x().numpy() @ torch.ones(D, D).numpy())

    return Work(run, forward=2 * B * D * D, unknown="no contraction was seen")


def _library() -> object:
    if not hasattr(torch.ops.cases_of_mfu_torch, "opaque_mm"):

        @torch.library.custom_op("cases_of_mfu_torch::opaque_mm", mutates_args=())
        def opaque_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(a.numpy() @ b.numpy())

    return torch.ops.cases_of_mfu_torch
