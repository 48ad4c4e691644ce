# Nothing to activate: each target makes .venv when it is missing, and installs again when pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The release the live comparison was made with. On machines without a GPU choose pip's index so that it brings the CPU build.
TORCH := torch==2.13.0
# A test process for each core; one that is done early takes tests from another.
WORKERS := -n auto --dist=worksteal
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help test demo reference lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: $(VENV)/installed ## every test that needs neither torch nor a GPU; under ten minutes on two cores
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest $(WORKERS)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest --nbmake notebooks -q

demo: $(VENV)/installed ## pretrain base=1e2 and base=1e6, probe both, draw the picture; about five minutes on two cores
	$(BIN)/python experiments/00_demo/demo.py

reference: $(VENV)/reference ## compare with torch and transformers live (downloads both)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest tests/reference_live -q $(WORKERS)

lint: $(VENV)/installed ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rope_lab needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# The stamps are touched last: an install that was interrupted is done again.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev,prepare,hf]'
	touch $@

# torch goes first and alone, so that nothing else decides which build of it comes.
$(VENV)/reference: $(VENV)/installed
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[dev,prepare,hf,reference]'
	touch $@
