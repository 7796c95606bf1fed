# Trials of the wheel. Sourced by scripts/dist_test.sh.

# try_wheel FILE: from an empty environment to the demo's verdict. Nothing is fetched.
try_wheel() {
    rm -rf "$WORK/venv"
    python3 -m venv "$WORK/venv"
    "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$1"
    run_demo 10s unshare --net "$WORK/venv/bin/packetrig"
}

# try_uvx FILE: the same in one command, if uv is there.
try_uvx() {
    uvx=$(dirname "$(sh scripts/clients.sh uv)")/uvx
    start_clock
    run_demo 10s unshare --net "$uvx" --offline --no-cache --from "$1" packetrig
}

# try_helper FILE: the module and the fixture, judged with snappi. The interfaces are those of a namespace that ends with the trial.
try_helper() {
    environment=$(dirname "$(dirname "$(sh scripts/clients.sh snappi)")")
    rm -rf "$WORK/snappi"
    python3 -m venv "$WORK/snappi"
    "$WORK/snappi/bin/pip" install --quiet --disable-pip-version-check --no-index "$1"
    # Packages of the client's environment, without changing it.
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
