#!/usr/bin/env python3
"""Checks the judge's own arithmetic against values worked out by hand. `make eval-truth` runs it first."""

import unittest

from device import device_truth, model, stream_truth, worst_truth
from figures import jitter_figures, latency_figures, lost_runs, order_figures, percentile, stream_figures
from judgement import judge_result, stated_interval

PLAN = {"streams": 1, "packets": 1000, "rate": 1000}
MS = 1_000_000


class Figures(unittest.TestCase):
    def test_jitter_of_one_change(self):
        self.assertEqual(jitter_figures([0, 16_000])["rfc3550"], 1000)

    def test_jitter_keeps_its_largest(self):
        figures = jitter_figures([0, 16_000, 16_000])
        self.assertEqual((figures["rfc3550"], figures["rfc3550_max"]), (1000 - 1000 / 16, 1000))

    def test_percentile_is_nearest_rank(self):
        self.assertEqual([percentile(list(range(1, 101)), share) for share in (0.5, 0.99, 0.999)], [50, 99, 100])
        self.assertEqual(latency_figures([3, 1, 2])["p50"], 2)

    def test_reordering_of_rfc_4737(self):
        first = [(0, 0), (3, 1), (1, 2), (2, 3), (4, 4)]
        self.assertEqual(order_figures(first), {"reordered": 2, "max_extent": 2})

    def test_lost_runs(self):
        self.assertEqual(lost_runs(range(6), [0, 3, 5]), [[1, 2], [4, 4]])

    def test_outage_at_the_end_lasts_until_the_last_frame_was_due(self):
        rows = [(number, number * MS, 0) for number in range(8)]
        figures = stream_figures(rows, range(10), lambda number: number * MS)
        self.assertEqual((figures["lost"], figures["longest_outage"]), (2, 2 * MS))


class Truth(unittest.TestCase):
    def truth(self, *rules):
        return worst_truth(model(list(rules), PLAN), PLAN)

    def test_dead_half(self):
        truth = self.truth("drop from=500")
        self.assertEqual((truth["loss"], truth["rate"]), ((0.5, 0.5), (0.5, 0.5)))

    def test_copies_do_not_make_up_for_losses(self):
        truth = self.truth("drop every=10 from=1", "double every=10 from=2")
        self.assertEqual((truth["rate"], truth["duplicates"]), ((0.9, 0.9), (0.1, 0.1)))

    def test_outage_of_one_frame(self):
        self.assertEqual(self.truth("drop from=500 to=501")["outage"], (2 * MS, 2 * MS))
        self.assertEqual(self.truth("drop from=999")["outage"], (1 * MS, 1 * MS))

    def test_holds_keep_the_order(self):
        truth = self.truth("hold period_us=100000 length_us=10000")
        self.assertEqual((truth["latency max"], truth["reordered"]), ((10 * MS, 10 * MS), (0, 0)))

    def test_policer_is_not_blamed_for_a_burst_of_the_sender(self):
        scenario = PLAN | {"rules": ["police rate=1050 burst=5"]}
        rows = {"entered": {n: 0 for n in range(1000)}, "exits": [(n, 0, 0) for n in range(5)], "flags": {}}
        truth = device_truth({0: rows}, scenario)
        self.assertEqual((truth["loss"], truth["rate"][1]), ((0, 0), 1))
        self.assertEqual(stream_truth(rows, PLAN)["loss"][1], 0.995)


class Judgement(unittest.TestCase):
    def test_results_beside_the_truth(self):
        self.assertEqual(judge_result("loss", "FAIL", 0.01, (0.01, 0.01)), "wrong FAIL")
        self.assertEqual(judge_result("loss", "PASS", 0.01, (0.011, 0.011)), "wrong PASS")
        self.assertEqual(judge_result("rate", "PASS", 0.95, (0.5, 0.5)), "wrong PASS")
        self.assertEqual(judge_result("rate", "FAIL", 0.99, (1, 1)), "wrong FAIL")
        self.assertEqual(judge_result("jitter", "UNKNOWN", 500_000, (MS, MS)), "unknown")
        self.assertEqual(judge_result("latency max", "FAIL", MS, (2 * MS, 2 * MS)), "right")

    def test_what_a_report_states(self):
        def state(name, least, most, measured=""):
            subject = {"measured": measured, "figure": {"value": most, "least": least, "most": most}}
            return stated_interval(subject, name, 500)

        self.assertEqual(state("latency p99", 0, 121_663), (0, 121_663))
        self.assertEqual(state("loss", 6, 10, "10 of 100 frames lost (10.0000 %)"), (0.06, 0.1))
        self.assertEqual(state("rate", 250_000, 500_000), (0.5, 1))


if __name__ == "__main__":
    unittest.main()
