"""The denominator: what the device could do."""
