#!/bin/sh
# Installs the public OTG client that drives the server in tests, once, below target/; prints its Python interpreter.
set -eu
cd "$(dirname "$0")/.."
version=1.62.0
place="${CARGO_TARGET_DIR:-target}/clients/snappi-$version"
case $place in /*) ;; *) place="$PWD/$place" ;; esac

if [ ! -e "$place/ready" ]; then
    python3 -m venv "$place" >&2
    "$place/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "snappi==$version" >&2
    : >"$place/ready"
fi
echo "$place/bin/python"
