"""Numbers about runs that nobody measured here: planned, published, or known by a log line."""
