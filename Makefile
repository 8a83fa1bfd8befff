# Two commands on a fresh machine with Python 3.11 to 3.13 and make:
#   make run     a first small run: trains a language model for one minute
#   make test    every test but the long ones, which are `make test-slow`
# Each makes .venv and installs into it if that is needed. pip's own settings (PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL, pip.conf ...) are honored. constraints.txt says which torch is tested;
# constraints-dev.txt pins all that tests and checks run with.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install
CXX_FILES = $(shell find csrc -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

# An environment without a pip that works is half made, or its Python has gone: install again.
AGAIN := $(shell test -d $(VENV) && ! $(BIN)/python -c 'import pip' 2>/dev/null && echo AGAIN)

# Makes the environment if there is none, anew if its Python does not start, and adds pip if that is
# missing. Debian and Ubuntu leave out of Python what both need, and `-m venv` then makes half.
define make-environment
@test -n "$(PYTHON)" || { echo "elman needs Python 3.11 to 3.13: none found; \
name one with make PYTHON=/path/to/python" >&2; exit 2; }
@{ $(BIN)/python -c '' 2>/dev/null \
|| $(PYTHON) -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) $(VENV); } \
&& { $(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip; } \
|| { echo "elman: $(PYTHON) cannot make an environment with pip in $(VENV); on Debian and Ubuntu: \
sudo apt-get install python3-venv; then make again" >&2; exit 2; }
endef

.PHONY: run test test-slow gpu-check check format pins clean AGAIN
.DEFAULT_GOAL := run

run: $(VENV)/.run-installed
	$(BIN)/elman

# Three workers for two cores: a third of the time tests wait for other processes.
test: $(VENV)/.dev-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" $(PYTEST_ARGS)

# Full cross products and long soak tests; run before a release, on any machine.
test-slow: $(VENV)/.dev-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_ARGS)

# On a machine with a GPU: parity, NVIDIA's checkers and the benchmarks, one report.
gpu-check: $(VENV)/.dev-installed
	$(BIN)/python tools/gpu/run.py all --out outputs/gpu-check

check: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))

format: $(VENV)/.dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# Refreshes the developers' pins; run the checks and tests before you commit them.
pins: $(VENV)/.dev-installed
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra dev \
		$(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL)) --constraint constraints.txt \
		--python $(BIN)/python --no-python-downloads \
		--no-annotate --custom-compile-command 'make pins' \
		--output-file constraints-dev.txt pyproject.toml

$(BIN)/uv:
	$(make-environment)
	$(INSTALL) --constraint constraints-dev.txt uv

$(VENV)/.run-installed: pyproject.toml constraints.txt $(AGAIN)
	$(make-environment)
	$(INSTALL) --constraint constraints.txt --editable .
	touch $@

# pip before 25.3 also reads PIP_CONSTRAINT where it builds a package, later ones the other: what is
# built is then built by the pinned setuptools. The second folder holds the compiler that
# docs/registers.md is written with.
$(VENV)/.dev-installed: pyproject.toml constraints-dev.txt docs/registers-compiler.txt $(AGAIN)
	$(make-environment)
	PIP_CONSTRAINT='constraints-dev.txt $(PIP_CONSTRAINT)' \
		PIP_BUILD_CONSTRAINT='constraints-dev.txt $(PIP_BUILD_CONSTRAINT)' \
		UV_CONSTRAINT=constraints-dev.txt UV_BUILD_CONSTRAINT=constraints-dev.txt \
		$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps --upgrade --target $(VENV)/registers-compiler \
		--requirement docs/registers-compiler.txt
	touch $@ $(VENV)/.run-installed
