"""Draws the conversations of a trial for sender.c, and reads back what it sent."""

import ipaddress
import random

TCP, UDP = 6, 17
FLOWS = 700
# As sender.c closes a conversation.
CLOSING = {"none": 0, "fin": 1, "rst": 2}


def draw_rates(rng, is_steady):
    """Packets per second each way: 1 to 100, many of them few. Steady flows have no pauses."""
    if is_steady:
        return [round(100 * 0.2 ** rng.random(), 3) for _ in range(2)]
    return [round(100 ** rng.random() ** 2, 3) for _ in range(2)]


def draw_flow(rng, number):
    """One conversation; its addresses and ports are no other's."""
    protocol = TCP if rng.random() < 0.5 else UDP
    family = 4 if rng.random() < 0.6 else 6
    is_steady, is_constant = rng.random() < 0.08, rng.random() < 0.15
    replies = rng.choice([1, 1, 1, 2, 3]) if not is_steady and rng.random() < 0.3 else 0
    has_bare_acks = protocol == TCP and replies == 1 and rng.random() < 0.5
    base = ipaddress.ip_address("10.0.0.0" if family == 4 else "2001:db8::")
    least = rng.choice([16, 48, 120, 400])
    closing = rng.choice(list(CLOSING)) if protocol == TCP and not is_constant else "none"
    return {
        "number": number,
        "family": family,
        "protocol": protocol,
        "addresses": [str(base + 256 * number + rng.randrange(1, 250)), str(base + 2**20 + rng.randrange(1, 4000))],
        "ports": [1024 + rng.randrange(60000), rng.choice([53, 80, 443, 5060, 4500])],
        "rates": draw_rates(rng, is_steady),
        "is_steady": is_steady,
        "is_constant": is_constant,
        "has_identification": rng.random() < 0.5 and not is_constant,
        # Behind the ports: at the beginning of the data, where RTP has its numbers, or far behind.
        "counter_at": rng.choice([0, 0, 2, 12]),
        "replies": replies,
        "has_bare_acks": has_bare_acks,
        "least": least,
        "most": least if rng.random() < 0.4 else least + rng.choice([100, 800]),
        "closing": closing,
        "life_ms": 0 if is_steady or rng.random() < 0.4 else int(2000 * 20 ** rng.random()),
    }


def draw_flows(seed, count=FLOWS):
    rng = random.Random(f"flows {seed}")
    return [draw_flow(rng, number) for number in range(count)]


def line_of(flow):
    fields = [flow["family"], flow["protocol"], *flow["addresses"], *flow["ports"], *flow["rates"]]
    fields += [int(flow[name]) for name in ("is_steady", "is_constant", "has_identification", "counter_at", "replies")]
    fields += [int(flow["has_bare_acks"]), flow["least"], flow["most"], CLOSING[flow["closing"]], flow["life_ms"]]
    return " ".join(str(field) for field in fields)


def write_flows(path, flows, seed):
    with open(path, "w") as file:
        file.write(f"{len(flows)} {seed}\n")
        file.write("".join(f"{line_of(flow)}\n" for flow in flows))


def mapped(address):
    """As the collector's files have it: 16 bytes."""
    found = ipaddress.ip_address(address)
    return found.packed if found.version == 6 else b"\0" * 10 + b"\xff\xff" + found.packed


def key_of(flow, direction):
    """Addresses, ports and protocol, as a packet of this direction has them."""
    source, destination = flow["addresses"][direction], flow["addresses"][1 - direction]
    return (
        mapped(source),
        mapped(destination),
        flow["ports"][direction],
        flow["ports"][1 - direction],
        flow["protocol"],
    )


def read_truth(path, flows):
    """By key: what was sent of each direction."""
    truth = {}
    with open(path) as file:
        for line in file:
            number, direction, packets, octets, same = map(int, line.split())
            flow = flows[number]
            truth[key_of(flow, direction)] = {
                "flow": number,
                "direction": direction,
                "packets": packets,
                "bytes": octets,
                "same": same,
                "is_constant": flow["is_constant"],
                "is_steady": flow["is_steady"],
            }
    return truth
