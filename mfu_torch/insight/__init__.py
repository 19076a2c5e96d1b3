"""Reading a run afterwards; never imports torch."""
