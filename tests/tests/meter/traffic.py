"""Traffic of sockets with segmentation left to the card, and what it must be on the wire by the sender's own account.

    traffic.py serve            takes connections at ports 5004 (IPv4) and 5006 (IPv6), and all datagrams at 6004 and 6006
    traffic.py send V4 V6       sends there; prints packets and IP bytes by port
    traffic.py tap NAME         makes a tap; after SIGUSR1 sends merged datagrams to port 6001 and overlong ones to port 6002
"""
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys

UDP_SEGMENT, TCP_INFO, IPV6_V6ONLY, SO_RCVBUFFORCE = 103, 11, 26, 33
PAYLOAD, SEGMENT, DATAGRAM, DATAGRAMS = 400_000, 1000, 40_500, 2


def bound(family, kind, port):
    server = socket.socket(family, kind)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, IPV6_V6ONLY, 1)
    server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    server.bind(("", port))
    return server


def serve():
    families = ((socket.AF_INET, 4), (socket.AF_INET6, 6))
    listeners = [bound(family, socket.SOCK_STREAM, 5000 + kind) for family, kind in families]
    sinks = [bound(family, socket.SOCK_DGRAM, 6000 + kind) for family, kind in families]
    for listener in listeners:
        listener.listen()
    print("ready", flush=True)
    for listener in listeners:
        connection, _ = listener.accept()
        while connection.recv(1 << 20):
            pass
        connection.close()
    # Whatever was sent has arrived when this ends: no meter is stopped before its last packet.
    for sink in sinks:
        missing = DATAGRAMS * DATAGRAM
        while missing > 0:
            missing -= len(sink.recv(1 << 16))


def send_stream(family, ip, host, port):
    client = socket.socket(family)
    # Fewer packets under way than a virtual cable holds: none is dropped, however late they are taken.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    client.connect((host, port))
    client.sendall(b"x" * PAYLOAD)
    client.shutdown(socket.SHUT_WR)
    while client.recv(10):
        pass
    info = client.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
    (packets,), (payload,) = struct.unpack_from("I", info, 136), struct.unpack_from("Q", info, 200)
    # Time stamps in every header, and eight bytes more of options in the SYN.
    return {"packets": packets, "bytes": payload + packets * (ip + 32) + 8}


def send_datagrams(family, ip, host, port):
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SEGMENT)
    for _ in range(DATAGRAMS):
        client.sendto(b"y" * DATAGRAM, (host, port))
    packets = DATAGRAMS * -(-DATAGRAM // SEGMENT)
    return {"packets": packets, "bytes": DATAGRAMS * DATAGRAM + packets * (ip + 8)}


def send(v4, v6):
    kinds = ((socket.AF_INET, 20, v4, 4), (socket.AF_INET6, 40, v6, 6))
    sent = {5000 + kind: send_stream(family, ip, host, 5000 + kind) for family, ip, host, kind in kinds}
    sent |= {6000 + kind: send_datagrams(family, ip, host, 6000 + kind) for family, ip, host, kind in kinds}
    print(json.dumps(sent))


def datagram(port, payload):
    ethernet = bytes([2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7, 8, 0])
    ends = bytes([198, 18, 1, 1, 198, 18, 1, 2])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + payload, 0, 0x4000, 64, 17, 0) + ends
    return ethernet + ip + struct.pack("!HHHH", 6000, port, 8 + payload, 0) + b"z" * payload


def tap(name):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    device = os.open("/dev/net/tun", os.O_RDWR)
    # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR: each frame behind a virtio_net_hdr, as a virtual machine sends it.
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH", name.encode(), 0x0002 | 0x1000 | 0x4000))
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for _ in range(10):
        # NEEDS_CSUM, GSO_UDP_L4; length of headers, of segments; where the checksum begins, and is.
        os.write(device, struct.pack("BBHHHH", 1, 5, 42, SEGMENT, 34, 6) + datagram(6001, 9500))
        os.write(device, bytes(10) + datagram(6002, 9500))
    print("sent", flush=True)
    signal.pause()


{"serve": serve, "send": send, "tap": tap}[sys.argv[1]](*sys.argv[2:])
