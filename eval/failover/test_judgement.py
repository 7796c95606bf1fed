#!/usr/bin/env python3
"""Checks the judge's own arithmetic against values worked out by hand. `make eval-groups` runs it first."""

import unittest

from chains import KINDS, draw_trial
from judgement import compare, is_alike, is_wrong, judge, lost_by_judge, stated_missing
from traffic import draw_flows, key_of, line_of, mapped
from watch import Watch, metric_of

A, B = mapped("10.0.0.1"), mapped("10.0.0.2")
FORTH, BACK = (A, B, 1000, 53, 17), (B, A, 53, 1000, 17)


def sent(packets, octets, same=0, is_constant=False):
    return {"flow": 0, "direction": 0, "packets": packets, "bytes": octets, "same": same, "is_constant": is_constant}


class Comparison(unittest.TestCase):
    def test_equal_counts_are_right(self):
        found = compare({FORTH: sent(3, 300), BACK: sent(2, 80)}, {FORTH: (3, 300), BACK: (2, 80)})
        self.assertEqual((found["unlike"]["sent"], found["unlike"]["wrong"], found["differing"]), (5, 0, []))
        self.assertFalse(is_wrong(found))

    def test_missing_does_not_make_up_for_twice(self):
        found = compare({FORTH: sent(10, 1000), BACK: sent(10, 1000)}, {FORTH: (7, 700), BACK: (13, 1300)})
        self.assertEqual((found["unlike"]["missing"], found["unlike"]["twice"]), (3, 3))
        self.assertTrue(is_wrong(found))

    def test_nothing_stored_is_missing(self):
        self.assertEqual(compare({FORTH: sent(4, 400)}, {})["unlike"]["missing"], 4)

    def test_bytes_count_where_packets_are_equal(self):
        found = compare({FORTH: sent(4, 400), BACK: sent(4, 400)}, {FORTH: (4, 390), BACK: (3, 300)})
        self.assertEqual((found["unlike"]["bytes"], found["unlike"]["wrong"]), (10, 2))

    def test_packets_that_are_alike_are_judged_apart(self):
        found = compare({FORTH: sent(4, 400, is_constant=True), BACK: sent(4, 400)}, {BACK: (4, 400)})
        self.assertEqual((found["alike"]["missing"], found["unlike"]["missing"]), (4, 0))
        self.assertTrue(is_alike(sent(10, 1000, same=4)))
        self.assertFalse(is_alike(sent(10, 1000, same=3)))

    def test_flows_that_nobody_sent_are_wrong(self):
        found = compare({FORTH: sent(1, 60)}, {FORTH: (1, 60), BACK: (1, 60)})
        self.assertEqual(found["foreign"], 1)
        self.assertTrue(is_wrong(found))


class Statements(unittest.TestCase):
    def test_each_cause_is_taken(self):
        sink = {"lost": {"packets": 2}, "queue_dropped": {"packets": 3}}
        summary = {"groups": [{"unplaced_packets": 5}], "sinks": [sink], "missing": [{"packets": 7}]}
        self.assertEqual(stated_missing(summary), 17)

    def test_what_is_not_stated_remains(self):
        result = judge({FORTH: sent(10, 1000)}, {FORTH: (4, 400)}, {"groups": [{"unplaced_packets": 2}]})
        self.assertEqual((result["stated"], result["unstated"]), (2, 4))

    def test_copies_that_were_cut_on_purpose_are_not_lost(self):
        truth, cables = {FORTH: sent(10, 1000)}, ["m0 of 1: 10", "m0 of 2: 9"]
        self.assertEqual(lost_by_judge(cables, truth, {"faults": []}), ["m0 of 2: 9"])
        self.assertEqual(lost_by_judge(cables, truth, {"faults": [{"kind": "copy"}]}), [])


class Plans(unittest.TestCase):
    def test_trials_are_the_same_for_the_same_seed(self):
        self.assertEqual(draw_trial("1", 7), draw_trial("1", 7))
        self.assertNotEqual(draw_trial("1", 7), draw_trial("2", 7))

    def test_every_kind_is_drawn(self):
        trials = [draw_trial("1", number) for number in range(1, 301)]
        self.assertEqual({fault["kind"] for trial in trials for fault in trial["faults"]}, set(KINDS))
        self.assertEqual({len(trial["faults"]) for trial in trials}, {1, 2, 3, 4})

    def test_meters_without_peers_keep_their_copies(self):
        trials = [draw_trial("1", number) for number in range(1, 301)]
        kinds = {fault["kind"] for trial in trials if trial["mode"] == "all export" for fault in trial["faults"]}
        self.assertFalse(kinds & {"copy", "control"})


class Traffic(unittest.TestCase):
    def test_keys_are_unique_and_turn_around(self):
        flows = draw_flows(1)
        self.assertEqual(len({key_of(flow, direction) for flow in flows for direction in (0, 1)}), 2 * len(flows))
        forth, back = key_of(flows[0], 0), key_of(flows[0], 1)
        self.assertEqual((forth[0], forth[2]), (back[1], back[3]))

    def test_shares_are_as_asked(self):
        flows = draw_flows(1, 10_000)
        self.assertAlmostEqual(sum(flow["is_steady"] for flow in flows) / 10_000, 0.08, delta=0.01)
        self.assertAlmostEqual(sum(flow["is_constant"] for flow in flows) / 10_000, 0.15, delta=0.01)

    def test_sender_reads_eighteen_fields(self):
        self.assertEqual(len(line_of(draw_flows(1)[0]).split()), 18)


class Looks(unittest.TestCase):
    def test_metric_is_found_by_the_end_of_its_name(self):
        text = '# HELP a_group_ready Whether.\na_group_ready{group="x"} 1\na_group_blind 0\n'
        self.assertEqual((metric_of(text, "group_ready"), metric_of(text, "group_blind")), (1, 0))
        self.assertIsNone(metric_of(text, "group_gone"))

    def test_longest_time_without_records(self):
        watch = Watch.__new__(Watch)
        watch.arrivals = [(1.0, 1), (1.5, 1), (3.0, 2)]
        self.assertEqual(watch.longest_gap(0.5, 3.5), 1.5)
        self.assertEqual(watch.longest_gap(3.0, 5.0), 2.0)


if __name__ == "__main__":
    unittest.main()
