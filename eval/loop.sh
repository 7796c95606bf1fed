#!/bin/sh
# loop.sh [ROW…]: how long contributors and CI wait, each row in seconds and as a ratio to the same row at commit 63c85409.
#
#   demo   `make demo` cold, until the demo's own run begins; and the size of the program as it is shipped
#   ci     `.ci/run` cold; `make test` cold is its first part
#   warm   `make test` with nothing changed
#   changed  one line changed in `fleet`, a crate in the middle: `make test CHANGED=1`
#   crates  one line changed in a crate, until that crate's unit tests are green
#
# Cold: a new clone of HEAD, an empty cargo cache and an empty cache of clients. Packages of the system stay.
# EVAL_QUICK=1 measures what is warm, in this working tree. What was measured is kept: rows can be measured one by one, and
# CRATES="wire flow" names some crates.
set -eu
cd "$(dirname "$0")/.."
out=$PWD/target/eval/loop
quick=${EVAL_QUICK:-0}
mkdir -p "$out"
[ $# -gt 0 ] || { if [ "$quick" = 1 ]; then set -- warm changed crates; else set -- demo ci warm changed crates; fi; }

now() { date +%s; }

# Runs a command in a fresh clone with caches of its own.
cold() {
    rm -rf "$out/$1"
    mkdir -p "$out/$1"
    git clone -q . "$out/$1/clone"
    clone="$out/$1/clone"
    export CARGO_HOME="$out/$1/cargo" XDG_CACHE_HOME="$out/$1/cache" GOCACHE="$out/$1/go-build" GOMODCACHE="$out/$1/go-mod"
    unset CARGO_TARGET_DIR
}

# goal NAME MEASURED BEFORE WANTED: seconds, or megabytes; BEFORE may be unknown (-).
goal() {
    ratio=
    [ "$3" = - ] || ratio=", $(awk "BEGIN { printf \"%.2f\", $2 / $3 }") of the $3 of 63c85409"
    unit=s
    case $1 in binary) unit=MB ;; esac
    outcome=missed
    if [ "$(awk "BEGIN { print ($2 <= $4) }")" = 1 ]; then outcome=met; fi
    line="goal loop.$1: measured $2 $unit$ratio, wanted <= $4 $unit: $outcome"
    echo "$line" >"$out/$1.goal"
    echo "$line"
}

measure_demo() (
    cold demo
    cd "$clone"
    start=$(now)
    make demo DEMO="--time 1s" 2>&1 | while IFS= read -r line; do
        echo "$line"
        case $line in demo:*) [ -e "$out/demo.begun" ] || now >"$out/demo.begun" ;; esac
    done >"$out/demo.log"
    goal demo_cold $(($(cat "$out/demo.begun") - start)) 309 240
    goal binary "$(awk "BEGIN { printf \"%.1f\", $(wc -c <target/release/packetrig) / 1000000 }")" 52 35
)

# seconds LOG STEP: from the table that scripts/steps.sh prints.
seconds() { awk -v step="$2" '$2 == "s" && $4 == step { found = $1 } END { print found }' "$1"; }

measure_ci() (
    cold ci
    cd "$clone"
    start=$(now)
    CI=true bash .ci/run >"$out/ci.log" 2>&1 || { tail -n 40 "$out/ci.log"; echo "CI failed: $out/ci.log" >&2; }
    total=$(($(now) - start))
    goal test_cold "$(seconds "$out/ci.log" test)" 1590 900
    goal ci "$total" 2748 1500
)

measure_warm() {
    make build-tests lint check-docs >"$out/warm-first.log" 2>&1 || echo "it does not build: $out/warm-first.log" >&2
    start=$(now)
    make test >"$out/warm.log" 2>&1 || echo "make test failed: $out/warm.log" >&2
    goal test_warm $(($(now) - start)) 990 360
}

# append_line FILE: appends a constant that nobody uses.
append_line() {
    cp "$1" "$out/root.rs"
    printf '\n%s\n%s\n' '#[allow(dead_code, reason = "measured by eval/loop.sh")]' 'const CHANGED: u64 = 1;' >>"$1"
}

measure_changed() {
    root=crates/fleet/src/lib.rs
    make build-tests >"$out/changed-first.log" 2>&1 || echo "it does not build: $out/changed-first.log" >&2
    append_line "$root"
    start=$(now)
    make test CHANGED=1 SINCE=HEAD >"$out/changed.log" 2>&1 || echo "make test CHANGED=1 failed: $out/changed.log" >&2
    took=$(($(now) - start))
    cp "$out/root.rs" "$root"
    goal test_changed "$took" - 120
}

# One line changed, which goes again.
measure_crates() {
    for crate in ${CRATES:-$(ls crates)}; do
        root=crates/$crate/src/lib.rs
        package=packetrig-$crate
        wanted=15
        case $crate in
        cli) root=crates/cli/src/main.rs package=packetrig wanted=30 ;;
        engine) wanted=30 ;;
        esac
        unit_tests="cargo test -q --locked -p $package"
        case $crate in cli) unit_tests="$unit_tests --bins" ;; *) unit_tests="$unit_tests --lib" ;; esac
        $unit_tests >"$out/crate.log" 2>&1 || echo "$unit_tests failed: $out/crate.log" >&2
        append_line "$root"
        start=$(date +%s%N)
        $unit_tests >"$out/crate.log" 2>&1 || echo "$unit_tests failed: $out/crate.log" >&2
        took=$((($(date +%s%N) - start) / 100000000))
        cp "$out/root.rs" "$root"
        goal "crate_$crate" "$((took / 10)).$((took % 10))" - "$wanted"
    done
}

trap 'if [ -e "$out/root.rs" ] && [ -n "${root:-}" ]; then cp "$out/root.rs" "$root"; fi' INT TERM
rm -f "$out/demo.begun"
for row in "$@"; do "measure_$row"; done
echo
cat "$out"/*.goal | tee "$out/goals.txt"
