"""Whatever a model is wrapped in, its steps count what they run, and a compiled one stays compiled.

In units of one linear layer's forward; a metered run has three steps, all of which must be right.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks import PLAIN, UNIT, B, Block, D, Net, inputs, metered, phases, step_of
from torch import nn
from torch._dynamo.utils import counters
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from mfu_torch.flops.counter import count_flops

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def graphs_of(step: Step) -> int:
    """Graphs that three steps compile without the meter."""
    counters.clear()
    for _ in range(3):
        step()
    return int(counters["stats"]["unique_graphs"])


def assert_metered(build: Callable[[], nn.Module], expected: dict[str, float]) -> None:
    """Every step of a compiled model has this count, and no other graphs are compiled for it."""
    graphs = graphs_of(step_of(build()))
    torch._dynamo.reset()
    counters.clear()
    model = build()
    assert metered(model, step_of(model)) == [expected] * 3
    assert counters["stats"]["unique_graphs"] == graphs > 0


# --- torch.compile -----------------------------------------------------------------------------


def whole(backend: str, **options: Any) -> nn.Module:
    return torch.compile(Net(), backend=backend, **options)


def regional(backend: str) -> nn.Module:
    net = Net()
    for i, block in enumerate(net.blocks):
        net.blocks[i] = torch.compile(block, backend=backend, fullgraph=True)
    return net


def in_place(backend: str) -> nn.Module:
    net = Net()
    net.compile(backend=backend)
    return net


def regional_in_place(backend: str) -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.compile(backend=backend)
    return net


@pytest.mark.parametrize(
    ("build", "backend"),
    [
        (whole, "eager"),
        (functools.partial(whole, fullgraph=True), "aot_eager"),
        (functools.partial(whole, dynamic=True), "aot_eager"),
        (regional, "aot_eager"),
        (in_place, "aot_eager"),
        (regional_in_place, "inductor"),
        (whole, "inductor"),
    ],
    ids=["whole", "fullgraph", "dynamic", "regional", "in_place", "regional_in_place", "inductor"],
)
def test_a_compiled_model_counts_as_it_does_eagerly(
    build: Callable[[str], nn.Module], backend: str
) -> None:
    assert_metered(lambda: build(backend), PLAIN)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_so_it_does_in_every_mode_of_the_compiler(mode: str) -> None:
    assert_metered(lambda: torch.compile(Net(), mode=mode), PLAIN)


@pytest.mark.parametrize(("use_reentrant", "recomputed"), [(True, 6), (False, 3)])
def test_a_checkpoint_around_compiled_blocks_repeats_them(
    use_reentrant: bool, recomputed: int
) -> None:
    def build() -> nn.Module:
        net = Net(functools.partial(checkpoint, use_reentrant=use_reentrant))
        for block in net.blocks:
            block.compile(backend="aot_eager")
        return net

    assert_metered(build, PLAIN | {"recompute": recomputed})


def test_a_compiled_model_under_autocast_counts_the_dtype_that_it_runs_in() -> None:
    model = torch.compile(Net(), backend="eager")

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs()).float().sum()
        loss.backward()

    assert metered(model, step) == [PLAIN] * 3
    assert count_flops(step).by_dtype == {"bf16": 18 * UNIT}


def test_accumulated_batches_of_a_compiled_model_add_up() -> None:
    model = torch.compile(Net(), backend="eager")

    def step() -> None:
        for _ in range(2):
            step_of(model)()

    assert metered(model, step) == [{"forward": 12, "backward": 24}] * 3


def test_a_compiled_function_that_calls_the_model_is_counted() -> None:
    net = Net()
    loss = torch.compile(lambda x: net(x).sum(), backend="eager")
    assert metered(net, lambda: loss(inputs()).backward()) == [PLAIN] * 3


# --- what else turns a model into another one --------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def scripted() -> nn.Module:
    return torch.jit.script(Two())


def traced() -> nn.Module:
    return torch.jit.trace(Two(), torch.randn(B, D))


def symbolic() -> nn.Module:
    return torch.fx.symbolic_trace(Two())


def exported() -> nn.Module:
    return torch.export.export(Two(), (torch.randn(B, D),)).module()


@pytest.mark.parametrize("build", [scripted, traced, symbolic, exported])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_traced_or_exported_model_counts_its_products(
    build: Callable[[], nn.Module],
) -> None:
    model = build()
    expected = {"forward": 2, "backward": 4}
    assert phases(step_of(model)) == expected
    # A scripted one is optimised after some runs: it counts the same then.
    assert metered(model, step_of(model), steps=5) == [expected] * 5
    assert phases(step_of(model)) == expected


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("torch.cuda.graphs", "CUDAGraph", "replay"),
        ("torch._inductor.package.package", "AOTICompiledModel", "__call__"),
    ],
)
def test_work_that_was_captured_or_packaged_is_reported(
    module: str, name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hasattr(importlib.import_module(module), name)
    captured = type(name, (), {method: lambda self: "ran"})
    monkeypatch.setattr(f"{module}.{name}", captured)
    before, results = vars(captured)[method], []
    counted = phases(lambda: (step_of(Net())(), results.append(getattr(captured(), method)())))
    assert counted == PLAIN | {f"uncounted {name}.{method}": 1}
    assert results == ["ran"]
    assert vars(captured)[method] is before


def test_a_functional_call_counts_as_the_model_does() -> None:
    net = Net()
    parameters = dict(net.named_parameters())
    step = step_of(lambda x: functional_call(net, parameters, (x,)))
    assert metered(net, step) == [PLAIN] * 3


def test_a_shared_layer_counts_at_every_use() -> None:
    layer = nn.Linear(D, D)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    assert metered(model, step_of(model)) == [{"forward": 2, "backward": 4}] * 3


def test_data_parallel_on_one_device_counts_as_the_model_does() -> None:
    model = nn.DataParallel(Net())
    assert metered(model, step_of(model)) == [PLAIN] * 3


@pytest.mark.parametrize("called", ["generator", "judge", "both"])
def test_an_adversarial_step_counts_both_models_whichever_is_given(called: str) -> None:
    generator, judge = Net(), Net()
    both = {"generator": generator, "judge": judge, "both": nn.ModuleList([generator, judge])}

    def step() -> None:
        fake = generator(torch.randn(B, D))
        judge(fake.detach()).sum().backward()
        judge(torch.randn(B, D)).sum().backward()
        judge(fake).sum().backward()

    # Three inputs without a gradient: of the noise, of the detached fake, of the real one.
    assert metered(both[called], step) == [{"forward": 24, "backward": 48 - 3}] * 3


# --- adapters ----------------------------------------------------------------------------------

RANK = 4
THIN = 2 * B * D * RANK / UNIT  # a product with a factor of the adapter
# PEFT builds x (A B)^T's weight norm from the identity: two thin products of 16 rows.
NORM = 2 * 2 * D * D * RANK / UNIT


def adapted(config: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    logging.getLogger("peft").setLevel(logging.ERROR)
    return peft.get_peft_model(Two(), config(peft))


def lora(peft: Any, **options: Any) -> Any:
    return peft.LoraConfig(r=RANK, target_modules=["first", "second"], **options)


def without_input_gradient(model: nn.Module) -> Step:
    return lambda: model(torch.randn(B, D)).sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("config", "forward", "backward"),
    [
        # Frozen weights: dX of the second layer and of its A; dW of A and B, dX of B, of both.
        (lora, 2 + 4 * THIN, 1 + THIN + 2 * 3 * THIN),
        (functools.partial(lora, lora_dropout=0.1), 2 + 4 * THIN, 1 + THIN + 2 * 3 * THIN),
        # The norm of the weight has no gradient.
        (functools.partial(lora, use_dora=True), 2 + 4 * THIN + 2 * NORM, 1 + THIN + 6 * THIN),
        # Scales the outputs: no product but dX of the second layer.
        (lambda peft: peft.IA3Config(target_modules=["first", "second"], feedforward_modules=[]),
         2, 1),
    ],
    ids=["lora", "dropout", "dora", "ia3"],
)  # fmt: skip
def test_an_adapter_counts_its_thin_products_and_no_gradient_of_frozen_weights(
    config: Any, forward: float, backward: float, compiled: bool
) -> None:
    model = adapted(config)
    if compiled:
        model = torch.compile(model, backend="eager")
    counted = metered(model, without_input_gradient(model))
    assert counted == [{"forward": forward, "backward": backward}] * 3


def test_a_merged_adapter_is_the_plain_model_again() -> None:
    model = adapted(lora).merge_and_unload().requires_grad_()
    assert phases(step_of(model)) == {"forward": 2, "backward": 4}


# --- quantised models --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_training_with_fake_quantisation_counts_as_training_without() -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    model = Two().train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    model = quantization.prepare_qat(model)
    assert phases(step_of(model)) == {"forward": 2, "backward": 4}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_a_dynamically_quantised_model_counts_its_products(dtype: torch.dtype) -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    model = quantization.quantize_dynamic(Two(), {nn.Linear}, dtype=dtype)
    with torch.no_grad():
        assert phases(lambda: model(torch.randn(B, D))) == {"forward_no_grad": 2}


# --- tensors of other kinds --------------------------------------------------------------------


class Half(torch.Tensor):
    """Stands for twice as many rows as it has inside, and tells nobody how it is made."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Half:
        rows, columns = inner.shape
        return torch.Tensor._make_wrapper_subclass(cls, (2 * rows, columns), dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*args, **(kwargs or {}))


class OutOfSight(Half):
    """Runs where no dispatch mode looks."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return super().__torch_dispatch__(func, types, args, kwargs)


class Functions(torch.Tensor):
    """Overrides functions, not ops."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_that_runs_its_own_ops_counts_those() -> None:
    half = Half(torch.randn(B, D))  # twice B outside
    assert phases(lambda: half @ torch.randn(D, D)) == {"forward": 1}


def test_one_that_runs_them_out_of_sight_counts_the_op_as_it_was_called() -> None:
    hidden = OutOfSight(torch.randn(B, D))
    assert phases(lambda: hidden @ torch.randn(D, D)) == {"forward": 2}


def test_one_that_overrides_functions_counts_its_products() -> None:
    x = torch.randn(B, D).as_subclass(Functions)
    assert phases(lambda: nn.Linear(D, D)(x).sum().backward()) == {"forward": 1, "backward": 1}


def test_a_jagged_batch_counts_its_real_rows() -> None:
    rows = [torch.randn(n, D) for n in (2, B - 2)]

    def step() -> None:
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        nn.Sequential(Block(), Block(), Block())(jagged).values().sum().backward()

    assert phases(step) == PLAIN
