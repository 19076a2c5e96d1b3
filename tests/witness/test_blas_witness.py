"""What the CPU's BLAS logs is what the counter counts: hardware FLOPs, product by product.

The cases are those of the table; a process with logging on runs all of them once, and counts them
in the same run. Nothing may differ but what ``EXPLAINED`` gives, to the FLOP.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import blas_log
import pytest
import torch

import mfu_torch

HERE = Path(__file__).parent

MODELS = """
    mlp u_net resnet convnext_block transposed_grouped_conv grouped_conv two_layer_lstm
    speech_recognizer gpt2_eager gpt2_sdpa llama_eager llama_sdpa bert vit t5 mamba
    mixtral_eager mixtral_grouped_mm llama_with_lora checkpoint_that_stops_early muon
    diffusion_transformer mlp_mixer"""
ONLY_FP32 = """
    sequential_recommender dlrm graph_convolution reentrant_checkpoint bilinear_layer
    complex_product complex_convolution depthwise_convolution_3d plain_rnn gru
    lstm_of_packed_sequences lbfgs gradient_of_a_gradient forward_mode_derivative
    checkpoint_in_a_checkpoint generation_with_a_cache long_causal_attention
    attention_to_another_sequence attention_layer_in_evaluation tensor_parallel fully_sharded
    first_step_of_a_pipeline experts_chosen_by_the_data triangular_equations
    teacher_inside_a_checkpoint optimizer_of_ones_own gpt2_with_sequences_of_three_lengths"""
CASES = {
    "fp32": f"{MODELS} {ONLY_FP32}".split(),
    "onednn": f"{MODELS} dlrm windowed_attention_with_three_lengths tied_embedding".split(),
    "bf16": f"{MODELS} tied_embedding grouped_rows".split(),
}
"""By precision, as ``run_cases.py`` sets it."""

SMALL_FOR_ATEN = 400
"""A batched product with fewer multiply-adds in each of its matrices is ATen's own loop."""

SMALL_FOR_ONEDNN = 16**3
"""A product with no more multiply-adds is not given to oneDNN."""


def _blocks_that_run(s: int, queries: int = 64, keys: int = 512) -> int:
    """Pairs of the CPU's flash kernel: it leaves out blocks of keys that a causal mask hides."""
    return sum(
        min(queries, s - q) * min(keys, s - k)
        for q in range(0, s, queries)
        for k in range(0, min(q + queries, s), keys)
    )


# Counted FLOPs less those in the log, by case: "*" for every precision.
EXPLAINED: dict[tuple[str, str], int] = {
    # oneDNN computes the gradient of the layer's input although nothing wants it: (b, t) positions
    # times the gates' input weights.
    ("*", "two_layer_lstm"): -(2 * 4 * 20 * (4 * 128) * 64),
    # The sparse products and their gradients: edges x (16 + 7) columns, not logged.
    ("fp32", "graph_convolution"): 2 * (2 * 60 * (16 + 7)),
    # Row by row for each output, 30 multiply-adds each: batched products of ATen's own.
    ("fp32", "bilinear_layer"): 2 * 5 * 40 * 30,
    # Two batched products inside one op: the scores, and their product with the values.
    ("fp32", "attention_layer_in_evaluation"): 2 * 4 * 32 * 32 * 4 * 16,
    # All scores are counted; blocks that the mask hides do not run: 14 products' worth per pair.
    ("fp32", "long_causal_attention"): (600 * 600 - _blocks_that_run(600)) * 14 * 16,
    # Too small for oneDNN, so ATen's own loops, which log nothing. The head, 4 x 96 x 10, thrice.
    ("bf16", "vit"): 3 * (2 * 4 * 96 * 10),
    # The detour of v, 64 x 4 x 16 multiply-adds, thrice in each of two layers.
    ("bf16", "llama_with_lora"): 2 * 3 * (2 * 64 * 4 * 16),
    # The product for the time steps, 32 x 3 x 20, thrice in each of two layers.
    ("bf16", "mamba"): 2 * 3 * (2 * 32 * 3 * 20),
    # The time step's layer, 2 x 16 x 32, twice, and its modulation, 2 x 32 x 64, thrice; in each
    # of 8 heads 4 of the 36 queries, 4 x 36 x 8, in three products of the attention's backward.
    ("bf16", "diffusion_transformer"): 2 * (2 * 2 * 16 * 32)
    + 3 * (2 * 2 * 32 * 64)
    + 3 * (2 * 8 * 4 * 36 * 8),
}


class Witness(NamedTuple):
    """A case as its process counted it, and what the log holds of it."""

    hardware: int
    batched: list[tuple[int, int, int, int]]
    log: blas_log.Log


@pytest.fixture(scope="module")
def witnesses() -> dict[str, Witness]:
    names = [f"{precision}:{name}" for precision, cases in CASES.items() for name in cases]
    switches = {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
    root = str(Path(mfu_torch.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(HERE / "run_cases.py"), *names],
        env={**os.environ, **switches, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, lines, case = {}, list[str](), ""
    for line in done.stdout.splitlines():
        if line.startswith("## {"):
            counted = json.loads(line[3:])
            log = blas_log.read(lines)
            found[case] = Witness(counted["hardware"], counted["batched"], log)
        elif line.startswith("## "):
            case, lines = line[3:], []
        else:
            lines.append(line)
    return found


def without_sizes(witness: Witness, precision: str) -> tuple[int, int]:
    """FLOPs of batched products that the log has no sizes of, and how many of them MKL ran."""
    sizes = witness.batched
    if precision != "fp32":  # the others are in oneDNN's log, with their sizes
        sizes = [(b, m, k, n) for b, m, k, n in sizes if b * m * k * n <= SMALL_FOR_ONEDNN]
    in_mkl = sum(m * k * n >= SMALL_FOR_ATEN for _, m, k, n in sizes)
    return sum(2 * b * m * k * n for b, m, k, n in sizes), in_mkl


def _skip_where_nothing_logs(precision: str) -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("this torch's BLAS is not MKL: its products are not logged")
    if precision != "fp32" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN does not run bfloat16 products on this CPU")
    if precision == "bf16" and torch.cpu._is_amx_tile_supported():
        pytest.skip("attention in bfloat16 on AMX runs kernels that do not log")


@pytest.mark.parametrize(
    ("precision", "name"), [(p, name) for p, names in CASES.items() for name in names]
)
def test_the_blas_ran_what_was_counted(
    witnesses: dict[str, Witness], precision: str, name: str
) -> None:
    _skip_where_nothing_logs(precision)
    witness = witnesses[f"{precision}:{name}"]
    flops, in_mkl = without_sizes(witness, precision)
    explained = EXPLAINED.get((precision, name), EXPLAINED.get(("*", name), 0))
    assert witness.log.unknown == []
    assert witness.log.total + flops + explained == witness.hardware
    if name != "attention_layer_in_evaluation":  # its batched products are inside the op
        assert witness.log.batches == in_mkl


def test_most_of_the_work_is_seen_by_sizes_alone(witnesses: dict[str, Witness]) -> None:
    _skip_where_nothing_logs("fp32")
    seen = sum(witness.log.total for witness in witnesses.values())
    counted = sum(witness.hardware for witness in witnesses.values())
    assert seen > 0.97 * counted


def test_every_explanation_is_of_a_case_that_runs() -> None:
    for precision, name in EXPLAINED:
        assert any(name in CASES[p] for p in CASES if precision in ("*", p))
