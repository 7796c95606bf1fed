#!/bin/sh
# Puts a device under test into a network namespace: a Linux bridge between two cables, whose other ends are rig0 and rig1.
#
#   sh device.sh PID          PID is a process in the namespace, such as the first one of a container
#   sh device.sh PID 20mbit   the same device, slowed down by a token bucket: the gate must fail
#
# Run as root. The ends rig0 and rig1 are in the namespace of the caller.
set -eu

pid=${1:?the number of a process in the namespace of the device}
rate=${2:-}
inside() { nsenter --net="/proc/$pid/ns/net" "$@"; }

for port in 0 1; do
    ip link add "rig$port" type veth peer name "dut$port" netns "$pid"
    # Nothing but test traffic on the cables.
    sysctl -q -w "net.ipv6.conf.rig$port.disable_ipv6=1" || true
    ip link set "rig$port" up
done
inside ip link add name bridge0 type bridge mcast_snooping 0
for port in 0 1; do
    inside ip link set "dut$port" master bridge0 up
done
inside ip link set bridge0 up
if [ -n "$rate" ]; then
    # A short queue: frames in it are still the sender's, whose ring would fill up.
    inside tc qdisc add dev dut1 root tbf rate "$rate" burst 5000 limit 5000
fi
