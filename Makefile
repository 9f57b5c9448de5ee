# Two commands do everything: `make demo` and `make test`. Both set up a local .venv first and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
TRANSFORMERS ?= 4.57.6
OTHER := build/transformers-$(TRANSFORMERS)
TORCH ?= 2.6.0
OTHER_TORCH := build/torch-$(TORCH)
# modules are compiled when they are first imported, which most of them never are, and once, not in every process of a test
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-full test lint types tests test-transformers test-torch site bench clean

help:
	@echo "make demo   set up; self-check, kernels, small models trained and extended here, a report with pictures"
	@echo "make demo-full   the same with more and longer trainings: 8 minutes"
	@echo "make test   set up, then lint, types and all tests"
	@echo "make test-transformers TRANSFORMERS=4.57.6   tests of the Hugging Face side with another release of transformers"
	@echo "make test-torch TORCH=2.6.0                  all tests with another release of torch, on the CPU"
	@echo "make site   set up and build the documentation in build/site"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/ropewalk/kernels/cpu/*.c src/ropewalk/kernels/cpu/*.inc src/ropewalk/kernels/cpu/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c constraints.txt torch
	$(BIN)/python $(PIP) -c constraints.txt -e ".[dev]"
	touch $@

# one comparison and one extension
demo: setup
	$(BIN)/ropewalk demo

# eight minutes: four encodings and four methods, longer trainings
demo-full: setup
	$(BIN)/ropewalk demo --full

# types take one core, so the tests have begun by the time they are known
test: lint
	$(MAKE) --jobs=2 types tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

# one thread a process: JOBS processes share the cores already
tests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

# an environment of its own; what an older release meets in a newer torch is deprecated there, not here
test-transformers: setup
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -v -e ^transformers -e ^tokenizers constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python $(PIP) -c $(OTHER)/constraints.txt torch
	$(OTHER)/bin/python $(PIP) -c $(OTHER)/constraints.txt \
		transformers==$(TRANSFORMERS) accelerate beartype hypothesis jaxtyping matplotlib mpmath peft pytest pytest-xdist rich \
		rotary-embedding-torch safetensors typer
	PYTHONPATH=src OMP_NUM_THREADS=1 PYTEST_ADDOPTS="-W ignore::DeprecationWarning -p no:cacheprovider" \
		$(OTHER)/bin/python -m pytest -n $(JOBS) tests/interop

# an environment of its own, with the Triton that this torch brings; no accelerator is needed
test-torch: setup
	test -x $(OTHER_TORCH)/bin/python || $(PYTHON) -m venv $(OTHER_TORCH)
	grep -v -e ^torch= -e ^triton constraints.txt > $(OTHER_TORCH)/constraints.txt
	$(OTHER_TORCH)/bin/python $(PIP) torch==$(TORCH) "setuptools<82"
	$(OTHER_TORCH)/bin/python $(PIP) -c $(OTHER_TORCH)/constraints.txt \
		transformers accelerate beartype hypothesis jaxtyping matplotlib mpmath peft pytest pytest-xdist rich \
		rotary-embedding-torch safetensors tokenizers typer
	$(OTHER_TORCH)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	OMP_NUM_THREADS=1 PYTEST_ADDOPTS="-W ignore::DeprecationWarning -W ignore::FutureWarning -p no:cacheprovider" \
		$(OTHER_TORCH)/bin/python -m pytest -n $(JOBS) tests --ignore=tests/explorer --ignore=tests/test_site.py --ignore=tests/test_fresh_install.py

site: setup
	$(BIN)/sphinx-build -W -n -q docs build/site

bench: setup
	$(BIN)/ropewalk bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache src/*.egg-info src/ropewalk/kernels/cpu/*.so
