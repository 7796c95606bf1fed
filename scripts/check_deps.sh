#!/bin/sh
# Licences, bans, doubled versions and sources of all crates; advisories where their database can be had.
set -eu
cd "$(dirname "$0")/.."
deny=$(sh scripts/clients.sh deny)
# Of a new clone nothing is known yet.
"${CARGO:-cargo}" fetch --locked --quiet
"$deny" --offline --locked check bans licenses sources
crates=$("${CARGO:-cargo}" tree --locked --offline -p packetrig -e normal,build --prefix none | awk '{ print $1, $2 }' | sort -u | wc -l)
budget=$(sed -n 's/^crates = //p' tests/budget.toml)
echo "crates in the program: $crates of $budget"
if [ "$crates" -gt "$budget" ]; then echo "over the budget of tests/budget.toml"; exit 1; fi
if ! timeout 60 "$deny" fetch db >/dev/null 2>&1; then
    # An older copy is better than none.
    databases="${CARGO_HOME:-$HOME/.cargo}/advisory-dbs"
    if ! ls -d "$databases"/advisory-db-* >/dev/null 2>&1; then
        cause="advisories: their database cannot be reached"
        echo "skipped: $cause"
        # CI lists every skip that it expects.
        [ -z "${EXPECTED_SKIPS:-}" ] || grep -qxF "$cause" "$EXPECTED_SKIPS" || exit 1
        exit 0
    fi
fi
"$deny" --offline --locked check advisories
