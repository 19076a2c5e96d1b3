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

from mfu_torch.flops.formulas.adapters import LoRA, lora
from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs import Described, ModelError, read_config
from mfu_torch.flops.formulas.conventions import (
    CONVENTIONS,
    Convention,
    conventions_for,
    flops_per_token,
)
from mfu_torch.flops.formulas.convnets import Conv, ConvNet, Pool, Residual
from mfu_torch.flops.formulas.decoder import (
    Block,
    Decoder,
    Parameters,
)
from mfu_torch.flops.formulas.decoders import dense_decoder, moe_decoder
from mfu_torch.flops.formulas.diffusion import DiffusionTransformer, dit
from mfu_torch.flops.formulas.encoder_decoder import EncoderDecoder, encoder_decoder
from mfu_torch.flops.formulas.encoder_decoder_models import t5, whisper
from mfu_torch.flops.formulas.encoders import Encoder, bert, encoder_block
from mfu_torch.flops.formulas.known import known_models, model_of
from mfu_torch.flops.formulas.known_table import KnownFamily, KnownModel, known_families
from mfu_torch.flops.formulas.linear_attention import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LinearAttention,
)
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention, Part
from mfu_torch.flops.formulas.recommenders import DLRM, dlrm
from mfu_torch.flops.formulas.recurrence import Recurrent, gru, lstm, rnn
from mfu_torch.flops.formulas.resnets import resnet
from mfu_torch.flops.formulas.sequence_recommenders import HSTU, SequenceRecommender, hstu
from mfu_torch.flops.formulas.state_space import Mamba, Mamba2, mamba, mamba2
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Recompute, Role, Term
from mfu_torch.flops.formulas.vision import Swin, VisionTransformer, vit

__all__ = [
    "CONVENTIONS",
    "DLRM",
    "HSTU",
    "MLP",
    "Architecture",
    "Attention",
    "Block",
    "ClosedForm",
    "Conv",
    "ConvNet",
    "Convention",
    "Decoder",
    "Described",
    "DiffusionTransformer",
    "Encoder",
    "EncoderDecoder",
    "Experts",
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "KnownFamily",
    "KnownModel",
    "LatentAttention",
    "Linear",
    "LinearAttention",
    "LoRA",
    "Mamba",
    "Mamba2",
    "Mask",
    "ModelError",
    "PairRule",
    "Parameters",
    "Part",
    "Pool",
    "Recompute",
    "Recurrent",
    "Residual",
    "Role",
    "SequenceRecommender",
    "Sequences",
    "Swin",
    "Term",
    "VisionTransformer",
    "bert",
    "conventions_for",
    "dense_decoder",
    "dit",
    "dlrm",
    "encoder_block",
    "encoder_decoder",
    "flops_per_token",
    "gru",
    "hstu",
    "known_families",
    "known_models",
    "lora",
    "lstm",
    "mamba",
    "mamba2",
    "model_of",
    "moe_decoder",
    "read_config",
    "resnet",
    "rnn",
    "t5",
    "vit",
    "whisper",
]
