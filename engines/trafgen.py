"""Engine trafgen: packetrig's plan as packet configurations of trafgen (netsniff-ng), one process for each stream."""

import os
import re
import subprocess
import time

from adapter import frames_of, note, serve


class Trafgen:
    def __init__(self):
        self.leads = {}

    def hello(self):
        output = subprocess.run(["trafgen", "--version"], capture_output=True, text=True).stdout
        version = re.search(r"trafgen (\S+)", output)
        abilities = {
            "streams": 16,
            "delay": True,
            "endless": True,
            "repeat": True,
            # Each frame is a packet of the configuration, which trafgen reads and keeps in memory.
            "frames": 50_000,
            "frame_bytes": [60, 2048],
            # It sleeps between two frames, for 50 us at least.
            "frames_per_second": 20_000,
        }
        return (version.group(1) if version else "", abilities)

    def command(self, stream, interface, directory):
        configuration = os.path.join(directory, "%d.cfg" % stream["stream"])
        with open(configuration, "w") as out:
            for frame in frames_of(stream["capture"]["file"]):
                out.write("{" + ",".join("%d" % byte for byte in frame) + "}\n")
        self.leads[stream["stream"]] = self.measure(configuration, directory)
        rate = stream["rate"]
        gap_ns, rest = divmod(rate["seconds"] * 1_000_000_000, rate["frames"])
        if rest:
            note("trafgen sends a frame of stream %d every %d ns, not exactly as planned" % (stream["stream"], gap_ns))
        number = str(stream["count"] or 0)
        # One processor, so that frames stay in order; the card's interrupts and sockets of others stay as they are.
        command = ["trafgen", "--out", interface, "--conf", configuration, "--cpus", "1", "--notouch-irq"]
        return command + ["--num", number, "--gap", "%dns" % gap_ns]

    def measure(self, configuration, directory):
        """How long trafgen takes to read its configuration: it writes the first packet to a file."""
        begin = time.monotonic()
        out = os.path.join(directory, "lead.pcap")
        command = ["trafgen", "--out", out, "--conf", configuration, "--cpus", "1", "--notouch-irq", "--num", "1"]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.monotonic() - begin

    def lead(self, stream):
        # Rather a little late than too early.
        return self.leads[stream["stream"]] * 0.8

    def count(self, text, stream):
        frames = re.search(r"(\d+) packets outgoing", text)
        size = re.search(r"(\d+) bytes outgoing", text)
        if not frames or not size:
            return None
        times = re.findall(r"(\d+) sec, (\d+) usec on CPU", text)
        seconds = max((int(sec) + int(usec) / 1e6 for sec, usec in times), default=0)
        return (int(frames.group(1)), int(size.group(1)), 0, seconds)


if __name__ == "__main__":
    serve("trafgen", Trafgen())
