"""What is found must not depend on how busy the machine is."""

from __future__ import annotations

import pytest

from mfu_torch.flops import shapes
from mfu_torch.flops.shapes import laws


@pytest.fixture(autouse=True)
def all_the_time_for_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run of the user's the search for laws ends after some seconds."""
    monkeypatch.setattr(shapes, "BUDGET_S", 600.0)
    monkeypatch.setattr(laws, "SEARCH_S", 60.0)
