# One word for each thing a newcomer does. Everything is installed into .venv from committed pins; the engines'
# environment and model, and for `make test` the agent clients', are built once into a cache folder
# ($COUNTERPROOF_CACHE, else the user's cache folder).
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(if $(shell command -v $(p) 2>/dev/null),$(p))))
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check lint types quick evidence clean
help:            ## this list
	@grep -hE '^[a-z]+: .*##|^[a-z]+: +##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 18

.venv/demo.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "counterproof needs Python 3.11 or newer on PATH (or make PYTHON=/path/to/python)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "counterproof needs Python 3.11 or newer; $(PYTHON) is older"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

.venv/dev.stamp: .venv/demo.stamp
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/demo.stamp  ## two real engines on this CPU, a real agent workload, and what differed (KEEP=1 leaves it up)
	$(BIN)/counterproof demo $(if $(KEEP),--keep)

check: .venv/dev.stamp  ## lint, types, floors and the quick tests: seconds, for the inner loop
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types quick lint

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types:
	$(BIN)/mypy

quick:
	$(BIN)/pytest -q -m 'not engine and not slow'

test: check  ## everything, real engines included
	$(BIN)/pytest -m 'engine or slow'

evidence: .venv/dev.stamp  ## what is long; rewrites the committed results under bench/results
	$(BIN)/python -m bench.injection_cost --write
	$(BIN)/python -m bench.byte_path --write
	$(BIN)/python -m bench.streams --write
	$(BIN)/python -m bench.block --write
	$(BIN)/python -m bench.fuzz all --seconds 600 --write
	$(BIN)/python -m bench.soak --write

clean:  ## removes .venv and caches of the checkout (not the engines' cache)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
