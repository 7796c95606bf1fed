#!/bin/sh
# fuzz.sh SECONDS [TARGET…]: fuzzes each TARGET (without one: all targets) until it has run for SECONDS in total, in
# this call and in earlier calls. A target runs in slices of at most 60 s. fuzz/target/hours/TARGET has a line for every
# slice, with seconds and executions; remove this file to begin again. Inputs that reach new code are stored in
# fuzz/target/corpus/TARGET. An input with which a target fails ends the call; the output of cargo-fuzz names it.
set -eu
cd "$(dirname "$0")/.."
wanted=$1
shift
[ $# -gt 0 ] || set -- $(basename -s .rs fuzz/fuzz_targets/*.rs)
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo "cargo-fuzz is missing; install it: rustup toolchain install nightly && cargo install cargo-fuzz" >&2
    exit 1
}
mkdir -p fuzz/target/hours

# total TARGET COLUMN: the sum of a column in the file of the target's slices.
total() { cat "fuzz/target/hours/$1" 2>/dev/null | awk -v column="$2" '{ sum += $column } END { print sum + 0 }'; }

for target in "$@"; do
    found=fuzz/target/corpus/$target
    mkdir -p "$found"
    while done_s=$(total "$target" 1) && [ "$done_s" -lt "$wanted" ]; do
        slice=$((wanted - done_s < 60 ? wanted - done_s : 60))
        cargo +nightly fuzz run "$target" "$found" "fuzz/corpus/$target" -- -max_total_time="$slice" -print_final_stats=1 \
            >fuzz/target/last.log 2>&1 || { tail -n 60 fuzz/target/last.log; exit 1; }
        awk -v slice="$slice" '/number_of_executed_units/ { print slice, $2 }' fuzz/target/last.log >>"fuzz/target/hours/$target"
    done
    printf '%-14s %6d s %12d executions %6d inputs\n' \
        "$target" "$(total "$target" 1)" "$(total "$target" 2)" "$(ls "$found" | wc -l)"
done
