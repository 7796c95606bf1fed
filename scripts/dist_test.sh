#!/bin/sh
# Tests the files that scripts/dist.sh built, in systems like those of users: `make dist-test`. Prints a table; its last
# column says whether a trial passed, failed or was not possible here.
#
#   scripts/dist_test.sh [TRIAL...]   program_x86_64 program_aarch64 program_armv7 deb lintian services rpm wheel uvx helper oci
#                                     labs units; all without one
#
# It needs root (namespaces, chroot), and the Debian packages debootstrap, lintian, systemd-container, rpm, umoci, runc, iproute2, ethtool,
# qemu-system-arm, cpio, frr and python3-yaml. OLD_DEB=FILE: a package of an earlier commit, which the new one replaces. Everything is in target/dist-test.
set -eu
cd "$(dirname "$0")/.."
ROOT=$PWD
OUT=$ROOT/target/dist
WORK=$ROOT/target/dist-test
PATH=$PATH:$HOME/.cargo/bin:/usr/local/go/bin:/usr/sbin:/sbin
mkdir -p "$WORK/logs"
. scripts/targets.sh
for part in program packages services wheel image; do . "scripts/dist/test_$part.sh"; done
TRIALS=${*:-program_x86_64 program_aarch64 program_armv7 deb lintian services rpm wheel uvx helper oci labs units}

# artefact TRIAL: prints the file that the trial tests. Of packages, only those for x86_64 are tested; the programs in
# the others are tested by themselves.
artefact() {
    case $1 in
    program_*) echo "$OUT/${1#program_}/packetrig" ;;
    deb | lintian | services) echo "$OUT"/packetrig_*_amd64.deb ;;
    rpm) echo "$OUT"/packetrig-*.x86_64.rpm ;;
    wheel | uvx | helper) echo "$OUT"/packetrig-*_x86_64.whl ;;
    oci | labs) echo "$OUT/packetrig-oci-x86_64.tar" ;;
    units) echo systemd ;;
    esac
}

# missing_for TRIAL: prints what the trial needs and this machine does not have.
missing_for() {
    tools=
    case $1 in
    program_aarch64) tools=qemu-system-aarch64 ;;
    program_armv7) tools=qemu-system-arm ;;
    deb) tools=debootstrap ;;
    services) tools=systemd-nspawn ;;
    oci) tools="umoci runc" ;;
    labs) tools="umoci runc /usr/lib/frr/zebra" ;;
    lintian | rpm) tools=$1 ;;
    units) tools=systemd-analyze ;;
    esac
    for tool in $tools; do command -v "$tool" >/dev/null || echo "$tool is not installed"; done
    [ -e "$(artefact "$1")" ] || echo "it was not built"
}

perform_trial() {
    case $1 in
    program_*) "try_$1" ;;
    lintian) check_lintian "$(artefact lintian)" ;;
    units) check_exposure ;;
    *) "try_$1" "$(artefact "$1")" ;;
    esac
}

# judge TRIAL CODE LOG: prints whether the trial passed. For a guest, the last line of its own trial decides, because
# QEMU's exit code says nothing about it.
judge() {
    case $1 in
    program_aarch64 | program_armv7)
        said=$(sed -n 's/.*trial: //p' "$3" | tail -n 1 | tr -d '\r')
        case $said in *"none failed"*) echo "yes: $said" ;; *) echo "NO: ${said:-no result}, see ${3#"$ROOT/"}" ;; esac
        ;;
    *) if [ "$2" = 0 ]; then echo "yes$(sed -n 's/^Verdict: \([A-Z]*\).*/, verdict \1/p' "$3" | head -n 1)"; else echo "NO: exit code $2, see ${3#"$ROOT/"}"; fi ;;
    esac
}

# start_clock, note_verdict: measure the time from the start of a trial, with nothing but the artefact, to the first
# verdict. A guest measures from its own boot.
start_clock() { date +%s.%N >"$WORK/begun"; }
note_verdict() { echo "first verdict after $(date +%s.%N | awk -v begun="$(cat "$WORK/begun")" '{ printf "%.1f", $1 - begun }') s"; }
# run_demo SECONDS COMMAND...: runs the demo with this command. INCONCLUSIVE (exit code 7) is accepted, too: on a busy
# machine, frames leave late.
run_demo() {
    time=$1
    shift
    code=0
    "$@" demo --time "$time" || code=$?
    note_verdict
    [ "$code" = 0 ] || [ "$code" = 7 ]
}
first_verdict() { sed -n 's/.*first verdict after \([0-9.]*\) s.*/\1/p' "$1" | head -n 1; }

try() {
    lacks=$(missing_for "$1")
    if [ -n "$lacks" ]; then
        echo "| $1 | – | – | not tried: $lacks |"
        return 0
    fi
    log=$WORK/logs/$1.log
    file=$(artefact "$1")
    start_clock
    set +e
    (set -e; perform_trial "$1") >"$log" 2>&1
    code=$?
    set -e
    bytes=$([ -f "$file" ] && wc -c <"$file" || echo –)
    said=$(judge "$1" "$code" "$log")
    case $said in NO*) touch "$WORK/failed" ;; esac
    seconds=$(first_verdict "$log")
    echo "| $1 | $bytes | ${seconds:-–} | $said |"
}

rm -f "$WORK/failed"
{
    echo "packetrig, $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), $(nproc) processors; seconds from the start of a trial to its first verdict"
    echo
    echo "| Trial | Bytes | Seconds | Passed |"
    echo "|---|---|---|---|"
    for trial in $TRIALS; do try "$trial"; done
} | tee "$WORK/table.md"
[ ! -e "$WORK/failed" ]
