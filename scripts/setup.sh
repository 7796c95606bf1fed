#!/bin/sh
# Installs the missing programs for building and testing packetrig. It says what it does, and changes nothing else.
#
#   setup.sh demo   a C compiler (the catalogue's SQLite is built from source) and clang (BPF programs)
#   setup.sh test      also the test runner, and the tools that judge captures and labs
#   setup.sh test-all  also public clients and servers, and QEMU for a guest with another kernel
#   setup.sh vm        as test, with QEMU for a guest
#   setup.sh eval      as test, with the programs that packetrig is compared with
#
# Rust itself is not installed: if it is missing or too old, the script says how to get it. The
# script may run repeatedly.
set -eu

level=${1:-demo}
minimum=1.95
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
missing_packages=

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# want COMMAND PACKAGE: adds the package to the missing ones if the command does not exist.
want() {
    has "$1" && return 0
    case " $missing_packages " in *" $2 "*) ;; *) missing_packages="$missing_packages $2" ;; esac
}

check_rust() {
    has cargo || fail "cargo is missing; get Rust $minimum or newer from https://rustup.rs and run again"
    found=$(cargo --version | awk '{print $2}')
    oldest=$(printf '%s\n%s\n' "$minimum" "$found" | sort -V | head -n 1)
    [ "$oldest" = "$minimum" ] || fail "cargo $found is too old, $minimum or newer is needed: 'rustup update stable'"
}

check_rust_component() {
    cargo "$1" --version >/dev/null 2>&1 && return 0
    component=$2
    has rustup || fail "cargo $1 is missing; install Rust's '$component' the way Rust itself was installed"
    say "installing the Rust component $component (rustup)"
    rustup component add "$component"
}

# A C compiler needs the headers of the C library, too, which are in another package of Debian.
check_c() {
    printf '#include <stdlib.h>\n' | cc -E - >/dev/null 2>&1 || missing_packages="$missing_packages gcc libc6-dev"
}

# Runs a command as root, with sudo if the user is not root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        say "needs root for: $*"
        sudo "$@"
    fi
}

install_missing() {
    [ -n "$missing_packages" ] || { say "nothing to install for '$level'"; return 0; }
    say "missing:$missing_packages"
    if ! has apt-get; then
        give_up "this is not Debian or a relative of it; install the equivalents of:$missing_packages"
        return 0
    fi
    if [ "$(id -u)" -ne 0 ] && ! has sudo; then
        give_up "as root, run: apt-get install -y --no-install-recommends$missing_packages"
        return 0
    fi
    # apt must not ask questions, because there may be no terminal (wireshark-common would ask about setuid).
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    # shellcheck disable=SC2086 # a list of package names
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing_packages
}

# Without a compiler the script fails. Without other tools it continues: tests that need one are skipped and listed.
give_up() {
    has cc || fail "$1"
    say "$1"
    say "going on without: tests that need these tools are skipped and listed"
}

case $level in
demo | test | test-all | vm | eval) ;;
*) fail "unknown level '$level'; use demo, test, test-all, vm or eval" ;;
esac

check_rust
check_c
# clang compiles the BPF programs. They need no kernel headers.
want clang clang
case $level in
test | test-all | vm | eval)
    check_rust_component fmt rustfmt
    check_rust_component clippy clippy
    want ip iproute2
    want tc iproute2
    want ethtool ethtool
    want tcpdump tcpdump
    want tshark tshark
    want capinfos wireshark-common
    want editcap wireshark-common
    want nfcapd nfdump
    want sfcapd nfdump-sflow
    want softflowd softflowd
    want curl curl
    want busybox busybox-static
    want trafgen netsniff-ng
    want tcpreplay tcpreplay
    want java default-jre-headless
    want python3 python3
    want make make
    want fping fping
    # Tests open pages in this browser.
    want chromium-headless-shell chromium-headless-shell
    # Perl itself is on most machines; its modules may not be.
    perl -MJSON::PP -e 1 >/dev/null 2>&1 || missing_packages="$missing_packages perl"
    # On Debian, python3 without this package cannot make environments.
    python3 -c 'import ensurepip' >/dev/null 2>&1 || missing_packages="$missing_packages python3-venv"
    ;;
esac
case $level in
vm | test-all)
    want qemu-system-x86_64 qemu-system-x86
    ;;
esac
case $level in
test-all | eval)
    # Tests run these programs with packetrig's preload library.
    want nping nmap
    want scamper scamper
    ;;
esac
case $level in
eval)
    want irtt irtt
    want keepalived keepalived
    want ucarp ucarp
    ;;
esac
install_missing
case $level in
vm | test-all)
    # The package with the guest's kernel is downloaded and unpacked, not installed. apt must know its newest version.
    if has apt-cache && ! apt-cache show linux-image-amd64 >/dev/null 2>&1; then as_root apt-get update -q; fi
    ;;
esac
# A client that cannot be downloaded is left out; tests that need it are skipped and listed.
case $level in
test | vm) clients="nextest deny nats axe" ;;
eval) clients="nextest deny nats mlrsearch" ;;
test-all) clients="nextest deny nats axe snappi old gosnappi otgen readers kafka stamp" ;;
*) clients= ;;
esac
# All at once: some wait for the network while others are compiled.
for client in $clients; do
    { sh "$(dirname "$0")/clients.sh" "$client" >/dev/null || say "going on without '$client'"; } &
done
wait
