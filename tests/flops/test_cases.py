"""Every piece of work of the table counts what its closed form says, phase by phase."""

from __future__ import annotations

import pytest
import torch
from cases import Work, by_phase, work_of
from cases_table import NO_LIMITS, WORK, ZOO


@pytest.mark.parametrize("name", WORK)
@pytest.mark.filterwarnings("ignore")
def test_work_counts_what_its_closed_form_says(name: str) -> None:
    torch.manual_seed(0)
    work: Work = WORK[name]()
    count = work.counted()
    said = [*count.uncounted, *(note for note in count.notes if not note.startswith(NO_LIMITS))]
    if work.unknown:
        said = [*count.uncounted, *count.notes]
        assert any(text.startswith(work.unknown) for text in said), said
    else:
        assert by_phase(count) == work.expected()
        assert [text for text in said if not text.startswith(work.says or "-")] == []
        assert bool(said) == bool(work.says)


@pytest.mark.parametrize("name", [n for n, b in ZOO.items() if b.__module__ == "other_models"])
def test_a_model_of_another_field_counts_what_its_closed_form_says(name: str) -> None:
    torch.manual_seed(0)
    work = work_of(ZOO[name]())
    count = work.counted()
    assert by_phase(count) == work.expected()
    assert (count.uncounted, count.notes) == ({}, ())
