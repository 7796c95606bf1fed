#!/bin/sh
# test_starved.sh RUNS COMMAND…: runs the COMMAND of the test runner RUNS times, while real-time threads take the
# processors away for a tenth of the time.
#
# The result of each finished run is stored in target/starved, in a directory that is named after a hash of the sources:
# called again, the script continues where it was stopped. At the end it lists which tests failed in which run, and
# fails if there are any. It needs root, for the real-time threads.
set -eu
cd "$(dirname "$0")/.."
runs=$1
shift
built=${CARGO_TARGET_DIR:-$PWD/target}
sources='crates tests xtask Cargo.lock Cargo.toml .config'
# shellcheck disable=SC2086 # a list of paths
kept="$built/starved/$({ git ls-tree HEAD $sources; git diff HEAD -- $sources; } | git hash-object --stdin | cut -c 1-12)"
mkdir -p "$kept"
run=1
while [ "$run" -le "$runs" ]; do
    if [ ! -e "$kept/$run.xml" ]; then
        rm -f "$built/nextest/starved/junit.xml"
        echo "starved: run $run of $runs"
        "$built/debug/xtask" starve -- "$built/debug/xtask" lab -- "$@" --profile starved >"$kept/$run.log" 2>&1 || true
        grep ' Summary ' "$kept/$run.log" || { tail -n 20 "$kept/$run.log"; exit 1; }
        # An interrupted run has not run every test, so it is not stored.
        if grep -q 'due to interrupt' "$kept/$run.log"; then exit 1; fi
        cp "$built/nextest/starved/junit.xml" "$kept/$run.xml"
    fi
    run=$((run + 1))
done
exec python3 scripts/test_report.py --failures $(seq -f "$kept/%g.xml" 1 "$runs")
