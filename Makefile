# Needs make and Python >= 3.11, nothing else. `make` alone lists the targets.
PYTHON ?= python3
VENV ?= .venv

# The run that `make run` shows: half of the clients have 70 to 80 % of their labels flipped.
CONFIG ?= attack="label-noise" malicious-fraction=0.5 poison-ratio-min=0.7 poison-ratio-max=0.8
# Processes that share the tests out.
WORKERS ?= 2
# Further options of the target's program, e.g. ARGS="--clients 50" or ARGS="-k influence".
ARGS ?=

python := $(VENV)/bin/python
# A hash of what an installation depends on: these tables of pyproject.toml, not a run's settings.
installation := $(shell awk '/^\[/ {wanted = /^\[(build-system|project|tool\.setuptools)/} wanted' \
  pyproject.toml | cksum | cut -d ' ' -f 1)
ready := $(VENV)/.ready-$(installation)
dev := $(VENV)/.dev-$(installation)
# A file's tests stay on one process: they share the federation that it starts.
pytest = $(python) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
checks = $(python) -m ruff check . && $(python) -m ruff format --check . && \
  $(python) -m mypy && $(VENV)/bin/lint-imports
# Tests of sums and products, which each kind of processor rounds in its own way.
arithmetic = $(addprefix tests/,aggregators attacks attribution consortium/masking stages valuation)
# The instruction sets that PyTorch has code for and this processor has, e.g. "default avx2".
processors = $(python) -c 'import torch; known = ["default", "avx2", "avx512"]; \
  own = torch.backends.cpu.get_cpu_capability().lower(); \
  print(*known[: known.index(own) + 1 if own in known else 1])'

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-fast lint docs bench deploy-demo format clean

help: ## list the targets
	@echo 'make TARGET [CONFIG="key=value ..."] [ARGS="..."] [PYTHON=python3.12]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1: \2/p' $(MAKEFILE_LIST)

run: $(ready) ## simulate 100 clients, half of them malicious
	@$(python) simulation.py run -c '$(CONFIG)' $(ARGS)

test: $(dev) ## run the tests, and beside them the checks of `make lint`, shown at the end
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; \
	{ $(checks); } >"$$said" 2>&1 & lint=$$!; \
	$(pytest) $(ARGS); tests=$$?; \
	wait $$lint; lint=$$?; cat "$$said"; \
	echo "make test: the tests exited with $$tests, lint with $$lint"; \
	test $$tests = 0 && test $$lint = 0

test-all: $(dev) ## run all that can be tested on one machine: 30 minutes at most
	@failed=; \
	{ $(checks); } || failed="$$failed lint,"; \
	HYPOTHESIS_PROFILE=search $(pytest) -m '' $(ARGS) || failed="$$failed tests,"; \
	for processor in $$($(processors)); do \
	  echo "Arithmetic on one thread, ATEN_CPU_CAPABILITY=$$processor:"; \
	  ATEN_CPU_CAPABILITY=$$processor OMP_NUM_THREADS=1 $(pytest) -q $(arithmetic) || \
	    failed="$$failed arithmetic ($$processor),"; \
	done; \
	$(python) -m tests.mutants || failed="$$failed mutants,"; \
	test -z "$$failed" || { echo "make test-all failed in:$${failed%,}" >&2; exit 1; }

test-fast: $(dev) ## run the tests that start neither Ray nor a federation of processes
	$(pytest) -m 'not ray and not deployment and not all' $(ARGS)

lint: $(dev) ## check style, types and who imports whom
	@$(checks)

docs: $(dev) ## build the documentation site, build/docs/index.html
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build $(ARGS)

bench: $(dev) ## measure speed beside peers; FULL=1 for the figures quoted, DATA=image folder of CIFAR-10
	$(python) -m fedif_studies.benchmarks $(if $(FULL),--full) $(if $(DATA),--data-dir '$(DATA)')

deploy-demo: $(ready) ## a federation of real processes on this machine: TLS, known nodes, a report
	@bash deploy/demo.sh

format: $(dev) ## format the code, apply safe fixes
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

clean: ## remove the virtual environment and caches; results stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedif-flower needs Python 3.11 or newer; '$(PYTHON)' is not. Name another one:" \
	    "make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(python) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu it is a package of its own:" \
	    "apt install python3-venv" >&2; exit 1; }
	@echo 'Installing into $(VENV); PyTorch, Ray and Flower take a few minutes and 10 GB the first time.'
	$(python) -m pip install --quiet --disable-pip-version-check --editable '$(1)'
	@rm -f $(VENV)/.ready-* $(VENV)/.dev-* && touch $@
endef

# What a run needs, and what tests and pages need beside it.
$(ready):
	$(call install,.[consortium])

$(dev):
	$(call install,.[dev])
	@touch $(ready)
