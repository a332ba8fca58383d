# Two commands: `make serve` runs the main job, `make test` passes the tests. Everything lives in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SERVE_ARGS ?=

.PHONY: help setup serve lint check test test-long test-sglang test-dynamo-sglang test-clients docs wheels fuzz chaos soak results clean

help:  ## Show this text
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## Create .venv and install pdplugins, Dynamo and the development tools into it

# A change of the kernel compiles it again: hatch_build.py.
KERNEL := $(wildcard pdplugins/sim/core/*.py)

NO_VENV = { echo "make: $(PYTHON) has no venv module (Debian: apt-get install python3.11-venv)" >&2; exit 2; }

$(VENV)/.installed: pyproject.toml hatch_build.py $(KERNEL)
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing; install Python 3.11 (Debian: apt-get install python3.11-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(NO_VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev,docs]'
	@command -v npm >/dev/null && npm ci --silent --prefix tests/report || echo "make: without npm the pages are not tested in a browser"
	@touch $@

serve: setup  ## Run the main job: a Dynamo stack scaled by DOPD (SERVE_ARGS="--trace demo" replays a load that drifts)
	$(BIN)/dynamo serve --planner dopd $(SERVE_ARGS)

# Four processes for two cores run the tests of different files at once: many wait for servers and programs.
# The fast tests wait for nothing: each process more costs them the seconds in which it imports everything.
GROUPED := $(BIN)/python -m pytest --dist loadgroup
PYTEST := $(GROUPED) -n 4

lint: setup  ## Run the linters and the type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check pdplugins tests benchmarks docs tools
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## For the working day: the linters, the types and the fast tests (under a minute on two cores)
	HYPOTHESIS_PROFILE=quick $(GROUPED) -n 2 -q -m "not dynamo and not sglang and not long and not slow and not moderate"

test: lint  ## Run the linters, the type checker and all tests; those of the simulator on both kernels
	$(PYTEST)
	HYPOTHESIS_PROFILE=quick $(PYTEST) -q --pure tests/sim

test-long: setup  ## Run the tests that take minutes
	$(PYTEST) --timeout 600 -m "long and not alone"
	$(BIN)/python -m pytest -m alone

SGLANG_VENV := .venv-sglang
SGLANG_VERSIONS := 0.5.16 0.5.23
SGLANG_PIP := $(SGLANG_VENV)/bin/pip --disable-pip-version-check install --quiet --no-deps

SGLANG_PYTEST := PDPLUGINS_SGLANG_TREES=$(subst $() ,:,$(foreach v,$(SGLANG_VERSIONS),$(CURDIR)/$(SGLANG_VENV)/sglang-$(v))) \
	$(SGLANG_VENV)/bin/python -m pytest -m sglang -v --tb=native --durations=10 --session-timeout=5400
CLIENT_TESTS := tests/hosts/sglang/gateway/test_clients.py
SGLANG_ARGS ?=

test-sglang: $(SGLANG_VENV)/.installed  ## Run real SGLang servers on the CPU: every path equal to a unified server (35 minutes on two quiet cores)
	HATCH_BUILD_NO_HOOKS=true $(SGLANG_PIP) --editable .
	$(SGLANG_PYTEST) tests/hosts/sglang --ignore $(CLIENT_TESTS) $(SGLANG_ARGS)

# The launcher and the router run in .venv, SGLang's workers in the other environment, as on a host with GPUs.
test-dynamo-sglang: setup $(SGLANG_VENV)/.installed  ## Run Dynamo with real SGLang workers on the CPU behind every router (five minutes on two busy cores)
	HATCH_BUILD_NO_HOOKS=true $(SGLANG_PIP) --editable .
	PDPLUGINS_SGLANG_PYTHON=$(CURDIR)/$(SGLANG_VENV)/bin/python PDPLUGINS_SGLANG_TREES=$(CURDIR)/$(SGLANG_VENV)/sglang-$(firstword $(SGLANG_VERSIONS)) \
		$(BIN)/python -m pytest -m sglang -v --tb=native --durations=10 --session-timeout=1200 tests/hosts/dynamo/sglang

test-clients: $(SGLANG_VENV)/.installed  ## Compare OpenAI's and LangChain's clients through every router with a unified server (CLIENTS_ARGS=--write-pages)
	HATCH_BUILD_NO_HOOKS=true $(SGLANG_PIP) --editable .
	$(SGLANG_PYTEST) $(CLIENT_TESTS) $(CLIENTS_ARGS)

# Both versions share one environment, each in a folder of its own; benchmarks/rig/requirements.txt says why.
$(SGLANG_VENV)/.installed: benchmarks/rig/requirements.txt
	@echo "make: SGLang $(SGLANG_VERSIONS) go into $(SGLANG_VENV): 3.5 GB, two minutes where the packages are near"
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_PIP) -r $< || { echo "make: the packages of $< cannot be installed: no network, or an index without them" >&2; exit 2; }
	for v in $(SGLANG_VERSIONS); do $(SGLANG_PIP) --upgrade --target $(SGLANG_VENV)/sglang-$$v sglang==$$v || exit 1; done
	@$(SGLANG_VENV)/bin/python -c "import torch" || { echo "make: PyTorch does not load; this needs its build for CPUs, see $<" >&2; exit 2; }
	@touch $@

docs: setup  ## Build the documentation as a site in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# With an environment of its own: .venv may be an operator's installation, into which `setup` would put the development tools.
WHEELS_VENV := build/wheels

wheels:  ## Build pdplugins and pdplugins-slim into dist/
	rm -rf dist $(WHEELS_VENV)
	@$(PYTHON) -m venv $(WHEELS_VENV) || $(NO_VENV)
	$(WHEELS_VENV)/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(WHEELS_VENV)/bin/python tools/slim_wheel.py dist/pdplugins-*.whl

fuzz: setup  ## Run the tests with new examples for the properties, other ones each time
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -m "not dynamo and not sglang"

CHAOS_S ?= 1800
CHAOS_SEED := $(or $(CHAOS_SEED),$(shell date +%s))

chaos: setup  ## Bring faults about for half an hour: a gateway, and dynamo serve beside it (CHAOS_S seconds, CHAOS_SEED)
	$(MAKE) -j 2 CHAOS_SEED=$(CHAOS_SEED) chaos-gateway chaos-dynamo_serve

chaos-%:  # One of them: make chaos-gateway, chaos-dynamo_serve
	CHAOS_S=$(CHAOS_S) CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -v --tb=short --show-capture=no tests/chaos/test_$*.py

SOAK_S ?= 300

soak: setup  ## Run dynamo serve under load for five minutes, a kill each minute: no request is lost, nothing grows (SOAK_S seconds)
	$(BIN)/python benchmarks/soak.py --seconds $(SOAK_S)

RESULTS := $(BIN)/python benchmarks/results.py
RESULTS_ARGS ?=

results: setup  ## Make every result of benchmarks/ again that is older than its code (TRACES=DIR; RESULTS_ARGS="--list")
	$(RESULTS) run $(if $(TRACES),--traces "$(TRACES)") $(RESULTS_ARGS)

bench-%: setup  # Those of one name: make bench-arrow, bench-planners, bench-fidelity
	$(RESULTS) run --only '$**' $(if $(TRACES),--traces "$(TRACES)") $(RESULTS_ARGS)

clean:  ## Remove .venv and every cache
	rm -rf $(VENV) $(SGLANG_VENV) tests/report/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
