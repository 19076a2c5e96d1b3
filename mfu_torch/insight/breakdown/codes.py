"""Classes of time and causes of idle time, as numbers: the lower class is on top."""

from __future__ import annotations

GEMM, CONV, ATTENTION, OTHER, COMMUNICATION, COPY, IDLE = range(7)
"""What runs. Of several at once the lowest gets the time: communication beside compute is free."""

MATRIX = (GEMM, CONV, ATTENTION)
"""Classes that multiply."""

CLASS_NAMES = ("gemm", "conv", "attention", "other", "communication", "copy")
"""As a user writes them."""

DATA_WAIT, HOST_SYNC, ALLOC, LAUNCH_BOUND, DEVICE_GAP, QUEUED_WAIT, UNKNOWN = range(7)
"""Why nothing runs."""

BASE_BUCKETS = (
    "matrix",
    "other_compute",
    "exposed_communication",
    "exposed_memcpy",
    "idle/data_wait",
    "idle/host_sync",
    "idle/alloc",
    "idle/launch_bound",
    "idle/device_gap",
    "idle/queued_wait",
    "idle/unknown",
)
"""Names of the buckets; those of :data:`MATRIX` together are the first."""

FIRST_IDLE = BASE_BUCKETS.index("idle/data_wait")
"""Bucket of a cause: its number and this one."""
