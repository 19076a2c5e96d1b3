"""One file per framework, the only place that imports it."""
