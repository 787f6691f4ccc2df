# Each target makes .venv when it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

# Parts of other benchmarks.
NOT_RUN := benchmarks/two_stages.py benchmarks/torch_rank.py benchmarks/more_models.py

# Groups of benchmarks, for `make bench-GROUP`.
BENCH_speed := pipeline overhead goodput startup keys simulator capture planning
BENCH_prediction := prediction edgemove_period edgemove_vgg
BENCH_codecs := codec_accuracy codec_error
BENCH_papers := plus hiertrain coopai_planning coopai_plus coopai stitchnet stitchnet_run \
	stitchnet_deaths stitchnet_silent edgemove_run edgemove_kill edgemove_city decoupled \
	decoupled_run

.PHONY: help setup test demo lint proof bench docs

help:
	@echo "make setup       a Python environment in .venv with all that is needed"
	@echo "make demo        three emulated devices train a network on real digits"
	@echo "make test        the tests"
	@echo "make lint        style and types"
	@echo "make proof       checks every promise by a real run: at most an hour; goes on where it was stopped"
	@echo "make bench       all benchmarks"
	@echo "make bench-NAME  benchmarks/NAME.py, or a group: speed, prediction, codecs, papers"
	@echo "make docs        checks the links of the documentation"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,data,bench,web]'
	touch $@

test: setup
	$(BIN)/pytest -q -n 3 --dist loadfile

demo: setup
	$(BIN)/weft demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py

bench: setup
	set -e; for file in $(filter-out $(NOT_RUN),$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file"; done

bench-%: setup
	set -e; for name in $(or $(BENCH_$*),$*); do echo "== $$name"; $(BIN)/python "benchmarks/$$name.py"; done

proof: setup
	$(BIN)/python proofs/prove.py

docs: setup
	$(BIN)/python docs/check_links.py
