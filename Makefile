# Every command of the project. `make` lists them.

VENV := .venv
VENV313 := .venv313
VENV_BEAM := .venv-beam
LOCK_BEAM := requirements-beam.txt
PYTHON313 ?= python3.13
PYTEST_WORKERS ?= 2
ARGS ?=

# An environment that is there keeps its Python. A new one takes the newest that runs here and has a lock: a command may
# be there and not run, as those of pyenv. For 3.13 one package is compiled (see `dev` in pyproject.toml).
RUNS := import ensurepip, os, shutil, sys, sysconfig, venv; compiles = shutil.which("c++") and os.path.exists( \
	sysconfig.get_path("include") + "/Python.h"); sys.exit(sys.version_info >= (3, 13) and not compiles)
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for python in $(VENV)/bin/python python3.13; do \
	$$python -c '$(RUNS)' 2>/dev/null && { echo $$python; exit; }; done; echo python3.11)
endif
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null || echo 311)
BIN := $(VENV)/bin
LOCK := requirements-py$(PYTHON_VERSION).txt

# A stamp holds the hash of its lock: editing the lock, and nothing else, makes the installation run again.
hash = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-16)
STAMP := $(VENV)/.stamp-$(call hash,$(LOCK))
PROJECT_STAMP := $(STAMP)-$(call hash,pyproject.toml)
STAMP_BEAM := $(VENV_BEAM)/.stamp-$(call hash,$(LOCK_BEAM))-$(call hash,pyproject.toml)

PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest
PARALLEL := -n $(PYTEST_WORKERS) --dist loadfile

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install run test test-laws test-slow test-gpu test-py313 test-beam faults lint licenses format notebooks docs dist lock bench clean distclean

help:  ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# Everything comes from the lock and is checked against its hashes. What builds packages goes first, so that those
# without a wheel are built with it instead of with whatever is newest on the day.
# $(1) python, $(2) environment, $(3) lock
define install_lock
	@$(1) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(1) was not found, or has no venv; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -e $(3) || { echo "$(1): there is no $(3), but $$(ls requirements-py*.txt | xargs)" >&2; exit 1; }
	@echo "== $(2): installing the $$(grep -c == $(3)) packages of $(3) (a few minutes the first time)"
	@version='import sys; print(sys.version_info[:2])'; \
		test "$$($(2)/bin/python -c "$$version" 2>/dev/null)" = "$$($(1) -c "$$version")" || $(1) -m venv --clear $(2)
	@awk '/^(setuptools|cython|pdm-backend)==/ {p = 1} p; !/\\$$/ {p = 0}' $(3) > $(2)/first.txt
	@$(2)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(2)/first.txt
	@rm $(2)/first.txt
	@$(2)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--no-build-isolation --use-pep517 -r $(3)
	@rm -f $(2)/.stamp-*
endef

define install_project
	@echo "== $(1): installing memjax itself, editable"
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef

$(STAMP):
	$(call install_lock,$(PYTHON),$(VENV),$(LOCK))
	@touch $@

$(PROJECT_STAMP): | $(STAMP)
	$(call install_project,$(VENV))
	@touch $@

$(STAMP_BEAM):
	$(call install_lock,python3.11,$(VENV_BEAM),$(LOCK_BEAM))
	$(call install_project,$(VENV_BEAM))
	@touch $@

install: $(PROJECT_STAMP)  ## make .venv from the hashed lock, with every extra (does nothing when it is up to date)
	@echo "== $(VENV) is up to date with $(LOCK)"

run: install  ## what a memory is worth, in minutes on the CPU (memjax demo)
	@echo "== memjax demo"
	@$(BIN)/memjax demo $(ARGS)

test: install  ## the fast tests, on the CPU
	@echo "== fast tests, $(PYTEST_WORKERS) processes"
	@$(PYTEST) $(PARALLEL) --jaxtyping -m "not slow and not laws and not gpu" $(ARGS)

# Every file that marks a test so: none is left to nobody.
LAWS := $(shell grep -rl --include='*_test.py' 'mark\.laws' tests | sort)

test-laws: install  ## the laws of variants, whole models and toys, of every memory in other precisions, and configs' variants
	@echo "== the other laws, $(PYTEST_WORKERS) processes"
	@$(PYTEST) $(PARALLEL) --jaxtyping -m "laws and not slow" $(LAWS) $(ARGS)

test-slow: install  ## the slow tests, file by file: integration, every config, several processes (a second call goes on)
	@echo "== slow tests, a process for each file"
	@JAX_PLATFORMS=cpu $(BIN)/python -m tools.slow_suite $(ARGS)

test-gpu: install  ## the tests that need a GPU (and `pip install 'jax[cuda13]'` of the locked version in .venv)
	@echo "== GPU tests"
	@JAX_PLATFORMS=cuda,cpu $(BIN)/python -m pytest -m gpu $(ARGS)

test-py313:  ## the fast tests with Python 3.13, in an environment of its own (TEST=test-laws, test-slow: others)
	@$(PYTHON313) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null \
		|| { echo "Python 3.13 was not found; name one: make test-py313 PYTHON313=/path/to/python3.13" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(or $(TEST),test) VENV=$(VENV313) PYTHON=$(PYTHON313)

test-beam: $(STAMP_BEAM)  ## the tests that need Apache Beam, in an environment of its own
	@echo "== tests with Apache Beam"
	@JAX_PLATFORMS=cpu $(VENV_BEAM)/bin/python -m pytest -m beam tests/datastore tests/training $(ARGS)

faults: install  ## damaged files, failed writes, damaged inputs and kills (a second call goes on)
	@echo "== python -m tools.faults"
	@$(BIN)/python -m tools.faults $(ARGS)

lint: install  ## check format, style and types
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== pyright"
	@$(BIN)/pyright

licenses: install  ## list the licences of all installed packages
	@$(BIN)/python -m tools.licenses

format: install  ## format the code and fix what can be fixed
	@echo "== ruff check --fix, ruff format"
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

notebooks: install  ## write the .ipynb of colabs/ from their .py, with the badges that open them in Colab
	@echo "== jupytext"
	@$(BIN)/python -m tools.notebooks

dist: install  ## build the wheel and the sdist of a release into dist/
	@echo "== hatchling build"
	@$(BIN)/python -m hatchling build

docs: install  ## build the pages of docs/ into build/docs; a warning is an error
	@echo "== sphinx: build/docs/index.html"
	@JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -c docs -b html -d build/doctrees -W --keep-going -q $(ARGS) . build/docs

bench: install  ## measure speed, as ratios in one run
	@echo "== python -m tools.bench"
	@$(BIN)/python -m tools.bench $(ARGS)

UPGRADE ?= --upgrade
UV_COMPILE := .cache/uv/bin/uv pip compile --quiet --no-config $(UPGRADE) --generate-hashes --no-header --no-annotate \
	--python-platform x86_64-manylinux_2_31

lock:  ## resolve the lock files again, with the newest versions that fit together (UPGRADE= keeps those that fit)
	@echo "== $(wildcard requirements-*.txt)"
	@test -x .cache/uv/bin/uv || { $(PYTHON) -m venv .cache/uv && .cache/uv/bin/python -m pip install --quiet uv; }
	@for version in 3.11 3.13; do \
		$(UV_COMPILE) --python-version $$version --extra all --extra dev pyproject.toml \
			-o requirements-py$${version/./}.txt > /dev/null; done
	@$(UV_COMPILE) --python-version 3.11 --extra beam --extra knn --extra dev pyproject.toml -o $(LOCK_BEAM) > /dev/null
	@git --no-pager diff --stat -- requirements-*.txt || true

clean:  ## remove caches and builds (runs and environments stay)
	@echo "== removing caches and builds"
	@rm -rf .cache .pytest_cache .ruff_cache .hypothesis build dist
	@find memjax configs tests tools colabs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## also remove the environments
	@echo "== removing $(VENV), $(VENV313), $(VENV_BEAM)"
	@rm -rf $(VENV) $(VENV313) $(VENV_BEAM)
