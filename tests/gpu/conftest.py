"""For the tests that need a real CUDA device: elsewhere they are skipped, visibly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

# Deterministic matmuls need it, and cuBLAS reads it when it first runs.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# The models with closed forms are shared with the tests of the counter.
sys.path.append(str(Path(__file__).parent.parent / "flops"))


@pytest.fixture(autouse=True)
def needs_a_cuda_device() -> None:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        pytest.skip("needs a CUDA device")
