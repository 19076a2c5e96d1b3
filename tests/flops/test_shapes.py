"""New shapes are evaluated: equal to counting them, and counted where no law holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput

from mfu_torch.flops.counter import FlopCounter
from mfu_torch.flops.shapes import GIVE_UP_AFTER, MASKS_DIFFER, ShapeLaw
from mfu_torch.flops.shapes.fit import CONFIRMATIONS
from mfu_torch.flops.shapes.signature import signature, template
from mfu_torch.records import FlopCount

Batch = dict[str, torch.Tensor]


class Outcome(NamedTuple):
    """How many shapes were counted and evaluated; every evaluated one was right."""

    counted: int
    evaluated: int
    law: ShapeLaw


def follow(model: nn.Module, batches: Iterator[Batch], steps: int) -> Outcome:
    """Count every step, and hold what the law says of it, if it does, against the count."""
    law, counted, evaluated = ShapeLaw(), 0, 0
    for _, batch in zip(range(steps), batches, strict=False):
        calls: list[Any] = []
        with FlopCounter() as counter:
            out = model(**batch)
            (out.loss if out.loss is not None else out.logits.sum()).backward()
        truth = counter.take("", calls)
        _, sizes = template(signature((), batch))
        said = law.evaluate(sizes)
        if said is None:
            law.observe(sizes, truth, calls)
            counted += 1
        else:
            assert_right(said, truth)
            evaluated += 1
    return Outcome(counted, evaluated, law)


def assert_right(said: FlopCount, truth: FlopCount) -> None:
    """Equal in every term; causal FLOPs may be all where masks are data, and the count says so."""
    masked = MASKS_DIFFER in said.notes
    found, expected = (
        {(t.phase, t.op, t.dtype): t for t in count.terms if t.flops} for count in (said, truth)
    )
    assert found.keys() == expected.keys()
    for key, term in found.items():
        causal = {expected[key].causal_flops} | ({term.flops} if masked else set())
        assert term.flops == expected[key].flops and term.causal_flops in causal


def texts(seed: int, batch_sizes: tuple[int, ...], longest: int = 96) -> Iterator[Batch]:
    draw = random.Random(seed)
    while True:
        ids = torch.randint(3, 99, (draw.choice(batch_sizes), draw.randint(4, longest)))
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def padded(seed: int) -> Iterator[Batch]:
    """Texts of different lengths in one batch, and the mask that says so."""
    draw = random.Random(seed)
    while True:
        lengths = torch.tensor([draw.randint(4, 96) for _ in range(4)])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        ids = torch.randint(3, 99, mask.shape)
        yield {"input_ids": ids, "attention_mask": mask, "labels": ids}


def images(seed: int, step: int = 1) -> Iterator[Batch]:
    draw = random.Random(seed)
    while True:
        height, width = (step * draw.randint(64 // step, 160 // step) for _ in range(2))
        yield {"pixel_values": torch.randn(2, 3, height, width)}


TINY = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=100))


def mixtral(experts: str, window: int | None = None) -> nn.Module:
    config = hf.MixtralConfig(**TINY, **HEADS, num_local_experts=4, sliding_window=window)
    config._experts_implementation = experts
    return hf.MixtralForCausalLM(config)


def test_padded_texts_of_a_fixed_batch_size_are_evaluated_after_a_few() -> None:
    counted, evaluated, _ = follow(gpt2(), texts(0, (4,)), 30)
    # Three fix a quadratic, two confirm it; the rest went beyond the lengths seen so far.
    assert counted <= 10 and evaluated >= 20


def test_masks_are_data_and_only_causal_flops_depend_on_them() -> None:
    counted, evaluated, _ = follow(mixtral("grouped_mm"), padded(10), 30)
    assert counted <= 14 and evaluated >= 16


def test_padded_texts_of_several_batch_sizes_are_evaluated() -> None:
    assert follow(gpt2(), texts(1, (1, 2, 3, 4, 8)), 40).evaluated >= 20


def test_encoder_and_decoder_of_different_lengths_are_evaluated() -> None:
    config = hf.T5Config(
        vocab_size=100,
        d_model=32,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        d_kv=8,
        decoder_start_token_id=0,
    )
    draw = random.Random(2)

    def pairs() -> Iterator[Batch]:
        while True:
            ids, labels = (torch.randint(3, 99, (3, draw.randint(4, 60))) for _ in range(2))
            yield {"input_ids": ids, "labels": labels}

    assert follow(hf.T5ForConditionalGeneration(config), pairs(), 40).evaluated >= 20


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_experts_are_evaluated_where_every_token_is_routed(experts: str) -> None:
    assert follow(mixtral(experts), texts(3, (4,)), 30).evaluated >= 12


def test_a_window_within_the_lengths_has_a_law_on_either_side() -> None:
    # Up to 40 tokens all pairs are kept, beyond it 40 S - 780 of them.
    assert follow(mixtral("grouped_mm", window=40), texts(4, (4,)), 50).evaluated >= 12


def test_chunks_of_padded_lengths_are_evaluated() -> None:
    config = hf.LongformerConfig(**TINY, num_attention_heads=2, attention_window=16)
    model = hf.LongformerForMaskedLM(config)
    assert follow(model, texts(5, (2,), longest=200), 45).evaluated >= 10


def convnet() -> nn.Module:
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    )


def test_images_of_any_size_are_evaluated_through_strides() -> None:
    assert follow(convnet(), images(6), 60).evaluated >= 15


def test_images_in_steps_of_32_say_nothing_of_other_sizes() -> None:
    _, evaluated, law = follow(convnet(), images(7, step=32), 30)
    assert evaluated >= 8
    assert law.evaluate((2, 3, 96, 128)) is not None
    assert law.evaluate((2, 3, 100, 128)) is None


def test_windows_over_an_image_are_evaluated_or_counted_never_wrong() -> None:
    config = hf.SwinConfig(
        embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, image_size=64
    )
    follow(hf.SwinForImageClassification(config), images(8), 40)


class Dropping(nn.Module):
    """Routes by data: half of the rows, or all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        kept = x if x[0, 0] > 0 else x[: len(x) // 2]
        return ImageClassifierOutput(logits=self.layer(kept))


def test_routing_by_data_is_never_evaluated() -> None:
    draw = random.Random(9)

    def rows() -> Iterator[Batch]:
        while True:
            x = torch.randn(draw.randint(10, 400), 8)
            x[0, 0] = draw.choice([-1.0, 1.0])
            yield {"x": x}

    outcome = follow(Dropping(), rows(), GIVE_UP_AFTER + 12)
    assert outcome.evaluated == 0
    assert outcome.law.refuted


def linear_law(rows: int) -> tuple[FlopCount, list[Any]]:
    return observed(rows, 2 * rows * 64)


def observed(rows: int, flops: int) -> tuple[FlopCount, list[Any]]:
    layer, calls = nn.Linear(flops // (2 * rows), 1, bias=False), []
    with FlopCounter() as counter:
        layer(torch.ones(rows, layer.in_features))
    return counter.take("", calls), calls


def test_nothing_is_evaluated_before_enough_shapes_were_foretold() -> None:
    law = ShapeLaw()
    for number, rows in enumerate((10, 90, 31, 50)):
        assert law.evaluate((20,)) is None
        law.observe((rows,), *linear_law(rows))
        assert law.is_trusted == (number >= 1 + CONFIRMATIONS)
    assert law.evaluate((20,)).forward == 2 * 20 * 64
    assert law.evaluate((91,)) is None  # beyond what was seen


def test_a_law_that_a_later_count_contradicts_is_believed_no_more() -> None:
    law = ShapeLaw()
    for rows in (10, 90, 31, 50):
        law.observe((rows,), *linear_law(rows))
    assert law.evaluate((20,)) is not None
    assert law.observe((60,), *linear_law(60))
    assert not law.observe((70,), *observed(70, 2 * 70 * 128))
    assert law.refuted and law.evaluate((20,)) is None


def test_some_shapes_are_counted_although_they_could_be_evaluated() -> None:
    law = ShapeLaw()
    for rows in (10, 200, 31, 50):
        law.observe((rows,), *linear_law(rows))
    due = []
    for rows in range(60, 160):
        if law.is_due():
            due.append(rows)
            law.observe((rows,), *linear_law(rows))
        else:
            law.evaluate((rows,))
    assert due == [68, 93]  # after 8 evaluated ones, and after 32
