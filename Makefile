# `make demo` and `make test` need Python >= 3.11, git and make; everything else they install into .venv.
PYTHON ?= python3
# Where pip finds CPU builds of torch. PyPI's wheels for Linux bring gigabytes of CUDA along.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

BIN := .venv/bin
export DAGSTER_HOME := $(CURDIR)/.dagster_home
export DAGSTER_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: help demo ui test lint bench constraints clean

help:  ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: .venv/installed $(DAGSTER_HOME)/dagster.yaml  ## convert the bundled samples through Dagster into demo/
	$(BIN)/python examples/demo.py

ui: .venv/installed $(DAGSTER_HOME)/dagster.yaml  ## Dagster's webserver and daemon on http://127.0.0.1:3000
	$(BIN)/dagster dev --workspace workspace.yaml --host 127.0.0.1 --port 3000

test: .venv/installed  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/installed  ## ruff, and mypy on zarr_core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/dg check yaml
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/dg check defs

bench: .venv/installed  ## reading and converting against the same work by hand, codecs, a large manifest, resuming
	$(BIN)/python -m benchmarks.local
	$(BIN)/python -m benchmarks.conversion
	$(BIN)/python -m benchmarks.codecs
	$(BIN)/python -m benchmarks.manifest
	$(BIN)/python -m benchmarks.resume
	$(BIN)/python -m benchmarks.matrix --codec none

$(DAGSTER_HOME)/dagster.yaml: deploy/local/dagster.yaml
	mkdir -p $(DAGSTER_HOME)
	cp $< $@

# A CPU wheel that pip is configured to find, else one from TORCH_INDEX, else PyPI's (macOS has only that one).
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-deps --no-index 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || $(BIN)/pip install --quiet --no-deps --retries 1 --index-url $(TORCH_INDEX) 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || true
	$(BIN)/pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat \
	  --editable '.[platform,obstore,tensorstore,warehouse,test,lint]'
	touch $@

constraints: .venv/installed  ## pin what is installed now
	{ echo '# Every version that `make` installs, resolved together on Python 3.11; `make constraints` writes it anew.'; \
	  $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.txt

clean:  ## remove what make made
	rm -rf .venv .dagster_home demo build *.egg-info
