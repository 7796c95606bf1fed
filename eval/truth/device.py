"""The device alone: what it would do to the plan (a model of the forwarder's rules), and what it did to what entered.

A truth has two ends. `least`: a PASS with a limit below it is wrong. `blame`: a FAIL with a limit at or above it is
wrong. For a smallest rate it is the other way round. They differ where the rig's own timing leaves room: frames that
were never sent, gaps that a stall made longer, and losses of a policer behind a sender that left its plan.
"""

from figures import first_arrivals, jitter_figures, latency_figures, lost_runs, order_figures

MASK = (1 << 64) - 1


def hash_number(seed, number):
    x = (seed * 0x9E3779B97F4A7C15 & MASK) ^ number
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def parse_rule(text):
    action, *words = text.split()
    return action, {name: int(value) for name, value in (word.split("=") for word in words)}


def selects(rule, number, since_us):
    if number < rule.get("from", 0) or ("to" in rule and number >= rule["to"]):
        return False
    if "every" in rule and (number - rule.get("from", 0)) % rule["every"]:
        return False
    if since_us < rule.get("begin_us", 0) or ("end_us" in rule and since_us >= rule["end_us"]):
        return False
    return "share" not in rule or hash_number(rule.get("seed", 0), number) % 1000 < rule["share"]


class Bucket:
    """A token bucket (RFC 2697 with one rate)."""

    def __init__(self, rule):
        self.rate, self.burst, self.tokens, self.filled = rule["rate"], rule["burst"], rule["burst"], None

    def takes(self, at):
        if self.filled is not None:
            self.tokens = min(self.burst, self.tokens + (at - self.filled) * self.rate / 1e9)
        self.filled = at
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def exit_time(rules, number, at):
    """When a frame leaves that enters at `at` (ns since the first); rules that delay."""
    due, since_us = at, at // 1000
    for action, rule in rules:
        if not selects(rule, number, since_us):
            continue
        if action == "delay" or (action == "alternate" and number // rule.get("keep", 1) % 2):
            due += rule["us"] * 1000
        elif action == "hold":
            begin = since_us - (since_us - rule.get("begin_us", 0)) % rule["period_us"]
            if since_us < begin + rule["length_us"]:
                due = max(due, (begin + rule["length_us"]) * 1000)
    return due


def model(rules, plan):
    """Rows and flags of each stream, as device_rows() has them, if the plan is sent on time."""
    rules = [parse_rule(rule) for rule in rules]
    buckets = {index: Bucket(rule) for index, (action, rule) in enumerate(rules) if action == "police"}
    streams = plan["streams"]
    found = {stream: {"entered": {}, "exits": [], "flags": {}} for stream in range(streams)}
    line, aside, last = [], [], 0
    for number in range(plan["packets"] * streams):
        stream, sequence, at = number % streams, number // streams, number * 10**9 // plan["rate"]
        flags = [
            action
            for index, (action, rule) in enumerate(rules)
            if selects(rule, number, at // 1000) and (action != "police" or not buckets[index].takes(at))
        ]
        found[stream]["entered"][sequence], found[stream]["flags"][sequence] = at, flags
        if "drop" in flags or "police" in flags:
            continue
        if "reorder" in flags:
            wait = next(rule["by"] for action, rule in rules if action == "reorder")
            aside.append([wait, stream, sequence, at])
            continue
        last = max(last, exit_time(rules, number, at))
        line.append((stream, sequence, at, last))
        for held in aside:
            held[0] -= 1
        line += [(s, q, entered, last + 1) for wait, s, q, entered in aside if wait == 0]
        aside = [held for held in aside if held[0] > 0]
    for stream, sequence, entered, left in line:
        copies = 2 if "double" in found[stream]["flags"][sequence] else 1
        found[stream]["exits"] += [(sequence, left, left - entered)] * copies
    return found


def differs_from_script(streams, scenario):
    """Whether the forwarder did something else than its script says; None where times and not numbers decide."""
    rules = scenario["rules"]
    if scenario["streams"] > 1 or any("us=" in rule or rule.startswith("police") for rule in rules) or not streams:
        return None
    wanted, got = model(rules, scenario)[0]["flags"], streams[0]["flags"]
    known = set(LETTERS.values())
    return (
        any(sorted(got[number]) != sorted(known & set(wanted[number])) for number in got)
        if len(got) == len(wanted)
        else None
    )


LETTERS = {"D": "drop", "2": "double", "B": "reflect", "C": "damage", "A": "alter"}


def add_flags(rows, fates):
    """The log's flags, by the names of the rules."""
    for stream in rows.values():
        stream["flags"] = {}
    for fate in fates:
        rows[fate.stream]["flags"][fate.sequence] = [LETTERS[letter] for letter in fate.flags if letter in LETTERS]
    return rows


def outage_ends(rows, plan):
    """Outages of the device: as long as the plan has frames between the arrivals around them, and as arrivals were.

    One at the end of a stream lasts until its last frame would have arrived."""
    interval = 10**9 * plan["streams"] / plan["rate"]
    entered, exits = rows["entered"], dict(first_arrivals([(s, at) for s, at, _ in rows["exits"]]))
    least = blame = 0
    for begin, end in lost_runs(sorted(entered), exits):
        planned = (end - begin + 2) * interval
        before, after = begin - 1, end + 1
        if before not in exits or after not in exits:
            blame = max(blame, planned - interval)
            if before in exits:
                least = max(least, min(planned - interval, entered[end] - entered[before]))
            continue
        held = (exits[after] - entered[after]) - (exits[before] - entered[before])
        least = max(least, min(exits[after] - exits[before], planned))
        blame = max(blame, min(entered[after] - entered[before], planned) + max(0, held), entered[end] - entered[begin])
    return least, blame


def stream_truth(rows, plan):
    """(least, blame) of every figure that has a criterion."""
    planned, entered = plan["packets"], len(rows["entered"])
    exits = [(sequence, at) for sequence, at, _ in rows["exits"]]
    first = first_arrivals(exits)
    inside = [time for _, _, time in rows["exits"]]

    def share(count):
        return (count / planned, count / max(1, entered))

    def flagged(name):
        return share(sum(name in flags for flags in rows["flags"].values()))

    dropped = entered - len(first)
    truth = {
        "loss": share(dropped),
        "duplicates": flagged("double"),
        "misdelivered": flagged("reflect"),
        "damaged": flagged("damage"),
        "altered": flagged("alter"),
        "reordered": share(order_figures(first)["reordered"]),
        "outage": outage_ends(rows, plan),
        # What was never sent is nobody's loss.
        "rate": ((planned - dropped) / planned, len(first) / max(1, entered)),
    }
    if plan.get("ratio", 1) == 2:
        missing = 2 * entered - len(exits)
        truth["loss"], truth["duplicates"] = (missing / planned / 2, missing / max(1, entered) / 2), (0, 0)
    jitter = jitter_figures(inside).get("rfc3550_max", 0)
    truth["jitter"] = (jitter, jitter)
    for name, value in latency_figures(inside).items():
        truth[f"latency {name}"] = (value, value)
    return truth


def worst_truth(streams, plan):
    """A criterion holds for each stream: the worst decides."""
    worst = {}
    for rows in streams.values():
        for name, (least, blame) in stream_truth(rows, plan).items():
            choose = min if name == "rate" else max
            before = worst.get(name, (least, blame))
            worst[name] = (choose(before[0], least), choose(before[1], blame))
    return worst


def device_truth(streams, scenario):
    """The truth of what happened; losses of a policer count as the plan would have had them."""
    truth = worst_truth(streams, scenario)
    if any(rule.startswith("police") for rule in scenario["rules"]):
        planned = worst_truth(model(scenario["rules"], scenario), scenario)
        for name in ("loss", "outage", "rate"):
            choose = max if name == "rate" else min
            truth[name] = (choose(truth[name][0], planned[name][0]), planned[name][1])
    return truth
