# make demo    the main job, on a private RabbitMQ node
# make test    unit, integration and acceptance tests, on private RabbitMQ nodes
# make lint    ruff and mypy
# make diagrams   redraws docs from the topology
#
# A fresh machine needs Python 3.10+, make and a package manager. RABBITMQ=4.3 chooses another RabbitMQ.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint diagrams broker clean

demo: $(VENV)/ready broker
	$(BIN)/python -m tools.demo

test: $(VENV)/ready broker
	$(BIN)/python -m pytest -n 3 $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

diagrams: $(VENV)/ready
	$(BIN)/python -m tools.diagrams

broker:
	@[ -n "$$RABBITMQ_SERVER" ] || tools/get-rabbitmq $(RABBITMQ) >/dev/null

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
