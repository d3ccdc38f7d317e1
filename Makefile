# Everything runs in .venv, which is made on first use.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test integrations docs lint lint-format lint-style lint-types lint-contract bench clean

export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
# Bytecode is kept, also where the environment says otherwise: each process of the tests would compile PyTorch anew.
export PYTHONDONTWRITEBYTECODE :=

PYTHON = $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --no-compile -c constraints.txt
LOG := .venv/install.log

# Peers for the oracle tests and the benchmarks. Their metadata asks for a torchvision that nothing here imports.
PEERS := laplace-torch curvlinops-for-pytorch backpack-for-pytorch asdfghjkl \
         gpytorch einconv einops linear_operator opt_einsum unfoldNd

# Packages that lapwing plugs into, in an environment of their own: they are heavy, and most people have few of them.
PLUGGED := .venv-integrations
PLUGGED_READY := $(PLUGGED)/.ready
PLUGGED_PIP := $(PLUGGED)/bin/python -m pip install --no-compile -c constraints.txt
# Their metadata asks for a torchvision too.
PLUGGED_PEERS := $(PEERS) deepinv probly torch-uncertainty

# What builds the documentation, in an environment of its own beside what is documented.
DOCS := .venv-docs
DOCS_READY := $(DOCS)/.ready
DOCS_PIP := $(DOCS)/bin/python -m pip install --no-compile -c constraints.txt

BENCHMARKS := structures products sampling
RESULTS := benchmarks/results

help:
	@echo "make demo   train, fit, tune and compare on handwritten digits; report in runs/demo/"
	@echo "make test   all tests and doctests; ARGS=tests/linalg runs some, CHECKED=1 checks shapes and types,"
	@echo "            COVERED=1 counts lines"
	@echo "make integrations   the tests against scikit-learn, Lightning, Hugging Face, BoTorch and others that it plugs into"
	@echo "make docs   the documentation as pages, in docs/_build/, the gallery run; warnings are errors"
	@echo "make lint   format, style, types and the import contract"
	@echo "make bench  the benchmarks, as JSON in $(RESULTS)/"
	@echo "make clean  remove everything that was built, .venv included"

# torch comes first and alone: with it in place, nothing later can bring another build of it.
$(READY): pyproject.toml constraints.txt Makefile
	@test -x $(BIN)/python || { echo "Making .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@echo "Installing torch, lapwing and its tools into .venv"
	@{ $(PIP) torch && $(PIP) -e '.[demo,test,dev]' && $(PIP) --no-deps $(PEERS); } > $(LOG) 2>&1 \
		|| { cat $(LOG); exit 1; }
	@touch $@

demo: $(READY)
	@$(BIN)/python -m lapwing demo

# All tests run, or those that ARGS names. CHECKED=1 checks shapes and types on the way; COVERED=1 counts the lines of
# src/ that are run, which takes two thirds longer.
# A process that has no tests left takes half of another's: by file, one would wait for the last files of the other.
# A process that dies ends the run, and no other is started in its place.
COVERAGE := --cov=lapwing --cov-report=term:skip-covered --cov-fail-under=95
CHECKER := --jaxtyping-packages=lapwing,tests.checker.checked

test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal --max-worker-restart=0 \
		$(if $(CHECKED),$(CHECKER)) $(if $(COVERED),$(COVERAGE)) $(ARGS)

$(PLUGGED_READY): pyproject.toml constraints.txt Makefile
	@test -x $(PLUGGED)/bin/python || { echo "Making $(PLUGGED) with $(PYTHON)"; $(PYTHON) -m venv $(PLUGGED); }
	@echo "Installing torch, lapwing and what it plugs into, into $(PLUGGED)"
	@{ $(PLUGGED_PIP) torch && $(PLUGGED_PIP) -e '.[test,integrations]' && $(PLUGGED_PIP) --no-deps $(PLUGGED_PEERS); } \
		> $(PLUGGED)/install.log 2>&1 || { cat $(PLUGGED)/install.log; exit 1; }
	@touch $@

# Tests whose package is missing are skipped, with the reason.
integrations: $(PLUGGED_READY)
	@OMP_NUM_THREADS=1 $(PLUGGED)/bin/python -m pytest --numprocesses=auto --dist=worksteal --max-worker-restart=0 \
		tests/integrations $(ARGS)

$(DOCS_READY): pyproject.toml constraints.txt Makefile
	@test -x $(DOCS)/bin/python || { echo "Making $(DOCS) with $(PYTHON)"; $(PYTHON) -m venv $(DOCS); }
	@echo "Installing torch, lapwing and Sphinx into $(DOCS)"
	@{ $(DOCS_PIP) torch && $(DOCS_PIP) -e '.[docs,demo]'; } > $(DOCS)/install.log 2>&1 || { cat $(DOCS)/install.log; exit 1; }
	@touch $@

docs: $(DOCS_READY)
	@OMP_NUM_THREADS=1 $(DOCS)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

lint: lint-format lint-style lint-types lint-contract

lint-format: $(READY)
	@$(BIN)/ruff format --check .

lint-style: $(READY)
	@$(BIN)/ruff check .

lint-types: $(READY)
	@$(BIN)/pyright

lint-contract: $(READY)
	@$(BIN)/lint-imports --no-logo

bench: $(READY)
	@mkdir -p $(RESULTS)
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --json $(RESULTS)/$$name.json; done

clean:
	rm -rf .venv .venv-integrations .venv-docs runs build dist docs/_build docs/reference docs/gallery docs/sg_execution_times.rst .coverage .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
