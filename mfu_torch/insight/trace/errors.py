"""What is wrong with a trace, in one line."""

from __future__ import annotations

from mfu_torch.records.facts import MFUError


class TraceError(MFUError):
    """A file cannot be read as a trace; the message says what was seen and what to do."""
