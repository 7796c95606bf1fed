"""Scenarios: what is sent, what the device and the rig's machine do to it, and what is asked.

The same whenever seed and number are.
"""

import random

from device import model, worst_truth

BACK_ENDS = ("packet", "xdp", "af-xdp")
OPTIONS = {
    "loss": "--max-loss",
    "duplicates": "--max-duplicates",
    "damaged": "--max-damaged",
    "misdelivered": "--max-misdelivered",
    "reordered": "--max-reordered",
    "altered": "--max-altered",
    "jitter": "--max-jitter",
    "outage": "--max-outage",
    "rate": "--min-rate",
}
ZERO_BY_DEFAULT = ("loss", "duplicates", "damaged", "misdelivered")
LATENCIES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "p9999": "p99.99", "mean": "mean", "max": "max"}
SHARES = ("loss", "duplicates", "damaged", "misdelivered", "reordered", "altered", "rate")
MS = 1_000_000
# Where the device adds nothing: limits that its few microseconds keep.
CALM = {"jitter": (0.2 * MS, 2 * MS), "outage": (3 * MS, 20 * MS), "latency": (1 * MS, 5 * MS)}


# ---- faults of the device: rules of the forwarder, and the figures that they change ----


def lose_one(r, n, rate):
    at = r.randrange(1, n - 1)
    return [f"drop from={at} to={at + 1}"], ["loss", "outage", "rate"]


def lose_bursts(r, n, rate):
    rules = []
    for _ in range(r.randint(1, 4)):
        at = r.randrange(1, n - 60)
        rules.append(f"drop from={at} to={at + r.randint(2, 50)}")
    return rules, ["loss", "outage", "rate"]


def lose_share(r, n, rate):
    return [f"drop share={r.randint(1, 300)} seed={r.randrange(10**6)}"], ["loss", "rate", "outage"]


def lose_periodically(r, n, rate):
    return [f"drop every={r.randint(2, 100)} from={r.randint(1, 50)}"], ["loss", "outage", "rate"]


def lose_end(r, n, rate):
    return [f"drop from={n - r.choice((1, 1, 2, 5, 20, n // 10))}"], ["outage", "loss", "rate"]


def lose_half(r, n, rate):
    return [f"drop from={n // 2}"], ["rate", "loss"]


def lose_for_a_time(r, n, rate):
    begin, length = int(n / rate * 1e6 * r.uniform(0.3, 0.6)), r.randint(20, 300) * 1000
    return [f"drop begin_us={begin} end_us={begin + length}"], ["outage", "loss", "rate"]


def lose_and_double(r, n, rate):
    each = r.randint(5, 20)
    return [f"drop every={each} from=1", f"double every={each} from=2"], ["rate", "loss", "duplicates"]


def double(r, n, rate):
    return [f"double every={r.randint(1, 50)} from={r.randint(0, 9)}"], ["duplicates"]


def copy_all(r, n, rate):
    """The plan asks for two copies of each frame (rx_tx_ratio 2), and the device makes them; of some it makes none."""
    at = r.randrange(1, n - 60)
    return ["double every=1"] + r.choice(([], [f"drop from={at} to={at + r.randint(1, 50)}"])), ["loss"]


def reorder(r, n, rate):
    every = r.randint(10, 100)
    return [f"reorder every={every} from=5 by={r.randint(1, every - 1)} to={n - 120}"], ["reordered"]


def damage(r, n, rate):
    return [f"damage every={r.randint(5, 200)} from=3"], ["damaged"]


def alter(r, n, rate):
    return [f"alter every={r.randint(5, 200)} from=3"], ["altered"]


def reflect(r, n, rate):
    return [f"reflect every={r.randint(5, 200)} from=3"], ["misdelivered"]


def delay(r, n, rate):
    names = [f"latency {name}" for name in LATENCIES]
    return [f"delay us={r.randint(300, 20_000)}"], r.sample(names, 3)


def hold(r, n, rate):
    """Stands still now and then, in order; quiet at the end."""
    length, end = r.randint(2, 40) * 1000, int(n / rate * 1e6 * r.uniform(0.5, 0.9))
    names = ["latency max", "latency p9999", "latency p999", "latency p99", "latency p90", "latency mean"]
    return [f"hold period_us={length + r.randint(5, 100) * 1000} length_us={length} end_us={end}"], [
        "jitter",
        *r.sample(names, 2),
    ]


def alternate(r, n, rate):
    rules = [f"alternate us={r.randint(300, 4000)} keep={r.choice((1, 1, 2, 5, 50))}"]
    return rules, ["jitter", "latency p90", "latency mean"]


def police_plan(r, n, rate):
    """A policer that the plan keeps to."""
    return [f"police rate={int(rate * r.choice((1.02, 1.05, 1.1)))} burst={r.choice((10, 20, 50))}"], ["loss"]


def police_too_much(r, n, rate):
    return [f"police rate={int(rate * r.uniform(0.7, 0.97))} burst={r.choice((5, 20, 50))}"], ["loss", "rate"]


DEVICE_FAULTS = (
    lose_half,
    hold,
    alternate,
    lose_end,
    delay,
    lose_one,
    lose_bursts,
    police_plan,
    lose_and_double,
    lose_share,
    double,
    lose_periodically,
    reorder,
    lose_for_a_time,
    damage,
    police_too_much,
    alter,
    reflect,
    copy_all,
)


# ---- faults of the rig ----


def draw_rig_faults(r, seconds):
    """(faults, busy loops)"""
    kind = r.choice(
        ("stop", "stop", "stop", "load", "stop and load", "rx down", "tx down", "rx mtu", "tx mtu", "rx mac", "delete")
    )
    at = r.uniform(0.2, 0.8) * seconds
    if kind == "load":
        return [], r.randint(2, 5)
    if kind == "delete":
        return [{"kind": "delete", "at": at, "length": 0, "interface": "tx0"}], 0
    if kind[:3] in ("rx ", "tx "):
        return [{"kind": kind[3:], "at": at, "length": r.uniform(0.03, 0.3), "interface": f"{kind[:2]}0"}], 0
    stops = [
        {"kind": "stop", "at": r.uniform(0.1, 0.9) * seconds, "length": r.uniform(0.005, 0.3)}
        for _ in range(r.randint(1, 2))
    ]
    return stops, r.randint(2, 4) if kind == "stop and load" else 0


# ---- limits ----


def draw_limit(r, name, value, frames):
    """Just below or just above the truth; where that is nothing, a limit that a faultless device keeps."""
    keeps = r.random() < 0.5
    if name == "rate":
        return min(1.0, value * (r.uniform(0.9, 0.99) if keeps else r.uniform(1.01, 1.1)))
    if name in SHARES:
        # By less than one frame.
        return max(0.0, min(1.0, value + (0.5 if keeps else -0.5) / frames))
    kind = name.split()[0]
    if value < CALM[kind][0] / 4:
        return r.uniform(*CALM[kind])
    return value * r.uniform(1.02, 1.1) if keeps else value * r.uniform(0.92, 0.98)


def draw_limits(r, scenario, names):
    predicted = worst_truth(model(scenario["rules"], scenario), scenario)
    limits = {name: draw_limit(r, name, predicted[name][1], scenario["packets"]) for name in names}
    for name in ZERO_BY_DEFAULT:
        limits.setdefault(name, 1.0 if predicted[name][1] > 0 else 0.0)
    return limits


def draw_scenario(seed, number):
    r = random.Random(f"scenario {seed} {number}")
    faulty = ("device", "both", "rig")[number % 3]
    rate, seconds = r.choice((1000, 2000, 3000, 5000)), r.uniform(0.8, 1.6)
    streams = r.choice((1, 1, 1, 2))
    packets = int(rate * seconds / streams)
    scenario = {
        "group": "scenario",
        "number": number,
        "faulty": faulty,
        "back_end": BACK_ENDS[number // 3 % 3],
        "rate": rate,
        "streams": streams,
        "packets": packets,
        "rules": [],
        "faults": [],
        "load": 0,
    }
    scenario["options"] = ["--max-late", "5ms"] if r.random() < 0.1 else []
    names = r.sample(["jitter", "outage", "latency max", "latency p99", "rate", "loss"], 3)
    if faulty != "rig":
        fault = DEVICE_FAULTS[
            number // 3 % len(DEVICE_FAULTS) if faulty == "device" else r.randrange(len(DEVICE_FAULTS))
        ]
        scenario["rules"], names = fault(r, packets * streams, rate)
        scenario["device_fault"] = fault.__name__
        scenario["ratio"] = 2 if fault is copy_all else 1
        if fault in (police_plan, police_too_much):
            # Which of two streams that share a policer loses is a matter of their phases, which no plan states.
            scenario |= {"streams": 1, "packets": packets * streams}
    if faulty != "device":
        scenario["faults"], scenario["load"] = draw_rig_faults(r, packets * streams / rate)
    scenario["limits"] = draw_limits(r, scenario, names)
    return scenario


def draw_policer(seed, number):
    """A policer with room above the plan, and a sender that is stopped."""
    r = random.Random(f"policer {seed} {number}")
    rate, room = r.choice((2000, 5000)), (1.02, 1.05, 1.1)[number // 3 % 3]
    packets = int(rate * 1.5)
    stops = [
        {"kind": "stop", "at": r.uniform(0.1, 1.3), "length": r.uniform(0.005, 0.18)} for _ in range(r.randint(1, 2))
    ]
    rules = [f"police rate={int(rate * room)} burst=20"]
    return {
        "group": "policer",
        "number": number,
        "faulty": "rig",
        "back_end": BACK_ENDS[number % 3],
        "rate": rate,
        "streams": 1,
        "packets": packets,
        "rules": rules,
        "faults": stops,
        "load": r.choice((0, 0, 3)),
        "device_fault": "police_plan",
        "limits": dict.fromkeys(ZERO_BY_DEFAULT, 0.0),
        "options": ["--max-late", "5ms"] if r.random() < 0.1 else [],
    }


def draw_bare_cable(seed, number):
    """Tight limits on a cable, on a busy machine; sometimes a stop, up to a second."""
    r = random.Random(f"bare cable {seed} {number}")
    fast = r.random() < 0.6
    rate, streams = (40_000, 10) if fast else (5000, 1)
    limits = {
        "latency max": r.choice((100_000, 400_000)),
        "latency p9999": r.choice((100_000, 400_000)),
        "latency p99": r.choice((50_000, 200_000)),
        "latency mean": 100_000,
        "jitter": r.choice((1_000, 2_000, 5_000)),
        "rate": 0.99,
        "outage": 1 * MS,
        "reordered": 0.0,
        "altered": 0.0,
    }
    limits.update(dict.fromkeys(ZERO_BY_DEFAULT, 0.0))
    stops = (
        [{"kind": "stop", "at": r.uniform(0.2, 0.9), "length": r.choice((0.02, 0.1, 0.19, 0.5, 1.0))}]
        if r.random() < 0.4
        else []
    )
    return {
        "group": "bare_cable",
        "number": number,
        "faulty": "rig",
        "back_end": BACK_ENDS[number % 3],
        "rate": rate,
        "streams": streams,
        "packets": rate // streams,
        "rules": [],
        "faults": stops,
        "load": r.choice((2, 4, 6)),
        "limits": limits,
        "options": [],
    }


DRAW = {"scenario": draw_scenario, "policer": draw_policer, "bare_cable": draw_bare_cable}


def option_values(limits):
    """Options of `packetrig run`."""
    options, latencies = [], []
    for name, limit in limits.items():
        if name in SHARES:
            options += [OPTIONS[name], f"{100 * limit:.6f}%"]
        elif name in OPTIONS:
            options += [OPTIONS[name], f"{round(limit)}ns"]
        else:
            latencies.append(f"{LATENCIES[name.split()[1]]}={round(limit)}ns")
    return options + (["--max-latency", ",".join(latencies)] if latencies else [])
