"""What of a call's inputs its key shows, and that what it cannot show is marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mfu_torch.flops.shapes import inside
from mfu_torch.flops.shapes.signature import (
    autocast_in_force,
    hides_shapes,
    leaves_of,
    shapes_of,
    signature,
    template,
    values_in,
    without_values,
)


def key(value: Any) -> Any:
    return signature((value,), {})


def x(rows: int) -> torch.Tensor:
    return torch.empty(rows, 16)


@dataclasses.dataclass(slots=True)
class Batch:
    x: torch.Tensor


@dataclasses.dataclass(slots=True)
class Masked(Batch):
    mask: torch.Tensor


class Private:
    __slots__ = "__x"  # one name, not a sequence of them

    def __init__(self, x: torch.Tensor) -> None:
        self.__x = x


class Half:
    __slots__ = ("__dict__", "unset", "x")

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


@pytest.mark.parametrize(
    "build",
    [
        Batch,
        Private,
        lambda x: Masked(x, torch.empty(3)),
        lambda x: Masked(torch.empty(3), x),
        lambda x: Half(x, torch.empty(3)),
        lambda x: Half(torch.empty(3), x),
        lambda x: [Batch(x)],
    ],
)
def test_what_an_object_holds_is_seen_in_its_dict_and_in_its_slots(build: Any) -> None:
    assert key(build(x(4))) != key(build(x(8)))
    assert key(build(x(4))) == key(build(x(4)))
    assert template(key(build(x(4))))[0] == template(key(build(x(8))))[0]
    assert not hides_shapes(key(build(x(4))), announced=True)


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def test_containers_are_searched_to_a_depth_beyond_which_shapes_are_unseen() -> None:
    assert key(nested(x(4), 19)) != key(nested(x(8), 19))
    deep = key(nested(x(4), 20))
    assert deep == key(nested(x(8), 20))
    assert hides_shapes(deep, announced=False)
    assert hides_shapes(key([x(4), nested(x(4), 19)]), announced=False)  # one of them suffices


class Lazy(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("lazy")


class Closed:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise OSError("closed")


class Number(float):
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (Lazy(x=1), "RuntimeError"),
        (Closed(), "OSError"),
        (Number(1), "TypeError"),
    ],
)
def test_what_is_not_readable_is_marked_and_hides_nothing_else(value: Any, error: str) -> None:
    seen = key([value, x(4)])
    assert f"not readable: {error}" in list(leaves_of(seen))
    assert hides_shapes(seen, announced=False)
    assert seen != key([value, x(8)])
    assert hash(seen) == hash(key([value, x(4)]))
    assert hash(shapes_of([value, x(4)]))


@pytest.mark.parametrize("value", [None, 3, "text", ["a", "b"], [], iter([1]), object()])
def test_a_batch_without_a_tensor_shows_no_shapes(value: Any) -> None:
    assert hides_shapes(key(value), announced=True)


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2]])
def test_plain_inputs_of_a_model_show_all_that_they_are(value: Any) -> None:
    assert not hides_shapes(key(value), announced=False)


def test_an_opaque_object_alone_shows_nothing_of_a_models_inputs() -> None:
    assert hides_shapes(key(iter([x(4)])), announced=False)
    assert not hides_shapes(key([x(4), object()]), announced=False)


@pytest.mark.parametrize("build", [list, tuple, set, lambda values: dict(enumerate(values))])
def test_many_plain_values_count_by_their_number_and_types(build: Any) -> None:
    many = key(build(range(100)))
    assert many == key(build(range(5, 105)))
    assert many != key(build(range(101)))
    assert many != key(build(map(float, range(100))))
    assert values_in(many) == ()
    kind, sizes = template(many)
    assert sizes == (100,) and kind == template(key(build(range(101))))[0]
    assert sum(1 for _ in leaves_of(many)) == 2
    assert hides_shapes(many, announced=True)


def test_few_plain_values_are_told_apart() -> None:
    assert key([1] * 64) != key([2] * 64)
    assert without_values(key([1] * 64)) == without_values(key([2] * 64))


def test_many_values_with_a_tensor_among_them_are_looked_at() -> None:
    assert key([0] * 100 + [x(4)]) != key([0] * 100 + [x(8)])


def test_a_long_text_is_told_apart_without_being_kept() -> None:
    one, other = key("a" * 10_000), key("a" * 9_999 + "b")
    assert one != other and without_values(one) == without_values(other)
    assert all(len(str(leaf)) < 100 for leaf in leaves_of(one))


def test_a_search_ends_and_what_it_left_out_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "NODES_LIMIT", 50)
    batch = [{"x": x(4)} for _ in range(10_000)]
    seen = key(batch)
    assert sum(1 for _ in leaves_of(seen)) < 250
    assert hides_shapes(seen, announced=False)
    assert seen != key(batch[:-1])  # the number of what was left out shows


def test_objects_that_hold_each_other_are_looked_at_once() -> None:
    class Node:
        def __init__(self, rows: int) -> None:
            self.x, self.all = x(rows), [self]

    def graph(rows: int) -> list[Node]:
        nodes = [Node(4) for _ in range(40)] + [Node(rows)]
        for node in nodes:
            node.all = nodes
        return nodes

    one = key(graph(4))
    assert sum(1 for _ in leaves_of(one)) < 1000
    assert one != key(graph(8))


def test_an_object_whose_surroundings_are_deep_is_no_unseen_one() -> None:
    class Loop:
        def __init__(self) -> None:
            self.x, self.me = x(4), [[self]]

    assert not hides_shapes(key(Loop()), announced=True)


def test_autocast_is_told_by_the_device_that_it_is_on_for() -> None:
    def inside_of(device: str, dtype: torch.dtype) -> Any:
        with torch.autocast(device, dtype):
            return autocast_in_force()

    assert autocast_in_force() is None
    assert inside_of("cpu", torch.bfloat16) == (torch.bfloat16, None, None, None)
    assert inside_of("cpu", torch.float16) == (torch.float16, None, None, None)


def test_looking_takes_nothing_out_of_an_iterator() -> None:
    def values() -> Iterator[int]:
        yield 1

    source = values()
    key([source])
    assert next(source) == 1
