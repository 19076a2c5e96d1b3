"""Configs of transformers as closed forms: sizes are read, and no model is built."""

from __future__ import annotations

from mfu_torch.flops.formulas.configs.described import Described, ModelError
from mfu_torch.flops.formulas.configs.reading import read_config

__all__ = ["Described", "ModelError", "read_config"]
