"""The model families of transformers: each is counted whole, and its shadow is equal to it.

``MFU_TORCH_ZOO=types`` goes through one class of every model type, ``MFU_TORCH_ZOO=all`` through
every class; without it, through representatives of every architecture.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from families import all_classes, build, first_of_each_type
from not_covered import NOT_COVERED
from properties import check, forward_count
from representatives import REPRESENTATIVES
from witness import disagreements, forward_by_torch

CLASSES = all_classes()
CHOSEN = [name for names in REPRESENTATIVES.values() for name in names]

# The model's code asks whether it is traced, and builds a mask that it otherwise leaves out; or a
# linear layer sees a tensor in another memory order. The products are the same ones by another op.
OTHER_OPS = ("Inkling", "PatchTST")
# What comes out, and so how much is to be computed, is drawn by chance.
BY_CHANCE = frozenset({"VitsModel", "SpeechT5ForTextToSpeech"})
REASONS_TO_REFUSE = (
    "DataDependentOutputException", "DynamicOutputShapeException", "_apply()",
    "data is not allocated yet",
)  # fmt: skip

FLOOR_CLASSES, FLOOR_TYPES = 1200, 460


def selected() -> list[str]:
    which = os.environ.get("MFU_TORCH_ZOO", "")
    if which == "all":
        return sorted(CLASSES)
    if which == "types":
        return sorted(first_of_each_type(CLASSES))
    return [name for name in CHOSEN if name in CLASSES]


def is_covered(name: str) -> bool:
    return name not in NOT_COVERED and CLASSES[name] not in NOT_COVERED


@pytest.mark.parametrize("name", [name for name in selected() if is_covered(name)])
def test_a_class_is_counted_whole_and_its_shadow_is_equal_and_leaves_no_trace(name: str) -> None:
    built = build(name, CLASSES[name])
    found = check(*built, exact_ops=not name.startswith(OTHER_OPS))
    assert found.faults == []
    for reason in found.refusals.values():
        assert any(known in reason for known in REASONS_TO_REFUSE), reason
    if name not in BY_CHANCE:
        theirs = forward_by_torch(built.model, (), built.kwargs)
        assert disagreements(found.evaluation, theirs) == []


LISTED = [name for name in selected() if not is_covered(name)]


@pytest.mark.parametrize("name", LISTED)
def test_a_class_that_is_listed_as_not_covered_really_cannot_be(name: str) -> None:
    try:
        check(*build(name, CLASSES[name]))
    except Exception:  # of every kind: the table says which
        return
    pytest.fail(f"{name} works: take it off the table of what is not covered")


def test_the_table_names_only_what_transformers_has() -> None:
    known = CLASSES.keys() | CLASSES.values()
    assert NOT_COVERED.keys() <= known


def test_most_of_what_transformers_has_is_covered() -> None:
    covered = [name for name in CLASSES if is_covered(name)]
    assert len(covered) >= FLOOR_CLASSES
    assert len({CLASSES[name] for name in covered}) >= FLOOR_TYPES
    assert all(is_covered(name) for name in CHOSEN if name in CLASSES)
    assert len(set(CHOSEN) & CLASSES.keys()) == len(CHOSEN)


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "BartForConditionalGeneration",
        "ViTForImageClassification", "WhisperForConditionalGeneration", "Qwen3MoeForCausalLM",
        "CLIPModel", "OPTForCausalLM", "FalconForCausalLM",
    ],
)  # fmt: skip
def test_fused_and_written_out_attention_are_as_many_flops_forward(name: str) -> None:
    totals = {}
    for implementation in ("sdpa", "eager"):
        built = build(name, CLASSES[name], attn_implementation=implementation)
        built.model.eval()
        totals[implementation] = forward_count(lambda b=built: b.model(**b.kwargs)).model
    assert totals["sdpa"] == totals["eager"] > 0


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_every_implementation_of_experts_is_as_many_flops(name: str) -> None:
    found = {}
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model, kwargs = build(name, CLASSES[name])
        model.set_experts_implementation(implementation)
        found[implementation] = check(model, kwargs)
        assert found[implementation].faults == []
    assert len({each.train.model for each in found.values()}) == 1
    assert "nonzero" in found["eager"].refusals["train"]  # its shapes depend on the routing
    assert found["batched_mm"].refusals == found["grouped_mm"].refusals == {}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration"]
)
def test_recomputed_layers_are_the_same_in_the_shadow(name: str, reentrant: bool) -> None:
    model, kwargs = build(name, CLASSES[name])
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = check(model, {**kwargs, "use_cache": False} if "Bert" not in name else kwargs)
    assert found.faults == [] and found.refusals == {}
    assert found.train.recompute > 0


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "MambaForCausalLM"])
def test_a_decoding_step_is_counted_and_its_shadow_leaves_the_cache_alone(name: str) -> None:
    model, kwargs = build(name, CLASSES[name])
    model.eval()
    cache_name = "cache_params" if "Mamba" in name else "past_key_values"
    ids = kwargs["input_ids"]

    def cached() -> dict[str, Any]:
        with torch.no_grad():
            past = model(ids[:, :8], use_cache=True)[cache_name]
        return {"input_ids": ids[:, 8:9], cache_name: past, "use_cache": True}

    found = check(model, cached(), modes=("eval",))
    assert found.faults == [] and found.refusals == {}
    prompt = forward_count(lambda: model(ids[:, :8]))
    assert 0 < found.evaluation.model < prompt.model / 4
