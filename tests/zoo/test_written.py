"""Models written out: image models, diffusion, recommenders, graphs, speech, recurrences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import written_others
import written_vision
from properties import check
from witness import disagreements, forward_by_torch

WRITTEN: dict[str, Any] = {**written_vision.WRITTEN, **written_others.WRITTEN}

REFUSED = {
    "sasrec": "_local_scalar_dense",  # torch's encoder looks whether its mask is causal
    "gcn coo": "multiplies a sparse tensor",
    "gcn csr": "multiplies a sparse tensor",
    "deepspeech lstm": "_ctc_loss",
    "deepspeech gru": "_ctc_loss",
    "deepspeech rnn": "_ctc_loss",
}
"""Where the shadow is refused, in training and evaluation: a part of the reason it gives."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_model_is_counted_whole_and_its_shadow_is_equal_and_leaves_no_trace(name: str) -> None:
    torch.manual_seed(0)
    model, args = WRITTEN[name]()
    found = check(model, {}, args)
    assert found.faults == []
    for reason in found.refusals.values():
        assert REFUSED[name] in reason
    assert set(found.refusals) == ({"train", "eval"} if name in REFUSED else set())
    assert found.train.backward >= found.train.forward > 0
    assert disagreements(found.evaluation, forward_by_torch(model, args, {})) == []
