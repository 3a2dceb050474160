# Every target prepares the environment first; see scripts/setup.sh for which one it uses.
.PHONY: help setup demo check check-slow clients check-clients bench format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

setup: ## prepare .venv/ (or the active environment, if it has torch)
	@scripts/setup.sh

demo: setup ## the main job: checkpoint, parity, tokens, sweep, report, gate
	@scripts/in_env.sh neuron-harness run --preset tiny

check: setup ## what CI runs: format, lint, types, import contract, tests
	@scripts/check.sh

check-slow: setup ## the same with the slow tests
	@scripts/check.sh -m "not sdk and not device and not browser and not clients and not ray"

clients: setup ## environments of real benchmark clients below .clients/
	@scripts/clients.sh

check-clients: clients ## drive the server with these clients, unmodified
	@scripts/in_env.sh pytest -m clients tests/clients

bench: setup ## measure speed as ratios within one run
	@scripts/in_env.sh neuron-harness bench

format: setup ## apply the formatter and safe lint fixes
	@scripts/in_env.sh ruff format .
	@scripts/in_env.sh ruff check --fix .

clean: ## remove what the targets made, the environment included
	rm -rf .venv build dist runs checkpoints .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
