"""Common parts of the pScheduler tool plug-in `packetrig`.

Reads the configuration, translates a test of pScheduler into a series of probes, and finds out whether
packetrig may send it. Invariant: a field that packetrig cannot honour is refused with a reason, never
ignored.

Python 3.6 or newer, standard library only.
"""
import configparser
import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
from decimal import Decimal, InvalidOperation
from typing import List, NamedTuple, Optional

NANOSECONDS = 1_000_000_000
CONFIG_FILE = "/etc/pscheduler/tool/packetrig.conf"
# Names another configuration file. The tests use it; pScheduler does not set it.
CONFIG_VARIABLE = "PACKETRIG_TOOL_CONFIG"
# The highest version of both test specifications that this plug-in knows.
MAX_SPEC_SCHEMA = 4
# Time for everything except the probes: name resolution, up to 3.5 s for the hardware address of the next
# hop, and the start and end of the programs.
MARGIN_S = 10
# pScheduler stops `can-run` after 5 s. The look-up of the limits sends nothing and takes milliseconds.
LIMITS_TIMEOUT_S = 4

DEFAULT_BUCKET_WIDTH = 0.001

# Frame sizes include the FCS, as in `packetrig probe --size`.
ETHERNET_BYTES = 18
IP_BYTES = {4: 20, 6: 40}
# A UDP header and the header of an echo request have the same length.
TRANSPORT_BYTES = 8
# A STAMP request of packetrig: 44 bytes (RFC 8762) and the Follow-Up Telemetry TLV (RFC 8972) of 20 bytes.
STAMP_BYTES = 64
TLV_HEADER_BYTES = 4
# Size of an echo request if `--size` is absent.
DEFAULT_ECHO_FRAME_BYTES = 102
SHORTEST_FRAME_BYTES = 64
LONGEST_FRAME_BITS = 1514 * 8


class PluginError(Exception):
    """The input or the configuration is invalid; the method ends with exit code 1."""


class TestRefused(Exception):
    """packetrig cannot run the test as it is specified."""

    def __init__(self, reasons: List[str]):
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class TestFields(NamedTuple):
    """Names and default values of the fields that both test types have under different names."""

    count: str
    interval: str
    timeout: str
    size: str
    protocols: List[str]
    default_count: int
    default_interval_ns: int
    # Fields that are translated, or that concern pScheduler only.
    honoured: List[str]
    # Boolean fields that are accepted only if they are false, with the reason.
    only_false: dict
    # Fields that are refused with any value, with the reason.
    refused: dict


COMMON_FIELDS = ["schema", "source", "source-node", "dest", "ip-version", "protocol"]
NO_TOS = "packetrig cannot set the type of service of its probes (ip-tos)"

TEST_FIELDS = {
    "latency": TestFields(
        count="packet-count", interval="packet-interval", timeout="packet-timeout", size="packet-padding",
        protocols=["stamp"],
        default_count=100, default_interval_ns=NANOSECONDS // 10,
        honoured=COMMON_FIELDS + ["dest-node", "bucket-width"],
        only_false={
            "output-raw": "packetrig does not report the TTL that each raw packet must have (output-raw)",
            "flip": "the sender always runs at the source (flip)",
            "reverse": "the records of packetrig lack the true departure times of reflections (reverse)",
            "traverse-nat": "packetrig does nothing to traverse a NAT (traverse-nat)",
        },
        refused={
            "ctrl-port": "STAMP has no control connection (ctrl-port); set the port in " + CONFIG_FILE,
            "data-ports": "packetrig cannot limit its own port to a range (data-ports)",
            "ip-tos": NO_TOS,
        },
    ),
    "rtt": TestFields(
        count="count", interval="interval", timeout="timeout", size="length",
        protocols=["stamp", "icmp"],
        default_count=5, default_interval_ns=NANOSECONDS,
        honoured=COMMON_FIELDS + ["port"],
        only_false={
            "hostnames": "packetrig does not look up the names of addresses (hostnames)",
            "suppress-loopback": "packetrig sends no multicast (suppress-loopback)",
        },
        refused={
            "deadline": "packetrig has no deadline for a whole series (deadline)",
            "flow-label": "packetrig cannot set the flow label (flow-label)",
            "fragment": "packetrig cannot choose whether routers may fragment its probes (fragment)",
            "ip-tos": NO_TOS,
            "ttl": "packetrig cannot set the TTL of its probes (ttl)",
        },
    ),
}


class ToolConfig(NamedTuple):
    """Content of the configuration file."""

    program: str
    allow: List[str]
    permit: Optional[str]
    port: int
    clock_bound: Optional[str]

    def permission_options(self) -> List[str]:
        """Returns the options of `packetrig probe` that permit targets."""
        options = [option for network in self.allow for option in ("--allow", network)]
        return options + (["--permit", self.permit] if self.permit else [])


class ProbeSeries(NamedTuple):
    """The probes that a test asks for."""

    is_latency: bool
    is_stamp: bool
    dest: str
    source: Optional[str]
    ip_version: Optional[int]
    count: int
    interval_ns: int
    wait_ns: int
    # Bytes that the test asks for: padding of a latency test, length of an rtt test.
    size: Optional[int]
    # Port of the reflector; `None` stands for the configured one.
    port: Optional[int]
    # Seconds of a bucket of the histogram of a latency test.
    bucket_width: float

    def frame_bytes(self, ip_version: int) -> Optional[int]:
        """Returns the size of the frames with FCS; `None` if the test does not ask for a size."""
        if not self.size:
            return None
        headers = ETHERNET_BYTES + IP_BYTES[ip_version] + TRANSPORT_BYTES
        if self.is_latency:
            return headers + STAMP_BYTES + TLV_HEADER_BYTES + self.size
        return headers + self.size

    def duration_s(self) -> int:
        """Returns the seconds that the test takes at most, rounded up."""
        probes_ns = self.count * self.interval_ns + self.wait_ns
        return -(-probes_ns // NANOSECONDS) + MARGIN_S


def run_method(method) -> None:
    """Runs a method of the plug-in: JSON on standard input and output, a failure on standard error."""
    try:
        answer = method(read_input())
    except (PluginError, TestRefused) as error:
        sys.exit("packetrig: " + one_line(str(error)))
    json.dump(answer, sys.stdout)
    print()


def read_input() -> dict:
    try:
        value = json.load(sys.stdin)
    except ValueError as error:
        raise PluginError("the input is not valid JSON: {}".format(error))
    if not isinstance(value, dict):
        raise PluginError("the input is not a JSON object")
    return value


def one_line(text: str) -> str:
    """Returns a text of another program as one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def read_config() -> ToolConfig:
    """Reads the configuration file. Without the file, packetrig probes loopback addresses only."""
    parser = configparser.ConfigParser(interpolation=None)
    file = os.environ.get(CONFIG_VARIABLE, CONFIG_FILE)
    try:
        parser.read(file)
        values = dict(parser["packetrig"]) if parser.has_section("packetrig") else {}
    except (configparser.Error, OSError, UnicodeError) as error:
        raise PluginError("cannot read {}: {}".format(file, error))
    unknown = [key for key in values if key not in ToolConfig._fields]
    if unknown:
        raise PluginError("{}: unknown setting: {}".format(file, ", ".join(unknown)))
    port = values.get("port", "862")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise PluginError("{}: port is not a valid port: {}".format(file, port))
    return ToolConfig(
        program=values.get("program", "/usr/bin/packetrig"),
        allow=values.get("allow", "").replace(",", " ").split(),
        permit=values.get("permit") or None,
        port=int(port),
        clock_bound=values.get("clock_bound") or None,
    )


def read_series(test: dict) -> ProbeSeries:
    """Translates a test; refuses it, with all reasons, if packetrig cannot do exactly what it asks for."""
    test_type, spec = test.get("type"), test.get("spec")
    if test_type not in TEST_FIELDS:
        raise TestRefused(["the test type is missing" if test_type is None else
                           "packetrig does not run tests of the type {}".format(one_line(str(test_type)))])
    if not isinstance(spec, dict):
        raise TestRefused(["the test specification is missing"])
    # pScheduler treats fields whose names begin with # as comments.
    spec = {name: value for name, value in spec.items() if not name.startswith("#")}
    fields = TEST_FIELDS[test_type]
    reasons = find_unsupported_fields(spec, fields)
    values = SpecValues(spec, reasons)
    protocol = values.read_protocol(fields)
    is_latency = test_type == "latency"
    series = ProbeSeries(
        is_latency=is_latency,
        is_stamp=protocol != "icmp",
        dest=values.read_host("dest"),
        source=values.read_host("source") if "source" in spec else None,
        ip_version=values.read_integer("ip-version", None, 4, 6),
        # The times of the first probe do not count, so a latency test needs a second one.
        count=values.read_integer(fields.count, fields.default_count, 2 if is_latency else 1, 2**32 - 1),
        interval_ns=values.read_time_ns(fields.interval, fields.default_interval_ns, is_latency),
        wait_ns=values.read_time_ns(fields.timeout, NANOSECONDS, is_latency),
        size=values.read_integer(fields.size, None, 0, 65535),
        port=values.read_integer("port", None, 1, 65535),
        bucket_width=values.read_bucket_width(),
    )
    reasons += find_size_problems(series)
    if series.port is not None and not series.is_stamp:
        reasons.append("echo requests have no port (port)")
    if reasons:
        raise TestRefused(reasons)
    return series


def find_unsupported_fields(spec: dict, fields: TestFields) -> List[str]:
    """Returns a reason for each field of a specification that packetrig cannot honour."""
    reasons = [reason for field, reason in fields.refused.items() if field in spec]
    reasons += [reason for field, reason in fields.only_false.items() if spec.get(field, False) is not False]
    known = fields.honoured + [fields.count, fields.interval, fields.timeout, fields.size]
    known += list(fields.refused) + list(fields.only_false)
    reasons += ["unknown field: {}".format(one_line(field)) for field in spec if field not in known]
    schema = spec.get("schema", 1)
    if not is_integer(schema) or not 1 <= schema <= MAX_SPEC_SCHEMA:
        reasons.append("unknown version of the test specification: {}".format(one_line(str(schema))))
    return reasons


def find_size_problems(series: ProbeSeries) -> List[str]:
    """Returns why packetrig cannot send probes of exactly the size that an rtt test asks for."""
    size = series.size
    if series.is_latency or size is None:
        return []
    if not series.is_stamp:
        least = SHORTEST_FRAME_BYTES - ETHERNET_BYTES - IP_BYTES[4] - TRANSPORT_BYTES
        return [] if size >= least else ["the least length of an echo request is {} (length)".format(least)]
    # A STAMP request grows by whole TLVs (RFC 8972), and the smallest one has four bytes.
    if size == STAMP_BYTES or size >= STAMP_BYTES + TLV_HEADER_BYTES:
        return []
    return ["a STAMP request has {} bytes, or {} and more (length)".format(
        STAMP_BYTES, STAMP_BYTES + TLV_HEADER_BYTES)]


def is_integer(value) -> bool:
    # In Python, true and false are integers.
    return isinstance(value, int) and not isinstance(value, bool)


class SpecValues:
    """Reads the values of a specification. An invalid value adds a reason, and the default is returned."""

    def __init__(self, spec: dict, reasons: List[str]):
        self.spec = spec
        self.reasons = reasons

    def read_protocol(self, fields: TestFields) -> str:
        protocol = self.spec.get("protocol", "stamp")
        if protocol not in fields.protocols:
            supported = " or ".join(fields.protocols)
            self.reasons.append("packetrig supports the protocol {} (protocol)".format(supported))
        return protocol

    def read_host(self, field: str) -> str:
        host = self.spec.get(field)
        if isinstance(host, str) and host:
            return host
        self.reasons.append("{} is not a host".format(field))
        return ""

    def read_integer(self, field: str, default: Optional[int], least: int, most: int) -> Optional[int]:
        value = self.spec.get(field, default)
        if value is default:
            return default
        if is_integer(value) and least <= value <= most and (field != "ip-version" or value in IP_BYTES):
            return value
        self.reasons.append("{} is not within {} to {}".format(field, least, most))
        return default

    def read_bucket_width(self) -> float:
        width = self.spec.get("bucket-width", DEFAULT_BUCKET_WIDTH)
        if isinstance(width, float) and 0 < width < 1:
            return width
        self.reasons.append("bucket-width is not between 0 and 1")
        return DEFAULT_BUCKET_WIDTH

    def read_time_ns(self, field: str, default_ns: int, is_number: bool) -> int:
        """Reads a time in nanoseconds: a number of seconds, or an ISO 8601 duration."""
        if field not in self.spec:
            return default_ns
        value = self.spec[field]
        time_ns = parse_seconds_ns(value) if is_number else parse_duration_ns(value)
        # With no time to wait, every probe would count as lost.
        if time_ns:
            return time_ns
        self.reasons.append("{} is not a time above zero".format(field))
        return default_ns


def parse_seconds_ns(value) -> Optional[int]:
    try:
        seconds = Decimal(str(value))
    except InvalidOperation:
        return None
    if isinstance(value, (bool, str)) or not seconds.is_finite() or seconds < 0:
        return None
    return int(round(seconds * NANOSECONDS))


def duration_parts(units: str) -> str:
    """Returns a pattern of optional numbers with their units; at least one must be there."""
    parts = [r"(?:(?P<{0}>[0-9]+(?:\.[0-9]+)?){0})?".format(unit) for unit in units]
    return "(?=.)" + "".join(parts)


SECONDS_OF_UNIT = {"W": 604800, "D": 86400, "H": 3600, "M": 60, "S": 1}
# Months and years have no fixed length, so pScheduler does not use them.
DURATION = re.compile("P" + duration_parts("WD") + "(?:T" + duration_parts("HMS") + ")?")


def parse_duration_ns(value) -> Optional[int]:
    """Parses an ISO 8601 duration of weeks, days, hours, minutes and seconds; `None` if it is invalid."""
    parts = DURATION.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return None
    seconds = sum(Decimal(parts.group(unit) or 0) * length for unit, length in SECONDS_OF_UNIT.items())
    return int(round(seconds * NANOSECONDS))


def format_duration(time_ns: float) -> str:
    """Formats nanoseconds as an ISO 8601 duration. A time below zero is within its error bound of zero."""
    whole = max(0, int(round(time_ns)))
    return "PT{}.{:09d}S".format(whole // NANOSECONDS, whole % NANOSECONDS)


def find_target(series: ProbeSeries) -> str:
    """Returns the address to probe: one that the kernel reaches from the source of the test."""
    problems = []
    for address in resolve_host(series.dest, series.ip_version):
        if series.source is None:
            return address
        kernel_source = find_kernel_source(address)
        sources = resolve_host(series.source, 6 if ":" in address else 4, may_be_empty=True)
        if kernel_source in sources:
            return address
        problems.append("probes to {} leave with the source {}, not {} (source)".format(
            address, kernel_source or "none: there is no route", one_line(series.source)))
    raise TestRefused(problems)


def resolve_host(host: str, ip_version: Optional[int], may_be_empty: bool = False) -> List[str]:
    family = {4: socket.AF_INET, 6: socket.AF_INET6, None: socket.AF_UNSPEC}[ip_version]
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        if may_be_empty:
            return []
        raise TestRefused(["cannot resolve {}: {}".format(one_line(host), error)])
    return [str(ipaddress.ip_address(entry[4][0])) for entry in found]


def find_kernel_source(address: str) -> Optional[str]:
    """Returns the source address that the kernel chooses for a target, as packetrig does; sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a UDP socket only looks up the route. 9 is the discard port.
            probe.connect((address, 9))
        except OSError:
            return None
        return str(ipaddress.ip_address(probe.getsockname()[0]))


def prepare_series(test: dict, config: ToolConfig):
    """Returns the series of a test and its target; refuses what packetrig cannot send from this host."""
    series = read_series(test)
    if series.is_latency and config.clock_bound is None:
        raise TestRefused(["no one-way delays: the error bound of this machine's clock is unknown; state it "
                           "with clock_bound in " + CONFIG_FILE])
    target = find_target(series)
    limits = read_limits(config, target)
    reasons = find_exceeded_limits(series, 6 if ":" in target else 4, limits)
    if reasons:
        raise TestRefused(reasons)
    return series, target


def read_limits(config: ToolConfig, target: str) -> dict:
    """Asks packetrig whether it may probe a target, and how much; sends nothing."""
    command = [config.program, "probe", "allowed", target, "--json"] + config.permission_options()
    try:
        done = run_captured(command, LIMITS_TIMEOUT_S)
        if done.returncode != 0:
            raise TestRefused([error_of_program(done.stderr, done.returncode)])
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise TestRefused(["cannot run {}: {}".format(config.program, error)])


def run_captured(command: List[str], timeout_s: float):
    """Runs a program without input and returns its exit code and outputs."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=timeout_s)


def error_of_program(stderr: str, exit_code: int) -> str:
    """Returns the error that packetrig printed, without its remarks."""
    errors = [line[len("error: "):] for line in stderr.splitlines() if line.startswith("error: ")]
    return one_line(" ".join(errors)) or "packetrig ended with exit code {}".format(exit_code)


def find_exceeded_limits(series: ProbeSeries, ip_version: int, limits: dict) -> List[str]:
    """Returns which limits of the target a series exceeds; packetrig itself would refuse it at its start."""
    reasons = []
    if series.count > limits["most"]:
        reasons.append("at most {} probes in all are permitted to this target".format(limits["most"]))
    shortest = ETHERNET_BYTES + IP_BYTES[ip_version] + TRANSPORT_BYTES + STAMP_BYTES
    default = shortest if series.is_stamp else DEFAULT_ECHO_FRAME_BYTES
    # packetrig counts bits without the FCS.
    bits = 8 * ((series.frame_bytes(ip_version) or default) - 4)
    burst = limits["burst"]
    if exceeds_rate(series, 1, burst, limits["probes_per_s"]):
        reasons.append("at most {} probes/s (bursts of {}) are permitted to this target".format(
            limits["probes_per_s"], burst))
    if exceeds_rate(series, bits, burst * LONGEST_FRAME_BITS, limits["bits_per_s"]):
        reasons.append("at most {} bit/s are permitted to this target".format(limits["bits_per_s"]))
    return reasons


def exceeds_rate(series: ProbeSeries, cost: int, burst: int, rate_per_s: int) -> bool:
    """Returns whether regular probes exceed a token bucket that holds `burst` and fills with `rate_per_s`."""
    if rate_per_s == 0:
        return True
    # All values are tokens times nanoseconds. The bucket loses `cost` with each probe and gains in between.
    loss = cost * NANOSECONDS - series.interval_ns * rate_per_s
    return (series.count - 1) * loss + cost * NANOSECONDS > burst * NANOSECONDS
