"""Tests of the pScheduler tool plug-in: calls its executables as pScheduler does.

    python3 -m unittest discover -s packaging/perfsonar/tests -v

Three groups need more than Python, and are skipped with a message without it:

* the checks with pScheduler's own validators and formatters: see upstream.py, and `jsonschema` of PyPI;
* the live tests: packetrig (PACKETRIG_BIN, or target/release/packetrig) and the right to send probes. They
  measure to reflectors on loopback that they start themselves.
"""
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import upstream  # noqa: E402  (needs the path above)
from plugin_case import (  # noqa: E402
    LIMITS, LONG_AGO, PLUGIN, TIMEOUT_S, UPSTREAM_OBSTACLE, PluginTest, lost_record, probe_record,
    stand_in_answer)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(PLUGIN)))
PROGRAM = os.environ.get("PACKETRIG_BIN") or os.path.join(ROOT, "target", "release", "packetrig")
FORMATTER_OBSTACLE = upstream.find_obstacle(["jsonschema"] + upstream.FORMATTER_PACKAGES)


class MethodTest(PluginTest):
    def test_enumerate_has_name_of_directory_and_low_preference(self):
        described = self.call("enumerate", "")
        self.assertEqual((described["name"], described["tests"]), ("packetrig", ["latency", "rtt"]))
        self.assertLess(described["preference"], 0)
        if self.upstream:
            self.assertIsNone(self.upstream.find_invalid(described, "PluginEnumeration/Tool"))

    def test_invalid_input_is_error(self):
        for method in ("can-run", "duration", "participant-data", "run", "merged-results"):
            for text in ("", "{", "[]"):
                self.assertIn("packetrig: the input is not", self.call(method, text, exit_code=1))

    def test_methods_reject_other_participants(self):
        self.call("participant-data", {"participant": 1}, exit_code=1)
        test = {"type": "rtt", "spec": {"dest": "127.0.0.1"}}
        job = {"schedule": {"start": LONG_AGO}, "test": test, "participant": 1}
        self.assertIn("participant 0 only", self.call("run", job, exit_code=1))
        self.call("merged-results", {"test": test, "results": [None, None]}, exit_code=1)

    def test_duration_covers_probes_wait_and_margin(self):
        for test_type, spec, probes_s in [
                ("latency", {}, 11), ("latency", {"packet-count": 600, "packet-interval": 0.1}, 61),
                ("latency", {"packet-count": 10, "packet-interval": 1.25, "packet-timeout": 7}, 20),
                ("rtt", {}, 6), ("rtt", {"count": 3, "interval": "PT1M0.5S", "timeout": "PT2S"}, 184)]:
            answer = self.call("duration", {"type": test_type, "spec": dict(spec, dest="127.0.0.1")})
            self.assertEqual(answer, {"duration": "PT{}S".format(probes_s + 10)})
            if self.upstream:
                self.assertIsNone(self.upstream.find_invalid(answer["duration"], "Duration"))

    def test_duration_of_refused_test_is_error(self):
        message = self.call("duration", {"type": "rtt", "spec": {"dest": "a", "ttl": 3}}, exit_code=1)
        self.assertIn("(ttl)", message)

    def test_merged_result_of_failed_run_has_its_error(self):
        for result in (None, {}, {"succeeded": False, "error": "Tool failed", "diags": "text"}):
            merged = self.call("merged-results", {"test": {"type": "rtt", "spec": {}}, "results": [result]})
            self.assertFalse(merged["succeeded"])
            self.assertEqual(merged["error"], (result or {}).get("error", "the run has no result"))

    def test_merged_result_keeps_round_trips_with_ttl(self):
        trips = [{"seq": 1, "rtt": "PT0.1S", "ttl": 64}, {"seq": 2}]
        ran = {"succeeded": True, "result": {"succeeded": True, "loss": 0.5, "roundtrips": trips}}
        merged = self.call("merged-results", {"test": {}, "results": [ran]})
        self.assertEqual(merged["roundtrips"], trips)


class CanRunTest(PluginTest):
    def test_supported_tests_run(self):
        self.assertEqual(self.reasons("latency"), [])
        spec = {
            "schema": 4, "source": "127.0.0.1", "source-node": "a", "dest-node": "b", "protocol": "stamp",
            "packet-count": 2, "packet-interval": 0.5, "packet-timeout": 1, "packet-padding": 100,
            "ip-version": 4, "bucket-width": 0.01, "output-raw": False, "flip": False, "reverse": False,
            "#": "a comment",
        }
        self.assertEqual(self.reasons("latency", **spec), [])
        times = {"interval": "PT0.5S", "timeout": "PT1S", "hostnames": False}
        stamp_spec = {"protocol": "stamp", "port": 8620, "length": 64}
        for spec in ({}, stamp_spec, {"protocol": "icmp", "length": 18}):
            self.assertEqual(self.reasons("rtt", **dict(times, **spec)), [])

    def test_unsupported_types_and_versions_are_refused(self):
        for value in ({}, {"type": "rtt"}, {"type": "trace", "spec": {}}, {"type": "rtt", "spec": []}):
            self.assertFalse(self.call("can-run", value)["can-run"])
        self.assertIn("version", self.reasons("rtt", schema=5)[0])

    def test_each_field_without_option_is_refused_by_name(self):
        ports = {"lower": 5000, "upper": 5010}
        refused = {
            "latency": [("ctrl-port", 862), ("data-ports", ports), ("ip-tos", 0), ("flip", True),
                        ("reverse", True), ("output-raw", True), ("traverse-nat", True),
                        ("protocol", "twamp"), ("unheard-of", 1)],
            "rtt": [("flow-label", 0), ("fragment", False), ("ip-tos", 8), ("ttl", 9), ("deadline", "PT9S"),
                    ("hostnames", True), ("suppress-loopback", True), ("protocol", "twamp"), ("length", 63),
                    ("length", 66)],
        }
        for test_type, fields in refused.items():
            for field, value in fields:
                reasons = self.reasons(test_type, **{field: value})
                self.assertEqual(len(reasons), 1, (field, reasons))
                self.assertIn(field, reasons[0])
        several = {"ttl": 9, "fragment": True, "port": 1, "protocol": "icmp", "length": 17}
        self.assertEqual(len(self.reasons("rtt", **several)), 4)

    def test_invalid_values_are_refused(self):
        for test_type, field, value in [
                ("latency", "packet-count", 1), ("latency", "packet-timeout", 0),
                ("latency", "packet-interval", "1"), ("latency", "bucket-width", 0), ("latency", "source", 5),
                ("rtt", "count", True), ("rtt", "interval", "PT"), ("rtt", "interval", "P1M"),
                ("rtt", "timeout", 1), ("rtt", "port", 0), ("rtt", "ip-version", 5), ("rtt", "dest", "")]:
            self.assertEqual(len(self.reasons(test_type, **{field: value})), 1, (field, value))

    def test_series_beyond_limits_is_refused(self):
        self.assertIn("20 probes/s", self.reasons("latency", **{"packet-interval": 0.02})[0])
        self.assertEqual(self.reasons("latency", **{"packet-interval": 0.05}), [])
        # A burst of 50 is within the limits at any interval.
        self.assertEqual(self.reasons("latency", **{"packet-interval": 0.001, "packet-count": 50}), [])
        self.assertIn("in all", self.reasons("rtt", count=100_001)[0])
        # 1000 probes/s of 1410 bytes (without FCS) are 11.3 Mbit/s.
        spec = {"packet-padding": 1300, "packet-interval": 0.001}
        self.write_json("limits.json", dict(LIMITS, probes_per_s=1000, bits_per_s=2_000_000))
        self.assertIn("at most 2000000 bit/s", self.reasons("latency", **spec)[0])
        self.write_json("limits.json", dict(LIMITS, probes_per_s=1000, bits_per_s=12_000_000))
        self.assertEqual(self.reasons("latency", **spec), [])

    def test_latency_needs_clock_bound_and_rtt_does_not(self):
        self.configure(program=self.program)
        self.assertIn("error bound of this machine's clock is unknown", self.reasons("latency")[0])
        self.assertEqual(self.reasons("rtt"), [])

    def test_source_that_kernel_would_not_choose_is_refused(self):
        self.assertIn("(source)", self.reasons("rtt", source="127.0.0.99")[0])
        self.assertIn("(source)", self.reasons("rtt", source="::1")[0])

    def test_missing_program_is_refused(self):
        self.configure(program="/nonexistent/packetrig")
        self.assertIn("cannot run /nonexistent/packetrig", self.reasons("rtt")[0])

    def test_invalid_configuration_is_error(self):
        for settings in ({"programm": "x"}, {"port": "0"}, {"port": "high"}):
            self.configure(**settings)
            test = {"type": "rtt", "spec": {"dest": "127.0.0.1"}}
            self.assertIn("packetrig.conf", self.call("can-run", test, exit_code=1))

    @unittest.skipIf(UPSTREAM_OBSTACLE, UPSTREAM_OBSTACLE)
    def test_validators_of_upstream_reject_invalid_results(self):
        valid = {"latency": {"succeeded": True}, "rtt": {"succeeded": True, "roundtrips": [], "loss": 0.5}}
        invalid = {"latency": {"packets-lost": -1}, "rtt": {"min": "0.5"}}
        for test_type, result in valid.items():
            validator = self.upstream.load_validator(test_type)
            self.assertTrue(validator.result_is_valid(result)[0])
            self.assertFalse(validator.result_is_valid(dict(result, **invalid[test_type]))[0])

    @unittest.skipIf(UPSTREAM_OBSTACLE, UPSTREAM_OBSTACLE)
    def test_every_field_of_upstream_is_known(self):
        latency, rtt = (self.upstream.load_validator(name) for name in ("latency", "rtt"))
        # The schema of rtt specifications is local to its function, which hands it to this one.
        rtt.json_validate = lambda json, schema, max_schema: schema
        schemas = {"latency": latency.SPEC_SCHEMA, "rtt": rtt.spec_is_valid({"schema": 4})}
        for test_type, schema in schemas.items():
            self.assertNotIn("v5", schema["local"])
            for field in schema["local"]["v4"]["properties"]:
                reasons = self.reasons(test_type, **{field: None})
                self.assertFalse([reason for reason in reasons if "unknown field" in reason], field)


class ResultTest(PluginTest):
    """Results of what a stand-in for packetrig reports, such as losses, which loopback does not have."""

    def run_answer(self, test_type, answer, **spec):
        self.write_json("answer.json", answer)
        return self.run_test(test_type, **spec)

    def assert_fails(self, test_type, answer, reason):
        ran, merged = self.run_answer(test_type, answer)
        self.assertFalse(merged["succeeded"])
        self.assertIsNone(ran["result"])
        self.assertIn(reason, merged["error"])
        self.assertIn("probe stamp 127.0.0.1:862", merged["diags"])

    def test_histogram_counts_delays_in_buckets_without_first_probe(self):
        records = [probe_record(0, 9_000_000, flags=["first"]), probe_record(1, 1_234_000),
                   probe_record(2, 1_230_000), probe_record(3, -2_000), probe_record(4, -20_000)]
        ran, merged = self.run_answer("latency", stand_in_answer(records))
        self.assertEqual(ran["result"], merged)
        self.assertEqual(merged["histogram-latency"], {"1.23": 2, "0.00": 1, "-0.02": 1})
        self.assertEqual(merged["max-clock-error"], 1.5)
        _, merged = self.run_answer("latency", stand_in_answer(records), **{"bucket-width": 0.0001})
        self.assertEqual(merged["histogram-latency"], {"12.34": 1, "12.30": 1, "-0.02": 1, "-0.20": 1})

    def test_loss_of_stateful_reflector_is_loss_on_the_way_there(self):
        records = [probe_record(0, 1000), lost_record(1), lost_record(2), probe_record(3, 1000)]
        answer = stand_in_answer(records, directions={"is_stateful": True, "lost_there": 1})
        _, merged = self.run_answer("latency", answer)
        self.assertEqual([merged["packets-" + name] for name in ("sent", "received", "lost")], [4, 3, 1])
        self.assertNotIn("diags", merged)

    def test_loss_of_unknown_direction_is_marked(self):
        records = [probe_record(0, 1000), lost_record(1), probe_record(2, 1000)]
        _, merged = self.run_answer("latency", stand_in_answer(records, counts={"reordered": 1}))
        self.assertEqual([merged["packets-" + name] for name in ("sent", "received", "lost")], [3, 2, 1])
        self.assertIn("packets-lost counts both directions together", merged["diags"])
        self.assertIn("packets-reordered count both directions", merged["diags"])

    def test_total_loss_is_a_result(self):
        answer = dict(stand_in_answer([lost_record(0), lost_record(1)], no_delay="far_clock"), exit=1)
        _, merged = self.run_answer("latency", answer)
        self.assertEqual((merged["packets-lost"], merged["histogram-latency"]), (2, {}))
        self.assertNotIn("max-clock-error", merged)
        ran, merged = self.run_answer("rtt", answer)
        self.assertEqual((merged["loss"], merged["received"]), (1.0, 0))
        self.assertEqual(merged["roundtrips"], [{"seq": 1}, {"seq": 2}])
        self.assertNotIn("min", merged)

    def test_latency_without_synchronised_clocks_fails_with_reason(self):
        for code, reason in [("far_clock", "clock follows UTC (far_clock)"), ("this_clock", "(this_clock)"),
                             ("new_code", "new_code")]:
            self.assert_fails("latency", stand_in_answer([probe_record(0, 1000)], no_delay=code), reason)

    def test_early_end_by_loss_is_a_marked_result(self):
        records = [probe_record(0, 1000), lost_record(1), dict(lost_record(2), flags=["unsent"])]
        answer = dict(stand_in_answer(records, counts={"sent": 2}, end="lossy"), exit=4)
        ran, merged = self.run_answer("rtt", answer)
        self.assertEqual((merged["sent"], merged["lost"], len(ran["result"]["roundtrips"])), (2, 1, 2))
        self.assertIn("ended the series early", merged["diags"])

    def test_other_early_ends_fail(self):
        for end, reason in [("prohibited", "forbids"), ("limits", "limit"), ("stopped", "interrupted")]:
            answer = dict(stand_in_answer([probe_record(0, 1000)], end=end), exit=4)
            self.assert_fails("rtt", answer, reason)

    def test_missing_reflector_and_invalid_reflections_fail(self):
        records = [lost_record(0), lost_record(1)]
        said = [[{"trouble": "port_unreachable"}, 2]]
        answer = stand_in_answer(records, counts={"refused": 2}, said=said)
        self.assert_fails("rtt", answer, "no reflector answered: port_unreachable")
        answer = stand_in_answer(records, directions={"invalid": {"too_short": 2, "shortest_bytes": 41}})
        self.assert_fails("latency", answer, "all reflections were invalid: 2 too_short")

    def test_error_of_program_is_one_clean_line(self):
        answer = {"stdout": "", "stderr": "a remark\nerror: no right:\x1b[31m NET_RAW", "exit": 5}
        self.assert_fails("rtt", answer, "no right: [31m NET_RAW")
        self.assert_fails("rtt", {"stdout": "{}", "exit": 0}, "exit code 0")
        self.assert_fails("rtt", {"stdout": "{", "exit": 70}, "exit code 70")
        answer = dict(stand_in_answer([probe_record(0, 1)]), records=[])
        self.assert_fails("rtt", answer, "cannot read the records")

    def test_round_trips_have_number_length_and_time(self):
        ran, merged = self.run_answer("rtt", stand_in_answer([probe_record(0, 1500), lost_record(1)]))
        self.assertEqual(ran["result"]["roundtrips"], [
            {"seq": 1, "ip": "127.0.0.1", "length": 72, "rtt": "PT0.000003000S"}, {"seq": 2}])
        self.assertEqual(merged["roundtrips"], [])
        self.assertEqual((merged["min"], merged["mean"]), ("PT0.000001000S", "PT0.000002000S"))

    def test_answers_that_packetrig_missed_are_marked(self):
        target = json.loads(stand_in_answer([probe_record(0, 1000)])["stdout"])
        answer = stand_in_answer([probe_record(0, 1000)])
        answer["stdout"] = json.dumps({"targets": [target], "unheard": 3})
        _, merged = self.run_answer("rtt", answer, protocol="icmp")
        self.assertIn("3 frames were lost before", merged["diags"])

    def test_command_line_has_exactly_what_test_asks_for(self):
        self.configure(program=self.program, clock_bound="50us", allow="192.0.2.0/24, 127.0.0.0/8",
                       permit="/p", port=8620)
        spec = {"packet-count": 2, "packet-interval": 0.25, "packet-timeout": 3, "packet-padding": 100}
        self.run_answer("latency", stand_in_answer([probe_record(0, 1000)]), **spec)
        argv = self.read_start()["argv"]
        argv.pop(argv.index("--write") + 1)
        self.assertEqual(argv, [
            "probe", "stamp", "127.0.0.1:8620", "--count", "2", "--interval", "250000000ns", "--wait",
            "3000000000ns", "--json", "--write", "--size", "214", "--clock-bound", "50us",
            "--allow", "192.0.2.0/24", "--allow", "127.0.0.0/8", "--permit", "/p"])

    def test_run_waits_for_start_time(self):
        start = time.time() + 2
        zone = datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))
        self.write_json("answer.json", stand_in_answer([probe_record(0, 1000)]))
        in_utc = datetime.datetime.fromtimestamp(start, datetime.timezone.utc).isoformat()
        for text in (datetime.datetime.fromtimestamp(start, zone).isoformat(), in_utc.replace("+00:00", "Z")):
            self.run_test("rtt", start=text)
            self.assertGreaterEqual(self.read_start()["at"], start)
        job = {"schedule": {"start": "soon"}, "test": {}, "participant": 0}
        self.assertIn("start time is invalid", self.call("run", job, exit_code=1))

    def test_stopped_run_ends_its_program(self):
        self.write_json("answer.json", {"stdout": "", "sleep": TIMEOUT_S})
        job = {"schedule": {"start": LONG_AGO}, "participant": 0,
               "test": {"type": "rtt", "spec": {"dest": "127.0.0.1", "count": 60}}}
        run = subprocess.Popen([os.path.join(PLUGIN, "run")], env=self.environment(), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.addCleanup(run.kill)
        run.stdin.write(json.dumps(job))
        run.stdin.close()
        started = os.path.join(self.directory, "started")
        wait_for(lambda: "argv" in read_text(started), "the stand-in has not started")
        child = self.read_start()["pid"]
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(TIMEOUT_S), 1)
        self.assertIn("stopped", run.stderr.read())
        run.stdout.close()
        run.stderr.close()
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)


def read_text(path):
    """Returns the content of a file; empty if there is none."""
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def wait_for(is_done, message):
    deadline = time.monotonic() + 20
    while not is_done():
        if time.monotonic() > deadline:
            raise AssertionError(message)
        time.sleep(0.05)


def find_live_obstacle():
    """Returns why no probes can be sent; `None` if they can."""
    try:
        done = subprocess.run([PROGRAM, "probe", "ping", "127.0.0.1", "-c", "1", "-q"], timeout=TIMEOUT_S,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "cannot run packetrig: {}".format(error)
    return None if done.returncode == 0 else "packetrig cannot send probes: " + done.stderr.strip()


LIVE_OBSTACLE = find_live_obstacle()


@unittest.skipIf(LIVE_OBSTACLE, LIVE_OBSTACLE)
class LiveTest(PluginTest):
    """Measures to packetrig's own reflector on loopback."""

    def setUp(self):
        super().setUp()
        self.configure(program=PROGRAM, clock_bound="1ms")

    def start_reflector(self, *options, host="127.0.0.1"):
        """Starts a reflector and makes its port the configured one."""
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        address = "[{}]:{}".format(host, port) if ":" in host else "{}:{}".format(host, port)
        log = os.path.join(self.directory, "reflector.log")
        with open(log, "w") as output:
            # `--time` ends the reflector even if this process is killed.
            command = [PROGRAM, "probe", "reflect", address, "--allow", "127.0.0.0/8", "--time", "60s"]
            reflector = subprocess.Popen(command + list(options), stdout=output, stderr=output)
        self.addCleanup(reflector.wait, TIMEOUT_S)
        self.addCleanup(reflector.terminate)
        wait_for(lambda: "listening on" in read_text(log), "the reflector does not listen")
        self.configure(program=PROGRAM, clock_bound="1ms", port=port)
        return port

    def summary_of(self, ran):
        """Returns the JSON of packetrig from the diagnostics of a run."""
        return json.JSONDecoder().raw_decode(ran["diags"], ran["diags"].index("{"))[0]

    def assert_formats(self, test_type, merged, text):
        if FORMATTER_OBSTACLE is None:
            done = self.upstream.format_result(test_type, {"dest": "127.0.0.1"}, merged)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(text, done.stdout)

    def test_latency_with_synchronised_clocks(self):
        self.start_reflector("--clock-bound", "1ms")
        ran, merged = self.run_test("latency", **{"packet-count": 10, "packet-interval": 0.05,
                                                  "bucket-width": 0.000001})
        self.assertIsNone(ran["error"])
        self.assertEqual([merged["packets-" + name] for name in ("sent", "received", "lost")], [10, 10, 0])
        delay = self.summary_of(ran)["one_way"]["there"]["delay"]
        self.assertEqual(sum(merged["histogram-latency"].values()), delay["samples"])
        buckets = sorted(float(bucket) for bucket in merged["histogram-latency"])
        # Buckets of 1 us. The clocks may have been slewed between packetrig's summary and its records.
        self.assertAlmostEqual(buckets[0], delay["min_ns"] / 1000, delta=1)
        self.assertAlmostEqual(buckets[-1], delay["max_ns"] / 1000, delta=1)
        self.assertAlmostEqual(merged["max-clock-error"], delay["bound_ns"] / 1e6)
        self.assert_formats("latency", merged, "Packets Received ..... 10 packets")

    def test_latency_to_unsynchronised_reflector_fails_with_reason(self):
        self.start_reflector()
        ran, merged = self.run_test("latency", **{"packet-count": 3, "packet-interval": 0.05})
        reason = "the reflector does not report that its clock follows UTC (far_clock)"
        self.assertEqual(merged["error"], "no one-way delays: " + reason)
        self.assertIsNone(ran["result"])
        self.assertNotIn("histogram-latency", merged)

    def test_latency_without_own_clock_bound_fails_before_probes_leave(self):
        self.configure(program=PROGRAM)
        ran, merged = self.run_test("latency")
        self.assertIn("error bound of this machine's clock is unknown", merged["error"])
        self.assertEqual(ran["diags"], "")

    def test_rtt_with_stamp(self):
        port = self.start_reflector()
        self.configure(program=PROGRAM)
        ran, merged = self.run_test("rtt", protocol="stamp", port=port, count=5, interval="PT0.05S",
                                    length=100, source="127.0.0.1")
        self.assert_round_trips(ran, merged, 5, "127.0.0.1")
        self.assertEqual({trip["length"] for trip in ran["result"]["roundtrips"]}, {108})

    def test_rtt_with_echo_requests(self):
        for dest in ["127.0.0.1", "::1"]:
            if dest == "::1" and not has_ipv6_loopback():
                continue
            ran, merged = self.run_test("rtt", dest=dest, protocol="icmp", count=3, interval="PT0.05S",
                                        length=56)
            self.assert_round_trips(ran, merged, 3, dest)
            self.assertEqual({trip["length"] for trip in ran["result"]["roundtrips"]}, {64})

    def test_stamp_over_ipv6_with_padding(self):
        if not has_ipv6_loopback():
            self.skipTest("no IPv6 loopback address")
        self.start_reflector("--clock-bound", "1ms", host="::1")
        for padding in ({}, {"packet-padding": 1}, {"packet-padding": 500}):
            _, merged = self.run_test("latency", dest="::1", **dict(padding, **{"packet-count": 2}))
            self.assertEqual(merged["packets-received"], 2)

    def assert_round_trips(self, ran, merged, count, dest):
        summary = self.summary_of(ran)
        times = summary.get("rtt") or summary["targets"][0]["rtt"]
        self.assertEqual((merged["sent"], merged["received"], merged["loss"]), (count, count, 0.0))
        trips = ran["result"]["roundtrips"]
        self.assertEqual([trip["seq"] for trip in trips], list(range(1, count + 1)))
        self.assertEqual({trip["ip"] for trip in trips}, {dest})
        # Whole round trips, as in packetrig's own summary, which leaves out the first one.
        seconds = [float(trip["rtt"][2:-1]) for trip in trips[1:]]
        self.assertAlmostEqual(min(seconds), times["min_ns"] / 1e9, delta=2e-9)
        self.assertAlmostEqual(max(seconds), times["max_ns"] / 1e9, delta=2e-9)
        self.assertAlmostEqual(float(merged["mean"][2:-1]), times["mean_ns"] / 1e9, delta=2e-9)
        self.assert_formats("rtt", merged, "0% Packet Loss")

    def test_missing_reflector_fails(self):
        _, merged = self.run_test("rtt", protocol="stamp", port=1, count=2, interval="PT0.05S")
        self.assertEqual(merged["error"], "no reflector answered: port_unreachable")

    def test_target_outside_permitted_networks_is_refused(self):
        # 192.0.2.1 is a documentation address. Nothing is sent to it: packetrig only looks up its permits.
        self.assertIn("probing 192.0.2.1 is not allowed", self.reasons("rtt", dest="192.0.2.1")[0])
        _, merged = self.run_test("rtt", dest="192.0.2.1")
        self.assertIn("probing 192.0.2.1 is not allowed", merged["error"])
        self.configure(program=PROGRAM, allow="192.0.2.0/24")
        self.assertNotIn("not allowed", "".join(self.reasons("rtt", dest="192.0.2.1")))

    def test_limits_of_plugin_are_those_of_packetrig(self):
        # 50 at once, and 20/s while the series lasts: 82 probes are the most at 50/s.
        spec = {"protocol": "icmp", "interval": "PT0.02S"}
        self.assertEqual(len(self.reasons("rtt", count=83, **spec)), 1)
        command = [PROGRAM, "probe", "ping", "127.0.0.1", "--count", "83", "--interval", "20ms"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 2)
        _, merged = self.run_test("rtt", count=82, **spec)
        self.assertEqual(merged["received"], 82)

    @unittest.skipIf(FORMATTER_OBSTACLE, FORMATTER_OBSTACLE)
    def test_formatter_of_upstream_needs_ttl_of_round_trips(self):
        """If this fails, pScheduler no longer needs the TTL, and merged-results can keep all round trips."""
        ran, _ = self.run_test("rtt", protocol="icmp", count=2, interval="PT0.05S")
        done = self.upstream.format_result("rtt", {"dest": "127.0.0.1"}, ran["result"])
        self.assertNotEqual(done.returncode, 0)


def has_ipv6_loopback():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
