# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the others.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INVENTORY ?=
PURGE ?=
ARGS ?=
BASE ?=

.PHONY: help setup demo test check lint bench site lab-up lab-down lab-kubeconfig clean

help:
	@echo "make demo            site.yml on the lab: three GPU hosts on this machine, simulated GPUs, nothing else touched"
	@echo "make test            all gates: lint, types, sanity, unit, conformance, lab, integration, molecule"
	@echo "make check [BASE=commit]   the gates that your change affects, and why the others are left out"
	@echo "make site INVENTORY=my/inventory.yml [ARGS='--check --diff']   your own machines; installs only $(VENV)"
	@echo "make setup           $(VENV) with ansible-core and this collection on its path"
	@echo "make lint            the quick gates alone"
	@echo "make bench           figures as ratios, measured in one run"
	@echo "make lab-up          start the lab hosts       make lab-down [PURGE=1]   stop them and the cluster, PURGE=1 leaves no trace"
	@echo "make lab-kubeconfig  the path of the running cluster's kubeconfig"

setup:
	@$(PYTHON) -m lab.venv

demo:
	@$(PYTHON) -m lab.demo

test:
	@$(PYTHON) -m tests.gates

check:
	@$(PYTHON) -m tests.gates --check $(BASE)

lint:
	@$(PYTHON) -m tests.gates ruff types yaml docs ansible-lint

bench:
	@$(PYTHON) -m tests.gates bench

site: setup
	@test -n "$(INVENTORY)" || { echo "Say which machines: make site INVENTORY=path/to/inventory.yml"; exit 2; }
	$(BIN)/ansible-playbook -i "$(INVENTORY)" gpuops.nvidia.site $(ARGS)

lab-up:
	@$(PYTHON) -m lab up

lab-down:
	@$(PYTHON) -m lab down $(if $(PURGE),--purge)
	@$(if $(PURGE),,$(PYTHON) -m lab cluster down)

lab-kubeconfig:
	@$(PYTHON) -m lab cluster kubeconfig

clean:
	rm -rf .build $(VENV)
