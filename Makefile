# Two commands on a fresh machine with Python 3.11 to 3.13 and make:
#   make run     a first small run: trains a language model for one minute
#   make test    every test
# Each makes .venv and installs into it if that is needed. pip's own settings (PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL, pip.conf ...) are honoured, and constraints.txt pins what matters.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := $(VENV)/bin
CXX_FILES = $(shell find csrc -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

.PHONY: run test test-slow gpu-check check format clean
.DEFAULT_GOAL := run

run: $(VENV)/.run-installed
	$(BIN)/elman

test: $(VENV)/.dev-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS)

# Full cross products and long soak tests; run before a release, on any machine.
test-slow: $(VENV)/.dev-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_ARGS)

# On a machine with a GPU: parity, NVIDIA's checkers and the benchmarks, one report.
gpu-check: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/gpu_check.py --out outputs/gpu-check

check: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))

format: $(VENV)/.dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

clean:
	rm -rf $(VENV) build dist src/*.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "elman needs Python 3.11 to 3.13: none found; \
	name one with make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.run-installed
