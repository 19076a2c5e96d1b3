"""Closed forms: the FLOPs of an architecture from its sizes alone, without a model and torch.

The forms of the parts are those of the papers that introduced them; each is held against what the
counter counts of a small model, to the digit.

    >>> from mfu_torch.flops import formulas
    >>> llama = formulas.dense_decoder(
    ...     layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256
    ... )
    >>> llama.flops(batch=2, seq=1024).forward
    31838592565248
"""

from mfu_torch.flops.formulas.conventions import CONVENTIONS, Convention, flops_per_token
from mfu_torch.flops.formulas.decoder import Block, Decoder, Parameters, dense_decoder
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention, Part
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Recompute, Role, Term

__all__ = [
    "CONVENTIONS",
    "MLP",
    "Attention",
    "Block",
    "ClosedForm",
    "Convention",
    "Decoder",
    "Experts",
    "LatentAttention",
    "Linear",
    "Mask",
    "PairRule",
    "Parameters",
    "Part",
    "Recompute",
    "Role",
    "Sequences",
    "Term",
    "dense_decoder",
    "flops_per_token",
]
