#!/bin/sh
# Checks licences, bans, duplicate versions and sources of all crates. Checks security advisories if
# their database is available.
#
#   check_deps.sh           what `make check-deps` does
#   check_deps.sh record    also notes in scripts/advisories.txt that the advisories were checked
#   check_deps.sh release   also fails if the last check used a database that is now older than 30 days
#
# ADVISORY_DB: a clone of https://github.com/RustSec/advisory-db, for machines that cannot fetch it.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-check}
record=scripts/advisories.txt
release_days=30
deny=$(sh scripts/clients.sh deny)
# On a machine with a new clone, the crates may not be downloaded yet.
"${CARGO:-cargo}" fetch --locked --quiet
"$deny" --offline --locked check bans licenses sources
# Counts the crates of others: `cargo tree` prints a path after the version of our own crates.
crates=$("${CARGO:-cargo}" tree --locked --offline -p packetrig -e normal,build --prefix none | awk '!/\(\// { print $1, $2 }' | sort -u | wc -l)
budget=$(sed -n 's/^crates = //p' tests/budget.toml)
echo "crates of other projects: $crates, at most $budget are allowed"
if [ "$crates" -gt "$budget" ]; then echo "too many crates: see tests/budget.toml"; exit 1; fi

# The directory in which cargo-deny stores the database of RustSec.
databases="${CARGO_HOME:-$HOME/.cargo}/advisory-dbs"
configuration=deny.toml
if [ -n "${ADVISORY_DB:-}" ]; then
    databases=$PWD/target/advisory-dbs
    configuration=target/deny.toml
    rm -rf "$databases"
    git clone --quiet "$ADVISORY_DB" "$databases/advisory-db-3157b0e258782691"
    # cargo-deny checks when a database was last fetched, so the clone must have been fetched once.
    git -C "$databases/advisory-db-3157b0e258782691" fetch --quiet
    sed "s|^\[advisories\]|&\ndb-path = \"$databases\"|" deny.toml >"$configuration"
else
    # If the download fails, an older copy is used.
    timeout 60 "$deny" fetch db >/dev/null 2>&1 || true
fi
database=$(find "$databases" -mindepth 1 -maxdepth 1 -type d -name 'advisory-db-*' 2>/dev/null | head -n 1)
if [ -n "$database" ]; then
    "$deny" --offline --locked --config "$configuration" check advisories
    database_day=$(git -C "$database" log -1 --format=%cs)
    echo "advisories: checked now, with the RustSec database of $database_day"
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
    echo "advisories: checked last on $(sed -n 's/^checked //p' "$record") with the RustSec database of $database_day"
fi
if [ "$mode" = release ]; then
    days=$((($(date -u +%s) - $(date -u -d "$database_day" +%s)) / 86400))
    if [ "$days" -gt "$release_days" ]; then
        echo "advisories: the database is $days days old, but for a release it may have at most $release_days; fetch it or set ADVISORY_DB" >&2
        exit 1
    fi
fi
# CI sets EXPECTED_SKIPS: a skip that is not listed in that file is an error.
[ -n "$database" ] || [ -z "${EXPECTED_SKIPS:-}" ] || grep -qxF "$cause" "$EXPECTED_SKIPS"
