"""A profiler trace (Kineto's chrome JSON) as columns of integers."""
