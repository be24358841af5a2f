# Two commands do all the set-up: `make demo` and `make test`. The others reuse the same environment.
PYTHONS ?= python3.11 python3
VENV    ?= .venv
BIN     := $(VENV)/bin
DEMO_EXTRAS := figures,onnx,hub
# A process a core, a file at a time, the long ones first (tests/conftest.py).
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick lint types docs bench capabilities map wheel wheel-demo clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo-installed  ## set up, then the whole tour: images, a training, its report, all in demo/
	$(BIN)/vitrail demo

test: $(VENV)/.dev-installed  ## set up, then run the tests on all cores; names the 20 slowest
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-quick: $(VENV)/.dev-installed  ## the tests that take no long time: while you work
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow"

lint: $(VENV)/.dev-installed  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-installed  ## mypy, strict on the package
	$(BIN)/mypy

docs: $(VENV)/.dev-installed  ## the docs as a site that reads from a disk: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

bench: $(VENV)/.dev-installed  ## speed of the network beside others
	$(BIN)/python benchmarks/network.py

capabilities: $(VENV)/.dev-installed  ## write docs/capabilities.md anew from the tests' marks
	$(BIN)/python tools/capabilities.py

map: $(VENV)/.dev-installed  ## write the map in CONTRIBUTING.md anew from the modules' first lines
	$(BIN)/python tools/house_map.py

wheel: $(VENV)/.dev-installed  ## build dist/*.whl
	rm -rf dist && $(BIN)/python -m build --wheel

wheel-demo: wheel  ## the wheel alone, in an empty environment, runs the demo
	rm -rf build/alone && $(BIN)/python -m venv build/alone
	build/alone/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/alone && bin/vitrail demo --epochs 0.2 && test -s demo/index.html && test -s demo/fashion/report.html

clean:  ## remove what was made, except the environment
	rm -rf demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools examples benchmarks stress -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "creating $(VENV) with $$python"; exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "No Python 3.11 or newer with the venv module found (tried: $(PYTHONS))." >&2; \
	echo "Install one (on Debian and Ubuntu also the package python3-venv), or name it: make PYTHONS=/path/to/python" >&2; \
	exit 1

# A stamp is younger than what it was installed from, so that a second call has nothing to do.
define install
	@echo "installing vitrail[$(1)] into $(VENV) (PyTorch is large: the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(1)]" || { \
	    echo "pip could not install vitrail[$(1)]: its reason stands above." >&2; \
	    echo "Is the package index reachable? Is there room on the disk? Then run the same command again." >&2; \
	    exit 1; }
	@touch $@
endef

$(VENV)/.demo-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,$(DEMO_EXTRAS))

$(VENV)/.dev-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,dev)
