# Two commands: `make run` trains and shows the tiny preset, `make test` runs the tests. `make ui` opens Prefect and MLflow.
SHELL := /bin/bash
PYTHON ?= python3
PRESET ?=
TORCH_INDEX ?=
VENV := .venv
STAMP := $(VENV)/installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Threads that spin long take cores from others, threads that never spin make an optimizer step 60 % longer.
export GOMP_SPINCOUNT ?= 3000
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := true
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: run test ui install preset clean

run: install preset
	@python -m stages.params
	@start=$$SECONDS; python -m dvc repro && echo "dvc repro took $$((SECONDS - start)) s" && python -m stages.status

preset: install
ifneq ($(PRESET),)
	@python -m stages.preset $(PRESET)
endif

test: install
	@python -m ruff check .
	@python -m pytest --durations=10

ui: install
	@python -m flows.ui

install: $(STAMP)

# Torch first: a plain `pip install torch` may bring the CUDA build (several GB), which a machine without a GPU does not need.
# TORCH_INDEX: address of an index with CPU builds, for a package index that has only the CUDA build under this name.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else f"python: got {sys.version.split()[0]}, wanted 3.11 to 3.13 (make PYTHON=python3.12 ...)")'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	@if [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; then \
	  python -m pip install -q -e '.[all,cuda]'; \
	else \
	  python -c 'import torch' 2>/dev/null || python -m pip install -q torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)); \
	  python -m pip install -q -e '.[all]'; \
	fi
	@touch $@

clean:
	rm -rf artifacts work
