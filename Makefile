# Two commands do everything: `make demo` and `make test`. Both set up a local .venv first and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: help setup demo test lint types tests site bench clean

help:
	@echo "make demo   set up; self-check, kernels, small models trained and stretched here, a report with pictures"
	@echo "make test   set up, then lint, types and all tests"
	@echo "make site   set up and build the documentation in build/site"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/ropewalk/kernels/cpu*.c src/ropewalk/kernels/cpu*.inc)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/ropewalk demo

test: lint types tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

# one thread a process: JOBS processes share the cores already
tests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

site: setup
	$(BIN)/sphinx-build -W -n -q docs build/site

bench: setup
	$(BIN)/ropewalk bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache src/*.egg-info src/ropewalk/kernels/*.so
