"""Draws trials by seed and number: how many meters, whether one exports for all, and a chain of faults."""

import random

KINDS = ["kill", "terminate", "freeze", "copy", "control", "export", "collector"]
# A program decides the roles in some trials. The judge is that program: it writes the file of roles.
PLAIN, ELECTION, FILE = "all export", "election", "file"


def draw_length(rng, kind):
    """For how many seconds the fault lasts."""
    if kind in ("kill", "terminate"):
        return round(rng.uniform(0.05, 3), 2)
    if kind == "freeze":
        return round(rng.uniform(0.2, 3), 2)
    return round(rng.uniform(0.1 if kind == "collector" else 0.3, 3), 2)


def draw_fault(rng, mode):
    kinds = [kind for kind in KINDS if mode != PLAIN or kind not in ("copy", "control")]
    kind = rng.choice(kinds)
    return {
        "kind": kind,
        "target": "active" if rng.random() < 0.6 else "other",
        "length": draw_length(rng, kind),
        "delay": 0 if rng.random() < 0.5 else round(rng.uniform(0.5, 2.5), 2),
    }


def draw_trial(seed, number):
    rng = random.Random(f"chain {seed} {number}")
    mode = PLAIN if rng.random() < 0.2 else FILE if rng.random() < 0.15 else ELECTION
    ending = rng.choice(["all", "survivor"])
    return {
        "number": number,
        "traffic": rng.randrange(2**32),
        "mode": mode,
        "meters": 2 if rng.random() < 0.65 else 3,
        "advertise": "10ms" if rng.random() < 0.3 else "100ms",
        "faults": [draw_fault(rng, mode) for _ in range(rng.randint(1, 4))],
        "ending": ending,
        "ending_signal": rng.choice(["SIGKILL", "SIGTERM"]),
        # Traffic after the last fault, and how long after the last packet the meters end.
        "after": round(rng.uniform(1, 4), 2),
        "quiet": rng.choice([0.8, 0.8, 4]),
    }


def draw_long_trial(seed, minutes, kinds=()):
    """A pair with a fault every ten seconds or so, as its meters become ready again. Of `kinds`: these in turn, each so
    short that it is over before the meters know of it."""
    rng = random.Random(f"long {seed}")
    faults = [draw_fault(rng, ELECTION) for _ in range(6 * minutes)]
    if kinds:
        for number, fault in enumerate(faults):
            fault.update(kind=kinds[number % len(kinds)], length=round(rng.uniform(0.3, 0.5), 2), delay=0)
    trial = {"number": 0, "traffic": rng.randrange(2**32), "mode": ELECTION, "meters": 2, "advertise": "100ms"}
    return trial | {"minutes": minutes, "faults": faults, "ending": "all", "ending_signal": "SIGTERM", "after": 2, "quiet": 4}


def describe(trial):
    faults = ", ".join(f"{fault['kind']} {fault['target']} {fault['length']:g} s" for fault in trial["faults"])
    ending = "SIGINT to all" if trial["ending"] == "all" else f"{trial['ending_signal']} to all but one"
    return f"{trial['number']} ({trial['mode']}, {trial['meters']} meters, {trial['advertise']}: {faults}; {ending})"
