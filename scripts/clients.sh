#!/bin/sh
# Installs the public OTG clients that drive the server in tests, once, below target/.
#
#   clients.sh          snappi and what judges frames; prints the Python interpreter that has them
#   clients.sh old      an old snappi, for what it must still find; prints its interpreter
#   clients.sh gosnappi the Go client: builds tests/interop/otg/go; prints the program
#   clients.sh otgen    the command-line client; prints the program
set -eu
cd "$(dirname "$0")/.."
what=${1:-snappi}
target="${CARGO_TARGET_DIR:-target}"
case $target in /*) ;; *) target="$PWD/$target" ;; esac
PATH="$PATH:/usr/local/go/bin"

# environment PLACE PACKAGE…: a Python environment with these packages, made anew when the list changes.
environment() {
    place=$1
    shift
    if [ "$(cat "$place/ready" 2>/dev/null || true)" != "$*" ]; then
        python3 -m venv "$place" >&2
        "$place/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "$@" >&2
        echo "$*" >"$place/ready"
    fi
    echo "$place/bin/python"
}

# A client's module takes minutes to compile, and what was compiled is kept by the compiler.
want_go() {
    command -v go >/dev/null 2>&1 || { echo "there is no Go compiler" >&2; exit 1; }
    mkdir -p "$target/clients"
}

case $what in
snappi) environment "$target/clients/snappi-1.62.0" snappi==1.62.0 pytest==8.4.2 scapy==2.6.1 ;;
old) environment "$target/clients/snappi-1.27.1" snappi==1.27.1 ;;
gosnappi)
    want_go
    program="$target/clients/gosnappi.test"
    # Inside the lab there is neither network nor a place for Go's files: what is there is newer than its source.
    if [ ! -e "$program" ] || [ -n "$(find tests/interop/otg/go -newer "$program" -type f)" ]; then
        (cd tests/interop/otg/go && go test -c -o "$program" . >&2)
    fi
    echo "$program"
    ;;
otgen)
    want_go
    version=v1.53.0-13
    program="$target/clients/otgen-$version"
    if [ ! -e "$program" ]; then
        GOBIN="$program.new" go install "github.com/open-traffic-generator/otgen@$version" >&2
        mv "$program.new/otgen" "$program" && rmdir "$program.new"
    fi
    echo "$program"
    ;;
*) echo "clients.sh: unknown client '$what'" >&2; exit 1 ;;
esac
