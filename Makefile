# Set-up happens on demand and once: `.venv/.ready-*` are written by scripts/install.py when an
# installation is complete, and a lock file newer than its mark starts another.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv/bin
MODEL ?=
ARGS ?=
VLLM ?=
BENCHMARKS ?= blocking capacity scheduler_overhead virtual_time hardware_accuracy router large_bodies handoff decode_speed fleet
QUICK := tests/core tests/config tests/router/openai tests/fleet/plan tests/fleet/operate \
	tests/fleet/kubernetes tests/gpus tests/test_imports.py tests/test_generated.py
export TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help serve test test-vllm quick check bench clean

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18
	@echo
	@echo 'Variables: MODEL (directory or hub name; default: the bundled model, or ./headway.toml),'
	@echo 'ARGS (more flags; for serve those of headway up, such as a file),'
	@echo 'VLLM (a release for test-vllm, as in VLLM=0.33.0; any may be tried),'
	@echo 'PYTHON (3.11 or newer), TORCH_INDEX (an index with PyTorch CPU wheels, by default'
	@echo "pip's own indexes and then PyTorch's)."

serve: .venv/.ready-cpu ## install what is needed, prepare the bundled model, start a fleet
	@exec $(VENV)/headway up $(if $(MODEL),--model $(MODEL)) $(ARGS)

test: .venv/.ready-cpu .venv/.ready-dev .venv/.ready-ray .venv/.ready-nginx ## run all tests, those with real engines too
	$(VENV)/python -m pytest $(ARGS)

quick: check ## checks, and the tests of what decides, reads and writes: under a minute
	HYPOTHESIS_PROFILE=quick $(VENV)/python -m pytest -q -m "not e2e and not process" $(QUICK)

test-vllm: .venv/.ready-cpu .venv/.ready-dev ## test the scheduler on the supported vLLM that isn't installed
	$(VENV)/python scripts/test_vllm.py $(VLLM)

check: .venv/.ready-dev ## lint, formatting, types, import contracts
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports

bench: .venv/.ready-cpu ## run the benchmarks, results to benchmarks/results (ARGS=--quick: shorter)
	@mkdir -p benchmarks/results
	@set -e; for name in $(BENCHMARKS); do \
	    echo "== $$name"; \
	    $(VENV)/python benchmarks/$$name.py --json benchmarks/results/$$name.json $(ARGS); \
	done

clean: ## remove .venv and caches (not the models in the user's cache directory)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One after the other, also under `make -j`: both write .venv.
.NOTPARALLEL:

.venv/.ready-nginx: scripts/nginx.py
	@$(PYTHON) scripts/nginx.py
	@touch $@

.venv/.ready-%: requirements/%.lock pyproject.toml scripts/install.py
	@$(if $(PYTHON),,$(error headway: no python3 found; install Python 3.11 or newer))$(PYTHON) scripts/install.py $*
