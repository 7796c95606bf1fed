"""Hand packets over to `packetrig probe serve`, which sends each at its time.

SPDX-License-Identifier: MIT OR Apache-2.0

    with ReleaseClient() as client:
        packet = udp_packet(source_for("198.18.0.2"), 40000, "198.18.0.2", 9, b"hello")
        client.submit([Packet(packet, now() + 10_000_000)])
        for event in client.events(timeout=1):
            print(event)

A `ReleaseClient` is one connection, for one thread at a time. All times are nanoseconds. The protocol is described in
docs/book/release-protocol.md. Needs Python 3.9 and Linux, and no other package.
"""

import enum
import ipaddress
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Iterator, Optional, Sequence, Union

USUAL_PATH = "/run/packetrig/release.sock"
MESSAGE_BYTES = 65536
FRAME, IP = 1, 2
REALTIME, MONOTONIC, TAI = 0, 1, 11

_MAGIC, _VERSION = 0x50525253, 1
_HELLO, _SUBMIT, _CANCEL, _LISTEN, _STATUS, _TARGET = range(1, 7)
_WELCOME, _ACCEPTED, _REPORT, _CANCELLED, _LISTENING, _ANSWER, _ERROR, _STATE, _LIMITS = range(129, 138)
_HEADER = struct.Struct("=HHIQ")
_HELLO_BODY = struct.Struct("=IHBB32sQ")
_WELCOME_BODY = struct.Struct("=HHIIIIIQQQQ6sBB16sIIQII")
_LIMITS_BODY = struct.Struct("=QQQII")
_PACKET = struct.Struct("=QQQIHBB")
_STAMP = struct.Struct("=QQBBHI")
_ENTRY = struct.Struct("=QQQQIHH")
_ANSWER_BODY = struct.Struct("=IHHII")
_ENTRY_BYTES, _FAULT_BYTES, _ENTRIES_AT, _FRAME_AT = 160, 8, 24, 56


class ReleaseError(Exception):
    """The service refused, is not there, or broke the protocol."""


class Outcome(enum.IntEnum):
    """What became of a packet."""

    SENT = 0
    LATE = 1
    QUEUE_FULL = 2
    NOT_PERMITTED = 3
    OVER_LIMIT = 4
    MALFORMED = 5
    WRONG_SOURCE = 6
    TOO_LONG = 7
    CLASH = 8
    CANCELLED = 9
    NO_ROUTE = 10
    TOO_FAR_AHEAD = 11
    DROPPED = 12
    ENDED = 13
    FAILED = 14
    TRAIN_REFUSED = 15


class Flag(enum.IntFlag):
    """Remarks on a packet."""

    LATE = 1
    EARLY = 2
    STOLEN = 4
    STAMP_MISSING = 8
    CONTRADICTION = 16
    SHIFTED = 32


@dataclass(frozen=True)
class Packet:
    """A packet to be sent at `release_at` of `clock`, or up to `latest` nanoseconds later (0: however late)."""

    data: bytes
    release_at: int
    cookie: int = 0
    train: int = 0
    latest: int = 0
    kind: int = IP
    clock: int = MONOTONIC


@dataclass(frozen=True)
class Limits:
    """What may be sent to one target. `most` packets of this user in all; `burst` at once."""

    packets_per_s: int
    bits_per_s: int
    most: int
    burst: int


@dataclass(frozen=True)
class Welcome:
    """What the service granted."""

    mechanism: str
    interface: int
    interface_name: str
    mac: bytes
    mtu: int
    batch_packets: int
    quota_packets: int
    quota_bytes: int
    lead_ns: int
    tolerance_ns: int
    horizon_ns: int
    priority: int
    train_packets: int
    frame_bytes: int
    train_ns: int
    targets: int
    limits: Limits  # of the target that may be sent the least


@dataclass(frozen=True)
class Stamp:
    """The true time is not before `lo` and not after `hi`. `device` is N of /dev/ptpN; None: CLOCK_MONOTONIC."""

    lo: int
    hi: int
    source: int
    device: Optional[int] = None


@dataclass(frozen=True)
class Report:
    """What became of a packet. `planned` is of CLOCK_MONOTONIC; a stamp that is not known is None.

    A packet that was refused when it was handed over has its number in the batch (`packet`, from 0) and the byte at which
    its wrong field begins (0: the cookie, 32: the first byte of `data`)."""

    batch: int
    cookie: int
    planned: int
    shifted: int
    train: int
    outcome: Union[Outcome, int]
    flags: Flag
    handed_over: Optional[Stamp]
    released: Optional[Stamp]
    queue: Optional[Stamp]
    driver: Optional[Stamp]
    wire: Optional[Stamp]
    packet: Optional[int] = None
    byte: Optional[int] = None


@dataclass(frozen=True)
class Accepted:
    """A batch was read: so many of its packets are queued, and so many refused."""

    batch: int
    accepted: int
    refused: int
    queued: int


@dataclass(frozen=True)
class Cancelled:
    """So many packets were taken out of the queue."""

    id: int
    packets: int


@dataclass(frozen=True)
class Listening:
    """Answers come from now on, or no longer."""

    id: int


@dataclass(frozen=True)
class Answer:
    """A frame that answers one of our packets. `lost` answers were not taken in time so far."""

    arrival: Optional[Stamp]
    lost: int
    flags: int
    frame_size: int
    frame: bytes


@dataclass(frozen=True)
class State:
    """Counters of this client."""

    id: int
    queued: int
    clients: int
    sent: int
    late: int
    shifted: int
    refused: int
    answers: int


@dataclass(frozen=True)
class TargetLimits:
    """The limits of a target; None: it may not be probed."""

    id: int
    target: str
    limits: Optional[Limits]


@dataclass(frozen=True)
class ServiceError:
    """The service could not do what message `id` asked for. If the message was wrong, `packet` is the number of the wrong
    packet in it (from 0), and `byte` that of the message at which the wrong field begins."""

    id: int
    code: int
    closes: bool
    text: str
    packet: Optional[int] = None
    byte: Optional[int] = None


Event = Union[Report, Accepted, Cancelled, Listening, Answer, State, TargetLimits, ServiceError]
_MECHANISMS = ("sleep", "spin", "ring", "gate", "live", "fq", "etf", "launch")


class ReleaseClient:
    """A connection to the service. Closing it drops what is queued."""

    def __init__(self, path: Optional[str] = None, name: str = "python", priority: int = 0, timeout: float = 2.0):
        self.path = path or os.environ.get("PACKETRIG_RELEASE_SOCKET") or USUAL_PATH
        self._next_id = 1
        self._events: list = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(self.path)
            self._socket.settimeout(timeout)
            label = name.encode()[:32].decode(errors="ignore").encode()
            self._send(_HELLO, _HELLO_BODY.pack(_MAGIC, _VERSION, priority, 0, label, 0))
            self.welcome = self._receive_welcome(timeout)
        except OSError as error:
            self._socket.close()
            raise ReleaseError(f"cannot use {self.path}: {error}; does `packetrig probe serve` run?") from error
        except ReleaseError:
            self._socket.close()
            raise

    def __enter__(self) -> "ReleaseClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """For `select`: readable means that an event may be there."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection. The service drops what is queued."""
        self._socket.close()

    def submit(self, packets: Sequence[Packet]) -> "list[int]":
        """Hands packets over and returns the numbers of their batches: more than one if they do not fit into one
        message. A train is never divided."""
        batches = []
        body, count = b"", 0
        for train in _trains(packets):
            encoded = b"".join(_encode(packet) for packet in train)
            if _ENTRIES_AT + len(encoded) > MESSAGE_BYTES or len(train) > self.welcome.batch_packets:
                raise ReleaseError(f"a train of {len(train)} packets does not fit into one batch")
            full = _ENTRIES_AT + len(body) + len(encoded) > MESSAGE_BYTES
            if full or count + len(train) > self.welcome.batch_packets:
                batches.append(self._submit(body, count))
                body, count = b"", 0
            body, count = body + encoded, count + len(train)
        if count:
            batches.append(self._submit(body, count))
        return batches

    def cancel(self, batch: int = 0, train: int = 0) -> int:
        """Takes packets out of the queue: of all batches unless `batch` is given, all unless `train` is."""
        return self._send(_CANCEL, struct.pack("=QII", batch, train, 0))

    def listen(self, protocol: int = 0, own_port: int = 0, source: Optional[str] = None, most_bytes: int = 0) -> int:
        """Asks for answers to this client's packets that pass the filter. They come as `Answer`."""
        return self._listen(1, protocol, own_port, most_bytes, _mapped(source) if source else bytes(16))

    def stop_listening(self) -> int:
        """Asks for no more answers."""
        return self._listen(0, 0, 0, 0, bytes(16))

    def ask_state(self) -> int:
        """Asks for the counters of this client. They come as `State`."""
        return self._send(_STATUS, b"")

    def ask_limits(self, target: str) -> int:
        """Asks for the limits of a target. They come as `TargetLimits`."""
        return self._send(_TARGET, _mapped(target))

    def next_event(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, or None after `timeout` seconds (None: waits forever)."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            left = None if end is None else max(end - time.monotonic(), 0)
            if not select.select([self._socket], [], [], left)[0]:
                return None
            self._events.extend(self._receive())
        return self._events.pop(0)

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """Events as they come, until none comes within `timeout` seconds (None: forever)."""
        while True:
            event = self.next_event(timeout)
            if event is None:
                return
            yield event

    def reports(self, packets: int, timeout: float) -> Iterator[Report]:
        """So many reports; skips other events. Raises `ReleaseError` if none comes within `timeout` seconds."""
        while packets:
            event = self.next_event(timeout)
            if event is None:
                raise ReleaseError(f"{packets} reports did not come within {timeout} s")
            if isinstance(event, ServiceError):
                raise ReleaseError(event.text)
            if isinstance(event, Report):
                packets -= 1
                yield event

    def _submit(self, body: bytes, count: int) -> int:
        return self._send(_SUBMIT, struct.pack("=II", count, 0) + body)

    def _listen(self, on: int, protocol: int, own_port: int, most_bytes: int, source: bytes) -> int:
        return self._send(_LISTEN, struct.pack("=BBHI16s", on, protocol, own_port, most_bytes, source))

    def _send(self, kind: int, body: bytes) -> int:
        number, self._next_id = self._next_id, self._next_id + 1
        try:
            self._socket.send(_HEADER.pack(kind, 0, _HEADER.size + len(body), number) + body)
        except OSError as error:
            raise ReleaseError(f"the release service does not take a message: {error}") from error
        return number

    def _message(self) -> "tuple[int, int, bytes]":
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except OSError as error:
            raise ReleaseError(f"the connection to the release service broke: {error}") from error
        if not message:
            raise ReleaseError("the release service closed the connection")
        if len(message) < _HEADER.size:
            raise ReleaseError("the release service sent a message that is too short")
        kind, _, length, number = _HEADER.unpack_from(message)
        if length != len(message):
            raise ReleaseError("the release service sent a message of a wrong length")
        return kind, number, message

    def _receive_welcome(self, timeout: float) -> Welcome:
        if not select.select([self._socket], [], [], timeout)[0]:
            raise ReleaseError(f"{self.path}: the release service does not answer")
        kind, number, message = self._message()
        if kind == _ERROR:
            raise ReleaseError(_read_error(number, message).text)
        if kind != _WELCOME or len(message) < _HEADER.size + _WELCOME_BODY.size + _LIMITS_BODY.size:
            raise ReleaseError(f"{self.path} is not a release service")
        fields = _WELCOME_BODY.unpack_from(message, _HEADER.size)
        _, mechanism, interface, mtu, batch, packets, _, size, lead, tolerance, horizon, mac, priority, _, name = fields[:15]
        train_packets, frame_bytes, train_ns, targets, _ = fields[15:]
        limits = _read_limits(message, _HEADER.size + _WELCOME_BODY.size)
        granted = (mtu, batch, packets, size, lead, tolerance, horizon, priority)
        known = _MECHANISMS[mechanism] if mechanism < len(_MECHANISMS) else f"mechanism {mechanism}"
        train = (train_packets, frame_bytes, train_ns, targets)
        return Welcome(known, interface, _text(name), mac, *granted, *train, limits)

    def _receive(self) -> "list[Event]":
        kind, number, message = self._message()
        try:
            return _read_events(kind, number, message)
        except (struct.error, IndexError) as error:
            raise ReleaseError(f"the release service sent a damaged message: {error}") from error


def _read_events(kind: int, number: int, message: bytes) -> "list[Event]":
    if kind == _REPORT:
        (count,) = struct.unpack_from("=I", message, _HEADER.size)
        return [_read_entry(message, n, count) for n in range(count)]
    if kind == _ACCEPTED:
        return [Accepted(number, *struct.unpack_from("=III", message, _HEADER.size))]
    if kind == _CANCELLED:
        return [Cancelled(number, *struct.unpack_from("=I", message, _HEADER.size))]
    if kind == _LISTENING:
        return [Listening(number)]
    if kind == _STATE:
        return [State(number, *struct.unpack_from("=IIQQQQQ", message, _HEADER.size))]
    if kind == _LIMITS:
        address, permitted = struct.unpack_from("=16sI", message, _HEADER.size)
        limits = _read_limits(message, _HEADER.size + 24)
        return [TargetLimits(number, _unmapped(address), limits if permitted else None)]
    if kind == _ERROR:
        return [_read_error(number, message)]
    if kind == _ANSWER:
        lost, size, flags, frame_size, _ = _ANSWER_BODY.unpack_from(message, _HEADER.size + _STAMP.size)
        frame = message[_FRAME_AT : _FRAME_AT + size]
        return [Answer(_read_stamp(message, _HEADER.size), lost, flags, frame_size, frame)]
    return []


def _read_entry(message: bytes, index: int, count: int) -> Report:
    at = _ENTRIES_AT + index * _ENTRY_BYTES
    fault = struct.unpack_from("=HH", message, _ENTRIES_AT + count * _ENTRY_BYTES + index * _FAULT_BYTES)
    packet, byte = (None if number == 0xFFFF else number for number in fault)
    batch, cookie, planned, shifted, train, outcome, flags = _ENTRY.unpack_from(message, at)
    known = Outcome(outcome) if outcome in Outcome._value2member_map_ else outcome
    stamps = [_read_stamp(message, at + _ENTRY.size + n * _STAMP.size) for n in range(5)]
    return Report(batch, cookie, planned, shifted, train, known, Flag(flags), *stamps, packet, byte)


def _read_limits(message: bytes, at: int) -> Limits:
    return Limits(*_LIMITS_BODY.unpack_from(message, at)[:4])


def _read_stamp(message: bytes, at: int) -> Optional[Stamp]:
    lo, hi, clock, source, device, _ = _STAMP.unpack_from(message, at)
    return Stamp(lo, hi, source, device if clock == 2 else None) if clock else None


def _read_error(number: int, message: bytes) -> ServiceError:
    code, closes = struct.unpack_from("=HB", message, _HEADER.size)
    place = struct.unpack_from("=II", message, 224)
    packet, byte = (None if number == 0xFFFFFFFF else number for number in place)
    return ServiceError(number, code, bool(closes), _text(message[24:224]), packet, byte)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")


def _trains(packets: Sequence[Packet]) -> "Iterator[list[Packet]]":
    train: "list[Packet]" = []
    for packet in packets:
        if train and (packet.train == 0 or packet.train != train[0].train):
            yield train
            train = []
        train.append(packet)
    if train:
        yield train


def _encode(packet: Packet) -> bytes:
    size = len(packet.data)
    if not 0 < size < MESSAGE_BYTES:
        raise ReleaseError(f"a packet of {size} bytes cannot be sent")
    times = (packet.cookie, packet.release_at, packet.latest)
    head = _PACKET.pack(*times, packet.train, size, packet.kind, packet.clock)
    return head + packet.data + bytes(-size % 8)


def _mapped(address: str) -> bytes:
    ip = ipaddress.ip_address(address)
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


def _unmapped(address: bytes) -> str:
    ip = ipaddress.IPv6Address(address)
    return str(ip.ipv4_mapped or ip)


def now(clock: int = MONOTONIC) -> int:
    """Nanoseconds of a clock."""
    return time.clock_gettime_ns(clock)


def source_for(target: str) -> str:
    """The address that this machine uses towards `target`."""
    family = socket.AF_INET6 if ipaddress.ip_address(target).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return probe.getsockname()[0]


def udp_packet(source: str, source_port: int, target: str, target_port: int, payload: bytes = b"") -> bytes:
    """An IPv4 or IPv6 packet with a UDP datagram."""
    length = 8 + len(payload)
    head = struct.pack("!HHH", source_port, target_port, length)
    total = _checksum(_pseudo_header(source, target, 17, length) + head + b"\0\0" + payload) or 0xFFFF
    return ip_packet(source, target, 17, head + struct.pack("!H", total) + payload)


def echo_packet(source: str, target: str, identifier: int, sequence: int, payload: bytes = b"") -> bytes:
    """An IPv4 or IPv6 packet with an echo request."""
    is_v6 = ipaddress.ip_address(target).version == 6
    rest = struct.pack("!HH", identifier, sequence) + payload
    kind, protocol = (b"\x80\0", 58) if is_v6 else (b"\x08\0", 1)
    pseudo = _pseudo_header(source, target, protocol, 4 + len(rest)) if is_v6 else b""
    total = _checksum(pseudo + kind + b"\0\0" + rest)
    return ip_packet(source, target, protocol, kind + struct.pack("!H", total) + rest)


def ip_packet(source: str, target: str, protocol: int, payload: bytes) -> bytes:
    """An IPv4 packet that must not be fragmented, or an IPv6 packet; 64 hops."""
    near, far = ipaddress.ip_address(source), ipaddress.ip_address(target)
    if near.version != far.version:
        raise ValueError(f"{source} and {target} are not of the same family")
    if far.version == 6:
        return struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + near.packed + far.packed + payload
    fields = (0x45, 0, 20 + len(payload), 0, 0x4000, 64, protocol)
    addresses = near.packed + far.packed
    total = _checksum(struct.pack("!BBHHHBBH", *fields, 0) + addresses)
    return struct.pack("!BBHHHBBH", *fields, total) + addresses + payload


def _pseudo_header(source: str, target: str, protocol: int, length: int) -> bytes:
    near, far = ipaddress.ip_address(source), ipaddress.ip_address(target)
    rest = struct.pack("!II", length, protocol) if far.version == 6 else struct.pack("!HH", protocol, length)
    return near.packed + far.packed + rest


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
