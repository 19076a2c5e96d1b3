"""Real traces, read from beside the checkout: their licences forbid nothing, their size does."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from mfu_torch.insight.trace.events import Trace
from mfu_torch.insight.trace.reading import read_trace

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"


def trace_folder() -> Path:
    """Where they are looked for: ``MFU_TORCH_TRACES``, else ``../shared/traces``."""
    return Path(os.environ.get("MFU_TORCH_TRACES") or _BESIDE)


def trace_path(name: str) -> Path:
    """Path of a real trace (``"kineto_v100_rn50_workers0"``); skips the test without it."""
    path = trace_folder() / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no real trace {path.name} in {trace_folder()} (set MFU_TORCH_TRACES)")
    return path


@cache
def real_trace(name: str) -> Trace:
    """A real trace, read once for all tests; what is made of it must not change it."""
    return read_trace(trace_path(name))


NAMES: tuple[str, ...] = (
    "hta_a100_alexnet_cuda_sync",
    "hta_a100_ddp_launchbound_2gpu_rank0",
    "hta_a100_dlrm_8gpu_rank3",
    "hta_a100_recsys_16gpu_cudagraph_rank0",
    "hta_sampled_recsys_128gpu_rank0",
    "hta_sampled_recsys_128gpu_rank1",
    "hta_v100_2gpu_nccl_exposed_rank1",
    "hta_v100_ddp_cnn_1gpu_ns",
    "kineto_v100_rn50_workers0",
    "kineto_v100_rn50_workers4",
    "tl_b200_vllm_step_multimem",
    "tl_h100_owlv2_fwd_dataloader",
    "tl_h100_qwen05b_fwd",
    "tl_mi300_resnet_ddp_8gpu_recompute",
)
"""All that are known."""
