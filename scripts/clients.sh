#!/bin/sh
# Installs public programs that the tests need and Debian does not have, once, below target/: OTG clients that drive the server, and
# readers and stores of flow records.
#
#   clients.sh          snappi and what judges frames; prints the Python interpreter that has them
#   clients.sh old      an old snappi, for what it must still find; prints its interpreter
#   clients.sh gosnappi the Go client: builds tests/interop/otg/go; prints the program
#   clients.sh otgen    the command-line client; prints the program
#   clients.sh nats    the server of the networked fabric; prints the program
#   clients.sh readers  DuckDB, polars, the engine of ClickHouse and a Kafka client; prints the interpreter that has them
#   clients.sh stamp   another implementation of STAMP, both ends; prints the program
#   clients.sh kafka    a Kafka broker, which takes java to run; prints the directory of its jars
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
nats)
    want_go
    version=v2.15.2
    program="$target/clients/nats-server-$version"
    if [ ! -e "$program" ]; then
        GOBIN="$program.new" go install "github.com/nats-io/nats-server/v2@$version" >&2
        mv "$program.new/nats-server" "$program" && rmdir "$program.new"
    fi
    echo "$program"
    ;;
stamp)
    version=0.8.0
    place="$target/clients/stamp-suite-$version"
    if [ ! -e "$place/bin/stamp-suite" ]; then
        # Its own target directory: what it is built with is not what this is built with.
        CARGO_TARGET_DIR="$place.build" cargo install stamp-suite --version "$version" --locked --quiet --root "$place" >&2
        rm -rf "$place.build"
    fi
    echo "$place/bin/stamp-suite"
    ;;
readers) environment "$target/clients/flow-readers" duckdb==1.4.4 polars==1.44.2 chdb==3.7.2 kafka-python==2.3.1 ;;
kafka)
    command -v java >/dev/null 2>&1 || { echo "there is no java" >&2; exit 1; }
    list="$PWD/tests/interop/flows/kafka-4.1.2.sha256"
    place="$target/clients/kafka-4.1.2"
    if [ ! -e "$place/ready" ]; then
        mkdir -p "$place"
        cd "$place"
        awk '{ print "url = https://repo1.maven.org/maven2/" $2; print "output = " $2 }' "$list" |
            curl --fail --silent --show-error --retry 1 --max-time 300 --parallel --create-dirs --config - >&2
        sha256sum --check --quiet "$list" >&2
        touch ready
    fi
    echo "$place"
    ;;
*) echo "clients.sh: unknown client '$what'" >&2; exit 1 ;;
esac
