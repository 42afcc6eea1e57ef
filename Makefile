# `make serve` and `make test` set up .venv on first use and are quick afterwards.
PYTHON ?= python3
# torch comes first, so that TORCH_PIP_FLAGS apply to it alone: without a GPU, an index of CPU
# builds (see PyTorch's installation page) saves downloading gigabytes of CUDA libraries.
TORCH ?= torch==2.13.0
TORCH_PIP_FLAGS ?=
FILE ?= deploy/local.yaml
SERVE_FLAGS ?=
PYTEST_FLAGS ?=
BENCH_FLAGS ?=
PROFILE_FLAGS ?=
PEERS_FLAGS ?=
MODEL ?= build/models/smol135
SOAK_FLAGS ?=
KERNELS_FLAGS ?=
MIGRATION_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What the image installs: every version and hash but those of torch and the libraries of its builds.
LOCK := requirements.lock
OF_IMAGE := postgres guardrails tables
LOCK_TOOL := .venv-lock/.installed
OF_TORCH := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
	nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand \
	nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
	nvidia-nvshmem-cu13 nvidia-nvtx
# A client that wants older packages than the server has.
LITELLM := .venv-litellm/.installed
# Its interpreter runs the kernels of a GPU on a CPU. Apart, because torch imports it wherever it finds it.
TRITON := .venv-triton/.installed
UNIT := not ray and not full and not gpu
RAY := ray and not full and not gpu
# Where tests of each part lie: a part collects no others, which would take as long as starting a cluster.
RAY_TESTS := tests/clients tests/faults
GPU_TESTS := tests/gpu tests/unit/engine/attention/test_triton.py tests/unit/engine/cuda
DEPLOY_TESTS := tests/deploy tests/docs tests/control
TEST_JOBS ?= 2
PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := $(MAKE) --no-print-directory --keep-going --output-sync=target -j$(TEST_JOBS)
GIVING_WAY := nice -n 10
COVERED := build/coverage
TRACED = -o cache_dir=build/tests/$@
# Runs tests; says when they start, and their result and time at the end. Tests that failed run once more, by
# themselves: one that passes then was unsteady under load, is named as such, and is to be mended.
tested = $(info $@: $(1))@began=$$(date +%s); $(1) $(TRACED); status=$$?; \
	if [ $$status = 1 ]; then echo "$@: what failed runs once more, by itself"; \
	$(1) $(TRACED) --last-failed --last-failed-no-failures none -n0 -x; status=$$?; \
	[ $$status = 0 ] && echo "$@: UNSTEADY: the tests above passed only the second time"; fi; \
	echo "$@: $$([ $$status = 0 ] && echo passed || echo FAILED) after $$(( $$(date +%s) - began )) s"; exit $$status

# Compiled modules are kept, also where the environment says otherwise, as images of Python do: `make test` and
# a server start many processes with the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-unit test-ray test-deploy test-all test-gpu coverage lint kernels-check docs lock bench profile peers soak bench-gpu protocol migration clean

serve: $(STAMP)
	@exec $(BIN)/python -m serve_app.cli serve $(FILE) $(SERVE_FLAGS)

# Two side by side: what needs no Ray computes while clusters start, wait and stop, and gives way to them. Two
# clusters at once would be too much for two cores. A part's output comes when it is done; TEST_JOBS=1 runs one
# after the other. Triton is there before them: while one part waits for it, make would start two clusters.
test: $(STAMP) $(TRITON)
	@echo "three parts, two side by side, 10 to 15 minutes on two cores; each shows its result when it is done:"
	@echo "  test-ray     clients, faults and models on one cluster"
	@echo "  test-unit    what needs no Ray, by two workers"
	@echo "  test-deploy  deploy files, the commands and the quick tutorials, once one of the others is done"
	@$(SIDE_BY_SIDE) test-ray test-unit test-deploy
	@echo "all three parts passed; $$($(BIN)/python -m tests.support.skipped $(addprefix build/tests/,test-ray test-unit test-deploy))"

test-unit: $(STAMP) $(TRITON)
	$(call tested,$(GIVING_WAY) $(PYTEST) -n 2 --dist worksteal -m "$(UNIT)" $(PYTEST_FLAGS))  # many tests wait

test-ray: $(STAMP)
	$(call tested,$(PYTEST) -m "$(RAY)" $(PYTEST_FLAGS) $(RAY_TESTS))

test-deploy: $(STAMP)
	$(call tested,$(PYTEST) -m "$(RAY)" $(PYTEST_FLAGS) $(DEPLOY_TESTS))  # deploy files

# With the full counts, which need the machine for themselves: one part after the other.
test-all: export LITELLM_PYTHON := $(abspath .venv-litellm/bin/python)
test-all: $(STAMP) $(LITELLM)
	$(MAKE) -j1 test-unit test-ray test-deploy UNIT="not ray and not gpu" RAY="ray and not gpu"

# On a machine with CUDA, with the Triton that torch brings: neither Ray nor a network is needed, and nothing is
# compiled that needs no device (`full`). A Python that has
# torch, transformers, pytest, psutil, pydantic, msgspec and llguidance already runs it by:
# make -o .venv/.installed test-gpu PYTEST="python3 -m pytest"
test-gpu: $(STAMP)
	$(PYTEST) --confcutdir=tests/unit/engine -p tests.support.tiny_fixtures -m "not full" $(GPU_TESTS) $(PYTEST_FLAGS)

# Lines of serve_app that the tests without Ray run, in whichever process. Tests on Ray would add lines of
# deployments, and triple the time.
coverage: export COVERAGE_CORE = $(shell $(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
coverage: $(STAMP)
	@rm -rf $(COVERED) && mkdir -p $(COVERED)
	@$(MAKE) --no-print-directory test-unit PYTEST="$(BIN)/python -m coverage run -m pytest"
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

lint: $(STAMP)
	$(BIN)/ruff check serve_app tests benchmarks recipes docs/site
	$(BIN)/ruff format --check serve_app tests benchmarks recipes docs/site
	$(BIN)/mypy

# The site, in build/site: pages are staged in build/docs, some of them made from the code. Needs no network,
# and fails on a dead link, a missing anchor and anything that a page would load from elsewhere.
docs: $(STAMP)
	$(BIN)/python -m docs.site stage build/docs
	$(BIN)/python -m zensical build --strict
	$(BIN)/python -m docs.site check build/site

# The native kernels on every level of processor, under sanitizers, and for NEON, as far as this machine can: it says
# how far. KERNELS_FLAGS takes names of variants, and --no-tests for the program without Python alone.
kernels-check: $(STAMP)
	$(BIN)/python -m tests.support.kernels_matrix $(KERNELS_FLAGS)

# After a change of the dependencies in pyproject.toml, or to take newer versions (LOCK_FLAGS=--upgrade).
lock: $(LOCK_TOOL)
	.venv-lock/bin/uv pip compile pyproject.toml $(OF_IMAGE:%=--extra %) --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-header $(OF_TORCH:%=--no-emit-package %) --output-file $(LOCK) --quiet $(LOCK_FLAGS)

bench: $(STAMP) build/models/smol135
	$(BIN)/python benchmarks/step.py build/models/smol135 --paths fused packed hf
	$(BIN)/python benchmarks/whole_stack.py build/models/smol135 $(BENCH_FLAGS)

# Where the time of a step goes: prompts and decoding, part by part, beside the limits of this machine.
profile: $(STAMP) $(MODEL)
	$(BIN)/python benchmarks/step_profile.py $(MODEL) $(PROFILE_FLAGS)

# This server beside those that `python -m benchmarks.peers install NAME ...` has installed, for hours; it goes on
# where it was cut. PEERS_FLAGS=--quick is one short round.
peers: $(STAMP) $(MODEL)
	$(BIN)/python -m benchmarks.peers run --model $(MODEL) --page build/peers/peers.md $(PEERS_FLAGS)

soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py $(SOAK_FLAGS)

bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu run --page build/gpu/page.md $(BENCH_FLAGS)

build/models/%: $(STAMP)
	$(BIN)/python benchmarks/make_model.py $* build/models

# In a pool of its own: another copy of the protocol, as clients bring one, must not meet ours.
protocol: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. serve_app/rpc/*.proto
	sed -i 's/_descriptor_pool\.Default()/_descriptor_pool.DescriptorPool()/' serve_app/rpc/*_pb2.py

# The step from the tables as they were to the tables as they are declared now: NAME='what changes'. With
# MIGRATION_FLAGS=--from-scratch one step makes all, which only an unreleased version may do.
migration: $(STAMP)
	$(BIN)/python -m serve_app.control.new_migration "$(or $(NAME),tables)" $(MIGRATION_FLAGS)

clean:
	rm -rf $(VENV) $(dir $(LITELLM)) $(dir $(TRITON)) $(dir $(LOCK_TOOL))

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV), and compiling the CPU kernels meanwhile (once; a few minutes) ..."
	@$(PYTHON) serve_app/engine/kernels/build.py & \
	{ test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); } \
	&& $(BIN)/python -m pip install --quiet $(TORCH_PIP_FLAGS) "$(TORCH)" \
	&& $(BIN)/python -m pip install --quiet --editable ".[dev]"; installed=$$?; wait; exit $$installed
	@touch $@

$(TRITON): | $(STAMP)
	@rm -rf $(dir $@) && mkdir $(dir $@)
	@$(BIN)/python -m pip install --quiet --no-deps --target $(dir $@) triton==3.7.1 || \
	  echo "no Triton for this platform: its tests are left out"
	@touch $@

$(LITELLM):
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/python -m pip install --quiet "litellm>=1.80" mcp  # which litellm imports and does not ask for
	@touch $@

$(LOCK_TOOL):
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/python -m pip install --quiet "uv>=0.9"
	@touch $@
