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
# `--skip-if-missing`: without what a guest needs, `make test-all` goes on and says so.
VM_FLAGS ?=
# Lines that say what may be skipped; CI sets it.
EXPECTED_SKIPS ?=
REPORT = python3 scripts/test_report.py $(EXPECTED_SKIPS:%=--expected %)
# CI fails if tests take far longer than their budget; others are told.
BUDGET = --budget tests/budget.toml:$(if $(filter slow,$(1)),slow,programs) $(if $(EXPECTED_SKIPS),--enforce)
# `make test CHANGED=1`: tests that the change reaches. SINCE=COMMIT: what differs from there.
CHANGED ?=
SINCE ?=
RUNS ?= 10
LINTS = $$(grep -v '^\#' scripts/lints.txt)
RUSTDOC_LINTS := bare_urls broken_intra_doc_links invalid_codeblock_attributes invalid_html_tags \
	invalid_rust_codeblocks private_intra_doc_links redundant_explicit_links
CRATE ?=
PACKAGE = $(if $(filter cli,$(CRATE)),packetrig,$(if $(filter xtask,$(CRATE)),xtask,packetrig-$(CRATE)))

.DEFAULT_GOAL := help
.PHONY: help demo dist dist-test test test-all test-starved crate fmt lint house book bench clients fuzz memory-order probe-builds clean \
	eval-frame eval-rate eval-otg eval-meter eval-collect eval-flows eval-fleet eval-failover eval-faults eval-tap eval-probe eval-truth eval-groups \
	eval-safety eval-methods eval-page eval-loop \
	test-changed setup-test setup-all check-fmt check-scripts check-deps check-docs build-tests test-lab test-slow test-report test-vm test-guest test-guest-fleet

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Set up, build, and run transmitter -> device -> receiver in an embedded lab (DEMO="--time 3s")
	@scripts/setup.sh demo
	$(CARGO) run --release --locked -p packetrig -- demo $(DEMO)

test: ## What a contributor runs: formatting, lints, dependencies, docs, and the tests in a private lab (CHANGED=1: only tests that a change reaches)
	@$(if $(CHANGED),scripts/steps.sh test-changed check-fmt test-changed,scripts/steps.sh test setup-test check-fmt check-scripts check-deps build-tests test-lab lint check-docs)

# The slow tests leave a processor idle half of the time; what else there is to do takes that.
test-all: ## What CI runs: `make test`, then foreign clients, fleets of seven nodes, and guests with another kernel
	@scripts/steps.sh test-all setup-all check-fmt check-scripts check-deps build-tests test-lab \
		test-slow+test-guest+test-guest-fleet+lint+check-docs test-report

# One build and one run; `changed.py` prints nothing for cargo if the change reaches everything.
test-changed:
	@python3 scripts/changed.py crates $(SINCE)
	$(CARGO) test $(TESTED) --no-run $$(python3 scripts/changed.py cargo $(SINCE))
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) lab -- $(NEXTEST) run $(TESTED) --offline $$(python3 scripts/changed.py cargo $(SINCE)) \
		--no-tests pass -E "$$(python3 scripts/changed.py filter $(SINCE))"

test-starved: ## All tests RUNS (10) times while both processors are taken away a tenth of the time; goes on where it was stopped (root)
	@scripts/steps.sh test-starved build-tests test-all-starved

test-all-starved:
	@scripts/test_starved.sh $(RUNS) $(NEXTEST) run $(TESTED) --offline

crate: ## One crate: formatting, lints and its tests (CRATE=wire)
	@test -n "$(CRATE)" || { echo "which crate? make crate CRATE=wire (one of: $$(ls crates | tr '\n' ' ')xtask)" >&2; exit 2; }
	$(CARGO) fmt -p $(PACKAGE) --check
	$(CARGO) clippy -q -p $(PACKAGE) --all-targets --locked -- $(LINTS)
	$(CARGO) test -p $(PACKAGE) --locked --no-run
	$(CARGO) run -q --locked -p xtask -- lab -- $(NEXTEST) run -p $(PACKAGE) --locked --offline

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Lints as errors: those that scripts/lints.txt names, so that a newer compiler's new ones only warn
	$(CARGO) clippy --workspace --all-targets --locked -- $(LINTS)

check-fmt:
	$(CARGO) fmt --all --check

check-scripts:
	@for script in .ci/run $$(find scripts eval xtask examples -name '*.sh'); do echo "sh -n $$script"; sh -n "$$script" || exit 1; done
	@for script in $$(find scripts eval examples engines tests clients -name '*.py'); do echo "python3 $$script (syntax)"; \
		python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$$script" || exit 1; done

check-deps:
	@EXPECTED_SKIPS="$(EXPECTED_SKIPS)" scripts/check_deps.sh

build-tests:
	$(CARGO) test $(TESTED) --no-run

# Built outside, where crates can be downloaded; run inside, where there is no network but the lab's. The report is printed
# whatever the outcome, and fails by itself if a test was skipped that should not be.
define run_tests
	@rm -f $(BUILT)/../nextest/$(1)/junit.xml
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) lab -- $(NEXTEST) run $(TESTED) --offline --profile $(1); \
		outcome=$$?; $(REPORT) $(BUDGET) $(BUILT)/../nextest/$(1)/junit.xml && exit $$outcome
endef

test-lab:
	$(call run_tests,default)

test-slow:
	$(call run_tests,slow)

test-report:
	$(REPORT) --brief $(BUILT)/../nextest/default/junit.xml $(BUILT)/../nextest/slow/junit.xml

setup-test:
	@scripts/setup.sh test

setup-all:
	@scripts/setup.sh test-all

test-vm: ## Tests inside QEMU guests with Debian's kernel: VLAN devices, netem, pktgen; a fleet of two with clocks of their own
	@scripts/setup.sh vm
	@scripts/steps.sh test-vm build-tests test-guest test-guest-fleet

# Built outside and only run inside, where the machine's files are read-only and processors are slow.
GUEST_TESTS = PACKETRIG_BIN=$(BUILT)/packetrig $(CARGO) test $(TESTED) --test guest \
	--config 'target."cfg(unix)".runner = ["$(XTASK)", "vm"$(VM_FLAGS:%=, "%"), "--"]' -- --ignored
# Tests that set the clock have a guest of their own.
test-guest:
	$(GUEST_TESTS) --skip failover::
	$(GUEST_TESTS) --test-threads 1 failover::

test-guest-fleet:
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) vm-fleet $(VM_FLAGS)

check-docs:
	RUSTDOCFLAGS="$(RUSTDOC_LINTS:%=-Drustdoc::%)" $(CARGO) doc --workspace --no-deps --locked

probe-builds: ## packetrig-probe for small machines: builds for four processors, sizes, and a trial of each (BUILDS="armv7 armv6")
	@scripts/probe_builds.sh $(BUILDS)

dist: ## Static programs, packages, wheels and images for users, in target/dist (DIST="x86_64": one processor; ONLY="program wheel")
	@scripts/dist.sh $(DIST)

dist-test: ## Try what `make dist` built: chroot, guests of other processors, packages, wheel, image; prints a table (root; TRIALS="deb oci")
	@scripts/dist_test.sh $(TRIALS)

house: ## Names, closures, tuples and comments of the code beside what is wanted
	@$(CARGO) run -q --locked -p xtask -- house

book: ## Render the book to target/book (mdBook, built on first use), its links checked
	@$(CARGO) run -q --locked -p xtask -- pages
	"$$(scripts/clients.sh mdbook)" build docs

bench: ## Speed of the inner loops, printed
	@for example in $$(find crates -path '*/examples/*_speed.rs'); do \
		name=$$(echo $$example | cut -d/ -f2); \
		$(CARGO) run --release --locked -q -p packetrig-$$name --example $$(basename $$example .rs) || exit 1; done

clients: ## Build the C client and the preload library of the release service in target/clients (CC=clang)
	$(MAKE) -C clients OUT=$(CURDIR)/target/clients

fuzz: ## Fuzz every target until it has run for FUZZ_SECONDS (60) in all, now and before; needs nightly Rust and cargo-fuzz
	@scripts/fuzz.sh $${FUZZ_SECONDS:-60}

memory-order: ## Explore orders of memory with loom, more than `make test` does, and run pure code under Miri (nightly, an hour)
	@scripts/memory_order.sh

eval-frame: ## Measure the frame against its peers: tables and plots in target/eval/frame (EVAL_QUICK=1: under a minute)
	@scripts/setup.sh eval
	eval/run.sh frame

eval-rate: ## Measure sending, receiving and capture at line rate against peers and the machine's limit (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh rate

eval-otg: ## Measure the OTG server: first frame after a configuration, cost of polls, memory (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh otg

eval-meter: ## Measure the flow meter: speed beside peers, mixes, hash, memory, loss, stamps, threads, cluster (EVAL_QUICK=1; EVAL_ONLY=stamps,cluster)
	@scripts/setup.sh eval
	eval/run.sh meter

eval-collect: ## Measure the collector: offered = stored, losses stated after kills, captures of others (EVAL_QUICK=1; EVAL_SEED; EVAL_CAPTURES)
	@scripts/setup.sh eval
	eval/run.sh collect

eval-flows: ## Measure questions about ten million flow records beside nfdump and DuckDB: same answers, time of each; nfdump's own filters (EVAL_QUICK=1: one million; EVAL_NFTEST)
	@scripts/setup.sh eval
	eval/run.sh flows

eval-fleet: ## Measure the fleet: 1000 agents, fleets that grow (on paper to 10 000), start skew, overhead of a trial, lease, results after kills, load factor (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh fleet

eval-failover: ## Measure a pair of meters: reboots beside keepalived and ucarp, faults of all kinds, cost of a standby; faults go on where they were stopped (EVAL_QUICK=1; EVAL_ONLY=reboots; EVAL_SEED; EVAL_TRIALS)
	@scripts/setup.sh eval
	eval/run.sh failover

eval-faults: ## Measure a fleet under random faults: 300 trials, goes on where it was stopped (EVAL_QUICK=1: 60; EVAL_SEED; EVAL_TRIALS)
	@scripts/setup.sh eval
	eval/run.sh faults

eval-tap: ## Measure the tap and its log beside bridge, tc mirred and tcpdump: loss, rate, latency, TCP, failures (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh tap

eval-probe: ## Measure probes: when trains and pairs leave beside trafgen and tcpreplay, capacity, answers beside peers (EVAL_QUICK=1)
	@scripts/setup.sh eval
	eval/run.sh probe

eval-truth: ## Judge verdicts and figures by a device with an exact log and captures at both ends; goes on where it was stopped (RUNS=1000; BARE, POLICERS, SEED, LANES; NDR=1: the load of a policer; PROGRAM)
	@scripts/setup.sh test
	python3 eval/truth/test_figures.py
	$(CARGO) build --release --locked -p xtask $(if $(PROGRAM),,-p packetrig --bin packetrig --bin xtask)
	$(if $(NDR),$(or $(CARGO_TARGET_DIR),target)/release/xtask lab -- python3 eval/truth/ndr.py $(or $(PROGRAM),$(or $(CARGO_TARGET_DIR),target)/release/packetrig) target/eval/truth)
	$(or $(CARGO_TARGET_DIR),target)/release/xtask lab -- python3 eval/truth/run.py $(or $(PROGRAM),$(or $(CARGO_TARGET_DIR),target)/release/packetrig) target/eval/truth

eval-groups: ## Judge groups of meters under chains of faults by what a sender sent; goes on where it was stopped (TRIALS=300; SEED, LANES; PROGRAM)
	@scripts/setup.sh test
	python3 eval/failover/test_judgement.py
	$(CARGO) build --release --locked -p xtask $(if $(PROGRAM),,-p packetrig --bin packetrig --bin xtask)
	$(or $(CARGO_TARGET_DIR),target)/release/xtask lab -- "$$(sh scripts/clients.sh readers)" eval/failover/run.py $(or $(PROGRAM),$(or $(CARGO_TARGET_DIR),target)/release/packetrig) target/eval/groups

eval-safety: ## Measure what hostile senders, nodes, controllers and clients reach and cost (EVAL_QUICK=1; EVAL_SECONDS; EVAL_ONLY)
	@scripts/setup.sh eval
	eval/run.sh safety
	@scripts/setup.sh test-all
	@$(MAKE) --no-print-directory build-tests
	PACKETRIG_BIN=$(BUILT)/packetrig $(XTASK) lab -- python3 eval/safety_goals.py $(NEXTEST)

eval-methods: ## Measure the test methods: MLRsearch beside the reference library, time and error of the searches (EVAL_QUICK=1; EVAL_ONLY=times; EVAL_SEED)
	@scripts/setup.sh eval
	eval/run.sh methods

eval-page: ## Measure the pages: bytes, first drawing, what 20 viewers cost the server and the run, report pages (EVAL_QUICK=1; EVAL_ONLY=viewers)
	@scripts/setup.sh eval
	eval/run.sh page

eval-loop: ## Measure how long contributors and CI wait: demo and tests cold and warm, one changed line (EVAL_QUICK=1: what is warm)
	eval/loop.sh

clean: ## Remove what was built; results of runs stay
	$(CARGO) clean
