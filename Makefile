# Every command sets up what it needs. `make help` lists them.

VENV ?= .venv
STATE ?= .reticent
BIN := $(VENV)/bin
PACKAGES := plugin rewards accounting
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install install-test serve demo test test-fast audit lint format doctor reward-head certificate clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | column -t -s "$$(printf '\t')"

$(VENV)/.installed: pyproject.toml deploy/install.sh
	deploy/install.sh $(VENV)
	@touch $@

$(VENV)/.installed-test: pyproject.toml deploy/install.sh
	deploy/install.sh $(VENV) test
	@touch $@ $(VENV)/.installed

install: $(VENV)/.installed ## Make .venv with the reticent command in it

install-test: $(VENV)/.installed-test

serve: $(VENV)/.installed ## Set up and serve: vLLM, reward worker, ledger, certificate
	@exec $(BIN)/reticent embedded serve --state $(STATE)

demo: $(VENV)/.installed ## Play the story against the server of `make serve`
	@$(BIN)/reticent embedded demo --state $(STATE)

doctor: $(VENV)/.installed ## Check every part and say what to do
	@$(BIN)/reticent doctor --config deploy/embedded/reticent.yaml

test: $(VENV)/.installed-test ## Run every test, also through a real vLLM server
	$(BIN)/reticent embedded setup --state $(STATE)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(VENV)/.installed-test ## Run the tests that need no server and no long simulation
	$(BIN)/python -m pytest -m 'not server and not simulation' $(PYTEST_ARGS)

$(VENV)-audit/.installed: pyproject.toml
	python3 -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --disable-pip-version-check -qq -e '.[audit]'
	@touch $@

audit: $(VENV)-audit/.installed ## Compare the accounting with OpenDP's and dp-accounting's, in an environment of its own
	$(VENV)-audit/bin/python -m pytest tests/audit $(PYTEST_ARGS)

lint: $(VENV)/.installed-test ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p reticent.accounting -p reticent.rewards -p reticent.plugin

format: $(VENV)/.installed-test ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reward-head: $(VENV)/.installed ## Draw preference pairs and train the embedded reward head
	$(BIN)/reticent embedded reward-head --state $(STATE)

certificate: $(VENV)/.installed ## Calibrate the embedded certificate anew, through a running server
	$(BIN)/reticent embedded certificate --state $(STATE)

clean: ## Remove the virtual environment and caches (the ledger and keys in .reticent stay)
	rm -rf $(VENV) $(VENV)-audit .mypy_cache .ruff_cache .pytest_cache build
