"""What the device really did: clocks, power, throttling, activity, sampled off the step path."""

from mfu_torch.peak.telemetry.sampler import DeviceSampler
from mfu_torch.peak.telemetry.source import NoSource, Reading, Source

__all__ = ["DeviceSampler", "NoSource", "Reading", "Source"]
