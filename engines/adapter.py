"""Speaks packetrig's engine protocol for a generator that does not: docs/book/engines.md describes it.

A generator's own module describes it by a class like this and calls `serve` with it:

    class Generator:
        def hello(self): ...                     # (version, abilities)
        def command(self, stream, interface): ...  # one process for each stream; raises Refused
        def input(self, stream): ...             # pieces of its standard input, or None; it sends when that ends
        def lead(self, stream): ...              # without input: seconds from its start to its first frame
        def count(self, text): ...               # (frames, bytes, refused, seconds) from its output, or None

It needs Python 3.7 or newer and nothing else.
"""

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

PROTOCOL = 1
TELL_EVERY_NS = 200_000_000


class Refused(Exception):
    """What a generator cannot do of the plan."""

    def __init__(self, stream, feature, needs, found):
        super().__init__(feature)
        self.message = {"type": "refused", "stream": stream, "feature": feature, "needs": needs, "found": found}


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def note(text):
    send({"type": "note", "text": text})


def frames_of(file):
    """The frames of a capture as packetrig writes it: classic pcap, little-endian, nanoseconds."""
    with open(file, "rb") as capture:
        if capture.read(24)[:4] != struct.pack("<I", 0xA1B23C4D):
            raise ValueError(file + " is not a capture file with nanoseconds")
        while True:
            head = capture.read(16)
            if len(head) < 16:
                return
            yield capture.read(struct.unpack("<IIII", head)[2])


class Orders:
    """Lines from packetrig, read without waiting."""

    def __init__(self):
        self.rest = b""
        self.ended = False

    def next(self, within_seconds):
        """The next message, or None if none comes in time or none will come."""
        give_up = time.monotonic() + within_seconds
        while b"\n" not in self.rest and not self.ended:
            left = max(0, give_up - time.monotonic())
            if not select.select([0], [], [], left)[0]:
                return None
            chunk = os.read(0, 1 << 16)
            self.ended = not chunk
            self.rest += chunk
        if b"\n" not in self.rest:
            return None
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


class Sender:
    """A process of the generator that sends one stream."""

    def __init__(self, generator, stream, preparation):
        self.generator = generator
        self.stream = stream
        command = generator.command(stream, preparation["interface"])
        # Without it, what a generator says would come when it ends.
        self.command = (["stdbuf", "--output=L"] if shutil.which("stdbuf") else []) + command
        self.output_file = os.path.join(preparation["directory"], "%d.out" % stream["stream"])
        self.lead_ns = int(generator.lead(stream) * 1e9)
        self.process = None
        self.released = False
        self.over = False
        self.started_ns = None
        self.ended_ns = None
        pieces = generator.input(stream)
        if pieces is not None:
            self.spawn(subprocess.PIPE)
            for piece in pieces:
                self.process.stdin.write(piece)
            self.process.stdin.flush()

    def spawn(self, source):
        with open(self.output_file, "wb") as output:
            self.process = subprocess.Popen(
                self.command, stdin=source, stdout=output, stderr=subprocess.STDOUT
            )

    def release(self):
        """Has it send: the end of its input is what it waits for, or it is started now."""
        self.released = True
        self.started_ns = now_ns()
        if self.process is None:
            self.spawn(subprocess.DEVNULL)
        else:
            self.process.stdin.close()

    def look(self, start_ns):
        """Starts the process when it is time, and notices its end."""
        if not self.released and self.wait_ns(start_ns) == 0:
            self.release()
        if self.process is not None and self.process.poll() is not None:
            self.ended_ns = now_ns()
            self.over = True

    def wait_ns(self, start_ns):
        """How long until it has to be released; None if it was."""
        if self.released or self.over:
            return None
        return max(0, start_ns + self.stream["delay_ns"] - self.lead_ns - now_ns())

    def give_up(self):
        """Ends it if it has not begun to send."""
        if not self.released:
            self.kill()
            self.over = True

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    def text(self):
        if self.process is None:
            return ""
        with open(self.output_file, "r", errors="replace") as output:
            return output.read()

    def count(self):
        """What it says it has sent."""
        told = {"stream": self.stream["stream"], "frames": 0, "bytes": 0}
        text = self.text()
        found = self.generator.count(text) if self.released else None
        if found is None:
            if self.over and self.released:
                # The counts are all that a generator has to say at its end.
                last = [line for line in text.splitlines() if line.strip()]
                raise RuntimeError(last[-1].strip() if last else "the generator ended and said nothing")
            return told
        frames, size, refused, seconds = found
        told.update(frames=frames, bytes=size, refused=refused)
        if self.over and frames > 0:
            # It says how long it sent, and it ended when it had sent everything.
            first = max(self.started_ns, self.ended_ns - int(seconds * 1e9))
            told.update(first_ns=first, last_ns=self.ended_ns, bound_ns=first - self.started_ns)
        return told


def prepare(generator, preparation):
    return [Sender(generator, stream, preparation) for stream in preparation["streams"]]


def run(orders, senders):
    """Sends from the start until everything is sent or packetrig says stop; gives the ledger."""
    start = None
    while start is None:
        message = orders.next(3600)
        if message is None:
            raise SystemExit(0)
        if message["type"] == "stop":
            return ledger(senders)
        if message["type"] == "start":
            start = message["at_ns"]
    stopped = False
    told_at = now_ns()
    while not all(sender.over for sender in senders):
        waits = [wait for wait in (sender.wait_ns(start) for sender in senders) if wait is not None]
        message = orders.next(min(waits + [20_000_000]) / 1e9)
        if orders.ended:
            time.sleep(0.02)
        if not stopped and (orders.ended or (message is not None and message["type"] == "stop")):
            stopped = True
            stop(senders)
        for sender in senders:
            if not sender.over:
                sender.look(start)
        if now_ns() - told_at >= TELL_EVERY_NS:
            told_at = now_ns()
            send({"type": "counters", "streams": [sender.count() for sender in senders]})
    return ledger(senders)


def stop(senders):
    for sender in senders:
        sender.give_up()
    # As Ctrl-C does: a generator may have processes of its own. packetrig gives each engine a process group.
    os.killpg(os.getpgrp(), signal.SIGINT)


def ledger(senders):
    return {"type": "ledger", "streams": [sender.count() for sender in senders]}


def end(senders):
    for sender in senders:
        sender.kill()


def serve(name, generator):
    senders = []

    def ended(*_):
        # packetrig is gone: nothing that was started may go on sending, nor what that has started.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    signal.signal(signal.SIGTERM, ended)
    # Not ignored, because children would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        version, abilities = generator.hello()
        send({"type": "hello", "protocol": PROTOCOL, "name": name, "version": version, "abilities": abilities})
        orders = Orders()
        preparation = orders.next(3600)
        if preparation is None:
            return
        senders += prepare(generator, preparation)
        send({"type": "ready"})
        send(run(orders, senders))
    except Refused as refused:
        send(refused.message)
    except (RuntimeError, OSError, ValueError) as error:
        send({"type": "failed", "text": str(error)})
    finally:
        end(senders)
