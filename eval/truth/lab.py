"""A lab for one run: the rig's namespace and the device's, with two cables; and processes, ended by their ids."""

import os
import signal
import subprocess
import sys
import threading
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from judging import NamespaceLab  # noqa: E402


class Lab(NamespaceLab):
    """`tx0` and `rx0` are the rig's; `d0` and `d1` at their far ends are the device's. `b0` and `b1`: a bare cable."""

    PREPARE = """mount -t sysfs sysfs /sys 2>/dev/null; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null
    echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null; echo ready; exec sleep 900"""

    def connect(self):
        self.rig, self.device = self.hold_namespace(), self.hold_namespace()

    def connect_device(self, takes_live_frames):
        """Live frames of `xdp` arrive at a virtual cable whose far end merges frames or has an XDP program."""
        merging = "on" if takes_live_frames else "off"
        self.shell(
            self.rig,
            f"""for pair in tx0:d0 rx0:d1; do
            ip link add ${{pair%:*}} type veth peer name ${{pair#*:}} netns {self.device}
            ip link set ${{pair%:*}} up; done""",
        )
        self.shell(self.device, f"for i in d0 d1; do ethtool -K $i gro {merging} >/dev/null; ip link set $i up; done")

    def connect_cable(self):
        self.shell(self.rig, "ip link add b0 type veth peer name b1; ip link set b0 up; ip link set b1 up")

    def start_forwarder(self, program, rules):
        script = f"{self.directory}/script"
        with open(script, "w") as file:
            file.write("".join(f"{rule}\n" for rule in rules))
        command = [program, script, self.directory, "d0", "d1", f"/proc/{self.rig}/ns/net", "rx0"]
        forwarder = self.start(self.within(self.device, command), stdout=subprocess.PIPE, text=True)
        if forwarder.stdout.readline() != "ready\n":
            raise OSError("the forwarder did not start")
        return forwarder

    def end_forwarder(self, forwarder):
        forwarder.send_signal(signal.SIGTERM)
        forwarder.wait(timeout=30)

    def start_load(self, count):
        for _ in range(count):
            self.start(["sh", "-c", "while :; do :; done"])


# What somebody does to an interface of the rig, and how it is undone. Frames are longer than this MTU.
CHANGES = {
    "delete": ("del {}", None),
    "down": ("set {} down", "up"),
    "mtu": ("set {} mtu 100", "mtu 1500"),
    "mac": ("set {} address 02:00:00:00:77:01", "address 02:00:00:00:77:02"),
}


def run_faults(faults, lab, process, began, done):
    """Does each fault at its time after `began` (monotonic seconds); notes when it truly happened."""
    for fault in sorted(faults, key=lambda fault: fault["at"]):
        time.sleep(max(0, began + fault["at"] - time.monotonic()))
        if process.poll() is not None:
            return
        happened = {"kind": fault["kind"], "begin": time.monotonic() - began}
        kind = fault["kind"]
        if kind == "stop":
            process.send_signal(signal.SIGSTOP)
            time.sleep(fault["length"])
            process.send_signal(signal.SIGCONT)
        else:
            begin, end = CHANGES[kind]
            interface = fault["interface"]
            undo = f"; sleep {fault['length']}; ip link set {interface} {end}" if end else ""
            lab.shell(lab.rig, f"ip link {begin.format(interface)}{undo}")
        happened["end"] = time.monotonic() - began
        done.append(happened)


def wait_for_first(source, process, faults, lab, done):
    """In the background: waits until the stream begins, then does the faults."""

    def work():
        line = source()
        if line:
            run_faults(faults, lab, process, time.monotonic(), done)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
