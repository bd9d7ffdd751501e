# make demo    the main job, on a private RabbitMQ node: 4.3 where it can be had, else this machine's own
# make unit    the unit tests, which need no broker
# make test    these, and with a private RabbitMQ node all tests that prove a promise of the README in less than 20 s
# make test-all   all tests: those that take longer, try more of the same, use a browser or a cluster as well
# make coverage   all tests, and fails if the core or the package is covered too little
# make delay-alone   the tests of the delay, in a copy without the schedule, periodic tasks, the page and their commands
# make lint    runs ruff, the import contracts in pyproject.toml, and mypy
# make dist-check   builds sdist and wheel, checks them, imports all of the wheel, and runs the sdist's tests of packaging
# make matrix  the tests of the main job on every supported Python, Celery, Kombu and RabbitMQ (an hour on two CPUs)
# make upstream   all tests on the newest published Celery, Kombu and py-amqp, pre-releases included, and their own tests
# make bench   measures speed against other ways, for evidence/benchmarks/README.md (an hour on two CPUs)
# make sizing  measures what a million waiting tasks take, for docs/sizing.md (ten minutes on two CPUs)
# make battle  kills brokers, workers, publishers and beats, and looks for lost and early tasks (minutes; LONG=1: hours)
# make docs    builds the site into .docs/html; warnings, such as broken links within the site, are errors
# make linkcheck   checks the external links of the docs
# make diagrams   redraws the bars in docs/diagrams/cpu.svg from what was measured
# make screenshot   retakes the picture in docs/web.md, in headless Chromium
# make layout  rewrites tests/unit/layout.json from the topology
#
# A fresh machine needs Python 3.10+, make and a package manager. RABBITMQ=4.3 chooses another RabbitMQ.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# RabbitMQ is installed beside Python's packages.
MAKEFLAGS += --jobs=2

# Processes need not compile anew what they import.
unexport PYTHONDONTWRITEBYTECODE

# Nodes that keep their data in memory are faster; they need some gigabytes.
ifndef TMPDIR
ifneq ($(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 8000000 2>/dev/null && echo room),)
export TMPDIR := /dev/shm
endif
endif

.PHONY: demo unit test test-all coverage core-is-covered delay-alone lint dist-check matrix upstream bench sizing battle docs linkcheck diagrams screenshot layout broker browser clean

demo: $(VENV)/ready
	$(BIN)/python -m tools.demo

# So many for each CPU: more would win nothing, and each collects all tests. The nodes of clusters have to answer in time.
processes = -n $$(tools/processes $(1)) --dist worksteal

unit: $(VENV)/ready-for-unit
	$(BIN)/python -m pytest $(call processes,1) tests/unit $(ARGS)

# Unit tests keep the CPUs busy, and the others mostly wait, so unless ARGS says which tests, these have a run of their own.
test: TIER = $(call processes,5) -m "not (long or more or browser or cluster)"
test-all: TIER = $(call processes,3)
test-all: browser
test test-all: $(if $(ARGS),,unit) $(VENV)/ready $(VENV)/compiled broker
	$(BIN)/python -m pytest $(TIER) --durations 10 $(or $(ARGS),--ignore tests/unit)

# Compiled once, which takes longer than to import them; otherwise each of the processes does it.
$(VENV)/compiled: $(VENV)/ready $(wildcard tests/*.py tests/*/*.py)
	$(BIN)/python -m pytest --collect-only -qq >/dev/null
	touch $@

# The core by the unit tests alone, then the package by all of them.
coverage:
	$(MAKE) unit ARGS="--cov --cov-report="
	$(MAKE) core-is-covered
	$(MAKE) test-all ARGS="--ignore tests/unit --cov --cov-append --cov-report term-missing --cov-fail-under 90 $(ARGS)"

core-is-covered:
	$(BIN)/coverage report --include "celery_rabbit_delay/*/core/*" --fail-under 100

# Without the schedule, periodic tasks, the page and their commands.
delay-alone: $(VENV)/ready
	$(BIN)/python -m tools.delay_alone $(call processes,3) $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# The tests of the sdist find its own tree; the programs that they start find the wheel.
dist-check: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/twine check --strict dist/*.tar.gz dist/*.whl
	mkdir dist/sdist && tar xzf dist/*.tar.gz -C dist/sdist --strip-components 1
	$(BIN)/python -m pip install --quiet --no-deps --target dist/wheel dist/*.whl
	cd dist/wheel && find celery_rabbit_delay -name "*.py" ! -name __main__.py | sed 's|/__init__||; s|\.py$$||; s|/|.|g; s|^|import |' | \
		PYTHONPATH=. $(CURDIR)/$(BIN)/python -
	cd dist/sdist && PYTHONPATH=$(CURDIR)/dist/wheel $(CURDIR)/$(BIN)/python -m pytest -q tests/unit/test_packaging.py tests/unit/test_imports.py

matrix: $(VENV)/ready browser
	for name in 3.10 4.0 4.3; do tools/get-rabbitmq $$name >/dev/null || exit 1; done
	PATH=$$(tools/python-path) $(BIN)/tox run-parallel --parallel $$((($$(getconf _NPROCESSORS_ONLN) + 1) / 2)) $(ARGS)

# --pre: includes pre-releases, on purpose also those that are newer than this package permits.
upstream: $(VENV)/ready broker browser
	$(BIN)/tox run -e upstream -- $(ARGS)
	$(BIN)/tox run -e upstream-suites

bench: $(VENV)/ready
	$(BIN)/python -m evidence.benchmarks $(ARGS)

sizing: $(VENV)/ready
	$(BIN)/python -m evidence.benchmarks.at_length $(ARGS)

battle: $(VENV)/ready
	$(BIN)/python -m evidence.battle $(if $(LONG),--long) $(ARGS)
	$(BIN)/python -m evidence.battle.beats $(if $(LONG),--minutes 10)
	$(if $(LONG),$(BIN)/python -m evidence.battle.report)

docs: $(VENV)/ready-for-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs .docs/html
	@echo "the site: .docs/html/index.html"

linkcheck: $(VENV)/ready-for-docs
	$(BIN)/python -m sphinx --quiet --keep-going --builder linkcheck docs .docs/links

diagrams: $(VENV)/ready
	$(BIN)/python -m tools.diagrams

layout: $(VENV)/ready
	$(BIN)/python -m tools.layout

broker:
	@tools/get-rabbitmq $(RABBITMQ) >/dev/null

# If no browser can be installed, the browser tests are skipped; with CI=true they fail.
browser:
	@tools/get-chromium >/dev/null || true

# The picture of the page in docs/web.md, made by the test that uses it in a browser.
screenshot: $(VENV)/ready broker browser
	SCREENSHOT=$(CURDIR)/docs/web.png $(BIN)/python -m pytest -q tests/acceptance/test_browser.py $(ARGS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready-for-unit: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[unit]'
	touch $@

$(VENV)/ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/ready-for-unit $@

$(VENV)/ready-for-docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .coverage* .docs dist
