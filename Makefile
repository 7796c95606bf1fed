# Everything here works as root and as an ordinary user, from a clean clone. `make help` lists the targets.
CARGO ?= cargo
# rustup's place is on few default paths; tools for networks are in sbin.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
BUILT := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/debug
XTASK := $(BUILT)/xtask
# Tests, the program and the chores are built together: one selection of packages is one set of features, and nothing is
# compiled twice. Evaluations are checked by `make lint` and built when they run.
TESTED := --workspace --locked
NEXTEST = $(shell scripts/clients.sh nextest) nextest
# Without what a guest needs, `make test-all` goes on and says so; `make test-vm` does not.
VM_FLAGS ?= --skip-if-missing
# Lines that say what may be skipped; CI sets it.
EXPECTED_SKIPS ?=
REPORT = python3 scripts/test_report.py $(EXPECTED_SKIPS:%=--expected %)
ROOM ?=
PACKAGE = $(if $(filter cli,$(ROOM)),packetrig,$(if $(filter xtask,$(ROOM)),xtask,packetrig-$(ROOM)))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all room fmt lint bench fuzz clean \
	eval-frame eval-rate eval-otg eval-meter eval-fleet eval-tap eval-probe eval-loop \
	check-fmt check-scripts check-deps check-docs build-tests test-lab test-slow test-vm check-vm

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Set up, build, and run transmitter -> device -> receiver in an embedded lab (DEMO="--time 3s")
	@scripts/setup.sh demo
	$(CARGO) run --release --locked -p packetrig -- demo $(DEMO)

test: ## What a contributor runs: formatting, lints, dependencies, docs, and the tests in a private lab
	@scripts/setup.sh test
	@scripts/steps.sh test check-fmt check-scripts check-deps build-tests test-lab lint check-docs

test-all: ## What CI runs: `make test`, then foreign clients, fleets of seven nodes, and a guest with another kernel
	@scripts/setup.sh test-all
	@scripts/steps.sh test-all test test-slow check-vm

room: ## One room: formatting, lints and its tests (ROOM=wire)
	@test -n "$(ROOM)" || { echo "which room? make room ROOM=wire (one of: $$(ls crates | tr '\n' ' ')xtask)" >&2; exit 2; }
	$(CARGO) fmt -p $(PACKAGE) --check
	$(CARGO) clippy -q -p $(PACKAGE) --all-targets --locked
	$(NEXTEST) run -p $(PACKAGE) --locked

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Lints as errors: those that scripts/lints.txt names, so that a newer compiler's new ones only warn
	$(CARGO) clippy --workspace --all-targets --locked -- $$(grep -v '^\#' scripts/lints.txt)

check-fmt:
	$(CARGO) fmt --all --check

check-scripts:
	@for script in .ci/run $$(find scripts eval xtask -name '*.sh'); do echo "sh -n $$script"; sh -n "$$script" || exit 1; done
	@for script in $$(find scripts eval examples tests -name '*.py'); do echo "python3 $$script (syntax)"; \
		python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$$script" || exit 1; done

check-deps:
	@scripts/check_deps.sh

build-tests:
	$(CARGO) test $(TESTED) --no-run

# Built outside, where crates can be downloaded; run inside, where there is no network but the lab's.
test-lab:
	@rm -f $(BUILT)/../nextest/default/junit.xml
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) lab -- $(NEXTEST) run $(TESTED) --offline; outcome=$$?; \
		$(REPORT) $(BUILT)/../nextest/default/junit.xml && exit $$outcome

test-slow:
	@rm -f $(BUILT)/../nextest/slow/junit.xml
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) lab -- $(NEXTEST) run $(TESTED) --offline --profile slow; outcome=$$?; \
		$(REPORT) $(BUILT)/../nextest/slow/junit.xml && exit $$outcome

test-vm: ## Tests inside QEMU guests with Debian's kernel: VLAN devices, netem, pktgen; a fleet of two with clocks of their own
	@scripts/setup.sh vm
	@$(MAKE) --no-print-directory build-tests
	@$(MAKE) --no-print-directory check-vm VM_FLAGS=

# Built outside and only run inside, where the machine's files are read-only and processors are slow.
check-vm:
	PACKETRIG_BIN=$(BUILT)/packetrig $(CARGO) test $(TESTED) --test guest \
		--config 'target."cfg(unix)".runner = ["$(XTASK)", "vm"$(VM_FLAGS:%=, "%"), "--"]' -- --ignored
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) vm-fleet $(VM_FLAGS)

check-docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

bench: ## Speed of the inner loops, printed
	@for example in $$(find crates -path '*/examples/*_speed.rs'); do \
		room=$$(echo $$example | cut -d/ -f2); \
		$(CARGO) run --release --locked -q -p packetrig-$$room --example $$(basename $$example .rs) || exit 1; done

fuzz: ## Fuzz every target for FUZZ_SECONDS (60) each; needs a nightly compiler and cargo-fuzz
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { \
		echo "cargo-fuzz is missing: rustup toolchain install nightly && cargo install cargo-fuzz" >&2; exit 1; }
	@for target in $$(basename -s .rs fuzz/fuzz_targets/*.rs); do \
		$(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$${FUZZ_SECONDS:-60} || exit 1; done

eval-frame: ## Measure the frame against its peers: tables and plots in target/eval/frame (EVAL_QUICK=1: under a minute)
	@scripts/setup.sh eval
	eval/run.sh frame

eval-rate: ## Measure sending, receiving and capture at line rate against peers and the machine's limit (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh rate

eval-otg: ## Measure the OTG server: first frame after a configuration, cost of polls, memory (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh otg

eval-meter: ## Measure the flow meter: packets per second beside peers, hash, memory, loss live (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh meter

eval-fleet: ## Measure the fleet: 1000 agents, start skew, overhead of a trial, lease, results after kills, load factor (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh fleet

eval-tap: ## Measure the tap and its log beside bridge, tc mirred and tcpdump: loss, rate, latency, TCP, failures (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh tap

eval-probe: ## Measure probes: when trains and pairs leave beside trafgen and tcpreplay, capacity, answers beside peers (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh probe

eval-loop: ## Measure how long contributors and CI wait: demo and tests cold and warm, one changed line (EVAL_QUICK=1: what is warm)
	eval/loop.sh

clean: ## Remove what was built; results of runs stay
	$(CARGO) clean
