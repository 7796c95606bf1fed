"""Engine trafgen: packetrig's plan as packet configurations of trafgen (netsniff-ng), one process for each stream."""

import re
import subprocess

from adapter import frames_of, note, serve


class Trafgen:
    def hello(self):
        output = subprocess.run(["trafgen", "--version"], capture_output=True, text=True).stdout
        version = re.search(r"trafgen (\S+)", output)
        abilities = {
            "streams": 16,
            "delay": True,
            "endless": True,
            "repeat": True,
            # Each frame is a packet of the configuration, which trafgen keeps in memory.
            "frames": 50_000,
            "frame_bytes": [60, 2048],
            # It sleeps between two frames, for 50 us at least.
            "frames_per_second": 20_000,
        }
        return (version.group(1) if version else "", abilities)

    def command(self, stream, interface):
        rate = stream["rate"]
        gap_ns, rest = divmod(rate["seconds"] * 1_000_000_000, rate["frames"])
        if rest:
            note("trafgen sends a frame of stream %d every %d ns, not exactly as planned" % (stream["stream"], gap_ns))
        # One processor, so that frames stay in order; the card's interrupts and sockets of others stay as they are.
        command = ["trafgen", "--out", interface, "--conf", "-", "--cpus", "1", "--notouch-irq", "--no-sock-mem"]
        return command + ["--num", str(stream["count"] or 0), "--gap", "%dns" % gap_ns]

    def input(self, stream):
        # It reads the packets before the start, waits for the end of its input, and then sends them in turn.
        for frame in frames_of(stream["capture"]["file"]):
            yield ("{" + ",".join("%d" % byte for byte in frame) + "}\n").encode()

    def lead(self, stream):
        return 0

    def count(self, text):
        frames = re.search(r"(\d+) packets outgoing", text)
        size = re.search(r"(\d+) bytes outgoing", text)
        if not frames or not size:
            return None
        times = re.findall(r"(\d+) sec, (\d+) usec on CPU", text)
        seconds = max((int(sec) + int(usec) / 1e6 for sec, usec in times), default=0)
        return (int(frames.group(1)), int(size.group(1)), 0, seconds)


if __name__ == "__main__":
    serve("trafgen", Trafgen())
