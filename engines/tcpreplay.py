"""Engine tcpreplay: plays the files that packetrig made, one process for each stream."""

import re
import subprocess

from adapter import serve


class Tcpreplay:
    def hello(self):
        output = subprocess.run(["tcpreplay", "--version"], capture_output=True, text=True)
        version = re.search(r"tcpreplay version: (\S+)", output.stdout + output.stderr)
        abilities = {
            "streams": 16,
            "delay": True,
            "bursts": True,
            "endless": True,
            "repeat": True,
            "frame_bytes": [60, 9018],
        }
        return (version.group(1) if version else "", abilities)

    def command(self, stream, interface):
        command = ["tcpreplay", "--intf1=" + interface, "--timer=nano", "--stats=1"]
        if stream["burst"] is None:
            rate = stream["rate"]
            command.append("--pps=%.6f" % (rate["frames"] / rate["seconds"]))
        # With bursts it keeps the times of the file, which begins again as often as needed.
        if stream["capture"]["repeat"]:
            command.append("--loop=0" if stream["count"] is None else self.loops(stream))
        if stream["count"] is not None:
            command.append("--limit=%d" % stream["count"])
        return command + [stream["capture"]["file"]]

    def loops(self, stream):
        return "--loop=%d" % -(-stream["count"] // stream["capture"]["frames"])

    def input(self, stream):
        return None

    def lead(self, stream):
        # It takes about 60 ms from its start to its first frame. Rather a little late than too early.
        return 0.05

    def count(self, text):
        sent = re.findall(r"Actual: (\d+) packets \((\d+) bytes\) sent in ([\d.]+) seconds", text)
        if not sent:
            return None
        frames, size, seconds = sent[-1]
        failed = re.findall(r"Failed packets:\s+(\d+)", text)
        return (int(frames), int(size), int(failed[-1]) if failed else 0, float(seconds))


if __name__ == "__main__":
    serve("tcpreplay", Tcpreplay())
