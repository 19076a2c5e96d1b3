"""Shared set-up. Pytest puts this folder on the path, so tests can import its plain modules."""

from __future__ import annotations

import os

# Before torch is imported: many small ops on few cores run faster on one thread, and numbers do not
# depend on how many there are.
os.environ.setdefault("OMP_NUM_THREADS", "1")
