"""Where the time of a trace went: labels for every nanosecond, then what they add up to."""
