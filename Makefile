# Two commands: `make demo` runs the demo experiment, `make test` passes the tests. Both do all the set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Real data beside the checkout is used when it is there; tests that need absent data skip and say so.
SHARED_DATA := $(wildcard ../shared/data)
ifneq ($(SHARED_DATA),)
export NETFLEET_DATA ?= $(abspath $(SHARED_DATA))
endif

# Most tests of sites and clusters wait; four processes keep two cores busy. All of them import netfleet and the tests:
# even where the environment says not to, they keep what Python compiled.
PARALLEL := -n 6
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test fast lint bench figures docs clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "netfleet needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say make PYTHON=python3.11 (or newer)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/netfleet run --out runs/demo --overwrite

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fast: $(VENV)/.installed
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

test: lint
	$(BIN)/python -m pytest $(PARALLEL)

bench: $(VENV)/.installed
	$(BIN)/netfleet bench

# Draws the paper's figures and fills the pages from the committed results; runs nothing.
figures: $(VENV)/.installed
	$(BIN)/netfleet reproduce all speedup --draw
	$(BIN)/python docs/make_reproduction.py
	$(BIN)/python docs/make_theory.py

# The site, in build/docs: it needs no server and no network.
docs: $(VENV)/.installed
	$(BIN)/python docs/make_site.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
