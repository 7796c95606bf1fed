"""Looks into namespaces: when records come to the collector and what meters say of themselves."""

import ctypes
import os
import socket
import struct
import threading
import time

CLONE_NEWNET = 0x40000000
ALL = 0x0003


def socket_within(namespace, *kind):
    """A socket keeps the namespace in which it was opened. Only the calling thread goes there and back."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{namespace}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        return socket.socket(*kind)
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(there)


def read_metrics(namespace, port):
    """What a meter serves at /metrics; a comment with the reason if it does not answer."""
    try:
        with socket_within(namespace, socket.AF_INET, socket.SOCK_STREAM) as link:
            link.settimeout(2)
            link.connect(("127.0.0.1", port))
            # Only names of this machine are answered.
            link.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return link.makefile("rb").read().decode()
    except OSError as error:
        return f"# {type(error).__name__}: {error}\n"


def metric_of(text, name):
    """The value of a metric by the end of its name; None if it is not there."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and not line.startswith("#") and words[0].split("{")[0].endswith(name):
            return float(words[1])
    return None


class Watch(threading.Thread):
    """`arrivals`: (monotonic seconds, last number of the sender's address) of each segment with data."""

    def __init__(self, link, record):
        super().__init__(daemon=True)
        self.link, self.arrivals, self.is_over = link, [], False
        self.record = record
        link.settimeout(0.2)

    def run(self):
        while not self.is_over:
            try:
                frame, place = self.link.recvfrom(70000 if self.record else 96)
            except TimeoutError:
                continue
            now = time.monotonic()
            if len(frame) < 40 or frame[9] != 6 or frame[19] != 9 or place[2] == socket.PACKET_OUTGOING:
                continue
            header = (frame[0] & 15) * 4
            length = int.from_bytes(frame[2:4], "big") - header - (frame[header + 12] >> 4) * 4
            if length > 0:
                self.arrivals.append((now, frame[15]))
                if self.record:
                    self.record.write(recorded(now, frame, header, length))

    def stop(self):
        self.is_over = True
        self.join()
        self.link.close()
        if self.record:
            self.record.close()

    def write(self, path, began):
        """For who looks at a wrong trial: which meter sent when."""
        with open(path, "w") as file:
            file.write("".join(f"{at - began:.3f} {meter}\n" for at, meter in self.arrivals))

    def longest_gap(self, begin, end):
        """Seconds without records between two moments."""
        moments = [begin, *(at for at, _ in self.arrivals if begin < at < end), end]
        return max(after - before for before, after in zip(moments, moments[1:]))


def recorded(now, frame, header, length):
    """Time, last number of the address, port, TCP sequence number, length, data: a collector can be fed with them again."""
    start = header + (frame[header + 12] >> 4) * 4
    data = frame[start : start + length]
    port, sequence = int.from_bytes(frame[header : header + 2], "big"), int.from_bytes(frame[header + 4 : header + 8], "big")
    return struct.pack("<dBHII", now, frame[15], port, sequence, len(data)) + data


def open_watch(namespace, record=None):
    link = socket_within(namespace, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
    if record:
        # All data, which may come in bursts. SO_RCVBUFFORCE has no name in Python.
        link.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    watch = Watch(link, record)
    watch.start()
    return watch
