# Only python3 (3.11 or newer, with venv, or with uv present) and make are needed; the rest is set up here.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An installed uv is used; else one is put into a venv of its own, so that nothing outside this folder changes.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
# Compiled once here: the first screen is to be there within a second of the first start, too.
SYNC := $(UV) sync --frozen --quiet --inexact --compile-bytecode
COMPILE := $(BIN)/python -m compileall -q moewatch

.PHONY: help demo test live check lint benchmarks clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

.uv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "moewatch needs Python 3.11 or newer as '$(PYTHON)'; install it, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "setting up (once, less than a minute) ..." >&2
	@rm -rf .uv; $(PYTHON) -m venv .uv || { rm -rf .uv; \
	  echo "this Python has no venv: install it (on Debian or Ubuntu: apt install python3-venv), or install uv" >&2; exit 1; }
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

# What runs moewatch, and no more.
$(VENV)/.run: pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	@echo "installing what moewatch needs ..." >&2
	@$(SYNC) --no-dev
	@$(COMPILE)
	@touch $@

# What tests and checks moewatch, a real llama-server included.
$(VENV)/.dev: pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	@echo "installing moewatch and its test tools (about 150 MB) ..." >&2
	@$(SYNC)
	@$(COMPILE)
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## the dashboard on the built-in workload: cold start, steady, squeeze, recovery
	@$(BIN)/moewatch demo $(ARGS)

test: $(VENV)/.dev ## all tests, with one short live round per behaviour on a real llama-server
	@$(BIN)/python -m pytest -m "not full" $(ARGS)

live: $(VENV)/.dev ## the long live rounds
	@$(BIN)/python -m pytest -m "live or full" tests/live $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint test ## lint and test

benchmarks: $(VENV)/.dev ## prints ratios measured in one run; see tests/benchmarks
	@$(BIN)/python -m tests.benchmarks.header
	@$(BIN)/python -m tests.benchmarks.overhead

clean: ## remove what make set up here
	rm -rf $(VENV) .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
