#!/bin/sh
# memory_order.sh: what `make memory-order` does. Loom explores more orders of memory accesses than `make test`
# has time for. Miri runs the tests of the crates that only compute, and looks for invalid memory accesses. A test
# that takes Miri longer than a minute is stopped and named at the end. MIRI_SECONDS: limit for all tests
# together, 3000 by default.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
MEMORY_ORDER_PREEMPTIONS="${MEMORY_ORDER_PREEMPTIONS:-4}" "$cargo" test --locked -p packetrig-sys --test memory_order
if ! "$cargo" +nightly miri --version >/dev/null 2>&1; then
    echo "Miri is missing; install it: rustup component add miri rust-src --toolchain nightly" >&2
    exit 1
fi
runner=$(sh scripts/clients.sh nextest)
PATH="$(dirname "$runner"):$PATH"
# Miri's isolation is off, because tests read files. Each property is tried only twice, because Miri is about
# a hundred times slower.
export MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=2
crates="-p packetrig-units -p packetrig-stats -p packetrig-wire -p packetrig-flow"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
timeout "${MIRI_SECONDS:-3000}" "$cargo" +nightly miri nextest run --profile default-miri $crates --lib --locked 2>&1 | tee "$log" || true
grep -q '^ *Summary' "$log" || { echo "Miri stopped before its summary: it failed, or MIRI_SECONDS is too short" >&2; exit 1; }
echo "stopped, because Miri took longer than a minute for them:"
grep '^ *TIMEOUT' "$log" | sed 's/.*\] *//' | sort -u
if grep -q '^ *\(FAIL\|SIG[A-Z]*\|ABORT\) ' "$log"; then exit 1; fi
