# make demo         a data set prepared, a model tuned, trained, evaluated, promoted and served
# make clean-demo   all of that away again, the endpoint included
# make test         every check there is
# make install      the environment alone, in .venv

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CHECKED := src tests entrypoints registry benchmarks examples

.PHONY: install demo clean-demo lint format test browser clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt examples/demo-requirements.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 13) else \
	  "greenroom needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r examples/demo-requirements.txt
	touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

clean-demo:
	test ! -x $(BIN)/python || $(BIN)/python examples/demo.py --clean
	rm -rf .demo

lint: $(INSTALLED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

test: lint browser
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The tests of MLflow's UI need a browser. Where it cannot be installed they are skipped, and say so.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; \
	fi || echo "no chromium: the tests of MLflow's UI will be skipped"

clean: clean-demo
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
