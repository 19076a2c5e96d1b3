"""An op that is not run again on the meta device gives what torch itself gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mfu_torch.flops import meta_results
from mfu_torch.flops.counter import FlopCounter, count_flops

Tensor = torch.Tensor


def meta(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def metadata(tensor: Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), storage


@pytest.fixture
def made_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The tensors that were made without running their op."""
    made: list[Tensor] = []
    make = meta_results.Metadata.tensor

    def recorded(self: meta_results.Metadata) -> Tensor:
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(meta_results.Metadata, "tensor", recorded)
    yield made


half, whole = torch.bfloat16, torch.int64

CALLS: dict[str, Callable[[], Tensor]] = {
    "broadcast": lambda: meta(4, 1, 3) + meta(5, 1),
    "promoted by dtype": lambda: meta(4, dtype=half) * meta(4),
    "promoted by an int": lambda: meta(4, dtype=whole) * 1,
    "promoted by a float": lambda: meta(4, dtype=whole) * 1.0,
    "promoted by a bool": lambda: meta(4, dtype=torch.bool) * True,
    "promoted, without dimensions": lambda: meta(4, dtype=half) * meta(),
    "integers divided": lambda: meta(4, dtype=whole) / meta(4, dtype=whole),
    "permuted": lambda: meta(2, 3, 4).permute(2, 0, 1) * 2,
    "expanded": lambda: meta(2, 1).expand(2, 5).sin(),
    "strided": lambda: meta(8, 8)[::2, 1::3].exp(),
    "channels last": lambda: meta(2, 3, 4, 5).to(memory_format=torch.channels_last).relu(),
    "complex": lambda: meta(3, dtype=torch.complex64).conj() * meta(3),
    "sum": lambda: meta(2, 3, 4).sum((0, 2), keepdim=True),
    "sum of booleans": lambda: meta(2, 3, dtype=torch.bool).sum(),
    "mean": lambda: meta(2, 3, dtype=half).mean(-1, dtype=torch.float32),
    "concatenated": lambda: torch.cat([meta(2, 3), meta(4, 3, dtype=half)]),
    "softmax": lambda: meta(2, 3, dtype=half).softmax(-1),
    "compared": lambda: meta(4) > 0,
    "chosen": lambda: torch.where(meta(4, 1, dtype=torch.bool), meta(3), 0.0),
    "empty": lambda: meta(0, 3) + 1,
}

ALWAYS_RUN = {"complex", "chosen"}  # a conjugate may be pending; the 0.0 is a tensor on the CPU


def test_a_repeated_op_has_the_metadata_of_torch(made_again: list[Tensor]) -> None:
    expected = {name: metadata(call()) for name, call in CALLS.items()}
    with FlopCounter() as counter:
        first = {name: metadata(call()) for name, call in CALLS.items()}
        kept = len(made_again)  # one each, to see that it can be made at all
        again = {name: metadata(call()) for name, call in CALLS.items()}
    assert first == again == expected
    assert kept == len(made_again) - kept == len(CALLS) - len(ALWAYS_RUN)
    assert counter.take().hardware == 0


def test_equal_ops_share_no_memory() -> None:
    def two_results() -> None:
        x = meta(4)
        one, other = x + 1, x + 1
        assert one.untyped_storage()._cdata != other.untyped_storage()._cdata

    count_flops(two_results)


def test_the_elements_of_a_repeated_op_are_counted_again() -> None:
    def three_times() -> None:
        for _ in range(3):
            meta(4, 5).exp()

    assert count_flops(three_times).elementwise == 3 * 20


def test_gradients_reach_the_leaves_through_repeated_ops() -> None:
    x = meta(4, 5).requires_grad_()
    count_flops(lambda: ((x * 2) * 2 * 2).sum().backward())
    assert x.grad is not None
    assert metadata(x.grad) == metadata(x)


def test_in_place_and_real_ops_run_each_time(made_again: list[Tensor]) -> None:
    real, shell = torch.ones(4), meta(4)
    with FlopCounter():
        for _ in range(3):
            assert real.add_(1) is real
            assert shell.add_(1) is shell
            assert (real * 2).tolist() == [2 * x for x in real.tolist()]
    assert made_again == []


def test_a_changed_default_dtype_is_heeded() -> None:
    def divided() -> torch.dtype:
        return (meta(2, dtype=whole) / meta(2, dtype=whole)).dtype

    default = torch.get_default_dtype()
    with FlopCounter():
        seen = [divided(), divided()]
        torch.set_default_dtype(torch.float64)
        try:
            seen.append(divided())
        finally:
            torch.set_default_dtype(default)
    assert seen == [torch.float32, torch.float32, torch.float64]


class Seeing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_caller_sees_every_op() -> None:
    x, seeing = meta(4), Seeing()
    with seeing, FlopCounter():
        for _ in range(3):
            x.exp()
    assert seeing.ops == 3 * ["aten.exp.default"]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_results, "MOST", 2)
    x = meta(4)
    with FlopCounter() as counter:
        shapes = [(x + scalar).shape for scalar in (1, 2, 3, 4, 1)]
    assert shapes == 5 * [(4,)]
    assert len(counter._meta_results._known) == 2
