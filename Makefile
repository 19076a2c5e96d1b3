# `make demo` and `make test` do their own set-up, in a virtual environment of the project's own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/step_parts.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/new_shapes.py
	$(BIN)/python benchmarks/count_cost.py
	$(BIN)/python benchmarks/telemetry.py
	$(BIN)/python benchmarks/callbacks.py
	$(BIN)/python benchmarks/explain.py

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[huggingface]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.demo
