#!/usr/bin/env python3
"""mlr_oracle.py: searches and classifies with the reference library MLRsearch (PyPI, 1.2.1), as another process asks.

Reads requests and writes answers, one line of JSON each.

{"search": {"goals": …, "min": …, "max": …, "warmup": …, "fail_fast": …}}
    answers {"trial": [seconds, load]} per trial and reads {"intended": …, "sent": …, "lost": …} for it; at the end
    {"results": [{"lower": …, "upper": …, "throughput": …}, …]}, or {"raised": text} if the library gives up.
{"classify": {"goals": …, "points": [[[seconds, lost, sent], …], …]}}
    answers {"classes": [text, …], "losses": [[…], …]}: one text per point, one letter per goal (L, U or ?), and the loss ratio
    of the conditional throughput per goal. Each point adds its trials to those of the points before.
"""

import json
import sys

from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal
from MLRsearch.target_spec import TargetSpec
from MLRsearch.target_stat import TargetStat


def answer(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class AskedMeasurer(AbstractMeasurer):
    """Lets the other process make the trials."""

    def measure(self, intended_duration, intended_load):
        answer({"trial": [intended_duration, intended_load]})
        result = json.loads(sys.stdin.readline())
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            offered_count=result["sent"],
            loss_count=result["lost"],
            intended_count=result["intended"],
        )


def goals_of(request):
    return [
        SearchGoal(
            loss_ratio=goal["loss_ratio"],
            exceed_ratio=goal["exceed_ratio"],
            relative_width=goal["width"],
            initial_trial_duration=goal["initial_trial"],
            final_trial_duration=goal["final_trial"],
            duration_sum=goal["duration_sum"],
            preceding_targets=goal["preceding_targets"],
            expansion_coefficient=goal["expansion"],
            fail_fast=request.get("fail_fast", False),
        )
        for goal in request["goals"]
    ]


def throughput(result):
    """The library refuses to compute one that is 0."""
    try:
        found = result.conditional_throughput
    except RuntimeError:
        return "refused"
    return None if found is None else float(found)


def search(request):
    goals = goals_of(request)
    config = Config()
    config.goals = goals
    # The setters compare with the limit that is already there.
    config.max_load = 1e300
    config.min_load = request["min"]
    config.max_load = request["max"]
    config.search_duration_max = 1e9
    config.warmup_duration = request["warmup"]
    try:
        found = MultipleLossRatioSearch(config).search(measurer=AskedMeasurer(), debug=lambda text: None)
    except RuntimeError as reason:
        return {"raised": str(reason)}
    rows = []
    for goal in goals:
        lower, upper = found[goal].relevant_lower_bound, found[goal].relevant_upper_bound
        rows.append(
            {
                "lower": None if lower is None else float(lower),
                "upper": None if upper is None else float(upper),
                "throughput": throughput(found[goal]),
            }
        )
    return {"results": rows}


def classify(request):
    stats = [
        TargetStat(
            TargetSpec(
                loss_ratio=goal.loss_ratio,
                exceed_ratio=goal.exceed_ratio,
                discrete_width=None,
                trial_duration=goal.final_trial_duration,
                duration_sum=goal.duration_sum,
                expansion_coefficient=2,
                fail_fast=False,
                preceding=None,
            )
        )
        for goal in goals_of(request)
    ]
    # By rounding, the estimates may also be (False, True). The library's search takes that for undecided, too.
    letters = {(True, True): "L", (False, False): "U"}
    classes, losses = [], []
    for point in request["points"]:
        for seconds, lost, sent in point:
            trial = MeasurementResult(
                intended_duration=seconds, intended_load=1.0, offered_count=sent, loss_count=lost
            )
            for stat in stats:
                stat.add(trial)
        classes.append("".join(letters.get(stat.estimates(), "?") for stat in stats))
        losses.append([stat.pessimistic_loss_ratio for stat in stats])
    return {"classes": classes, "losses": losses}


def main():
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "search" in request:
            answer(search(request["search"]))
        else:
            answer(classify(request["classify"]))


main()
