"""The rig of the hostile client: a network of its own, the server under attack, an honest client, and ways to be another user.

Sockets and frames are written here by hand: nothing is shared with the program or with its other clients.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLONE_NEWNET = 0x40000000
# Longest wait for anything that a correct server does within seconds.
PATIENCE = 180
STRANGER = 4242


def enter_network():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no private network can be had")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))


class Server:
    """`packetrig serve` over plain HTTP and gRPC on loopback ports, with the descriptors that an ordinary shell gives."""

    def __init__(self, *flags):
        self.directory = tempfile.TemporaryDirectory(prefix="packetrig-hostile-")
        self.log = open(f"{self.directory.name}/log", "w+b")
        binary = os.environ.get("PACKETRIG_BIN") or str(ROOT / "target/debug/packetrig")
        command = [binary, "serve", "--plain-http", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"]
        command += [f"--store={self.directory.name}/store", *flags]
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, preexec_fn=limit
        )
        eventually("the server tells its addresses", lambda: self.text().count("OTG over") == 2)
        self.http = self._address("OTG over HTTP: http://")
        self.grpc = self._address("OTG over gRPC: ")

    def _address(self, before):
        line = next(line for line in self.text().splitlines() if line.startswith(before))
        host, port = line[len(before):].rsplit(":", 1)
        return host, int(port)

    def text(self):
        with open(self.log.name, "rb") as file:
            return file.read().decode(errors="replace")

    def memory(self):
        """Resident memory, MiB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) / 1024

    def stop(self):
        """Ends it as users do, and returns what it refused, as it says."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.text()
        text = self.text()
        assert "panicked" not in text, text
        self.log.close()
        self.directory.cleanup()
        refused = [line for line in text.splitlines() if "refused since the start: " in line]
        return refused[-1].split("refused since the start: ", 1)[1] if refused else ""


@contextlib.contextmanager
def serving(*flags):
    server = Server(*flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def eventually(what, condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def connect(address, source="0.0.0.0"):
    # Nothing that has to be loaded first: another user may not be able to read the interpreter's files.
    stream = socket.socket(socket.AF_INET)
    stream.settimeout(PATIENCE)
    stream.bind((source, 0))
    stream.connect(address)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def as_user(user, work):
    """What `work` returns when another user does it, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"user {user} failed"
    return json.loads(said)


@contextlib.contextmanager
def kept_by(user, work):
    """While another user's process holds what `work` made. It says when it is ready."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            held = work()
            os.write(writer, b"ready")
            while True:
                held()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 5) == b"ready", f"user {user} failed"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)


# HTTP/1.1

HONEST = {"Host": "localhost", "Content-Type": "application/json"}


def head(method, path, length, headers):
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_response(stream):
    """Status and body. `None`: the connection was closed instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            return None
        data += part
    first, body = data.split(b"\r\n\r\n", 1)
    length = next(int(line[15:]) for line in first.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        part = stream.recv(65536)
        if not part:
            return None
        body += part
    return int(first.split()[1]), body.decode()


def ask(address, method="GET", path="/config", body="", headers=HONEST):
    with connect(address) as stream:
        try:
            stream.sendall(head(method, path, len(body), headers) + body.encode())
            return read_response(stream)
        except (ConnectionResetError, BrokenPipeError):
            return None


# HTTP/2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, GOAWAY, CONTINUATION = 0, 1, 3, 4, 7, 9


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header as HPACK has it, in plain text and not to be indexed."""
    def text(value):
        raw = value.encode()
        assert len(raw) < 127
        return bytes([len(raw)]) + raw
    return b"\0" + text(name) + text(value)


def call_head(rpc, extra=(), media="application/grpc", authority="localhost"):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/otg.Openapi/{rpc}"), (":authority", authority)]
    fields += [("te", "trailers"), ("content-type", media), *extra]
    return b"".join(literal(name, value) for name, value in fields)


def message(payload=b""):
    return struct.pack(">BI", 0, len(payload)) + payload


def call(address, rpc="GetVersion", payload=b"", **how):
    """The bytes of the answer's message; `None` if there is none."""
    with connect(address) as stream:
        try:
            stream.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, call_head(rpc, **how)))
            stream.sendall(frame(DATA, 1, 1, message(payload)))
            return read_message(stream)
        except (ConnectionResetError, BrokenPipeError):
            return None


def read_message(stream):
    data, answer = b"", None
    while True:
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            payload, data = data[9 : 9 + length], data[9 + length :]
            if kind == DATA:
                answer = (answer or b"") + payload
            if kind in (GOAWAY, RESET) or (kind in (DATA, HEADERS) and flags & 1):
                return answer
        part = stream.recv(65536)
        if not part:
            return answer
        data += part
