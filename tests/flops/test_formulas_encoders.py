"""Closed forms of encoders against what the counter counts, and against numbers in print."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, selective, trained

from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Encoder, Mask, bert
from mfu_torch.flops.formulas.encoders import encoder_block

B, S, H, FFN, V, L = 2, 12, 16, 40, 50, 3
SIZES: dict[str, Any] = {
    "layers": L, "hidden": H, "heads": 4, "ffn": FFN, "vocab": V, "positions": 32,
}  # fmt: skip


def config(**changes: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, num_attention_heads=4,
        vocab_size=V, max_position_embeddings=32, attn_implementation="eager", **changes,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def ids(batch: int = B, seq: int = S, vocab: int = V) -> torch.Tensor:
    return torch.randint(1, vocab, (batch, seq))


def parameters_of(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_bert_by_hand() -> None:
    form = bert(layers=1, hidden=4, heads=2, ffn=8, vocab=10).flops(batch=2, seq=3)
    # 2 * 6 tokens x (4 x 16 + 2 x 32) weights, 4 * 2 x 9 pairs x 4, head 2 * 6 x (16 + 40)
    assert form.only("linear").forward == 1536
    assert form.only("attention").forward == 288
    assert form.only("head").forward == 672
    assert form.training == 3 * 2496


def test_masked_language_model() -> None:
    from transformers import BertForMaskedLM

    model, closed = BertForMaskedLM(config()), bert(**SIZES)
    assert_counted(closed.flops(B, S), trained(model, ids()))
    assert closed.parameters.total == parameters_of(model)
    # The norm behind a layer's last product needs its result: a checkpoint leaves out nothing.
    layers = model.bert.encoder.layer
    assert_recomputed(closed.flops(B, S), model, layers, ids())


def test_selective_recomputation_repeats_scores_and_values() -> None:
    from transformers import BertForMaskedLM

    model, form = BertForMaskedLM(config()), bert(**SIZES).flops(B, S)
    with selective(model):
        count = trained(model, ids())
    assert count.recompute == form.recompute("selective") == L * 4 * B * S * S * H
    assert count.model == form.training


def test_pretraining_has_a_pooler_and_predicts_the_next_sentence() -> None:
    from transformers import BertForPreTraining

    model, closed = BertForPreTraining(config()), bert(**SIZES, has_pooler=True, labels=2)
    form, batch = closed.flops(B, S), ids()

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(x)
        return out.prediction_logits, out.seq_relationship_logits

    assert_counted(form, trained(both, batch))
    assert closed.parameters.total == parameters_of(model)


@pytest.mark.parametrize("labels_per", ["sequence", "token"])
def test_classifiers(labels_per: Any) -> None:
    from transformers import BertForSequenceClassification, BertForTokenClassification

    of_sequence = labels_per == "sequence"
    made = BertForSequenceClassification if of_sequence else BertForTokenClassification
    model = made(config(num_labels=5))
    closed = bert(
        **SIZES, has_mlm_head=False, has_pooler=of_sequence, labels=5, labels_per=labels_per
    )
    assert_counted(closed.flops(B, S), trained(model, ids()))
    assert closed.parameters.total == parameters_of(model)


def test_padding_counts_as_tokens_do_and_lengths_leave_it_out() -> None:
    closed = bert(**SIZES, has_mlm_head=False)
    long, short = closed.flops(1, 12), closed.flops(1, 5)
    both = closed.flops(lengths=[12, 5])
    assert both.forward == long.forward + short.forward
    assert closed.flops(2, 12).forward == 2 * long.forward


def test_predictions_alone_meet_the_head() -> None:
    some, every = bert(**SIZES, predictions=3).flops(B, S), bert(**SIZES).flops(B, S)
    assert some.only("head").training * S == every.only("head").training * 3
    with pytest.raises(ValueError, match="predictions is 13; expected at most the 12 tokens"):
        bert(**SIZES, predictions=13).flops(B, S)


def test_modern_bert_has_windows_and_gated_mlps() -> None:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    sizes = ModernBertConfig(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, num_attention_heads=4,
        vocab_size=V, local_attention=4, global_attn_every_n_layers=3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        attn_implementation="eager", embedding_dropout=0.0, mlp_dropout=0.0,
    )  # fmt: skip
    model = ModernBertForMaskedLM(sizes)
    everywhere = encoder_block(layers=1, hidden=H, heads=4, ffn=FFN, is_gated=True)
    local = encoder_block(layers=2, hidden=H, heads=4, ffn=FFN, is_gated=True, window=4)
    closed = Encoder(hidden=H, vocab=V, blocks=(everywhere, local))
    count = trained(model, ids())
    assert_counted(closed.flops(B, S), count)
    # Two keys on either side and itself: 12 * 5 - 2 * (2 + 1) = 54 of 144 pairs.
    kept = closed.flops(B, S, attention="causal").only("attention").forward
    assert kept == 4 * B * H * (144 + 2 * 54)
    layers = model.model.layers
    assert_recomputed(closed.flops(B, S), model, layers, ids())


def test_electra_brings_narrow_embeddings_to_its_width() -> None:
    from transformers import ElectraConfig, ElectraForMaskedLM

    sizes = ElectraConfig(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, num_attention_heads=4,
        vocab_size=V, embedding_size=8, attn_implementation="eager", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = ElectraForMaskedLM(sizes)
    block = encoder_block(layers=L, hidden=H, heads=4, ffn=FFN, repeats_last=True)
    closed = Encoder(hidden=H, vocab=V, blocks=(block,), embedding=8)
    assert_counted(closed.flops(B, S), trained(model, ids()))
    assert_recomputed(closed.flops(B, S), model, model.electra.encoder.layer, ids())


def test_bert_base_as_published() -> None:
    base: dict[str, Any] = {
        "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 30522,
    }  # fmt: skip
    bare = bert(**base, has_mlm_head=False, has_pooler=True)
    assert bare.parameters.total == 109_482_240  # "110M", arXiv:1810.04805, section 3
    assert bert(**base).parameters.total == 109_514_298
    # 12 layers of 12 x 768 x 768 weights and 4 x 128 x 768 for a token; the pooler: 2 x 768 x 768.
    assert bare.flops(1, 128).forward == 22_347_251_712 + 1_179_648


def test_absurd_sizes_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="hidden 16 is no multiple of heads 3"):
        bert(**{**SIZES, "heads": 3})
    with pytest.raises(ValueError, match="vocab is 0; expected a whole number above 0"):
        bert(**{**SIZES, "vocab": 0})
    with pytest.raises(ValueError, match="a mask is causal"):
        attention = formulas.Attention(heads=1, kv_heads=1, head_dim=H, mask=Mask())
        Encoder(hidden=H, vocab=V, blocks=(formulas.Block(parts=(attention,)),))
    with pytest.raises(ValueError, match="give either seq"):
        bert(**SIZES).flops(2)
