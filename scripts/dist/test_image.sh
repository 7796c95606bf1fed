# Trials of the OCI image with runc, in network namespaces of their own. Sourced by scripts/dist_test.sh.

# Capabilities of runs, as docs/book/sandbox.md lists them.
RIG=CAP_NET_RAW,CAP_NET_ADMIN,CAP_BPF,CAP_PERFMON,CAP_IPC_LOCK,CAP_SYS_NICE
# The demo builds its lab of namespaces, as `docker run --cap-add SYS_ADMIN` allows it.
LAB=$RIG,CAP_SYS_ADMIN

# run_image ARCHIVE NAME CAPABILITIES COMMAND...: a container with a network of its own, whose settings it may write, and no other rights.
run_image() {
    archive=$1
    name=$2
    capabilities=$3
    shift 3
    bundle=$WORK/image/$name
    rm -rf "$bundle"
    mkdir -p "$WORK/image"
    if [ ! -e "$WORK/image/layout" ]; then
        mkdir "$WORK/image/layout"
        tar -xf "$archive" -C "$WORK/image/layout"
    fi
    umoci unpack --image "$WORK/image/layout:latest" "$bundle"
    python3 scripts/dist/bundle.py "$bundle/config.json" "$capabilities" "$@"
    timeout 120 runc --root "$WORK/image/runc" run --bundle "$bundle" "packetrig-$name-$$"
}

# try_labs ARCHIVE: the example labs of containerlab: a fleet around FRR, and an impaired link.
try_labs() {
    rm -rf "$WORK/labs"
    mkdir -p "$WORK/labs/layout"
    tar -xf "$1" -C "$WORK/labs/layout"
    for lab in frr impair; do
        case $lab in
        frr) set -- center packetrig run --tx left/eth1 --rx right/eth1 --gateway 198.18.0.254 --rate 1kpps --time 3s ;;
        impair) set -- client ping -c 20 10.0.0.2 ;;
        esac
        code=0
        python3 scripts/dist/clab.py examples/containerlab/$lab.clab.yml "$WORK/labs/layout" "$WORK/labs/$lab" "$@" >"$WORK/labs/$lab.txt" || code=$?
        cat "$WORK/labs/$lab.txt"
        # INCONCLUSIVE (7) is a verdict, too, as in the other trials.
        [ "$code" = 0 ] || [ "$code" = 7 ] || return "$code"
    done
    # Each direction has 20 ms.
    awk -F'[/ ]' '/^(rtt|round-trip)/ { exit !($6 >= 40 && $6 < 400) }' "$WORK/labs/impair.txt"
    grep -q '^Verdict: ' "$WORK/labs/frr.txt"
}

# try_oci ARCHIVE: the demo with the capabilities of a lab; a run over a cable with those of runs; the services that start alone.
try_oci() {
    rm -rf "$WORK/image"
    P=/usr/bin/packetrig
    run_demo 3s run_image "$1" demo "$LAB" $P
    run_image "$1" version "" $P --version
    run_image "$1" nats "" /usr/lib/packetrig/nats-server --version
    # A cable whose ends are in the container: BusyBox has `ip`.
    run_image "$1" run "$RIG" /bin/sh -ec "
        ip link add a0 type veth
        ip link set a0 up
        ip link set veth0 up
        $P run --tx a0 --rx veth0 --rate 1kpps --time 2s" || [ $? = 7 ]
    # The reflector needs the first three; the sender of probes needs those of runs.
    run_image "$1" reflect "CAP_SETUID,CAP_SETGID,CAP_SETPCAP,$RIG" /bin/sh -ec "
        ip link set lo up
        $P probe reflect 127.0.0.1:8620 --allow 127.0.0.0/8 --time 4s & sleep 1
        $P probe stamp 127.0.0.1:8620 --allow 127.0.0.0/8 --count 10 --interval 50ms
        wait"
    run_image "$1" serve "$RIG,CAP_SETPCAP" /bin/sh -ec "
        ip link set lo up
        $P serve --plain-http --http 127.0.0.1:8080 --no-grpc & server=\$!
        sleep 2
        busybox wget -q -O - http://127.0.0.1:8080/capabilities/version | grep api_spec_version
        kill -INT \$server
        wait \$server"
}
