# Each target makes .venv when it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

# Parts of other benchmarks.
NOT_RUN := benchmarks/two_stages.py benchmarks/torch_rank.py

.PHONY: setup test demo lint bench docs

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,data,bench]'
	touch $@

test: setup
	$(BIN)/pytest -q -n 2 --dist loadfile

demo: setup
	$(BIN)/weft demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py

bench: setup
	set -e; for file in $(filter-out $(NOT_RUN),$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file"; done

docs: setup
	$(BIN)/python docs/check_links.py
