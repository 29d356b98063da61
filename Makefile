# Two commands do everything on a fresh Debian 12 or 13 machine, as root: make demo, make test.
# Both install what is missing, and say what it is where they can't.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
JOBS ?= 2

# Root has let tools/prerequisites install all that tests need: one that is skipped would hide a hole.
ifeq ($(shell id -u),0)
export FLEETCTL_TEST_NO_SKIPS = 1
endif

.PHONY: help demo test test-full lint unit contract lab molecule molecule-full second-core bench wheel clean

help:  ## Show this.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/ready: pyproject.toml constraints.txt
	tools/prerequisites
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/ready  ## The main job: eight nodes with running jobs go from driver 570 to 580.
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/demo

test: lint unit contract lab molecule second-core  ## All tests that fit into 45 minutes on two cores.

test-full: export FLEETCTL_TEST_FULL = 1
test-full: lint unit contract lab-full molecule-full second-core  ## Every test there is.

lint: $(VENV)/ready  ## ruff, mypy, ansible-lint.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict roles/*/library roles/*/module_utils
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline

unit: $(VENV)/ready  ## Pure code, parsers' cases, the twin, the content of roles.
	$(PYTEST) -n $(JOBS) tests/unit tests/content

contract: $(VENV)/ready  ## Real sshd, Slurm, Ansible, apt, SQLite; no containers but those of the package repository.
	$(PYTEST) -n $(JOBS) --dist loadfile tests/contract

lab: $(VENV)/ready  ## Whole rollouts on real nodes under Slurm.
	$(PYTEST) -m 'lab and not slow' tests/lab

lab-full: $(VENV)/ready  ## The same with every kill, on both releases.
	$(PYTEST) -m lab tests/lab

molecule: $(VENV)/ready  ## The driver's scenario.
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/molecule nvidia_driver

molecule-full: $(VENV)/ready  ## Every scenario.
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/molecule

second-core: $(VENV)/ready  ## The roles on the highest supported ansible-core too, where a newer Python is at hand.
	tools/second-core

wheel: $(VENV)/ready  ## Build the wheel.
	$(BIN)/python -m build --wheel --outdir dist

clean:  ## Remove what was built here.
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
