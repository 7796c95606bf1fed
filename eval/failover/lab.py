"""A lab for one trial: a link that is copied to meters in namespaces of their own, and a collector; faults of each.

    sender s0 --- s1 (wire) === copies by tc mirred ===> m0 of each meter
    each meter: p0 --- hub `control` (peers hear each other), e0 --- hub `export` --- collector
"""

import os
import subprocess
import sys
import time

from watch import metric_of, read_metrics

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from judging import NamespaceLab  # noqa: E402

COLLECTOR = "198.18.0.9"
# Where a meter serves its metrics, in its own namespace.
METRICS = 9100
LOSSES = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors", "rx_missed_errors")


class Lab(NamespaceLab):
    """Starts and ends processes; `wire` is the namespace of the link and of both hubs."""

    PREPARE = """mount -t sysfs sysfs /sys 2>/dev/null
    for i in default all; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done
    for f in iptables ip6tables arptables; do echo 0 >/proc/sys/net/bridge/bridge-nf-call-$f; done 2>/dev/null
    ip link set lo up; echo ready; exec setpriv --pdeathsig KILL sleep infinity"""
    PATIENCE = 60

    def __init__(self, directory, meters):
        super().__init__(directory)
        self.meters = meters

    def connect(self):
        """All cables. Merging is off: a judge of counts must not depend on how merged packets are counted."""
        self.wire, self.collector = self.hold_namespace(), self.hold_namespace()
        self.namespaces = {number: self.hold_namespace() for number in self.meters}
        self.shell(
            self.wire,
            """ip link add s0 type veth peer name s1; tc qdisc add dev s1 clsact
            ip link add control type bridge; ip link add export type bridge
            for i in s0 s1; do ethtool -K $i gro off gso off tso off >/dev/null; done
            for i in s0 s1 control export; do ip link set $i up; done""",
        )
        self.join("export", "ec", self.collector, "e0", f"{COLLECTOR}/24")
        for number, namespace in self.namespaces.items():
            self.join(None, f"c{number}", namespace, "m0", None)
            self.join("control", f"p{number}", namespace, "p0", f"198.19.0.{number}/24")
            self.join("export", f"e{number}", namespace, "e0", f"198.18.0.{number}/24")
            self.set_copy(number, True)

    def join(self, hub, here, namespace, there, address):
        """A cable between the wire's namespace and another one."""
        self.shell(
            self.wire,
            f"""ip link add {here} type veth peer name {there} netns {namespace}
            ethtool -K {here} gro off gso off tso off >/dev/null
            {f"ip link set {here} master {hub}" if hub else ":"}; ip link set {here} up""",
        )
        give = f"ip address add {address} dev {there}" if address else ":"
        self.shell(namespace, f"ethtool -K {there} gro off gso off tso off >/dev/null; {give}; ip link set {there} up")

    def set_copy(self, number, is_there):
        """One filter for each meter, so that a copy can be cut without touching the others."""
        place = f"dev s1 ingress protocol all pref {10 + number}"
        if not is_there:
            self.shell(self.wire, f"tc filter del {place}")
            return
        mirror = f"action mirred egress mirror dev c{number} continue"
        self.shell(self.wire, f"tc filter add {place} u32 match u32 0 0 {mirror}")

    def set_cable(self, name, is_up):
        """Cables to the hubs: `p1` is the control path of meter 1, `e1` its way to the collector."""
        self.shell(self.wire, f"ip link set {name} {'up' if is_up else 'down'}")

    def lost_by_lab(self):
        """Packets that the lab's own cables lost: then the sender's counts are no truth."""
        read = "for i in {}; do for c in {}; do echo $i/$c $(cat /sys/class/net/$i/statistics/$c); done; done"
        ends = " ".join(["s0", "s1", *(f"c{number}" for number in self.namespaces)])
        lines = self.shell(self.wire, read.format(ends, " ".join(LOSSES))).splitlines()
        lost = [line for line in lines if line.split()[1] != "0" and not line.startswith("s1/rx_dropped")]
        for number, namespace in self.namespaces.items():
            text = self.shell(namespace, "cat /sys/class/net/m0/statistics/rx_packets").strip()
            lost.append(f"m0 of {number}: {text}")
        return lost


class Process:
    """A program of packetrig that is killed and started again; its words are kept."""

    def __init__(self, lab, namespace, name, command):
        self.lab, self.namespace, self.name, self.command = lab, namespace, name, command
        self.starts, self.process, self.codes = 0, None, []

    def start(self):
        self.starts += 1
        base = f"{self.lab.directory}/{self.name}.{self.starts}"
        with open(f"{base}.out", "w") as out, open(f"{base}.err", "w") as err:
            # Directly below us: a signal to nsenter's child must not go to a shell.
            self.process = self.lab.start(self.lab.within(self.namespace, self.command), stdout=out, stderr=err)
        self.began = time.monotonic()

    def words(self):
        with open(f"{self.lab.directory}/{self.name}.{self.starts}.err") as file:
            return file.read()

    def summary(self):
        with open(f"{self.lab.directory}/{self.name}.{self.starts}.out") as file:
            return file.read()

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def describe_threads(self):
        """Of a program that does not end: what its threads wait for, and whether they work."""
        with open(f"{self.lab.directory}/{self.name}.{self.starts}.hung", "w") as file:
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                for what in ("comm", "wchan", "syscall", "stat"):
                    try:
                        with open(f"/proc/{self.process.pid}/task/{task}/{what}") as source:
                            file.write(f"{task} {what} {source.read().strip()}\n")
                    except OSError as error:
                        file.write(f"{task} {what} {error}\n")

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, number, timeout=40):
        """Its exit code, or None if it had to be killed."""
        if self.is_alive():
            self.signal(number)
        return self.wait_for_end(timeout)

    def wait_for_end(self, timeout=40):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.describe_threads()
            self.process.kill()
            self.process.wait()
            code = None
        self.codes.append(code)
        return code


class Meter(Process):
    """`ready_after`: for meters without an election, which say nothing of their state."""

    def __init__(self, lab, number, command, ready_after):
        super().__init__(lab, lab.namespaces[number], f"meter{number}", command)
        self.number, self.ready_after = number, ready_after

    def is_active(self):
        roles = [line for line in self.words().splitlines() if " is active" in line or " is a standby" in line]
        return bool(roles) and " is active" in roles[-1]

    def is_ready(self):
        if not self.is_alive():
            return False
        if self.ready_after:
            return time.monotonic() - self.began > self.ready_after
        return metric_of(read_metrics(self.namespace, METRICS), "group_ready") == 1

    def state(self):
        """What it says of its place in the group, or why it says nothing."""
        lines = read_metrics(self.namespace, METRICS).splitlines()
        # A scrape that failed is one comment; otherwise comments describe metrics.
        return lines if len(lines) == 1 else [line for line in lines if "_group_" in line and line[0] != "#"]
