# Trials of the wheel. Sourced by scripts/dist_test.sh.

# try_wheel FILE: installs the wheel into an empty environment and runs the demo. Nothing is downloaded.
try_wheel() {
    rm -rf "$WORK/venv"
    python3 -m venv "$WORK/venv"
    "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$1"
    run_demo 10s unshare --net "$WORK/venv/bin/packetrig"
}

# try_uvx FILE: runs the demo from the wheel with one command of uv.
try_uvx() {
    uvx=$(dirname "$(sh scripts/clients.sh uv)")/uvx
    start_clock
    run_demo 10s unshare --net "$uvx" --offline --no-cache --from "$1" packetrig
}

# try_helper FILE: tests the Python module and the pytest fixture with snappi. The interfaces are in a network namespace
# that ends with the trial.
try_helper() {
    environment=$(dirname "$(dirname "$(sh scripts/clients.sh snappi)")")
    rm -rf "$WORK/snappi"
    python3 -m venv "$WORK/snappi"
    "$WORK/snappi/bin/pip" install --quiet --disable-pip-version-check --no-index "$1"
    # Makes the packages of the client's environment available without changing that environment.
    packages=$(echo "$environment"/lib/python3*/site-packages)
    echo "$packages" >"$(echo "$WORK"/snappi/lib/python3*/site-packages)/clients.pth"
    cp packaging/python/tests/test_helper.py "$WORK/test_helper.py"
    unshare --net sh -ec "
        ip link set lo up
        ip link add va type veth peer name vb
        for end in va vb; do ethtool -K \$end gro on; ip link set \$end up; done
        cd '$WORK'
        exec '$WORK/snappi/bin/python' -m pytest -q -p no:cacheprovider --packetrig-port va=left --packetrig-port vb=right test_helper.py"
}
