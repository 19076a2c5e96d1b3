"""Which band of the stacked shares a pause belongs to, whatever it is called."""

from __future__ import annotations

from mfu_torch.integrations.tensorboard.layout import stacked


def test_pauses_under_other_names_are_pauses() -> None:
    pauses = {"other", "pause other", "a/b"}
    shares = {
        "model": 0.25, "pause other": 0.125, "pause pause other": 0.125, "pause pause a/b": 0.125,
        "further pauses": 0.125, "first step": 0.125, "other": 0.125,
    }  # fmt: skip
    heights = dict(stacked(shares, pauses))
    assert heights["goodput_stacked/excluded"] == 0.375  # the model and the first step
    assert heights["goodput_stacked/pauses"] == 0.875
    assert heights["goodput_stacked/other"] == 1.0
