# Each target makes .venv itself. `make quickstart` needs Python 3.11+ and a C compiler, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart smoke long test test-nightly test-ray check bench clean
STARTED := $(shell date +%s)

quickstart: $(READY)
	TEMPER_STARTED=$(STARTED) $(BIN)/temper run quickstart --from-scratch

smoke: $(READY)
	TEMPER_STARTED=$(STARTED) $(BIN)/temper run smoke --from-scratch

long: $(READY)
	TEMPER_STARTED=$(STARTED) $(BIN)/temper run long --from-scratch

test: $(READY)
	$(BIN)/python -m pytest tests/contract/sandbox  # alone: it exhausts what the others would need
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/contract/sandbox

test-nightly: $(READY)
	$(BIN)/python -m pytest -m nightly

test-ray: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/python -m pytest -m ray

check: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

bench: $(READY)
	$(BIN)/temper bench --all

$(READY): pyproject.toml constraints.txt $(wildcard native/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Temper needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 3; }
	@command -v cc >/dev/null || { echo "Temper builds a small sandbox helper and needs a C compiler, e.g. apt-get install gcc libc6-dev"; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs
