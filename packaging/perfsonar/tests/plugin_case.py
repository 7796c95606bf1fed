"""Base class of the tests: calls the executables of the plug-in, with a stand-in for packetrig."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import upstream

PLUGIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "packetrig")
LONG_AGO = "2026-01-01T00:00:00+00:00"
TIMEOUT_S = 60
UPSTREAM_OBSTACLE = upstream.find_obstacle()
if UPSTREAM_OBSTACLE:
    print("skipped: the checks with pScheduler's validators:", UPSTREAM_OBSTACLE, file=sys.stderr)

# The limits of `--allow`.
LIMITS = {"most": 100_000, "probes_per_s": 20, "burst": 50, "bits_per_s": 1_000_000}

# Stands in for packetrig: prints what `answer.json` beside it says, and writes the records that it has.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys, time
place = os.path.dirname(os.path.abspath(__file__))
if sys.argv[2] == "allowed":
    print(open(os.path.join(place, "limits.json")).read())
    sys.exit()
with open(os.path.join(place, "started"), "w") as file:
    json.dump({"pid": os.getpid(), "at": time.time(), "argv": sys.argv[1:]}, file)
answer = json.load(open(os.path.join(place, "answer.json")))
time.sleep(answer.get("sleep", 0))
if "records" in answer:
    with open(sys.argv[sys.argv.index("--write") + 1], "w") as file:
        file.write("".join(json.dumps(line) + "\\n" for line in answer["records"]))
print(answer["stdout"])
print(answer.get("stderr", ""), file=sys.stderr)
sys.exit(answer.get("exit", 0))
"""


def stamp(at, bound=0, clock="monotonic"):
    return {"clock": clock, "source": "kernel", "lo": at - bound, "hi": at + bound}


def probe_record(number, delay_ns, **fields):
    """A record of a probe that arrived after a delay; the far clock is one second ahead of ours."""
    departed = 1_000_000 * number
    record = {
        "number": number, "length": 106, "released": stamp(departed - 10),
        "departures": [{"stage": "queue", "stamp": stamp(departed - 5)},
                       {"stage": "driver", "stamp": stamp(departed, 1)},
                       {"stage": "wire", "stamp": stamp(7, clock="device")}],
        "far_arrival": stamp(departed + delay_ns + 1_000_000_000, 3, "far"),
        "answered": stamp(departed + 2 * delay_ns),
    }
    record.update(fields)
    return {name: value for name, value in record.items() if value is not None}


def lost_record(number):
    return probe_record(number, 0, far_arrival=None, answered=None)


def stand_in_answer(records, counts=None, directions=None, no_delay=None, **fields):
    """The output of `packetrig probe stamp` for records."""
    answered = sum("answered" in record for record in records)
    all_counts = {"sent": len(records), "answered": answered, "refused": 0, "duplicates": 0, "reordered": 0}
    all_counts.update(counts or {})
    summary = {
        "counts": all_counts, "end": "done", "said": [],
        "directions": dict({"is_stateful": False, "lost_there": None, "invalid": {}}, **(directions or {})),
        "one_way": {"no_delay": no_delay, "there": {"delay": {"bound_ns": 1_500_000} if answered else None}},
        "rtt": {"min_ns": 1000, "max_ns": 3000, "mean_ns": 2000.4, "mdev_ns": 500.0} if answered else None,
    }
    summary.update(fields)
    header = {"header": {"clock_after": {"offset_ns": 1_000_000_000, "bound_ns": 1}}}
    return {"stdout": json.dumps(summary), "records": [header] + records}


class PluginTest(unittest.TestCase):
    """Calls the executables with a configuration and a stand-in for packetrig."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.mkdtemp()
        cls.upstream = upstream.Upstream(cls.shared) if UPSTREAM_OBSTACLE is None else None

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared)

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.program = os.path.join(self.directory, "packetrig")
        with open(self.program, "w") as file:
            file.write(STAND_IN)
        os.chmod(self.program, 0o755)
        self.write_json("limits.json", LIMITS)
        self.configure(program=self.program, clock_bound="1ms")

    def configure(self, **settings):
        with open(os.path.join(self.directory, "packetrig.conf"), "w") as file:
            file.write("[packetrig]\n")
            file.writelines("{} = {}\n".format(*setting) for setting in settings.items())

    def write_json(self, name, value):
        with open(os.path.join(self.directory, name), "w") as file:
            json.dump(value, file)

    def read_start(self):
        """Returns what the stand-in wrote when it started."""
        with open(os.path.join(self.directory, "started")) as file:
            return json.load(file)

    def environment(self):
        config = os.path.join(self.directory, "packetrig.conf")
        return dict(os.environ, PACKETRIG_TOOL_CONFIG=config, PYTHONDONTWRITEBYTECODE="1")

    def call(self, method, value, exit_code=0):
        """Calls a method of the plug-in; returns its JSON, or its error if a failure is expected."""
        text = value if isinstance(value, str) else json.dumps(value)
        done = subprocess.run([os.path.join(PLUGIN, method)], input=text, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                              timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        if exit_code:
            self.assertEqual(done.stdout, "")
            return done.stderr
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def reasons(self, test_type, **spec):
        """Returns why the plug-in refuses a test; empty if it runs it."""
        answer = self.call("can-run", {"type": test_type, "spec": dict({"dest": "127.0.0.1"}, **spec)})
        self.assertEqual(answer["can-run"], "reasons" not in answer)
        return answer.get("reasons", [])

    def run_test(self, test_type, start=LONG_AGO, **spec):
        """Runs a test as pScheduler does; returns the result of the run and the merged result."""
        test = {"type": test_type, "spec": dict({"schema": 4, "dest": "127.0.0.1"}, **spec)}
        self.check_spec(test)
        job = {"schema": 1, "task-uuid": "x", "schedule": {"start": start, "duration": "PT20S"}, "test": test,
               "participant": 0, "participant-data": [self.call("participant-data", {"participant": 0})]}
        ran = self.call("run", job)
        merged = self.call("merged-results", {"test": test, "results": [ran]})
        self.check_results(test_type, ran, merged)
        return ran, merged

    def check_spec(self, test):
        if self.upstream:
            valid, message = self.upstream.load_validator(test["type"]).spec_is_valid(test["spec"])
            self.assertTrue(valid, message)

    def check_results(self, test_type, ran, merged):
        """Validates both results with pScheduler's own validators."""
        self.assertEqual(merged["succeeded"], ran["succeeded"])
        if not self.upstream:
            return
        self.assertIsNone(self.upstream.find_invalid(ran, "ParticipantResult"))
        validator = self.upstream.load_validator(test_type)
        results = [merged] + ([ran["result"]] if ran["succeeded"] else [])
        for result in results:
            if test_type == "rtt" and not ran["succeeded"]:
                # The schema requires both, but after a failure they are unknown.
                result = dict(result, roundtrips=[], loss=0.0)
            valid, message = validator.result_is_valid(result)
            self.assertTrue(valid, message)
