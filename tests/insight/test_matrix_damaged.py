"""A trace is not trusted: what is no shape is refused with a reason, and never ends a formula."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from matmuls import analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.calls import NotRecordedError, call_of
from mfu_torch.insight.breakdown.formulas import FORMULAS
from mfu_torch.insight.breakdown.formulas.moves import moved_bytes
from mfu_torch.insight.breakdown.formulas.work import Context
from mfu_torch.insight.breakdown.shapes import OpWork


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        (b"", "record_shapes=True"),
        (b"[[2, 3], [3", "no JSON"),
        (b'{"a": 1}', "no list"),
        (b'[[2, "3"]]', "no size"),
        (b"[[2, -3]]", "no size"),
        (b"[[2, 1e3]]", "no size"),
        (b"[[2, 99999999999999999999]]", "no size"),
        (b"[" * 100_000, "no JSON"),
        (b"[[[[1]]]]", "no list of sizes"),
    ],
)
def test_what_is_no_shape_is_refused_with_a_reason(dims: bytes, reason: str) -> None:
    with pytest.raises(NotRecordedError, match=reason):
        call_of("aten::mm", dims, b"", b"")


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", [[2, 3], [4, 5]]),
        ("aten::mm", [[2, 3]]),
        ("aten::mm", [[], []]),
        ("aten::linear", [[2, 3], [5, 4]]),
        ("aten::conv2d", [[2, 3], [4, 3, 3, 3]]),
        ("aten::_flash_attention_forward", [[2, 3], [2, 3], [2, 3]]),
        ("aten::convolution_backward", [[2, 3, 4, 4], [2, 3, 4, 4], [3, 3, 1, 1]]),
        ("aten::_cudnn_rnn", [[2, 3, 4], [5]]),
    ],
)
def test_shapes_that_do_not_fit_are_unknown_and_never_zero(name: str, dims: list[Any]) -> None:
    call = call_of(name, json.dumps(dims).encode(), b"", b"")
    with pytest.raises(NotRecordedError):
        FORMULAS[name](call, Context())


TYPES = ("float", "c10::BFloat16", "", "Scalar", "ScalarList", "TensorList", "int", "?")
VALUES = (
    *("", "True", "False", "1", "0", "-1", "0.5", "junk", "None", "1e400", "NaN"),
    *("[1, 1]", "[0]", "[-1, 2]", "[True, False, True, True]", "[]", "[[1]]", "[null]", "{}"),
)


def _any_call(rng: random.Random) -> tuple[list[Any], list[str], list[str]]:
    count = rng.randint(0, 22)
    dims: list[Any] = [_any_shape(rng) for _ in range(count)]
    for index in range(count):
        if rng.random() < 0.05:
            dims[index] = [_any_shape(rng) for _ in range(rng.randint(1, 4))]
    types = [rng.choice(TYPES) if rng.random() < 0.4 else "float" for _ in range(count)]
    values = [rng.choice(VALUES) for _ in range(count)] if rng.random() < 0.8 else []
    return dims, types[: rng.choice((count, count // 2))], values


def _any_shape(rng: random.Random) -> list[int]:
    return [rng.choice((0, 1, 2, 3, 8)) for _ in range(rng.randint(0, 5))]


@pytest.mark.parametrize("name", [*FORMULAS, "aten::add", "aten::copy_", "aten::mul_", "aten::sum"])
def test_a_damaged_record_gives_sensible_work_or_a_reason(name: str) -> None:
    rng = random.Random(name)
    formula = FORMULAS.get(name)
    for _ in range(100):
        texts = (json.dumps(one).encode() for one in _any_call(rng))
        try:
            call = call_of(name, *texts)
            if formula is None:
                assert moved_bytes(call) >= 0
                continue
            work = formula(call, Context())
        except NotRecordedError as reason:
            assert str(reason)
            continue
        assert 0 <= work.causal_flops <= work.flops
        assert 0 <= work.kernel_recompute_causal <= work.kernel_recompute
        assert work.bytes is None or work.bytes >= 0


@pytest.mark.parametrize("on_device", [True, False])
def test_ops_that_nest_a_thousandfold_are_looked_at_once(
    on_device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = 1_500
    trace = TraceBuilder()
    for i in range(levels):  # no shapes: every op asks the one around it
        trace.op("aten::mm", i * 10, (4 * levels - 2 * i) * 10)
        if on_device:
            trace.kernel("gemm", 100_000 + i * 10, 10, launch_ns=i * 10 + 5)
    asked = []
    find = OpWork._find
    monkeypatch.setattr(OpWork, "_find", lambda work, op: asked.append(op) or find(work, op))
    found = analysed(trace, tmp_path).breakdown
    assert sum(one.time_ns for one in found.buckets) == found.wall_ns
    assert len(asked) < 10 * levels
