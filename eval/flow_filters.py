"""flow_filters.py PROGRAM NFTEST.C DIRECTORY: asks packetrig the filters that nfdump's own test asks nfdump (src/test/nftest.c, of 1.7.2
and later), about the same records. Prints JSON: what was answered alike, what differs, and what packetrig refuses, each with the reason.

The test sets fields of one record step by step and says what each filter answers. Its statements are read, not compiled: each state of the
record becomes a row of a Parquet file. Needs DuckDB, which writes that file."""

import ast
import collections
import ipaddress
import json
import os
import re
import subprocess
import sys
import time

import duckdb

ADDRESS, NUMBER, MOMENT = "BLOB", "UBIGINT", "TIMESTAMP_NS"
NO_ADDRESS = bytes(16)
# What a record of packetrig cannot hold, by a word of the filters that ask for it.
LIMITS = {
    "vlan": "a record has one VLAN for each side of the exporter: 243 replaces 58",
    "mpls": "a record keeps three labels of a stack",
    "mac": "a record has no MAC addresses from behind the exporter",
    "ipv6": "a record whose addresses are zeros has none",
}
CONSTANTS = {"IPPROTO_TCP": 6, "IPPROTO_IPIP": 4, "flagDF": 2}


def statements(text):
    """The statements of C text, with `{` and `}` as statements of their own."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*(//|#).*$", "", text, flags=re.M)
    current, depth, quote, at = "", 0, None, 0
    while at < len(text):
        letter = text[at]
        if quote:
            if letter == "\\":
                current += text[at : at + 2]
                at += 2
                continue
            quote = None if letter == quote else quote
        elif text.startswith("//", at):
            at = text.find("\n", at)
            continue
        elif letter in "\"'":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif depth == 0 and letter in ";{}":
            if current.strip():
                yield " ".join(current.split())
            if letter != ";":
                yield letter
            current, at = "", at + 1
            continue
        current += letter
        at += 1


def milliseconds(text):
    moment = duckdb.sql(f"select epoch_ms(timestamp '{text}')").fetchone()
    return moment[0]


class Record:
    """The record of the test: the fields of its extensions, and which extensions it has."""

    def __init__(self):
        self.fields = collections.defaultdict(int)
        self.present = set()
        self.order = []
        self.names = dict(CONSTANTS)
        self.countries = {}

    def value(self, node):
        """The value of an expression; only what the test needs."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id, 0)
        if isinstance(node, ast.Attribute):
            return self.fields[node.value.id, node.attr]
        if isinstance(node, ast.Subscript):
            index = self.value(node.slice)
            if isinstance(node.value, ast.Name):
                return self.names[node.value.id][index]
            return self.fields[node.value.value.id, node.value.attr, index]
        if isinstance(node, ast.Call):
            given = [self.value(one) for one in node.args]
            called = {"ParseTime8601": milliseconds, "time": lambda _: int(time.time())}
            return called.get(node.func.id, lambda same: same)(*given)
        left, right = self.value(node.left), self.value(node.right)
        kinds = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.LShift: "__lshift__", ast.BitOr: "__or__", ast.BitAnd: "__and__"}
        return getattr(left, kinds[type(node.op)])(right)

    def expression(self, text):
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)LL\b", r"\1", text.replace("->", "."))
        return self.value(ast.parse(text, mode="eval").body)

    def extend(self, extension):
        self.present.add(extension)
        # The extension that came last decides where two have the same field.
        self.order = [one for one in self.order if one != extension] + [extension]

    def run(self, statement):
        """Carries out a statement, if it changes the record."""
        if found := re.match(r"Push\w*\(recordHeaderV3, \w+, (\w+)", statement):
            self.extend(found[1])
        elif found := re.match(r"(Enable|Disable)Extension\(\(void \*\)(\w+)", statement):
            if found[1] == "Enable":
                self.extend(found[2])
            else:
                self.present.discard(found[2])
        elif found := re.match(r'inet_pton\(PF_INET6?, "([^"]+)", &?(v[46])', statement):
            packed = ipaddress.ip_address(found[1]).packed
            halves = [int.from_bytes(packed[at : at + 8], "big") for at in (0, 8)]
            self.names[found[2]] = halves if found[2] == "v6" else halves[0]
        elif found := re.match(r"ptr\[OFFgeo(\w+?)( \+ 1)?\] = '(\w)'", statement):
            before = self.countries.get(found[1], "")
            self.countries[found[1]] = before + found[3] if found[2] else found[3]
        elif found := re.match(r"(\w+)->(\w+)(?:\[(\w+)\])? = (.+)$", statement):
            try:
                number = self.expression(found[4])
            except (KeyError, SyntaxError, TypeError, AttributeError):
                return
            place = (found[1], found[2])
            self.fields[place if found[3] is None else (*place, self.expression(found[3]))] = number

    def of(self, *places):
        """The value of the last of these fields that the record has."""
        known = [(self.order.index(place[0]), place) for place in places if place[0] in self.present]
        return self.fields[max(known)[1]] if known else 0

    def address(self, v4, v6):
        """The address in the last of two extensions that the record has; v4 and v6 are (extension, field)."""
        known = [extension for extension in self.order if extension in (v4[0], v6[0]) and extension in self.present]
        if not known:
            return NO_ADDRESS
        if known[-1] == v6[0]:
            return b"".join(self.fields[(*v6, half)].to_bytes(8, "big") for half in (0, 1))
        return bytes(10) + b"\xff\xff" + self.fields[v4].to_bytes(4, "big")

    def row(self):
        """Its columns."""
        number = lambda name, *places: (name, NUMBER, self.of(*places))
        moment = lambda name, place: (name, MOMENT, self.of(place) * 10**6)
        address = lambda name, v4, v6: (name, ADDRESS, self.address(v4, v6))
        mpls = lambda name, entry: (name, NUMBER, self.fields["mplsLabel", "mplsLabel", entry])
        mac = lambda name, field: (name, ADDRESS, self.fields["macAddr", field].to_bytes(6, "big"))
        generic = lambda field: ("genericFlow", field)
        return [
            moment("flowStartNanoseconds", generic("msecFirst")),
            moment("flowEndNanoseconds", generic("msecLast")),
            address("sourceIPv6Address", ("ipv4", "srcAddr"), ("ipv6", "srcAddr")),
            address("destinationIPv6Address", ("ipv4", "dstAddr"), ("ipv6", "dstAddr")),
            number("sourceTransportPort", generic("srcPort")),
            number("destinationTransportPort", generic("dstPort")),
            number("protocolIdentifier", generic("proto")),
            ("icmpTypeCode", NUMBER, self.of(generic("icmpType")) << 8 | self.of(generic("icmpCode"))),
            number("packetDeltaCount", generic("inPackets")),
            number("octetDeltaCount", generic("inBytes")),
            number("reversePacketDeltaCount", ("cntFlow", "outPackets")),
            number("reverseOctetDeltaCount", ("cntFlow", "outBytes")),
            number("tcpControlBits", generic("tcpFlags")),
            number("ipClassOfService", generic("srcTos")),
            number("postIpClassOfService", ("flowMisc", "dstTos")),
            number("bgpSourceAsNumber", ("asRouting", "srcAS")),
            number("bgpDestinationAsNumber", ("asRouting", "dstAS")),
            number("ingressInterface", ("flowMisc", "input")),
            number("egressInterface", ("flowMisc", "output")),
            number("dot1qVlanId", ("vlan", "srcVlan"), ("layer2", "vlanID")),
            number("postVlanId", ("vlan", "dstVlan"), ("layer2", "postVlanID")),
            number("dot1qCustomerVlanId", ("layer2", "customerVlanId")),
            address("ipNextHopIPv6Address", ("nextHopV4", "ip"), ("nextHopV6", "ip")),
            address("bgpNextHopIPv6Address", ("bgpNextHopV4", "ip"), ("bgpNextHopV6", "ip")),
            address("exporterIPv6Address", ("receivedV4", "ip"), ("receivedV6", "ip")),
            number("observationDomainId", ("observation", "domainID")),
            mpls("mplsTopLabelStackSection", 0),
            mpls("mplsLabelStackSection2", 1),
            mpls("mplsLabelStackSection3", 2),
            mac("sourceMacAddress", "inSrcMac"),
            mac("destinationMacAddress", "inDstMac"),
            address("postNATSourceIPv6Address", ("natXlateIPv4", "xlateSrcAddr"), ("natXlateIPv6", "xlateSrcAddr")),
            address("postNATDestinationIPv6Address", ("natXlateIPv4", "xlateDstAddr"), ("natXlateIPv6", "xlateDstAddr")),
            number("postNAPTSourceTransportPort", ("natXlatePort", "xlateSrcPort")),
            number("postNAPTDestinationTransportPort", ("natXlatePort", "xlateDstPort")),
            address("outerSourceIPv6Address", ("tunIPv4", "tunSrcAddr"), ("tunIPv6", "tunSrcAddr")),
            address("outerDestinationIPv6Address", ("tunIPv4", "tunDstAddr"), ("tunIPv6", "tunDstAddr")),
            number("minimumTTL", ("ipInfo", "minTTL")),
            number("maximumTTL", ("ipInfo", "maxTTL")),
        ]


def assertions(text):
    """Filters of the test: the row they are asked about, and what nfdump answers (-1: it refuses)."""
    record, asked, body = Record(), [], re.search(r"runTest\(void\) \{(.*?)\n\}", text, re.S)[1]
    loop = None
    for statement in statements(body):
        if found := re.match(r"for \(int (\w+) = 0; \w+ < (\d+)", statement):
            loop = (found[1], int(found[2]), [])
        elif loop and statement == "}":
            for turn in range(loop[1]):
                record.names[loop[0]] = turn
                for one in loop[2]:
                    record.run(one)
            loop = None
        elif loop:
            loop[2].append(statement)
        elif found := re.match(r'CheckFilter\("(.*)", recordHandle, (-?\d+)\)$', statement):
            asked.append((found[1].replace('\\"', '"'), int(found[2]), record.row(), dict(record.countries)))
        else:
            record.run(statement)
    return asked


# Where the row of a filter that asks for countries has which address: the test sets countries, and not the addresses they follow from.
PLACES = {
    "SrcIP": ("sourceIPv6Address", "2001:db8::1"),
    "DstIP": ("destinationIPv6Address", "2001:db8::2"),
    "SrcNatIP": ("postNATSourceIPv6Address", "2001:db8::3"),
    "DstNatIP": ("postNATDestinationIPv6Address", "2001:db8::4"),
}


def with_countries(row, countries):
    addresses = {PLACES[place][0]: ipaddress.ip_address(PLACES[place][1]).packed for place in countries}
    return [(name, kind, addresses.get(name, value)) for name, kind, value in row]


def write_rows(rows, path):
    columns = [("flowId", NUMBER)] + [(name, kind) for name, kind, _ in rows[0]]
    connection = duckdb.connect()
    connection.execute("create table rows (" + ", ".join(f'"{name}" {"BIGINT" if kind == MOMENT else kind}' for name, kind in columns) + ")")
    places = ", ".join("?" * len(columns))
    for number, row in enumerate(rows):
        connection.execute(f"insert into rows values ({places})", [number, *(value for _, _, value in row)])
    shown = ", ".join(f'make_timestamp_ns("{name}") as "{name}"' if kind == MOMENT else f'"{name}"' for name, kind in columns)
    connection.execute(f"copy (select {shown} from rows order by \"flowId\") to '{path}' (format parquet, compression zstd)")


def ask(program, path, names, row, text):
    """Whether the filter selects the row, and the reason why it was refused."""
    command = [program, "flows", "show", path, "--columns", "flowId", "--json", "--filter", f"flowId {row}", "--filter", text, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return int(bool(done.stdout.strip())), ""
    if "--filter: " not in done.stderr:
        raise RuntimeError(f"{text}: {done.stderr}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return -1, f"{lines[0].split('--filter: ')[1]}: {lines[-1]}"


def judge(program, source, directory):
    with open(source, encoding="utf-8", errors="replace") as file:
        asked = assertions(file.read())
    path, geo = os.path.join(directory, "filters.parquet"), os.path.join(directory, "countries.tsv")
    rows = [with_countries(row, countries) if "geo" in text.split() else row for text, _, row, countries in asked]
    write_rows(rows, path)
    countries = next((countries for *_, countries in reversed(asked) if countries), {})
    with open(geo, "w", encoding="ascii") as file:
        for place, code in countries.items():
            file.write(f"{PLACES[place][1]}\t{PLACES[place][1]}\t64500\t{code}\tnftest\n")
    names = ["--names", geo]
    found = {"asked": len(asked), "same": 0, "refused": [], "limits": [], "differing": []}
    for number, (text, expected, *_) in enumerate(asked):
        answer, reason = ask(program, path, names if "geo" in text.split() else [], number, text)
        limit = next((why for word, why in LIMITS.items() if word in text.split()), None)
        if answer == expected:
            found["same"] += 1
        elif answer == -1:
            found["refused"].append([text, reason])
        elif limit:
            found["limits"].append([text, limit])
        else:
            found["differing"].append([text, f"nfdump {expected}, packetrig {answer}"])
    return found


if __name__ == "__main__":
    print(json.dumps(judge(*sys.argv[1:4])))
