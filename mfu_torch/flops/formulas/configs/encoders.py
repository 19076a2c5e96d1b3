"""Encoders, and encoders with decoders, from their configs."""

from __future__ import annotations

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.fields import Default, Fields
from mfu_torch.flops.formulas.configs.layers import COUNT_IT
from mfu_torch.flops.formulas.decoder import Block
from mfu_torch.flops.formulas.encoder_decoder import EncoderDecoder, encoder_decoder
from mfu_torch.flops.formulas.encoder_decoder_models import t5, whisper
from mfu_torch.flops.formulas.encoders import Encoder, bert, encoder_block
from mfu_torch.flops.formulas.vision import vit

Defaults = dict[str, Default]

# Ends of the names of transformers' classes: (whether they predict masked text, have a pooler, what
# they classify). RoBERTa's and DistilBERT's classifiers of sequences begin as a pooler is.
_HEADS = {
    "ForMaskedLM": (True, False, ""),
    "ForPreTraining": (True, True, "sequence"),
    "ForSequenceClassification": (False, True, "sequence"),
    "ForTokenClassification": (False, False, "token"),
    "ForQuestionAnswering": (False, False, "token"),
    "Model": (False, True, ""),
}


def read_bert(fields: Fields) -> Architecture:
    """BERT, RoBERTa and DistilBERT.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, heads = _divided(fields)
    has_mlm, has_pooler, classified = _heads_of(fields)
    for name in ("is_decoder", "add_cross_attention"):
        if fields.flag(name):
            raise fields.error(f"{name} is true; expected an encoder; {COUNT_IT}")
    is_plain = fields.kind == "distilbert"  # it has no pooler
    if is_plain and not (classified and not has_mlm):
        has_pooler, classified = False, ""
    model = bert(
        layers=fields.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        positions=fields.size("max_position_embeddings"),
        token_types=0 if is_plain else fields.size("type_vocab_size", least=0),
        has_mlm_head=has_mlm,
        has_pooler=has_pooler,
        labels=_labels(fields, has_mlm) if classified else 0,
        labels_per="token" if classified == "token" else "sequence",
    )
    if fields.flag("tie_word_embeddings"):
        return model
    # The head's bias is there twice then, but in DistilBERT.
    again = model.vocab if has_mlm and not is_plain else 0
    return msgspec.structs.replace(model, is_tied=False, others=model.others + again)


def _heads_of(fields: Fields) -> tuple[bool, bool, str]:
    name = fields.class_name or "ForMaskedLM"
    for ending, heads in _HEADS.items():
        if name.endswith(ending):
            return heads
    fields.notes.append(f"read as a model of masked text: the head of {name} is not in here")
    return _HEADS["ForMaskedLM"]


def _labels(fields: Fields, has_mlm: bool) -> int:
    """Of the classifier: whether it is the next sentence, the start and the end, or the file's."""
    if has_mlm or (fields.class_name or "").endswith("ForQuestionAnswering"):
        return 2
    labels = fields.raw("id2label")
    if not isinstance(labels, (dict, type(None))):
        raise fields.error("id2label is no object; expected the name of each class")
    return len(labels) if labels else fields.optional("num_labels") or 2


def read_modernbert(fields: Fields) -> Architecture:
    """ModernBERT (arXiv:2412.13663): rotated positions, gated MLPs, windows in most layers.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, heads = _divided(fields)
    layers, ffn = fields.size("num_hidden_layers"), fields.size("intermediate_size")
    vocab, window = fields.size("vocab_size"), fields.size("local_attention")
    for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        if fields.flag(name):
            raise fields.error(f"{name} is true; expected ModernBERT without biases; {COUNT_IT}")
    types = fields.texts("layer_types", layers)
    if types is None:
        every = fields.size("global_attn_every_n_layers")
        types = tuple("sliding_attention" if i % every else "full_attention" for i in range(layers))
    blocks: list[Block] = []
    for kind in types:
        block = encoder_block(
            layers=1,
            hidden=hidden,
            heads=heads,
            ffn=ffn,
            is_gated=True,
            window=window if kind == "sliding_attention" else None,
        )
        blocks.append(block)
    norms = 2 * layers - 1 + 3  # the first layer lacks one; embedding, last layer and head
    return Encoder(
        hidden=hidden,
        vocab=vocab,
        blocks=tuple(blocks),
        is_tied=fields.flag("tie_word_embeddings"),
        others=norms * hidden + (vocab if fields.flag("decoder_bias") else 0),
    )


def read_vit(fields: Fields) -> Architecture:
    """ViT as it classifies images.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, heads = _divided(fields)
    image, patch = fields.size("image_size"), fields.size("patch_size")
    if image % patch:
        raise fields.error(f"patches of {patch} do not fill an image of {image} x {image}")
    if fields.has("qkv_bias") and not fields.flag("qkv_bias"):
        raise fields.error(f"qkv_bias is false; expected a ViT with biases; {COUNT_IT}")
    fields.notes.append(f"for {image} x {image} pixels")
    model = vit(
        image=image,
        patch=patch,
        layers=fields.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        ffn=fields.size("intermediate_size"),
        channels=fields.size("num_channels"),
        classes=_labels(fields, has_mlm=False),
    )
    if not fields.share("hidden_dropout_prob", 0.0):
        return model
    return msgspec.structs.replace(model, blocks=_repeating(model.blocks))


def read_t5(fields: Fields) -> Architecture:
    """T5 and its followers with the same layers.

    Raises:
        ModelError: If the fields make no such model.
    """
    layers = fields.size("num_hidden_layers")
    act = fields.raw("feed_forward_proj") or ("gated-gelu" if fields.kind == "mt5" else "relu")
    if not isinstance(act, str):
        raise fields.error(f'feed_forward_proj is {act!r}; expected "relu" or "gated-gelu"')
    is_tied = fields.flag("tie_word_embeddings")
    if not is_tied:
        fields.notes.append(
            "the head is not the embedding, as the file says; transformers 5 shares them even so"
        )
    model = t5(
        hidden=fields.size("hidden_size"),
        heads=fields.size("num_attention_heads"),
        head_dim=fields.size("d_kv"),
        ffn=fields.size("d_ff"),
        layers=layers,
        decoder_layers=fields.optional("num_decoder_layers") or layers,
        vocab=fields.size("vocab_size"),
        is_gated=act.startswith("gated"),
        is_tied=is_tied,
        buckets=fields.size("relative_attention_num_buckets"),
    )
    if not fields.share("dropout_rate", 0.1):
        return model
    return _with_dropout(model)


def read_bart(fields: Fields) -> Architecture:
    """BART and mBART.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, heads, behind = _two_sides(fields)
    ffn, decoder_ffn = fields.size("encoder_ffn_dim"), fields.size("decoder_ffn_dim")
    layers, decoder_layers = fields.size("encoder_layers"), fields.size("decoder_layers")
    is_first = fields.kind == "mbart"  # norms come first, and one more behind each side
    # q, k, v, o with biases, up and down; two norms with biases, three in the decoder.
    encoder = layers * (4 * hidden + ffn + hidden + 4 * hidden)
    decoder = decoder_layers * (8 * hidden + decoder_ffn + hidden + 6 * hidden)
    vocab, is_tied = fields.size("vocab_size"), fields.flag("tie_word_embeddings")
    # Without it, each side has an embedding beside the shared one.
    apart = 0 if is_tied else 2 * vocab * hidden
    return encoder_decoder(
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        ffn=ffn,
        encoder_layers=layers,
        decoder_layers=decoder_layers,
        decoder_heads=behind,
        decoder_ffn=decoder_ffn,
        repeats_last=fields.share("dropout", 0.1) > 0 or not is_first,
        is_tied=is_tied,
        positions=2 * (fields.size("max_position_embeddings") + 2),
        others=encoder + decoder + (8 if is_first else 4) * hidden + apart,
    )


def read_whisper(fields: Fields) -> Architecture:
    """Whisper.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, heads, behind = _two_sides(fields)
    ffn, positions = fields.size("encoder_ffn_dim"), fields.size("max_source_positions")
    if (heads, ffn) != (behind, fields.size("decoder_ffn_dim")):
        raise fields.error(
            f"heads or MLPs of the two sides differ; expected equal ones; {COUNT_IT}"
        )
    model = whisper(
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        encoder_layers=fields.size("encoder_layers"),
        decoder_layers=fields.size("decoder_layers"),
        vocab=fields.size("vocab_size"),
        mel_bins=fields.size("num_mel_bins"),
        frames=2 * positions,
        positions=fields.size("max_target_positions"),
    )
    seconds = positions / 50  # 100 frames a second, two for a position
    fields.notes.append(
        f"an encoder of {positions} positions for each text: {seconds:g} s of sound"
    )
    # The encoder's are fixed waves, which transformers keeps among the parameters.
    model = msgspec.structs.replace(
        model,
        positions=model.positions + positions,
        is_tied=fields.flag("tie_word_embeddings"),
    )
    return _with_dropout(model) if fields.share("dropout", 0.0) else model


def _with_dropout(model: EncoderDecoder) -> EncoderDecoder:
    """A dropout follows each layer's last product, so a checkpoint repeats that, too."""
    return msgspec.structs.replace(
        model, encoder=_repeating(model.encoder), decoder=_repeating(model.decoder)
    )


def _repeating(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(msgspec.structs.replace(block, repeats_last=True) for block in blocks)


def _divided(fields: Fields) -> tuple[int, int]:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return _check(fields, hidden, heads), heads


def _two_sides(fields: Fields) -> tuple[int, int, int]:
    hidden = fields.size("hidden_size")
    sides = [fields.size(f"{side}_attention_heads") for side in ("encoder", "decoder")]
    for heads in sides:
        _check(fields, hidden, heads)
    return hidden, sides[0], sides[1]


def _check(fields: Fields, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise fields.error(
            f"hidden size {hidden} is no multiple of {heads} attention heads; expected one"
        )
    return hidden
