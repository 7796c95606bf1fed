#!/bin/sh
# steps.sh TITLE TARGET…: makes these targets one after another, and continues after a failure. At the end it prints
# how long each target took, which ones took longer than tests/budget.toml allows, and which ones failed. It fails
# if a target failed.
#
# `FIRST+SECOND+THIRD`: while FIRST is made, SECOND and then THIRD are made with a lower priority. This is for a FIRST
# that leaves processors idle. The output of SECOND and THIRD comes after that of FIRST.
set -u
title=$1
shift
table=
failed=
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
# FIRST starts this much earlier, so that it gets cargo's lock before the others.
head_start_s=15

# budget_of STEP: prints the seconds that it may take on the reference machine, with empty caches.
budget_of() { sed -n '/^\[steps\]/,/^\[[^s]/s/^'"$1"' *= *\([0-9]*\).*/\1/p' tests/budget.toml; }

# make_step STEP: makes a target, and stores its seconds and its outcome in a file.
make_step() {
    start=$(date +%s)
    if ${MAKE:-make} --no-print-directory "$1"; then outcome=ok; else outcome=FAILED; fi
    echo "$(($(date +%s) - start)) $outcome" >"$kept/$1.outcome"
}

# make_beside STEP…: makes targets one after another, with a lower priority. The output of each goes to a file.
make_beside() {
    sleep "$head_start_s"
    renice -n 5 -p "$(sh -c 'echo $PPID')" >/dev/null
    for step in "$@"; do make_step "$step" >"$kept/$step.log" 2>&1; done
}

# note_step STEP REMARK: adds a line to the table. With a remark, the step ran beside another one, so it has no budget.
note_step() {
    read -r seconds outcome <"$kept/$1.outcome"
    [ "$outcome" = ok ] || failed="$failed $1"
    budget=$([ -n "$2" ] || budget_of "$1")
    over=
    if [ -n "$budget" ] && [ "$seconds" -gt "$budget" ]; then over="  over its budget of $budget s"; fi
    table="$table$(printf '%6d s  %-6s  %s' "$seconds" "$outcome" "$1")$2$over
"
}

began=$(date +%s)
for steps in "$@"; do
    first=${steps%%+*}
    beside=$(echo "${steps#"$first"}" | tr + ' ')
    printf '\n== %s: %s\n' "$title" "$(echo "$steps" | sed 's/+/, beside it /; s/+/, then /g')"
    # shellcheck disable=SC2086 # a list of steps
    [ -z "$beside" ] || make_beside $beside &
    make_step "$first"
    wait
    note_step "$first" ""
    for step in $beside; do
        printf '\n== %s: %s\n' "$title" "$step"
        cat "$kept/$step.log"
        note_step "$step" ", beside $first"
    done
done
printf '\n== %s: %d s\n%s' "$title" "$(($(date +%s) - began))" "$table"
[ -z "$failed" ] || { printf '%s failed:%s\n' "$title" "$failed"; exit 1; }
