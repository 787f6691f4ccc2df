# Each target makes .venv when it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

# Groups of benchmarks, for `make bench-GROUP`.
BENCH_speed := pipeline overhead goodput startup keys simulator capture planning fleet_scale
BENCH_prediction := prediction edgemove_period edgemove_vgg
BENCH_codecs := codec_accuracy codec_error
BENCH_papers := plus hiertrain coopai_planning coopai_plus coopai stitchnet stitchnet_run \
	stitchnet_deaths stitchnet_silent edgemove_run edgemove_kill edgemove_city decoupled \
	decoupled_run

.PHONY: help setup test demo lint proof bench docs pictures

help:
	@echo "make setup       a Python environment in .venv with all that is needed"
	@echo "make demo        three emulated devices train a network on real digits"
	@echo "make test        the tests"
	@echo "make lint        style, types, imports and pinned versions"
	@echo "make proof       checks every promise by a real run: at most an hour; goes on where it was stopped"
	@echo "make bench       all benchmarks, for hours; goes on where it was stopped; says which figures changed"
	@echo "make bench-NAME  benchmarks/NAME.py, or a group: speed, prediction, codecs, papers"
	@echo "make pictures    makes the pictures of the documentation anew; look at them before you commit"
	@echo "make docs        checks the documentation and writes it as a site to site/"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,data,bench,web,papers,dask,notebook,docs]'
	touch $@

test: setup
	$(BIN)/pytest -q -n 3 --dist loadfile

demo: setup
	$(BIN)/weft demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py tests/test_pins.py

bench: setup
	$(BIN)/python benchmarks/regenerate.py

bench-%: setup
	$(BIN)/python benchmarks/regenerate.py $(or $(BENCH_$*),$*)

proof: setup
	$(BIN)/python proofs/prove.py

docs: setup
	$(BIN)/python docs/check_links.py
	$(BIN)/python docs/write_commands.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: setup
	$(BIN)/python docs/write_pictures.py
