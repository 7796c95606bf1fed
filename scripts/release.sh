#!/bin/sh
# Makes a release from the commit that is checked out: `scripts/release.sh 0.1.0`. Everything is in target/release-VERSION.
#
# It refuses a tree with changes, a version that is not that of Cargo.toml, a changelog without this version, and an
# advisory database older than 30 days. Then it builds the packages (dist.sh), tests them (dist_test.sh), and writes
# checksums, the list of components (SBOM, CycloneDX), the notes of this version and a signature.
#
#   PACKETRIG_SIGNING_KEY       the text of minisign's secret key file, whose key has no password (minisign -G -W)
#   PACKETRIG_SIGNING_PUBLIC    minisign's public key, one line: the signature is checked with it
#   NAMES="x86_64 aarch64"      these processors only
#   REHEARSAL=1                 warns of changes, changelog, crates or a failed trial, and continues; sets no tag
#   REHEARSAL=built             as REHEARSAL=1, and uses the packages in target/dist without building and testing them again
set -eu
cd "$(dirname "$0")/.."
ROOT=$PWD
OUT=$ROOT/target/dist
PATH=$PATH:$HOME/.cargo/bin:/usr/local/go/bin
NAMES=${NAMES:-x86_64 aarch64 armv7}
. scripts/dist/tree.sh

say() { printf 'release: %s\n' "$*" >&2; }
# refuse TEXT: ends a release. A rehearsal continues, so that it shows everything that a release would refuse.
refuse() {
    say "$*"
    [ -n "${REHEARSAL:-}" ] || exit 1
}

check_source() {
    number=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    [ "$1" = "$number" ] || { say "Cargo.toml has version $number, not $1"; exit 1; }
    [ -z "$(git status --porcelain)" ] || refuse "the tree has changes; commit them first"
    [ -n "$(notes "$1")" ] || refuse "CHANGELOG.md has no section for $1"
    ! grep -q "^## Unreleased: $1" CHANGELOG.md || refuse "CHANGELOG.md still calls $1 unreleased"
    scripts/check_deps.sh release || refuse "the check of the crates failed, see above"
}

# notes VERSION: prints the section of this version in the changelog.
notes() { awk -v version="$1" '/^## / { inside = index($0, version) > 0; next } inside' CHANGELOG.md; }

check_key() {
    command -v minisign >/dev/null || { say "minisign is not installed"; exit 1; }
    [ -n "${PACKETRIG_SIGNING_KEY:-}" ] || { say "set PACKETRIG_SIGNING_KEY to the text of minisign's secret key file"; exit 1; }
}

# Tags the commit, because packages of an untagged commit get a development version. An existing tag is left as it is if it is on this
# commit, and a rehearsal sets no tag.
tag_version() {
    if tagged=$(git rev-parse --quiet --verify "refs/tags/v$1^{commit}"); then
        [ "$tagged" = "$(git rev-parse HEAD)" ] && return 0
        say "the tag v$1 is on another commit: $tagged"
        exit 1
    fi
    [ -n "${REHEARSAL:-}" ] || git tag --annotate --message "packetrig $1" "v$1"
}

gather() {
    place=$ROOT/target/release-$1
    rm -rf "$place"
    mkdir -p "$place"
    cp "$OUT"/*.deb "$OUT"/*.rpm "$OUT"/*.whl "$OUT/sbom.cdx.json" "$place/"
    for name in $NAMES; do
        xz -9e -T1 -c "$OUT/packetrig-oci-$name.tar" >"$place/packetrig-oci-$name.tar.xz"
        xz -9e -T1 -c "$OUT/$name/packetrig" >"$place/packetrig-$name.xz"
        xz -9e -T1 -c "$OUT/$name/packetrig.debug" >"$place/packetrig-$name.debug.xz"
    done
    notes "$1" >"$place/NOTES.md"
    cp "$ROOT/target/dist-test/table.md" "$place/TRIALS.md"
    (cd "$place" && sha256sum -- * >SHA256SUMS)
}

# Signs the checksums. The key is in a file only while minisign runs, and only this user can read that file.
sign() {
    key=$(mktemp)
    trap 'rm -f "$key"' EXIT INT TERM
    printf '%s\n' "$PACKETRIG_SIGNING_KEY" >"$key"
    minisign -S -s "$key" -m "$place/SHA256SUMS" -t "packetrig $1, commit $(git rev-parse HEAD)" </dev/null
    rm -f "$key"
    [ -z "${PACKETRIG_SIGNING_PUBLIC:-}" ] || minisign -V -P "$PACKETRIG_SIGNING_PUBLIC" -m "$place/SHA256SUMS"
}

[ $# = 1 ] || { echo "usage: scripts/release.sh VERSION" >&2; exit 2; }
check_key
check_source "$1"
tag_version "$1"
if [ "${REHEARSAL:-}" != built ]; then
    # shellcheck disable=SC2086 # a list of names
    scripts/dist.sh $NAMES
    scripts/dist_test.sh || refuse "a trial failed"
fi
gather "$1"
sign "$1"
ls -l "$place"
