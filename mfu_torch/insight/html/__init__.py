"""A run as one HTML page that needs nothing else."""

from __future__ import annotations

from mfu_torch.insight.html.page import render_page
from mfu_torch.insight.html.writing import NotOurs, write_page

__all__ = ["NotOurs", "render_page", "write_page"]
