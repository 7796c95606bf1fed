#!/bin/sh
# Licences, bans, doubled versions and sources of all crates; advisories where their database can be had.
#
#   check_deps.sh           what `make check-deps` does
#   check_deps.sh record    and notes in scripts/advisories.txt that the advisories were checked
#   check_deps.sh release   and fails if they were checked with a database that is older than 30 days
#
# ADVISORY_DB: a clone of https://github.com/RustSec/advisory-db, for machines that cannot fetch it.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-check}
record=scripts/advisories.txt
release_days=30
deny=$(sh scripts/clients.sh deny)
# Of a new clone nothing is known yet.
"${CARGO:-cargo}" fetch --locked --quiet
"$deny" --offline --locked check bans licenses sources
# Our own have a path behind their version.
crates=$("${CARGO:-cargo}" tree --locked --offline -p packetrig -e normal,build --prefix none | awk '!/\(\// { print $1, $2 }' | sort -u | wc -l)
budget=$(sed -n 's/^crates = //p' tests/budget.toml)
echo "crates from elsewhere: $crates of $budget"
if [ "$crates" -gt "$budget" ]; then echo "over the budget of tests/budget.toml"; exit 1; fi

# The place that cargo-deny gives the database of RustSec.
databases="${CARGO_HOME:-$HOME/.cargo}/advisory-dbs"
configuration=deny.toml
if [ -n "${ADVISORY_DB:-}" ]; then
    databases=$PWD/target/advisory-dbs
    configuration=target/deny.toml
    rm -rf "$databases"
    git clone --quiet "$ADVISORY_DB" "$databases/advisory-db-3157b0e258782691"
    # cargo-deny reads when a database was fetched.
    git -C "$databases/advisory-db-3157b0e258782691" fetch --quiet
    sed "s|^\[advisories\]|&\ndb-path = \"$databases\"|" deny.toml >"$configuration"
else
    # An older copy is better than none.
    timeout 60 "$deny" fetch db >/dev/null 2>&1 || true
fi
database=$(find "$databases" -mindepth 1 -maxdepth 1 -type d -name 'advisory-db-*' 2>/dev/null | head -n 1)
if [ -n "$database" ]; then
    "$deny" --offline --locked --config "$configuration" check advisories
    database_day=$(git -C "$database" log -1 --format=%cs)
    echo "advisories: checked now with their database of $database_day"
    if [ "$mode" = record ]; then
        {
            echo "# When Cargo.lock was checked last for advisories of RustSec, and the day of their database: scripts/check_deps.sh record"
            echo "checked $(date -u +%F)"
            echo "database $database_day"
        } >"$record"
    fi
else
    cause="advisories: their database cannot be reached"
    echo "skipped: $cause"
    database_day=$(sed -n 's/^database //p' "$record")
    echo "advisories: checked last on $(sed -n 's/^checked //p' "$record") with their database of $database_day"
fi
if [ "$mode" = release ]; then
    days=$((($(date -u +%s) - $(date -u -d "$database_day" +%s)) / 86400))
    if [ "$days" -gt "$release_days" ]; then
        echo "advisories: the database is $days days old, and a release takes one of at most $release_days; fetch it or set ADVISORY_DB" >&2
        exit 1
    fi
fi
# CI lists every skip that it expects.
[ -n "$database" ] || [ -z "${EXPECTED_SKIPS:-}" ] || grep -qxF "$cause" "$EXPECTED_SKIPS"
