"""The rig of these tests: a network of their own with veth pairs, the server in it, and clients.

Nothing here judges anything. Invariant: what was started is ended by its process id, and the network vanishes with the tests.
"""

import ctypes
import os
import pathlib
import socket
import subprocess
import tempfile
import time

import snappi

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCATIONS = {"va": "localhost:5555", "vb": "localhost:5556"}
CLONE_NEWNET = 0x40000000
# Longest wait for anything that a correct server does at once.
PATIENCE = 60


def binary():
    return os.environ.get("PACKETRIG_BIN") or str(ROOT / "target/debug/packetrig")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def enter_network():
    """A new network namespace for this process and its children; two veth pairs in it, without IPv6."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no private network can be had")
    for scope in ("all", "default"):
        path = pathlib.Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if path.exists():
            path.write_text("1")
    ip("link", "set", "lo", "up")
    for near, far in (("va", "vb"), ("vc", "vd")):
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        for end in (near, far):
            # Frames that other drivers would transmit live reach a veth only when its peer polls.
            subprocess.run(["ethtool", "-K", end, "gro", "on"], check=True, capture_output=True)
            ip("link", "set", end, "up")


def eventually(what, condition, seconds=PATIENCE):
    """Waits until `condition` returns something true, which is returned."""
    end = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"never: {what}"
        # Half of the time at most is spent asking: clients take long to read what the server says quickly.
        time.sleep(max(0.02, time.monotonic() - begun))


class Server:
    """`packetrig serve` on the first pair."""

    def __init__(self, *flags):
        self.directory = tempfile.TemporaryDirectory(prefix="packetrig-interop-")
        self.store = f"{self.directory.name}/store"
        self.log = open(f"{self.directory.name}/log", "w+b")
        ports = [f"--port={interface}={location}" for interface, location in LOCATIONS.items()]
        command = [binary(), "serve", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", f"--store={self.store}", *ports, *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        try:
            text = eventually("the server tells its addresses", self._addresses)
        except BaseException:
            self.kill()
            raise
        self.https = next(line.split(": ", 1)[1] for line in text if line.startswith("OTG over HTTP"))
        self.grpc = next(line.split(": ", 1)[1] for line in text if line.startswith("OTG over gRPC"))

    @property
    def pid(self):
        return self.process.pid

    def _addresses(self):
        assert self.process.poll() is None, f"the server ended: {self.text()}"
        lines = self.text().splitlines()
        return lines if sum(line.startswith("OTG over") for line in lines) == 2 else None

    def text(self):
        with open(self.log.name, "rb") as file:
            return file.read().decode(errors="replace")

    def api(self, transport="grpc", slices=False):
        kind = snappi.Transport.GRPC if transport == "grpc" else snappi.Transport.HTTP
        location = self.grpc if transport == "grpc" else self.https
        api = snappi.api(location=location, transport=kind, verify=False, version_check=True)
        if transport == "grpc":
            api.request_timeout = PATIENCE
            api.enable_grpc_streaming = slices
        return api

    def stop(self):
        """Asks it to end, as users do; returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.directory.cleanup()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
