# Entry points. Each says what it does; nothing here asks anything.
.DEFAULT_GOAL := help
.PHONY: help setup demo build test test-unit test-sim test-loom test-verbs soak churn growth fuzz lint

help: ## Show this
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## Install what is missing to build, lint and test (apt, rustup, cargo)
	@deploy/scripts/setup.sh build lint fuzz test-verbs

demo: ## Build, serve, load a million records, run YCSB's workload b, show what it cost
	@deploy/scripts/demo.sh

build: ## Build everything, optimised
	@deploy/scripts/setup.sh build
	cargo build --locked --release --workspace --bins

test: ## Run every test; real verbs in the Soft-RoCE machine
	@deploy/scripts/setup.sh build fuzz test-verbs
	@tests/scripts/all.sh

test-unit: ## Run the tests that need no virtual machine
	@deploy/scripts/setup.sh build
	@tests/scripts/unit.sh

test-sim: ## Run the simulator: every small world, millions of schedules, every planted mistake
	@deploy/scripts/setup.sh build
	@tests/scripts/sim.sh

soak: ## Run the simulator from fresh seeds for HOURS=n; the ledger is target/simulation/ledger.txt
	@deploy/scripts/setup.sh build
	@tests/scripts/soak.sh $(HOURS)

churn: ## Let keys come and go in a store that is 90 % full: OPS=n or HOURS=n
	@deploy/scripts/setup.sh build
	@OPS='$(OPS)' HOURS='$(HOURS)' tests/scripts/churn.sh

growth: ## Grow an index from a thousand keys to twenty million
	@deploy/scripts/setup.sh build
	@tests/scripts/growth.sh

test-loom: ## Run what threads share without a lock under every order of threads
	@deploy/scripts/setup.sh build
	@tests/scripts/loom.sh

test-verbs: ## Run the tests on real verbs alone
	@deploy/scripts/setup.sh build test-verbs
	@tests/scripts/verbs.sh

fuzz: ## Feed hostile bytes to whatever reads what others wrote; SECONDS=60 for each target
	@deploy/scripts/setup.sh build fuzz
	@tests/scripts/fuzz.sh $(SECONDS)

lint: ## Format, clippy, documentation, licences
	@deploy/scripts/setup.sh build lint
	@deploy/scripts/lint.sh
