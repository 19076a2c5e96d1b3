"""Makes ``tests/samples.py`` importable from every test: pytest puts this folder on the path."""
