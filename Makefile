# Two commands do everything: `make demo` and `make test`. Both set up a local .venv first and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: help setup demo test lint types tests bench clean

help:
	@echo "make demo   set up and run the self-check on this machine"
	@echo "make test   set up, then lint, types and all tests"

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

tests: setup
	$(BIN)/pytest -n $(JOBS)

bench: setup
	$(BIN)/ropewalk bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache src/*.egg-info src/ropewalk/kernels/*.so
