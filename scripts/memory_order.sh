#!/bin/sh
# memory_order.sh: what `make memory-order` does. Loom explores more orders than `make test` has the time for; Miri runs the tests of
# the crates that are pure code and looks for memory that is read wrongly. A test that takes Miri longer than a minute is
# left out and named at the end; MIRI_SECONDS (3000) bounds the whole.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
MEMORY_ORDER_PREEMPTIONS="${MEMORY_ORDER_PREEMPTIONS:-4}" "$cargo" test --locked -p packetrig-sys --test memory_order
if ! "$cargo" +nightly miri --version >/dev/null 2>&1; then
    echo "Miri is missing: rustup component add miri rust-src --toolchain nightly" >&2
    exit 1
fi
runner=$(sh scripts/clients.sh nextest)
PATH="$(dirname "$runner"):$PATH"
# Files of tests are read; each property is tried twice, because Miri is some hundred times slower.
export MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=2
crates="-p packetrig-units -p packetrig-stats -p packetrig-wire -p packetrig-flow"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
timeout "${MIRI_SECONDS:-3000}" "$cargo" +nightly miri nextest run --profile default-miri $crates --lib --locked 2>&1 | tee "$log" || true
grep -q '^ *Summary' "$log" || { echo "Miri did not come to its end" >&2; exit 1; }
echo "left out, for want of time:"
grep '^ *TIMEOUT' "$log" | sed 's/.*\] *//' | sort -u
if grep -q '^ *\(FAIL\|SIG[A-Z]*\|ABORT\) ' "$log"; then exit 1; fi
