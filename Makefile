# Everything a person or CI runs. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Which set of pins: local (CPU) or gpu (CUDA 13).
STACK ?= local
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-deps --disable-pip-version-check
# torch==2.13.0+cpu is on no ordinary index: a wheel folder that pip already knows, else PyTorch's own CPU index.
TORCH_SOURCE := $(if $(PIP_FIND_LINKS)$(filter gpu,$(STACK)),,--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: serve
serve: $(VENV)/.serve ## set up, start the whole stack on this machine, print how to call it, serve until Ctrl-C
	$(BIN)/prime-inference up $(ARGS)

.PHONY: test
test: lint test-fast test-slow test-chaos test-e2e ## set up, then lint and every test but the live and the GPU ones

.PHONY: setup
setup: $(VENV)/.serve ## install what `make serve` needs into .venv

.PHONY: lint
lint: $(VENV)/.test ## ruff, mypy --strict, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.test ## rewrite the sources the way `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: test-fast
test-fast: $(VENV)/.test ## tests that need no engine and no patience (a fake one stands behind the real Dynamo frontend)
	$(BIN)/python -m pytest -m "not slow and not e2e and not gpu and not chaos" $(ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.test ## tests that need no engine, but more than ten seconds each: clean installs, the engines' own parsers, compilers
	$(BIN)/python -m pytest -m "slow and not e2e and not gpu and not chaos" $(ARGS)

.PHONY: test-chaos
test-chaos: $(VENV)/.test ## three gateway replicas killed, paused and restarted under load, Valkey with Sentinel too
	$(BIN)/python -m pytest -m chaos $(ARGS)

.PHONY: soak
soak: $(VENV)/.test ## mixed load, leaving clients and breaking deployments for SECONDS_OF_SOAK (600), memory and leases watched
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS_OF_SOAK),600) $(ARGS)

.PHONY: verify-deploy
verify-deploy: $(VENV)/.test ## the chart alone (part of test-fast): lint, render, schemas, command lines, alerts, Dockerfiles
	$(BIN)/python -m pytest tests/deploy tests/health tests/unit/health $(ARGS)

.PHONY: test-e2e
test-e2e: $(VENV)/.test ## tests against the real stack: vLLM prefill and decode behind Dynamo, started once
	$(BIN)/python -m pytest -m "e2e and not gpu and not live" $(ARGS)

.PHONY: test-live
test-live: $(VENV)/.test ## the longer tests against real engines: sharded tier over two ranks, KV compared to the byte
	$(BIN)/python -m pytest -m "e2e and live" $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "prime-inference local stack needs Python 3.11; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: requirements/$(STACK).txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing the stack into $(VENV): about 4 GB, two to five minutes"
	$(PIP_INSTALL) $(TORCH_SOURCE) -r requirements/$(STACK).txt
	$(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

$(VENV)/.test: requirements/dev.txt requirements/openai-previous.txt $(VENV)/.serve
	$(PIP_INSTALL) -r requirements/dev.txt
	$(PIP_INSTALL) --no-build-isolation -e ./kernels
	$(PIP_INSTALL) --upgrade --target $(VENV)/openai-previous -r requirements/openai-previous.txt
	@touch $@

.PHONY: clean
clean: ## remove .venv and caches of this checkout
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info

.PHONY: bench-local
bench-local: $(VENV)/.test ## measure the stack on this machine: ready, idle, one stream, memory (JSON under benchmarks/results)
	$(BIN)/python -m benchmarks.local.bench --out benchmarks/results/$$(date +%F)-local/local.json

.PHONY: bench-toolcalls-live
bench-toolcalls-live: $(VENV)/.test ## 500 enforced tool calls on the local stack, and half of the same prompts without enforcement
	$(BIN)/python -m benchmarks.toolcalls.live --out benchmarks/results/$$(date +%F)-toolcalls-live/live.json

.PHONY: bench-kv-under-load
bench-kv-under-load: $(VENV)/.test ## every path of the KV tier in the local stack with eight shards, under load; then the docs page (10 to 30 min)
	$(BIN)/python -m benchmarks.kv_tiers.under_load --out benchmarks/results/$$(date +%F)$(SUFFIX)-kv-under-load/result.json $(ARGS)
	$(BIN)/python -m benchmarks.kv_tiers.report

.PHONY: bench-kv-paired
bench-kv-paired: $(VENV)/.test ## the gate against computing and against loading always, on real engines over throttled stores; then the docs page (10 min)
	test -n "$(MODEL)" || { echo "MODEL=: SmolLM2-135M-Instruct as a folder"; exit 2; }
	$(BIN)/python -m benchmarks.kv_tiers.paired --model $(MODEL) --out benchmarks/results/$$(date +%F)$(SUFFIX)-kv-paired/result.json $(ARGS)
	$(BIN)/python -m benchmarks.kv_tiers.report

.PHONY: bench-gateway
bench-gateway: $(VENV)/.test ## the gateway beside a bare relay, LiteLLM and vLLM's router, on two cores; then the docs page (25 min)
	$(BIN)/python -m benchmarks.gateway.bench --out benchmarks/results/$$(date +%F)$(SUFFIX)-gateway $(ARGS)
	$(BIN)/python -m benchmarks.gateway.report
