# make demo    the main job, on a private RabbitMQ node
# make test    unit, integration and acceptance tests, on private RabbitMQ nodes
# make lint    ruff, the import contracts in pyproject.toml, and mypy
# make matrix  all tests on every supported Python, Celery, Kombu and RabbitMQ (two hours)
# make bench   measures speed against other ways, and draws docs/benchmarks.md (an hour)
# make battle  kills brokers, workers and publishers, and looks for lost and early tasks (minutes; LONG=1: hours)
# make diagrams   redraws docs from the topology
#
# A fresh machine needs Python 3.10+, make and a package manager. RABBITMQ=4.3 chooses another RabbitMQ.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint matrix bench battle diagrams broker clean

demo: $(VENV)/ready broker
	$(BIN)/python -m tools.demo

test: $(VENV)/ready broker
	$(BIN)/python -m pytest -n 6 --dist worksteal $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

matrix: $(VENV)/ready
	for name in 3.10 4.0 4.3; do tools/get-rabbitmq $$name >/dev/null || exit 1; done
	$(BIN)/tox run-parallel --parallel 2 $(ARGS)

bench: $(VENV)/ready-to-measure
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m pytest benchmarks/micro

battle: $(VENV)/ready-to-measure
	$(BIN)/python -m battle $(if $(LONG),--long) $(ARGS)
	$(if $(LONG),$(BIN)/python -m battle.load && $(BIN)/python -m battle.report)

diagrams: $(VENV)/ready
	$(BIN)/python -m tools.diagrams

broker:
	@tools/get-rabbitmq $(RABBITMQ) >/dev/null

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/ready-to-measure: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	touch $@

clean:
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis dist
