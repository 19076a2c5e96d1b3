"""Ops of attention packages, recorded by position, against the counts by name of live tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_matrix_formulas import offsets, tensor, work_of

from mfu_torch.flops.ops import attention_packages as live
from mfu_torch.flops.ops.attention_packages import Call
from mfu_torch.insight.breakdown.calls import NotRecordedError

FORWARD = {
    "flash_attn::_flash_attn_forward": live._FLASH,
    "flash_attn::_flash_attn_varlen_forward": live._FLASH_VARLEN,
    "flash_attn_3::_flash_attn_forward": live._FLASH3,
    "flash_attn_3::fwd": live._FLASH3,
    "xformers_flash::flash_fwd": live._XFORMERS,
    "xformers_flash3::flash_fwd": live._XFORMERS3,
}
BACKWARD = {
    "flash_attn::_flash_attn_backward": live._FLASH_BACKWARD,
    "flash_attn::_flash_attn_varlen_backward": live._FLASH_VARLEN_BACKWARD,
    "flash_attn_3::_flash_attn_backward": live._FLASH3_BACKWARD,
    "flash_attn_3::bwd": live._FLASH3_BWD,
    "xformers_flash::flash_bwd": live._XFORMERS_BACKWARD,
    "xformers_flash3::flash_bwd": live._XFORMERS3_BACKWARD,
}
ALL = {**FORWARD, **BACKWARD}
PACKED = {name: names for name, names in ALL.items() if "cu_seqlens_q" in names.split()}

# 2 sequences of 8 queries and 6 keys, 4 heads of width 16; values of width 32.
DENSE = {"q": tensor(2, 8, 4, 16), "k": tensor(2, 6, 4, 16), "v": tensor(2, 6, 4, 32)}
TOGETHER = {"q": tensor(16, 4, 16), "k": tensor(12, 4, 16), "v": tensor(12, 4, 32)}
SEQUENCES = {
    **TOGETHER,
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), offsets(3)),
    "max_seqlen_q": 8,
    "max_seqlen_k": 6,
}


def arguments(names: str, given: dict[str, Any]) -> list[Any]:
    """In the order of the schema; what is not given is what a caller leaves out."""
    usual = {
        **{"p": 0.0, "dropout_p": 0.0, "softmax_scale": 0.25, "causal": False, "softcap": 0.0},
        **{"window_size_left": -1, "window_size_right": -1, "attention_chunk": 0},
        **{"grads_share_storage": False, "return_softmax": False, "deterministic": False},
        **{"zero_tensors": False, "num_splits": 0, "use_kvsplit": False},
        **dict.fromkeys(("dout", "out"), tensor(2, 8, 4, 32)),
        **dict.fromkeys(("dq", "dk", "dv"), tensor(2, 8, 4, 16)),
        **dict.fromkeys(("softmax_lse", "lse"), tensor(2, 4, 8, dtype=torch.float32)),
    }
    return [{**usual, **given}.get(name) for name in names.split()]


def compared(name: str, given: dict[str, Any]) -> str:
    """The count of the trace is that of the live tensors; returns what it leaves open."""
    args = arguments(ALL[name], given)
    call = Call(ALL[name], tuple(args), {})
    expected = call.forward() if name in FORWARD else call.backward()
    work = work_of(name, args)
    assert (work.flops, work.causal_flops) == (expected.full, expected.causal)
    assert work.kernel_recompute == expected.kernel_recompute
    assert work.kernel_recompute_causal == expected.kernel_recompute_causal
    assert bool(work.note) == bool(expected.note)
    return work.note


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize(
    "more", [{}, {"causal": True}, {"window_size_left": 2, "window_size_right": 1}]
)
def test_attention_of_a_package_counts_as_live_tensors_do(name: str, more: dict[str, Any]) -> None:
    assert compared(name, {**DENSE, **more}) == ""


@pytest.mark.parametrize("name", sorted(PACKED))
@pytest.mark.parametrize("more", [{}, {"causal": True}])
def test_packed_sequences_count_as_live_tensors_do(name: str, more: dict[str, Any]) -> None:
    assert "packed sequences" in compared(name, {**SEQUENCES, **more})


@pytest.mark.parametrize("name", ["flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward"])
def test_a_second_part_of_the_queries_widens_the_scores(name: str) -> None:
    # 2 x 4 x 8 x 6 pairs; scores over 16 + 32, output over 32: 2 FLOPs each.
    args = arguments(ALL[name], {**DENSE, "qv": tensor(2, 8, 4, 32)})
    assert work_of(name, args).flops == 2 * 4 * 8 * 6 * 2 * (16 + 32 + 32)
    compared(name, {**DENSE, "qv": tensor(2, 8, 4, 32)})


def test_what_is_not_counted_exactly_is_said() -> None:
    name = "flash_attn_3::fwd"
    assert "packed sequences" in compared(name, {**DENSE, "seqused_k": offsets(2)})
    assert "chunks" in compared(name, {**DENSE, "attention_chunk": 4, "causal": True})


@pytest.mark.parametrize("name", sorted(n for n in FORWARD if "block_table" in FORWARD[n]))
def test_keys_in_pages_have_no_length_in_a_trace(name: str) -> None:
    args = arguments(ALL[name], {**DENSE, "block_table": offsets(4)})
    with pytest.raises(NotRecordedError, match="pages"):
        work_of(name, args)


def test_ops_of_rocm_count_by_their_shapes() -> None:
    # 4 x heads x s_q x s_k x d: figures of a published report of such a trace.
    qkv = [tensor(1, 768, 24, 128)] * 3
    work = work_of("aiter::fmha_v3_fwd", [*qkv, 0.0, 0.088, False, -1, -1, True, False, 2])
    assert work.flops == work.causal_flops == 7_247_757_312
    args = [tensor(15360, 4096), tensor(6144, 4096), None, 15, None, None, None]
    assert work_of("aiter::gemm_a16w16", args).flops == 773_094_113_280
    args = [tensor(32, 2880), tensor(5120, 2880), tensor(5120)]
    assert work_of("vllm::rocm_unquantized_gemm", args).flops == 943_718_400
