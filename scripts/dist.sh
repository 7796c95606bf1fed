#!/bin/sh
# Builds the program and all packages for users: `make dist`. All files are in target/dist.
#
#   scripts/dist.sh [NAME...]            NAME: x86_64 aarch64 armv7; without one, all of them
#   scripts/dist.sh --reproduce          builds the program for x86_64 in two directories and compares them
#
# ONLY="program nats": these steps only, of: program nats manual deb rpm wheel oci. JOBS=1: compile with one processor.
# It needs Rust, Go, and the Debian packages clang, xz-utils, dpkg-dev, rpm and umoci; it installs nothing but toolchains of rustup.
set -eu
cd "$(dirname "$0")/.."
ROOT=$PWD
OUT=$ROOT/target/dist
PATH=$PATH:$HOME/.cargo/bin:/usr/local/go/bin:/usr/sbin:/sbin
# Files in archives have the time of the commit, so that two builds of one commit give the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
mkdir -p "$OUT/logs"
. scripts/targets.sh
for part in build nats manual tree deb rpm oci; do . "scripts/dist/$part.sh"; done

if [ "${1:-}" = --reproduce ]; then
    exec sh scripts/dist/reproduce.sh
fi
NAMES=${*:-x86_64 aarch64 armv7}
ONLY=${ONLY:-program nats manual deb rpm wheel oci}

# build_wheel NAME: writes $OUT/packetrig-VERSION-….whl.
build_wheel() {
    rm -f "$OUT"/packetrig-*"$(rpm_processor "$1" | sed 's/hl$/l/').whl"
    python3 scripts/dist/wheel.py "$(version)" "$1" "$OUT/$1" "$OUT"
}

# run_step STEP NAME: runs a step with its output in a log. If the step fails, the end of the log is shown.
run_step() {
    log=$OUT/logs/$1-$2.log
    echo "dist: $1 $2" >&2
    # The subshell has its own `set -e`. It is not in the condition of an `if`, where `set -e` has no effect.
    set +e
    (set -e; "build_$1" "$2") >"$log" 2>&1
    code=$?
    set -e
    [ "$code" = 0 ] && return 0
    tail -n 20 "$log" >&2
    echo "dist: the step $1 failed for $2; all of its output is in $log" >&2
    exit 1
}

row() { [ ! -e "$2" ] || echo "| $1 | $(wc -c <"$2") | $(xz -9e -T1 -c "$2" | wc -c) |"; }
# The row of a file that is compressed already: without a size after xz.
row_of_archive() { [ ! -e "$1" ] || echo "| $(basename "$1") | $(wc -c <"$1") | – |"; }

print_table() {
    echo "packetrig $(version), $(git rev-parse --short HEAD); sizes in bytes"
    echo
    echo "| Artefact | Bytes | xz -9e |"
    echo "|---|---|---|"
    for name in x86_64 aarch64 armv7; do
        row "packetrig, $(target "$name")" "$OUT/$name/packetrig"
        row "nats-server, $name" "$OUT/$name/nats-server"
    done
    for file in "$OUT"/*.deb "$OUT"/*.rpm "$OUT"/*.whl "$OUT"/*.tar; do row_of_archive "$file"; done
}

for step in $ONLY; do
    case $step in
    manual) run_step manual all; run_step sbom all ;;
    *) for name in $NAMES; do run_step "$step" "$name"; done ;;
    esac
done
print_table | tee "$OUT/sizes.md"
