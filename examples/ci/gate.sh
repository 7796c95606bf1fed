#!/bin/sh
# Tests a device with packetrig and fails if it has become worse than the baseline.
#
#   TX=rig0 RX=rig1 BASELINE=baseline.json sh gate.sh --write-baseline    measure a good device once, then commit the file
#   TX=rig0 RX=rig1 BASELINE=baseline.json sh gate.sh                     measure and compare
#
# Exit codes are those of packetrig: 0 not worse than allowed, 1 worse, 7 it cannot be told, others: there was no test.
# In OUT it writes gate.md and gate.xml (JUnit) for the build server, whatever the exit code, and result.json, which can become the next
# baseline.
set -eu

PACKETRIG=${PACKETRIG:-packetrig}
TX=${TX:?the interface that sends}
RX=${RX:?the interface that receives}
BASELINE=${BASELINE:-baseline.json}
OUT=${OUT:-gate-results}
# How much worse figures may be, as `packetrig report diff --max-worse` takes it.
MAX_WORSE=${MAX_WORSE:-throughput=5%,loss=0.5}
# The test: a rate that every good device carries. What a bad one loses is judged by the comparison, not by the run.
TEST=${TEST:-run --tx $TX --rx $RX --rate ${RATE:-5000pps} --size ${SIZE:-512} --time ${TIME:-5s} --max-loss 100%}
# The file of the result in its directory: report.json of `run`, result.json of a test method.
RESULT=${RESULT:-report.json}

mkdir -p "$OUT"
store=$OUT/store

# gate.md and gate.xml of a gate that compares nothing: an error, which no build server takes for a success.
tell_error() {
    text=$(printf '%s' "$1" | sed 's/&/\&amp;/g; s/</\&lt;/g; s/"/\&quot;/g')
    printf '## %s\n\n%s\n' "$2" "$text" >"$OUT/gate.md"
    cat >"$OUT/gate.xml" <<XML
<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="gate" tests="1" failures="0" errors="1" skipped="0" time="$(($(date +%s) - begun)).000">
    <testcase classname="gate" name="test">
      <error message="$text"/>
    </testcase>
  </testsuite>
</testsuites>
XML
}

begun=$(date +%s)
code=0
# TEST is a list of words.
# shellcheck disable=SC2086
"$PACKETRIG" $TEST --name gate --store "$store" || code=$?
# FAIL is no obstacle: the figures are compared below. After INCONCLUSIVE (7) or an error there is nothing to compare.
case $code in
0 | 1) ;;
7)
    tell_error "the test is INCONCLUSIVE: the rig cannot tell; nothing was compared" INCONCLUSIVE
    exit 7
    ;;
*)
    tell_error "packetrig ended with exit code $code: there was no test" ERROR
    exit "$code"
    ;;
esac

directory=$("$PACKETRIG" report path last --store "$store")
cp "$directory/$RESULT" "$OUT/result.json"

if [ "${1:-}" = --write-baseline ]; then
    cp "$OUT/result.json" "$BASELINE"
    echo "wrote $BASELINE"
    exit 0
fi
if [ ! -f "$BASELINE" ]; then
    tell_error "there is no $BASELINE; measure a good device with --write-baseline and commit the file" ERROR
    echo "gate: there is no $BASELINE; measure a good device with --write-baseline and commit the file" >&2
    exit 2
fi

compare() {
    "$PACKETRIG" report diff "$BASELINE" last --store "$store" --max-worse "$MAX_WORSE" ${ANYWAY:+--anyway} "$@"
}
# Both documents are written for a failed gate, too: there they are needed.
compare --markdown >"$OUT/gate.md" || true
compare --junit >"$OUT/gate.xml" || true
compare
