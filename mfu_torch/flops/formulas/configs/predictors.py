"""Layers that predict further tokens, which checkpoints hold and transformers does not build."""

from __future__ import annotations

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.fields import Fields
from mfu_torch.flops.formulas.decoder import Block, Decoder
from mfu_torch.flops.formulas.parts import LatentAttention

_FIELD = "num_nextn_predict_layers"


def with_further_tokens(
    fields: Fields, model: Architecture, *, wanted: bool
) -> tuple[Architecture, list[str]]:
    """The model with such layers where they are wanted, and what has to be said about them.

    Each is a layer as the last one, behind a projection of 2h to h and two norms; a norm of its own
    stands before the shared head (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    Raises:
        ModelError: If they are wanted and the config has none.
    """
    number = fields.optional(_FIELD, least=0) or 0 if fields.has(_FIELD) else 0
    if not number or not isinstance(model, Decoder):
        if wanted:
            raise fields.error(
                f"has no {_FIELD}; expected a model with layers that predict further tokens"
            )
        return model, []
    if not wanted:
        return model, [
            f"{number} layer{'s' * (number > 1)} that predict{'s' * (number == 1)} further tokens "
            "(MTP) left out, as transformers leaves them out"
        ]
    parts = model.blocks[-1].parts
    norms = 5 * model.hidden  # two before the projection, two of the layer, one before the head
    for part in parts:
        if isinstance(part, LatentAttention):
            norms += part.kv_rank + (part.query_rank or 0)
    layer = msgspec.structs.replace(model.blocks[-1], count=number)
    assert isinstance(layer, Block)
    return msgspec.structs.replace(model, mtp=(layer,), others=model.others + number * norms), []
