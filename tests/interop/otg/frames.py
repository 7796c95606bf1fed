"""Frames as they are on the wire, read with a packet socket: nothing of the program under test is in between."""

import select
import socket
import struct
import time

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_OUTGOING = 4
TP_STATUS_VLAN_VALID = 1 << 4
TP_STATUS_VLAN_TPID_VALID = 1 << 6
SO_RCVBUFFORCE = 33


class Sniffer:
    """Collects what arrives at an interface from its making on."""

    def __init__(self, interface):
        # Without a protocol it hears nothing; with one it would hear every interface until it is bound to its own.
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        except PermissionError:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind((interface, ETH_P_ALL))

    def take(self, count, quiet=0.15, patience=60):
        """At least `count` frames, and what comes until nothing has come for `quiet` seconds."""
        frames, end = [], time.monotonic() + patience
        while time.monotonic() < end:
            ready, _, _ = select.select([self.socket], [], [], quiet if len(frames) >= count else 1.0)
            if ready:
                frame = self._receive()
                if frame is not None:
                    frames.append(frame)
            elif len(frames) >= count:
                break
        return frames

    def _receive(self):
        data, ancillary, _, address = self.socket.recvmsg(65536, 128)
        if address[2] == PACKET_OUTGOING:
            return None
        for level, kind, body in ancillary:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA) and len(body) >= 20:
                status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", body[:20])
                if status & TP_STATUS_VLAN_VALID:
                    tpid = tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                    data = data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
        return data

    def close(self):
        self.socket.close()


def records(pcap):
    """Timestamp (ns) and bytes of the frames of a classic capture file; its header is checked."""
    magic, major, minor, _, _, snap, link = struct.unpack("<IHHiIII", pcap[:24])
    assert (magic, major, minor, link) == (0xA1B2C3D4, 2, 4, 1), pcap[:24]
    place, found = 24, []
    while place < len(pcap):
        seconds, micros, kept, original = struct.unpack("<IIII", pcap[place : place + 16])
        assert kept <= original and kept <= snap
        found.append(((seconds * 1_000_000 + micros) * 1000, original, pcap[place + 16 : place + 16 + kept]))
        place += 16 + kept
    assert place == len(pcap), "the last record is cut"
    return found
