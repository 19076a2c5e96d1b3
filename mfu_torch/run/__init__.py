"""What is kept: the run file, and where live figures go."""
