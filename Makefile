# Every command is safe to run twice: set-up steps leave a stamp in .venv and are done again only when pyproject.toml changes.
#
#   make demo              a real model's answer over prefill, relay and main, then everything is stopped
#   make demo ENGINE=sim   the same with simulated engines: no compiler, no download
#   make test              lint, types and the quick tests
#   make test-all          those, and the tests of real processes, of the real model and of containers
#   make help              the rest

PYTHON ?= python3
ENGINE ?= llama
MODEL_DIR ?= models/SmolLM2-135M-Instruct
# Further options for locust, for example LOAD="--run-time 60s --api grpc"
LOAD ?=
# Further options for `pdd demo`, for example DEMO="--rate 20 --handoff one_shot"
DEMO ?=

VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.done-dev
LLAMA := $(VENV)/.done-llama
COMPILER := $(shell command -v c++ || command -v g++ || command -v clang++)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-llama model demo test test-rest test-compose test-all load lint format protos clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /' | awk -F': ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(DEV)  ## virtual environment with everything but the llama engine

$(DEV): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): Python 3.11 or later is needed; name one with PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV) (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --editable '.[dev]' >$(VENV)/setup.log 2>&1 || { tail -n 30 $(VENV)/setup.log; exit 1; }
	@touch $@

setup-llama: $(LLAMA)  ## build the llama engine, once, about 3 minutes

$(LLAMA): $(DEV)
	@CXX_FOUND="$(COMPILER)" scripts/setup-llama $(BIN)/python
	@touch $@

model: $(DEV)  ## fetch the model (98 MB) and make its tokenizer
	@$(BIN)/pdd model fetch --dir $(MODEL_DIR)

ifeq ($(ENGINE),llama)
demo: $(LLAMA) model  ## set up, then one answer over P, RLD and MD; ENGINE=sim needs no compiler
else
demo: $(DEV)
endif
	@$(BIN)/pdd demo --engine $(ENGINE) --model-dir $(MODEL_DIR) $(DEMO)

test: lint  ## set up, then lint, types and the quick tests: no real model, no processes
	@$(BIN)/python -m pytest -n auto -m 'not real and not processes and not compose'

ifneq ($(COMPILER),)
test-rest: $(LLAMA) model  ## set up, then the tests of real processes and of the real model
else
test-rest: $(DEV)
	@echo "no C++ compiler here: the tests of the real model are skipped"
endif
	@$(BIN)/python -m pytest --durations=15 -m 'real or processes'

test-compose: $(DEV)  ## set up, then compose.yaml in a container engine; says so where there is none
	@$(BIN)/python -m pytest -rs -m compose

test-all: test test-rest test-compose  ## everything

load: $(DEV)  ## half a minute of load on a simulated mesh, and its counters beside the load's; LOAD="--run-time 60s"
	@$(BIN)/python -m loadtest.smoke $(LOAD)

lint: $(DEV)  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(DEV)  ## let ruff format and repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

protos: $(DEV)  ## generate pdd/v1 from protos/
	@scripts/protos $(BIN) .

clean:  ## remove the virtual environment and caches; fetched models stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
