# Everything here works as root and as an ordinary user, from a clean clone. `make help` lists the targets.
CARGO ?= cargo
# rustup's place is on few default paths; tools for networks are in sbin.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
LAB := $(CARGO) run -q --locked -p xtask -- lab --
BUILT := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/debug
# Without what a guest needs, `make test` goes on and says so; `make test-vm` does not.
VM_FLAGS ?= --skip-if-missing

.DEFAULT_GOAL := help
.PHONY: help demo test fmt lint bench fuzz eval-frame eval-rate eval-otg eval-meter eval-fleet eval-tap eval-probe clean check-fmt check-scripts check-rooms check-docs test-lab test-vm check-vm

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Set up, build, and run transmitter -> device -> receiver in an embedded lab (DEMO="--time 3s")
	@scripts/setup.sh demo
	$(CARGO) run --release --locked -p packetrig -- demo $(DEMO)

test: ## What CI runs: formatting, lints, rooms, licences, docs, all tests in a private lab, a guest if there is QEMU
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory check-fmt check-scripts lint check-rooms check-docs test-lab check-vm

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Lints as errors
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

check-fmt:
	$(CARGO) fmt --all --check

check-scripts:
	@for script in .ci/run $$(find scripts eval xtask -name '*.sh'); do echo "sh -n $$script"; sh -n "$$script" || exit 1; done
	@for script in $$(find scripts eval examples tests -name '*.py'); do echo "python3 $$script (syntax)"; \
		python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$$script" || exit 1; done

check-rooms:
	$(CARGO) run -q --locked -p xtask -- layers
	$(CARGO) run -q --locked -p xtask -- licences

# Built outside, where crates can be downloaded; run inside, where there is no network but the lab's.
test-lab:
	$(CARGO) test --workspace --locked --no-run
	$(LAB) $(CARGO) test --workspace --locked --offline

test-vm: ## Tests inside QEMU guests with Debian's kernel: VLAN devices, netem, pktgen; a fleet of two with clocks of their own
	@scripts/setup.sh vm
	@$(MAKE) --no-print-directory check-vm VM_FLAGS=

# Built outside and only run inside, where the machine's files are read-only and processors are slow.
check-vm:
	$(CARGO) build -q --locked -p xtask -p packetrig
	PACKETRIG_BIN=$(BUILT)/packetrig $(CARGO) test --workspace --locked --test guest \
		--config 'target."cfg(unix)".runner = ["$(BUILT)/xtask", "vm"$(VM_FLAGS:%=, "%"), "--"]'
	PACKETRIG_BIN=$(BUILT)/packetrig $(BUILT)/xtask vm-fleet $(VM_FLAGS)

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

clean: ## Remove what was built; results of runs stay
	$(CARGO) clean
