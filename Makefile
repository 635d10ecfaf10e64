# `make demo` and `make test` need Python 3.11, 3.12 or 3.13, git and make; everything else they install into .venv.
# To use another Python: `make test PYTHON=python3.13`. It applies until `make clean`.
PYTHON ?= python3
# Every version that is installed, resolved together on the Python of .venv.
VERSION := $(shell $(or $(wildcard .venv/bin/python),$(PYTHON)) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CONSTRAINTS := constraints/$(VERSION).txt
# Index with CPU builds of torch. PyPI's wheels for Linux install gigabytes of CUDA libraries.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -n 's/^torch==//p' $(CONSTRAINTS) 2>/dev/null)

BIN := .venv/bin
# Warnings of pip are about the configuration of the machine; errors are shown.
PIP := $(BIN)/pip --quiet --quiet
INSTALL := deploy/local/install.sh $(BIN)/python
# `make bench DATE=2026-11-30` writes the date into the results.
DATED = $(if $(DATE),--date $(DATE))
export DAGSTER_HOME := $(CURDIR)/.dagster_home
export DAGSTER_DISABLE_TELEMETRY := 1
# What is imported is compiled once, even where the environment forbids it: dozens of processes import the same files.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo ui docs test test-extras test-rgw lint attack bench bench-s3 shootout constraints clean

help:  ## show this
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: .venv/installed $(DAGSTER_HOME)/dagster.yaml  ## convert the bundled samples into demo/, by Dagster jobs
	$(BIN)/python examples/demo.py

ui: .venv/installed $(DAGSTER_HOME)/dagster.yaml  ## Dagster's webserver and daemon on http://127.0.0.1:3000
	$(BIN)/dagster dev --workspace workspace.yaml --host 127.0.0.1 --port 3000

docs: .venv-docs  ## the documentation's site, in build/site
	NO_MKDOCS_2_WARNING=1 $</bin/python -m mkdocs build --strict --site-dir build/site

# One process more than CI's machines have cores, since many tests wait for a daemon, a server or another process.
# Each process has one thread for numerics, because the processes already share the cores.
test: .venv/compiled  ## run the tests, in seven minutes on two cores
	rm -rf .pytest_cache/d/skipped
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-extras: .venv/extras .venv-anndata .venv-lineage .venv-mds .venv-hydra .venv-recipes .venv-docs  ## run the slow tests and what else `make test` skipped; as root, with Debian's packages as well
	tests/extras.sh

# The tests of notifications, Athena and credentials need moto.
test-rgw: .venv/installed  ## tests of S3 on the service TEST_S3_ENDPOINT (with AWS_ACCESS_KEY_ID and the like), such as Ceph RGW
	@if [ -z "$$TEST_S3_ENDPOINT" ]; then echo 'skipped: TEST_S3_ENDPOINT names no S3 service'; else \
	  TEST_EXTRAS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m s3 tests/storage tests/versioning \
	    tests/matrix tests/points tests/datasets tests/sources tests/platform/test_source_watch.py; fi

lint: .venv/installed  ## ruff, and mypy on zarr_core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/dg check yaml
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/dg check defs

attack: .venv/installed  ## every attack in full, about 25 minutes; SEED=7 repeats a run; also on the S3 service ATTACK_S3_ENDPOINT, if set
	$(BIN)/python -m tests.attacks $(if $(SEED),--seed $(SEED))
	TEST_EXTRAS=1 ZARR_CORE_EXAMPLES=20 $(BIN)/python -m pytest -n 2 -m hypothesis

# `make shootout SAMPLES=/data/ahmedml BUDGET=30min TIERS='work=/work/me scratch=/scratch/me'` measures other data and disks.
SAMPLES ?= $(firstword $(wildcard ../shared/data/ahmed_rans) examples/data/ahmed_rans)
BUDGET ?= 5min
TIERS ?= disk=/tmp $(addprefix memory=,$(wildcard /dev/shm))
shootout: .venv/rivals  ## formats, settings and disks compared on real samples, in demo/shootout
	$(BIN)/zarr-core shootout $(SAMPLES) --dataset-kind ahmedml --tiers $(TIERS) --budget $(BUDGET) --output demo/shootout

bench: .venv/rivals  ## every benchmark of local disks in about seven minutes, and docs/performance.md from their results
	for what in local items rivals endurance resume 'conversion --samples 12 --rounds 3' 'cluster --samples 12 --rounds 3' codecs manifest matrix warehouse; do \
	  $(BIN)/python -m benchmarks.$$what $(DATED) || exit 1; done
	$(BIN)/python -m benchmarks.report

bench-s3: .venv/rivals  ## reading, converting, layouts, tar shards and error bounds on S3 (AWS_ENDPOINT_URL, or Ceph's gateway), and the page
	$(BIN)/python -m benchmarks.s3 $(DATED)
	$(BIN)/python -m benchmarks.bucket $(DATED)
	$(BIN)/python -m benchmarks.layouts $(DATED)
	$(BIN)/python -m benchmarks.tars $(DATED)
	$(BIN)/python -m benchmarks.error_bounds $(DATED)
	$(BIN)/python -m benchmarks.report

$(DAGSTER_HOME)/dagster.yaml: deploy/local/dagster.yaml
	mkdir -p $(DAGSTER_HOME)
	cp $< $@

# A CPU wheel that pip is configured to find, else one from TORCH_INDEX, else PyPI's (macOS has only that one).
.venv/installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --no-deps --no-index 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || PIP_RETRIES=1 PIP_TIMEOUT=15 UV_HTTP_RETRIES=1 UV_HTTP_TIMEOUT=15 \
	    $(INSTALL) --no-deps --index-url $(TORCH_INDEX) 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || true
	$(INSTALL) --constraint $(CONSTRAINTS) --config-settings editable_mode=compat \
	  --editable '.[platform,oci,obstore,tensorstore,warehouse,test,lint]'
	touch $@

# uv compiles nothing, so each of the processes of the tests, which start together, would compile the same files.
.venv/compiled: .venv/installed
	$(BIN)/python -c 'import torch, sklearn.linear_model' & \
	  $(BIN)/python -c 'import zarr_core.platform.definitions, moto.server, awswrangler' && wait
	touch $@

.venv/rivals: .venv/installed
	$(INSTALL) --constraint $(CONSTRAINTS) --config-settings editable_mode=compat --editable '.[rivals]'
	touch $@

# litdata brings a torchvision for CUDA. Beside a torch for the CPU it raises an error wherever it is imported, as by
# Lightning, which does without it.
.venv/extras: .venv/installed
	$(INSTALL) --constraint $(CONSTRAINTS) --config-settings editable_mode=compat --editable '.[test-extras]'
	$(PIP) uninstall --yes torchvision
	touch $@

# Packages that need other versions than the pins: each environment has these, and everything else from .venv.
.venv-anndata: PACKAGES = anndata==0.12.19
.venv-lineage: PACKAGES = mlflow-skinny==3.17.2 wandb==0.31.0
.venv-mds: PACKAGES = mosaicml-streaming==0.13.0
.venv-hydra: PACKAGES = hydra-core==1.3.8
.venv-recipes: PACKAGES = torch-geometric==2.8.1 jax==0.10.2
.venv-docs: PACKAGES = mkdocs-material==9.8.2 mkdocstrings-python==2.0.11
.venv-anndata .venv-lineage .venv-mds .venv-hydra .venv-recipes .venv-docs: .venv/installed
	$(BIN)/python -m venv $@
	echo "import site; site.addsitedir('$(CURDIR)/.venv/lib/python$(VERSION)/site-packages')" \
	  > $@/lib/python$(VERSION)/site-packages/base.pth
	$@/bin/pip install --quiet --quiet $(PACKAGES) || { rm -r $@; exit 1; }

# Existing pins stay; delete their lines to resolve them again.
constraints: .venv/installed  ## pin what pyproject.toml needs, for the Python of .venv
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --all-extras --no-annotate --output-file $(CONSTRAINTS) \
	  --custom-compile-command 'make constraints PYTHON=python$(VERSION)' pyproject.toml

$(CONSTRAINTS):
	@echo "zarr_core needs Python 3.11, 3.12 or 3.13, not '$(VERSION)': make PYTHON=python3.13" >&2; exit 1

clean:  ## remove what make made
	rm -rf .venv .venv-* .dagster_home demo build *.egg-info
