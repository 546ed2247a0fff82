# Two commands do everything on a fresh machine, set-up included:  make demo   make test
PYTHON ?= python3
BIN := .venv/bin
# tests are mostly one thread each; files of them go side by side
PROCESSES ?= 2

.PHONY: demo test quick-tests test-all check prose index bench mutants clean

demo: .venv/ready
	$(BIN)/regard demo $(DEMO)

# the quick tests, beside the checks that only read the code
test: .venv/ready-dev
	$(MAKE) --no-print-directory -j 2 check quick-tests

quick-tests: .venv/ready-dev
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

# all tests: fault matrices, several processes, demos, the installed wheel, every case and every variant
test-all: .venv/ready-dev check
	$(BIN)/python -m pytest --all -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

# how strong the tests are: tools/mutants/README.md
mutants: .venv/ready-dev
	PYTHONPATH=tools $(BIN)/python -m mutants.run --processes $(PROCESSES) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(RECORD),--record $(RECORD)) $(if $(ONLY),--only $(ONLY))

# everything that reads the code without running it
check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/write_index.py --check
	$(BIN)/python tools/prose/lint.py

# the English of messages, documents, docstrings and comments: tools/prose/__init__.py
prose: .venv/ready-dev
	$(BIN)/python tools/prose/lint.py

# what 'regard list' shows and names are checked by, written from the tables of systems, tasks and settings
index: .venv/ready
	$(BIN)/python tools/write_index.py

# regard beside the peers that are installed: a table of ratios, and league.json
bench: .venv/ready-dev
	$(BIN)/python benchmarks/league.py $(BENCH)

# torch first and alone, at the tested version: a range asked for by another package could bring a newer, larger build
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,parity,parquet,clouds,hub,sentencepiece]'
	touch $@

clean:
	rm -rf .venv .mutants build dist .pytest_cache .mypy_cache .ruff_cache
