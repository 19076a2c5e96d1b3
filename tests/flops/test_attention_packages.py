"""Attention packages by their ops' names: the sequence stands before the heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_calls import shape
from library_ops import defined

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.attention import OFFSETS_NOT_READ
from mfu_torch.flops.ops.attention_packages import CHUNKS_NOT_COUNTED
from mfu_torch.records import FlopCount

# (b, s, h, d): 2 sequences, 32 queries and 48 keys, 4 heads and 2 for keys
Q, K, V = shape(2, 32, 4, 16), shape(2, 48, 2, 16), shape(2, 48, 2, 8)
PAIRS = 2 * 4 * 32 * 48
KEPT = 2 * 4 * sum(48 - 32 + i + 1 for i in range(32))  # causal, from the bottom right
FORWARD, BACKWARD, AGAIN = 2 * (16 + 8), 4 * (16 + 8), 2 * 16

# (sum of s, h, d): sequences of 3 and 9
PACKED = shape(12, 4, 16)
OFFSETS = torch.tensor([0, 3, 12], dtype=torch.int32)
PACKED_PAIRS, PACKED_KEPT = 4 * (9 + 81), 4 * (6 + 45)


def counted(op: Any, *args: Any, **kwargs: Any) -> FlopCount:
    count = count_flops(op, *args, **kwargs)
    assert count.uncounted == {}
    return count


def assert_forward(count: FlopCount, full: int, kept: int) -> None:
    assert (count.model, count.model_causal) == (full, kept)
    assert count.kernel_recompute == 0


def assert_backward(count: FlopCount, pairs: int, each: int, again: int) -> None:
    assert (count.model, count.kernel_recompute) == (pairs * each, pairs * again)


FLASH = (
    "_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, "
    "bool causal, int window_size_left, int window_size_right, float softcap, "
    "Tensor? alibi_slopes, bool return_softmax) -> Tensor",
    "_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, float dropout_p, "
    "float softmax_scale, bool causal, int window_size_left=-1, int window_size_right=-1, "
    "float softcap=0.0, Tensor? alibi_slopes=None, bool return_softmax=False, "
    "Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
    "bool zero_tensors=False, int num_splits=0) -> Tensor",
    "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor softmax_lse, Tensor? dq, Tensor? dk, Tensor? dv, float dropout_p, "
    "float softmax_scale, bool causal, int window_size_left, int window_size_right, "
    "float softcap, Tensor? alibi_slopes, bool deterministic, Tensor? rng_state=None) -> Tensor",
    "_flash_attn_varlen_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor softmax_lse, Tensor? dq, Tensor? dk, Tensor? dv, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, float dropout_p, "
    "float softmax_scale, bool causal, int window_size_left, int window_size_right, "
    "float softcap, Tensor? alibi_slopes, bool deterministic, Tensor? rng_state=None, "
    "bool zero_tensors=False) -> Tensor",
)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_2_over_equal_lengths(causal: bool) -> None:
    kept = KEPT if causal else PAIRS
    mask = (0.0, 0.25, causal, -1, -1, 0.0, None, False)
    with defined("flash_attn", *FLASH) as ops:
        assert_forward(
            counted(ops._flash_attn_forward, Q, K, V, *mask), PAIRS * FORWARD, kept * FORWARD
        )
        out, lse = shape(2, 32, 4, 8), shape(2, 4, 32)
        count = counted(ops._flash_attn_backward, out, Q, K, V, out, lse, Q, K, V, *mask)
    assert_backward(count, PAIRS, BACKWARD, AGAIN)
    assert count.model_causal == kept * BACKWARD


def test_flash_attention_2_with_a_window_keeps_its_width() -> None:
    q = shape(1, 32, 4, 16)
    with defined("flash_attn", *FLASH) as ops:
        count = counted(ops._flash_attn_forward, q, q, q, 0.0, 0.25, True, 7, 0, 0.0, None, False)
    assert_forward(count, 4 * 32 * 32 * 64, 4 * (sum(range(1, 8)) + 25 * 8) * 64)


def test_flash_attention_2_over_packed_sequences_counts_each_length() -> None:
    q, lengths = PACKED, (OFFSETS, OFFSETS, 9, 9)
    with defined("flash_attn", *FLASH) as ops:
        forward = counted(ops._flash_attn_varlen_forward, q, q, q, *lengths, 0.0, 0.25, True)
        mask = (0.0, 0.25, True, -1, -1, 0.0, None, False)
        tail = (q, q, q, *lengths, *mask)
        backward = counted(ops._flash_attn_varlen_backward, q, q, q, q, q, q, *tail)
    assert_forward(forward, PACKED_PAIRS * 64, PACKED_KEPT * 64)
    assert forward.notes == ()
    assert_backward(backward, PACKED_PAIRS, 128, 32)
    assert backward.model_causal == PACKED_KEPT * 128


def test_lengths_on_the_device_are_a_bound_and_say_so() -> None:
    q, unread = PACKED, shape(3)
    with defined("flash_attn", *FLASH) as ops:
        count = counted(
            ops._flash_attn_varlen_forward, q, q, q, unread, unread, 9, 9, 0.0, 0.25, False
        )
        assert (count.model, count.notes) == (4 * 12 * 9 * 64, (OFFSETS_NOT_READ,))
        used = counted(
            ops._flash_attn_varlen_forward, q, q, q, OFFSETS, OFFSETS, 9, 9, 0.0, 0.25, False,
            seqused_k=unread,
        )  # fmt: skip
    assert (used.model, used.notes) == (PACKED_PAIRS * 64, (OFFSETS_NOT_READ,))


def test_pages_of_keys_count_the_longest_sequence() -> None:
    pages = shape(100, 16, 4, 16)  # pages of 16 keys, shared
    with defined("flash_attn", *FLASH) as ops:
        count = counted(
            ops._flash_attn_varlen_forward, PACKED, pages, pages, OFFSETS, OFFSETS, 9, 48, 0.0,
            0.25, False, block_table=shape(2, 3),
        )  # fmt: skip
    assert (count.model, count.notes) == (4 * 12 * 48 * 64, (OFFSETS_NOT_READ,))


FLASH3_FORWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor? k_new=None, Tensor? v_new=None, Tensor? q_v=None, "
    "Tensor? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? page_table=None, "
    "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, "
    "Tensor? k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, "
    "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "int attention_chunk=0, float softcap=0.0) -> Tensor"
)
FLASH3 = (
    f"_flash_attn_forward{FLASH3_FORWARD}",
    f"fwd{FLASH3_FORWARD}",
    "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor softmax_lse, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? sequed_q=None, Tensor? sequed_k=None, int? max_seqlen_q=None, "
    "int? max_seqlen_k=None, Tensor? dq=None, Tensor? dk=None, Tensor? dv=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, float softcap=0.0) -> Tensor",
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor? dq=None, Tensor? dk=None, Tensor? dv=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "int? max_seqlen_q=None, int? max_seqlen_k=None, float? softmax_scale=None, "
    "bool is_causal=False, int window_size_left=-1, int window_size_right=-1) -> Tensor",
)


@pytest.mark.parametrize("name", ["_flash_attn_forward", "fwd"])
def test_flash_attention_3_forward(name: str) -> None:
    with defined("flash_attn_3", *FLASH3) as ops:
        op = getattr(ops, name)
        assert_forward(counted(op, Q, K, V), PAIRS * FORWARD, PAIRS * FORWARD)
        assert_forward(counted(op, Q, K, V, is_causal=True), PAIRS * FORWARD, KEPT * FORWARD)
        q = PACKED
        lengths = {"cu_seqlens_q": OFFSETS, "cu_seqlens_k": OFFSETS}
        packed = counted(op, q, q, q, **lengths, max_seqlen_q=9, max_seqlen_k=9, is_causal=True)
        assert_forward(packed, PACKED_PAIRS * 64, PACKED_KEPT * 64)
        second = counted(op, Q, K, V, q_v=shape(2, 32, 4, 8))
        assert second.model == PAIRS * (FORWARD + 2 * 8)
        chunks = counted(op, Q, K, V, attention_chunk=16)
        assert chunks.notes == (CHUNKS_NOT_COUNTED,)
        pages = counted(op, Q, shape(100, 16, 2, 16), shape(100, 16, 2, 8), page_table=shape(2, 3))
        assert (pages.model, pages.notes) == (PAIRS * FORWARD, (OFFSETS_NOT_READ,))


@pytest.mark.parametrize("name", ["_flash_attn_backward", "bwd"])
def test_flash_attention_3_backward(name: str) -> None:
    out, lse = shape(2, 32, 4, 8), shape(2, 4, 32)
    with defined("flash_attn_3", *FLASH3) as ops:
        op = getattr(ops, name)
        count = counted(op, out, Q, K, V, out, lse, dq=Q, dk=K, dv=V, is_causal=True)
        assert_backward(count, PAIRS, BACKWARD, AGAIN)
        assert count.model_causal == KEPT * BACKWARD
        q = PACKED
        lengths = {"cu_seqlens_q": OFFSETS, "cu_seqlens_k": OFFSETS}
        packed = counted(op, q, q, q, q, q, lse, **lengths, max_seqlen_q=9, max_seqlen_k=9)
    assert_backward(packed, PACKED_PAIRS, 128, 32)


XFORMERS = (
    "flash_fwd(Tensor query, Tensor key, Tensor value, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? seqused_k, int max_seqlen_q, int max_seqlen_k, float p, "
    "float softmax_scale, bool is_causal, int window_left, int window_right, "
    "bool return_softmax, Tensor? block_tables) -> Tensor",
    "flash_bwd(bool grads_share_storage, Tensor grad, Tensor query, Tensor key, Tensor value, "
    "Tensor out, Tensor lse, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, int max_seqlen_q, "
    "int max_seqlen_k, float p, float softmax_scale, bool is_causal, int window_left, "
    "int window_right, Tensor rng_state) -> Tensor",
)
XFORMERS3 = (
    "flash_fwd(Tensor query, Tensor key, Tensor value, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, int max_seqlen_q, "
    "int max_seqlen_k, float p, float softmax_scale, bool is_causal, Tensor? descale_q=None, "
    "Tensor? descale_k=None, Tensor? descale_v=None, Tensor? block_table=None, "
    "bool use_kvsplit=False, int window_left=-1, int window_right=-1) -> Tensor",
    "flash_bwd(bool grads_share_storage, Tensor dout, Tensor query, Tensor key, Tensor value, "
    "Tensor out, Tensor softmax_lse, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "int max_seqlen_q, int max_seqlen_k, float softmax_scale, bool is_causal, int window_left, "
    "int window_right) -> Tensor",
)


@pytest.mark.parametrize("version", [2, 3])
def test_xformers_has_its_own_argument_orders(version: int) -> None:
    library = "xformers_flash" if version == 2 else "xformers_flash3"
    n, out, lse = None, shape(2, 32, 4, 8), shape(2, 4, 32)
    with defined(library, *(XFORMERS if version == 2 else XFORMERS3)) as ops:
        if version == 2:
            forward = (Q, K, V, n, n, n, 32, 48, 0.0, 0.25, True, -1, -1, False, n)
            backward = (False, out, Q, K, V, out, lse, n, n, 32, 48, 0.0, 0.25, True, -1, -1, lse)
        else:
            forward = (Q, K, V, n, n, n, n, 32, 48, 0.0, 0.25, True)
            backward = (False, out, Q, K, V, out, lse, n, n, 32, 48, 0.25, True, -1, -1)
        assert_forward(counted(ops.flash_fwd, *forward), PAIRS * FORWARD, KEPT * FORWARD)
        count = counted(ops.flash_bwd, *backward)
    assert_backward(count, PAIRS, BACKWARD, AGAIN)
    assert count.model_causal == KEPT * BACKWARD


def test_quantised_attention_of_torchao_has_the_heads_first() -> None:
    schema = (
        "qscaled_dot_product(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
        "float dropout_p=0.0, bool is_causal=False) -> Tensor"
    )
    q = shape(2, 4, 32, 16, dtype=torch.uint8)
    with defined("torchao", schema) as ops:
        count = counted(ops.qscaled_dot_product, q, q, q, None, 0.0, True)
    assert count.by_dtype == {"int8": 2 * 4 * 32 * 32 * 64}
    assert count.model_causal == 2 * 4 * (32 * 33 // 2) * 64
