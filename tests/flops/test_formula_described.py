"""Described models used as models, printed, resized, listed; and what is refused on the way."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import (
    MLP,
    Attention,
    Block,
    ClosedForm,
    Decoder,
    Experts,
    LatentAttention,
    Mask,
    ModelError,
    inference,
    known_families,
    known_models,
    model_of,
)

TINY: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "vocab": 100}


def test_a_described_model_is_a_model() -> None:
    bert = model_of("bert-base")
    assert bert.per == "token"
    assert bert.parameters == bert.model.parameters
    assert bert.flops(2, 128) == bert.model.flops(2, 128)
    assert bert.flops(lengths=[128, 128]) == bert.flops(2, 128)
    assert model_of("t5-small").flops(1, 8, source=16).forward > 0
    with pytest.raises(TypeError):
        model_of("vit-b/16").flops(lengths=[4])


def test_adapters_take_a_described_model_and_refuse_what_is_no_decoder() -> None:
    llama = model_of("llama-3-8b")
    adapted = formulas.lora(llama, rank=16)
    assert adapted == formulas.LoRA(model=llama.model, rank=16)
    assert adapted.trained == 6815744  # as peft prints it
    with pytest.raises(ValueError, match="model is of kind Encoder; expected a Decoder"):
        formulas.lora(model_of("bert-base"))
    with pytest.raises(ValueError, match="model is of kind LoRA; expected a Decoder"):
        formulas.lora(adapted)


def test_conventions_and_inference_take_a_described_model() -> None:
    gpt3 = model_of("gpt3-175b")
    for name in formulas.CONVENTIONS:
        of_both = [formulas.flops_per_token(name, each, 2048) for each in (gpt3, gpt3.model)]
        assert of_both[0] == of_both[1], name
    assert formulas.conventions_for(gpt3) == formulas.conventions_for(gpt3.model)
    for work in (inference.prefill, inference.decode):
        assert work(gpt3, context=64) == work(gpt3.model, context=64)  # type: ignore[operator]
    with pytest.raises(ValueError, match="model is of kind Encoder; expected a Decoder"):
        inference.decode(model_of("bert-base"), context=64)


def test_lengths_beyond_the_positions_are_said() -> None:
    bert = model_of("bert-base")
    assert bert.max_seq == 512
    assert bert.beyond(512) is None
    assert bert.beyond(4096) == "4096 tokens are beyond the 512 positions of bert-base"
    assert model_of("bloom").beyond(10**7) is None  # ALiBi has no end
    assert model_of("llama-3-8b").max_seq == 8192


def test_trained_lengths_are_not_beyond_the_positions() -> None:
    for described in known_models():
        assert described.seq is None or described.beyond(described.seq) is None, described.name


def test_unknown_roles_are_refused() -> None:
    form = model_of("gpt2").flops(1, 8)
    for call in (form.only, form.without):
        with pytest.raises(ValueError, match="role is 'attn'; expected one of linear, attention"):
            call("attn")  # type: ignore[arg-type]
    assert form.only("scan").forward == 0  # there is such a role
    assert form.only("attention").forward + form.without("attention").forward == form.forward


def test_a_form_prints_its_terms_with_their_shares() -> None:
    lines = str(formulas.dense_decoder(**TINY).flops(2, 16)).splitlines()
    assert lines[0].startswith("forward 5.128 MFLOP, backward 10.26 MFLOP, training 15.38 MFLOP")
    assert lines[1].split() == ["q", "linear", "524.3", "kFLOP", "10.2", "%"]
    assert len(lines) == 1 + len(formulas.dense_decoder(**TINY).flops(2, 16).terms)
    assert str(ClosedForm(terms=())) == "no contraction: 0 FLOP"
    assert repr(ClosedForm(terms=())) == "ClosedForm(terms=())"


def test_parameters_print_what_they_consist_of() -> None:
    lines = str(model_of("mixtral-8x7b").parameters).splitlines()
    assert lines[0] == "46,702,792,704 parameters (46.7B)"
    assert "  active, of experts those chosen: 12,879,925,248" in lines
    assert "positions" not in str(model_of("llama-3-8b").parameters)  # it learns none


def test_a_described_model_prints_its_size_its_source_and_its_notes() -> None:
    lines = str(model_of("vit-b/16")).splitlines()
    assert lines[0] == "vit-b/16: VisionTransformer, 86.57M parameters"
    assert lines[1].startswith("  source: Dosovitskiy")
    assert lines[2] == "  for 224 x 224 pixels"
    assert "46.7B parameters, 12.88B active" in str(model_of("mixtral-8x7b"))


@pytest.mark.parametrize(
    ("name", "image", "patches", "note"),
    [
        ("vit-l/16", 384, 24 * 24, "for 384 x 384 pixels"),
        ("dit-xl/2", 512, 32 * 32, "for 512 x 512 pixels, a latent of 64 x 64"),
    ],
)
def test_images_of_another_size(name: str, image: int, patches: int, note: str) -> None:
    described = model_of(name, image=image)
    assert described.model.patches == patches  # type: ignore[attr-defined]
    assert note in described.notes
    assert described.flops().forward > model_of(name).flops().forward
    # ViT learns a position for each patch, DiT none.
    learned = described.parameters.positions - model_of(name).parameters.positions
    assert learned == ((24**2 - 14**2) * 1024 if name == "vit-l/16" else 0)


def test_a_resnet_at_twice_the_size_has_four_times_the_convolutions() -> None:
    small, large = model_of("resnet-50"), model_of("resnet-50", image=448)
    of = [each.flops().only("convolution").forward for each in (small, large)]
    assert of[1] == 4 * of[0]
    assert large.parameters == small.parameters
    assert large.notes == ("for 448 x 448 pixels",)


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("llama-3-8b", 224, "image is 224, and a llama takes none"),
        ("vit-b/16", 225, "patches of 16 do not fill an image of 225 x 225"),
        ("vit-b/16", "224", 'image_size is "224"; expected a whole number'),
        ("dit-b/2", 100, "image is 100; expected a multiple of 8"),
        ("resnet-50", 0, "image is 0; expected a whole number above 0"),
    ],
)
def test_images_that_a_model_does_not_take_are_refused(name: str, image: Any, message: str) -> None:
    with pytest.raises(ModelError) as error:
        model_of(name, image=image)
    assert message in str(error.value)


def test_every_model_of_images_states_their_size() -> None:
    for described in known_models():
        if described.per == "sample":
            assert any(" pixels" in note for note in described.notes), described.name
    assert any("30 s of sound" in note for note in model_of("whisper-small").notes)


def test_known_models_are_listed_by_series() -> None:
    families = known_families()
    assert [family.name for family in families][:3] == ["gpt2", "gpt3", "megatron"]
    listed = [model.name for family in families for model in family.models]
    assert sorted(listed) == sorted(described.name for described in known_models())
    (mixtral,) = [family for family in families if family.name == "mixtral"]
    first = mixtral.models[0]
    assert (first.name, first.parameters, first.active) == (
        "mixtral-8x7b",
        46702792704,
        12879925248,
    )
    assert (first.seq, first.max_seq, first.per) == (32768, 32768, "token")
    assert b'"mixtral-8x7b"' in msgspec.json.encode(families)


def test_functions_stand_where_their_names_are_looked_for() -> None:
    for name in ("bert", "dlrm", "gru", "hstu", "lora", "lstm", "resnet", "rnn", "t5", "vit"):
        assert inspect.isfunction(getattr(formulas, name)), name
        assert name in formulas.__all__
    recurrent = {"inputs": 3, "hidden": 5, "layers": 2}
    assert formulas.lstm(**recurrent) == formulas.Recurrent(cell="lstm", **recurrent)
    assert formulas.gru(**recurrent).cell == "gru"
    assert formulas.rnn(**recurrent).cell == "rnn"
    # MLPerf's, to be found in the module's own words.
    dlrm = formulas.dlrm(bottom=[512, 256, 128], rows=[1000] * 26, top=[1024, 1024, 512, 256, 1])
    assert dlrm.flops(1).forward == 4916992
    layer = formulas.HSTU(heads=2, qk_dim=8, value_dim=8)
    hstu = formulas.hstu(layers=3, hidden=16, heads=2, items=10)
    assert hstu.blocks == (Block(parts=(layer,), count=3),)


def test_a_decoder_with_experts_is_mixtral_in_its_sizes() -> None:
    mixtral = model_of("mixtral-8x7b")
    made = formulas.moe_decoder(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, experts=8, chosen=2
    )
    assert made.flops(1, 512) == mixtral.flops(1, 512)
    assert made.parameters.weights == mixtral.parameters.weights
    for policy in ("selective", "full", "checkpoint"):
        assert made.flops(1, 512).recompute(policy) == mixtral.flops(1, 512).recompute(policy)


def test_the_first_layers_of_a_decoder_with_experts_may_be_dense() -> None:
    experts = {"experts": 8, "chosen": 2, "shared_width": 40}
    made = formulas.moe_decoder(**TINY, **experts, dense_layers=1, dense_ffn=200)
    assert [block.parts[1] for block in made.blocks] == [
        MLP(width=200),
        Experts(experts=8, chosen=2, width=96, shared_width=40),
    ]
    with pytest.raises(ValueError, match="dense_layers is 2; expected less than layers, 2"):
        formulas.moe_decoder(**TINY, **experts, dense_layers=2, dense_ffn=200)
    with pytest.raises(ValueError, match="1 layers are dense; give dense_ffn"):
        formulas.moe_decoder(**TINY, **experts, dense_layers=1)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (Attention, {"heads": 4, "kv_heads": 2, "head_dim": 8}),
        (
            LatentAttention,
            {
                **{"heads": 4, "query_rank": 8, "kv_rank": 8},
                **{"nope_dim": 4, "rope_dim": 2, "value_dim": 4},
            },
        ),
        (MLP, {"width": 8}),
        (Experts, {"experts": 4, "chosen": 2, "width": 8}),
        (Block, {"parts": (MLP(width=4),), "count": 2}),
        (Mask, {"window": 3, "chunk": 3}),
    ],
)
def test_parts_refuse_sizes_that_nothing_has(make: Any, sizes: dict[str, Any]) -> None:
    make(**sizes)
    for name in sizes:
        for wrong in (0, -1, 1.5, float("nan"), "x", True):
            with pytest.raises((ValueError, TypeError)):
                make(**{**sizes, name: wrong})


def test_what_is_no_part_and_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="heads 4 is no multiple of kv_heads 3"):
        Attention(heads=4, kv_heads=3, head_dim=8)
    with pytest.raises(TypeError, match="mask is None; expected a Mask"):
        Attention(heads=4, kv_heads=4, head_dim=8, mask=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parts has 3; expected attention"):
        Block(parts=(3,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="blocks has 3; expected blocks"):
        Decoder(hidden=8, vocab=8, blocks=(3,))  # type: ignore[arg-type]


@pytest.mark.parametrize("seq", [1, 10**7])
def test_lengths_from_one_to_ten_million_are_exact(seq: int) -> None:
    for name in ("gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-3-1b", "mamba2-130m", "jamba-v0.1"):
        model = model_of(name)
        for rule in ("full", "causal", "half", "none"):
            one, many = (model.flops(b, seq, attention=rule) for b in (1, 10**6))
            assert isinstance(one.training, int)
            assert many.training == 10**6 * one.training
            again = [one.recompute(p) for p in ("none", "selective", "checkpoint", "full")]
            assert again[0] == 0 and again[1] <= again[3] and again[2] <= again[3] <= one.forward
