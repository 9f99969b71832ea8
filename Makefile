# Two commands: `make serve` and `make test`. Each does its own set-up (tools/bootstrap.sh).
#
# Overrides: PYTHON=/path/to/python, FENCEPOST_INSTALLER=pip (do not use uv), ARGS="…" for pytest,
# WORKERS=0 for a run in one process (-s and --pdb want that).

PORT ?= 8000
DATA ?= .data
WORKERS ?= logical
# Some shells and conda export HOST, meaning this machine: only `make serve HOST=…` counts.
ifneq ($(origin HOST),command line)
HOST := 127.0.0.1
endif

# Settings of somebody else's Python would change what we run.
unexport PYTHONHOME PYTHONPATH PYTHONOPTIMIZE PYTHONSTARTUP PYTHONWARNINGS PYTHONSAFEPATH PYTHONDONTWRITEBYTECODE
export PYTHON

BIN := .venv/bin
SETUP := @sh tools/bootstrap.sh
PYTEST := $(BIN)/python -m pytest
DEEP := slow or explore or robustness or soak
marked = $(shell grep -rlsE --include='*.py' 'mark\.$(1)\b' tests)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help serve test lint lock bench bench-full explore robustness soak setup-serve setup-test

help: ## show this
	@echo "Everything below does its own set-up; nothing but Python 3.11 or newer is needed."
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)$$/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
	  case " $(HIDDEN) " in *" $$name "*) ;; *) printf '  make %-12s %s\n' "$$name" "$$text" ;; esac; done

setup-serve:
	$(SETUP) serve

setup-test:
	$(SETUP) test

serve: setup-serve ## run campus on http://127.0.0.1:8000 (HOST= PORT= DATA=)
	@$(BIN)/fencepost serve --host "$(HOST)" --port "$(PORT)" --data "$(DATA)"

test: lint ## lint, then the whole suite (ARGS="-k likes" for a part)
	$(PYTEST) -m "not ($(DEEP))" -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

lint: setup-test ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: ## write requirements/*.txt from pyproject.toml (UPGRADE=1: newest versions)
	@UPGRADE="$(UPGRADE)" sh tools/bootstrap.sh lock

explore: setup-test ## every interleaving of the scripts, deep (pytest -m explore)
	$(PYTEST) -m explore --timeout 0 $(ARGS)

robustness: setup-test ## servers paused, killed and cut off under traffic (pytest -m robustness)
	$(PYTEST) -m robustness --timeout 0 $(ARGS)

soak: setup-test ## minutes of load (pytest -m soak)
	$(PYTEST) -m soak --timeout 0 $(ARGS)

bench: setup-serve ## measure the parts and their peers, short
	$(BIN)/python -m benches $(ARGS)

bench-full: setup-serve ## the same, all of it
	$(BIN)/python -m benches --full $(ARGS)

# `help` leaves out what this checkout does not hold.
HIDDEN := $(foreach name,explore robustness soak,$(if $(call marked,$(name)),,$(name)))
HIDDEN += $(if $(wildcard benches/__main__.py),,bench bench-full)
