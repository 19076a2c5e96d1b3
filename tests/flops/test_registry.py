"""Users teach the counter ops that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import OpFlops, register_flops
from mfu_torch.flops.ops.registry import _given


@pytest.fixture(autouse=True)
def _forget_registrations() -> Any:
    before = dict(_given)
    yield
    _given.clear()
    _given.update(before)


@pytest.fixture(scope="module")
def library() -> Any:
    @torch.library.custom_op("mfu_test::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    return torch.ops.mfu_test.square


def test_an_op_can_be_registered_by_name_before_it_exists() -> None:
    register_flops("mfu_test_later::cube", lambda x, *, result, **_: 4 * x.shape[0] ** 3)

    @torch.library.custom_op("mfu_test_later::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x @ x @ x

    count = count_flops(cube, torch.randn(8, 8))
    assert count.by_op == {"mfu_test_later.cube": 4 * 8**3}


@pytest.mark.parametrize("overload", ["", ".default"])
@pytest.mark.parametrize("form", ["mfu_test.square", "mfu_test::square"])
def test_a_name_may_be_written_as_torch_and_the_reports_print_it(
    library: Any, form: str, overload: str
) -> None:
    x = torch.randn(8, 8)
    assert list(count_flops(library, x).uncounted) == ["mfu_test.square"]
    register_flops(form + overload, lambda x, *, result, **_: 2 * x.shape[0] ** 3)
    count = count_flops(library, x)
    assert count.by_op == {"mfu_test.square": 2 * 8**3}
    assert count.uncounted == {}


def test_a_dotted_name_replaces_what_was_registered_for_the_other_one(library: Any) -> None:
    register_flops("mfu_test::square", lambda x, *, result, **_: 1)
    register_flops("mfu_test.square", lambda x, *, result, **_: 2)
    assert count_flops(library, torch.randn(8, 8)).model == 2


def test_a_dotted_name_of_an_overload_leaves_the_others_alone() -> None:
    a, b = torch.eye(2), torch.eye(2)
    register_flops("aten.mm.out", lambda *_, result, **__: 7)
    assert count_flops(lambda: torch.mm(a, b)).model == 2 * 2**3
    assert count_flops(lambda: torch.mm(a, b, out=torch.empty(2, 2))).model == 7


def test_a_packet_or_one_overload_can_be_registered(library: Any) -> None:
    x = torch.randn(8, 8)
    register_flops(library, lambda x, *, result, **_: 100)
    assert count_flops(library, x).model == 100
    register_flops(library.default, lambda x, *, result, **_: OpFlops(9, 5, 3, 2, "about"))
    count = count_flops(library, x)
    assert (count.model, count.model_causal, count.kernel_recompute) == (9, 5, 3)
    assert count.notes == ("about",)


def test_a_formula_sees_the_arguments_and_the_result(library: Any) -> None:
    seen: list[Any] = []
    register_flops(library, lambda *args, result: seen.append((args, result)) or 0)
    x = torch.randn(4, 4)
    count_flops(library, x)
    ((args, result),) = seen
    assert args[0] is x
    assert torch.equal(result, x @ x)


def test_a_registration_corrects_a_built_in_formula() -> None:
    register_flops(torch.ops.aten.mm, lambda a, b, *, result: 7)
    assert count_flops(lambda: torch.eye(2) @ torch.eye(2)).model == 7


def test_formulas_registered_with_torch_are_used(library: Any) -> None:
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    @register_flop_formula(library)
    def of_square(x: Any, out_shape: Any = None, **_: Any) -> int:
        return 2 * x[0] ** 3

    try:
        assert count_flops(library, torch.randn(8, 8)).by_op == {"mfu_test.square": 2 * 8**3}
    finally:
        del flop_registry[library]


@pytest.mark.parametrize(
    ("op", "fn", "error", "message"),
    [
        (42, abs, TypeError, r"int is not an op; expected torch\.ops\.mylib\.myop"),
        (torch.mm, abs, TypeError, "is not an op"),
        ("myop", abs, ValueError, '"library::op"'),
        ("mylib:myop", abs, ValueError, '"library::op"'),
        ("mylib.myop.default.more", abs, ValueError, '"library::op"'),
        ("mylib.", abs, ValueError, '"library::op"'),
        ("my lib.myop", abs, ValueError, '"library::op"'),
        ("", abs, ValueError, "not the name of an op"),
        ("mylib::myop", 12, TypeError, "fn is 12; expected a function"),
    ],
)
def test_a_bad_registration_says_what_was_expected(
    op: Any, fn: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        register_flops(op, fn)


# --- what a formula takes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "fn", "message"),
    [
        ("aten::mm", lambda a, b: 0, r"fn\(a, b\) takes no argument named result"),
        ("nolib::nothing", lambda a, b: 0, "takes no argument named result"),
        ("aten::mm", lambda a, b, result, /: 0, "takes no argument named result"),
        ("aten::mm", lambda *result: 0, "takes no argument named result"),
        ("aten::mm.default", lambda a, *, result: 0, r"arguments of the op, \(self, mat2\)"),
        ("aten::mm", lambda a, b, c, d, *, result: 0, r"\(self, mat2\) or \(self, mat2, out"),
        (torch.ops.aten.mm.out, lambda a, b, *, result: 0, r"\(self, mat2, out\)"),
        (torch.ops.aten.mm, lambda a, b, *, result, bias: 0, "cannot be called with"),
    ],
)
def test_a_formula_that_no_call_fits_is_refused_when_it_is_registered(
    op: Any, fn: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        register_flops(op, fn)
    assert "called as fn(*args, result=result, **kwargs)" in str(caught.value)
    assert not any("nothing" in name for name in _given)


@pytest.mark.parametrize(
    ("op", "fn"),
    [
        ("aten::mm", lambda a, b, *, result: 0),
        ("aten::mm", lambda a, b, result: 0),
        ("aten::mm", lambda *_, **__: 0),
        ("aten::mm", lambda a, b, *, result, out: 0),  # fits one of its overloads
        ("aten::addmm", lambda bias, a, b, *, result: 0),  # fits where beta and alpha are left out
        ("aten::addmm", lambda bias, a, b, *, beta=1, alpha=1, result: 0),
        ("nolib::nothing", lambda whatever, *, result: 0),  # nothing to hold it against
        ("aten::nothing_of_this_name", lambda *, result: 0),
        ("aten::mm.no_such_overload", lambda *, result: 0),
        ("aten::mm", max),  # no signature that Python can read
    ],
)
def test_a_formula_that_some_call_fits_is_taken(op: Any, fn: Any) -> None:
    register_flops(op, fn)


def test_a_triton_kernels_formula_takes_a_result_too() -> None:
    class Kernel:
        fn = staticmethod(lambda x: None)

    Kernel.__module__ = "triton.runtime.jit"
    with pytest.raises(TypeError, match="takes no argument named result"):
        register_flops(Kernel(), lambda x: 0)


def test_a_formula_that_fails_is_named_where_the_count_is_printed(library: Any) -> None:
    register_flops(library, lambda x, *, result: x.no_such_attribute)
    count = count_flops(library, torch.randn(4, 4))
    assert "not counted: mfu_test.square (formula for mfu_test.square failed: Attribute" in str(
        count
    )
    _given.clear()
    assert str(count_flops(library, torch.randn(4, 4))).endswith("not counted: mfu_test.square")
