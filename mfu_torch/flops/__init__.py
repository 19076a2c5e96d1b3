"""The numerator: FLOPs of the ops that really run."""
