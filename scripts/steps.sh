#!/bin/sh
# steps.sh TITLE TARGET…: makes these targets one after another, also after one has failed, and prints at the end how long
# each took, which took longer than tests/budget.toml allows, and which failed. Fails if one did.
set -u
title=$1
shift
table=
failed=

# budget_of STEP: its seconds on the reference machine, with empty caches.
budget_of() { sed -n '/^\[steps\]/,/^\[[^s]/s/^'"$1"' *= *\([0-9]*\).*/\1/p' tests/budget.toml; }

began=$(date +%s)
for step in "$@"; do
    printf '\n== %s: %s\n' "$title" "$step"
    start=$(date +%s)
    if ${MAKE:-make} --no-print-directory "$step"; then outcome=ok; else outcome=FAILED failed="$failed $step"; fi
    seconds=$(($(date +%s) - start))
    budget=$(budget_of "$step")
    over=
    if [ -n "$budget" ] && [ "$seconds" -gt "$budget" ]; then over="  over its budget of $budget s"; fi
    table="$table$(printf '%6d s  %-6s  %s' "$seconds" "$outcome" "$step")$over
"
done
printf '\n== %s: %d s\n%s' "$title" "$(($(date +%s) - began))" "$table"
[ -z "$failed" ] || { printf '%s failed:%s\n' "$title" "$failed"; exit 1; }
