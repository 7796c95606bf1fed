"""Goal lines of promises that tests hold: what hostile nodes, controllers and clients reached, and what processes may do.

Run by `make eval-safety` inside the private lab, with the test runner as its argument. Each goal names its tests; it is met
when all of them pass, and shows what they measured.
"""

import re
import subprocess
import sys

RUNNER = sys.argv[1:]

# Name, tests, what they say they measured, how that is shown, what is wanted.
GOALS = [
    (
        "permit",
        "binary(fleet) & test(hostile_controller)",
        r"(\d+) attacks, (\d+) frames outside the permit",
        "{1} frames outside the permit in {0} attempts of a controller with all keys",
        "0",
    ),
    (
        "node_subjects",
        "binary(fabric) & test(hostile_node_reaches_only_own_subjects)",
        r"(\d+) messages to (\d+) foreign subjects, (\d+) reached",
        "{2} of {1} foreign subjects reached by {0} messages of a node",
        "0",
    ),
    (
        "hostile_hello",
        "binary(fleet) & test(hostile_node)",
        None,
        "two whole runs after a hello with epoch 2^64-2 and 4200 unreadable segments",
        "fleet usable",
    ),
    (
        "captures_kept",
        "binary(disk)",
        None,
        "every capture kept and named: disk full at five points, SIGKILL, an interface deleted",
        "all",
    ),
    (
        "idle_slots",
        "binary(hostile_client) & test(idle_connections_take_no_place)",
        r"slots free under (\d+) idle connections \(([^)]*)\): (\d+) of (\d+)",
        "{2} of {3} slots free under {0} idle connections ({1})",
        "all",
    ),
    (
        "node_flood",
        "binary(fleet) & test(node_hello_flood_is_contained_and_removable)",
        r"(\d+) KiB before, (\d+) KiB at most",
        "{1} KiB of memory of `fleet up` while a node says hellos of 850 KB, others fresh, ended by its removal",
        "at most 131072 KiB",
    ),
    (
        "claims",
        "(binary(fabric) & test(certificate_and_user_must_match_to_connect))"
        " | (package(packetrig-nats) & test(proof_is_bound_to_question_and_connection))"
        " | (package(packetrig-nats) & test(admission_without_valid_secret_reveals_no_names))",
        None,
        "claims of another node, proofs said again and names without a secret are worth nothing",
        "refused",
    ),
    (
        "starvation",
        "package(packetrig-flow-io) & (test(stream::peers) | test(collect::tests::connections))",
        None,
        "connections without records, few addresses and one /64 of IPv6 keep no exporter out",
        "none kept out",
    ),
    (
        "series",
        "package(packetrig-flow-io) & test(exporter_metric_series_stay_bounded)",
        r"(\d+) lines of metrics for (\d+) exporters",
        "{0} lines of metrics for {1} forged exporters",
        "series of 257 exporters",
    ),
    (
        "files",
        "package(packetrig-flow-store) & test(live_sink_bounds_files_for_arbitrary_times)",
        r"(\d+) files of (\d+) hours that an exporter chose",
        "{0} files of {1} hours that an exporter chose",
        "at most 10",
    ),
    (
        "reservations",
        "binary(probe) & test(port_quota_leaves_source_ports_to_others)",
        r"(\d+ of 512 ports are held by \d+ programs of one user)",
        "{0}, others send",
        "at most 128",
    ),
    (
        "places",
        "binary(probe) & test(connection_quota_leaves_slots_to_other_users)",
        r"programs of four users that connect all they can: (\[.*\])",
        "places of users that connect all the programs they can: {0}",
        "equal parts",
    ),
    (
        "answers",
        "binary(probe) & test(copied_identifier_receives_no_foreign_answers)",
        r"answers to another user: (\d+ of \d+ overheard, \d+ of \d+ lost)",
        "answers to a user whose identifier another one uses: {0}",
        "none",
    ),
    (
        "permit_end",
        "package(packetrig-probe) & test(permit_rule_combinations_decide_consistently)",
        None,
        "every combination of entry, end, never, typed and mapped address says the same",
        "one answer",
    ),
    (
        "loopback",
        "package(packetrig-probe-io) & test(own_address_uses_loopback_and_restores_its_setting)",
        None,
        "settings of lo stay under the second probe and come back after the last",
        "as before",
    ),
    (
        "documents",
        "binary(document_cost) & test(configuration_memory_is_proportional_to_its_length)",
        r"^ *(.*: [0-9.]+ times its length in the server, [0-9.]+ times to read the plan)$",
        "{0}",
        "in proportion to the length",
    ),
    (
        "rights",
        "(binary(security) & test(walls)) | (binary(fleet) & test(walls))",
        r"((?:collect|meter|reflect|serve|agent|fleet): .*no_new_privs.*)",
        "{0}",
        "no CAP_SYS_ADMIN, no root without a reason",
    ),
]


def run(tests):
    """Whether all of these tests pass, and what they printed."""
    command = RUNNER + ["run", "--workspace", "--locked", "--offline", "--no-fail-fast", "--no-capture"]
    command += ["--ignore-default-filter", "-E", tests]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode == 0, done.stdout


def main():
    missed = 0
    for name, tests, pattern, shown, wanted in GOALS:
        passed, printed = run(tests)
        skipped = re.findall(r"skipped: (.*)", printed)
        found = [shown]
        if pattern:
            # The same line may be printed twice, as it was said and as it was judged.
            found = list(dict.fromkeys(shown.format(*match.groups()) for match in re.finditer(pattern, printed, re.MULTILINE)))
        if skipped and not found:
            outcome = f"unsupported ({skipped[0]})"
        elif passed and found:
            outcome = "met"
        else:
            outcome = "missed"
        missed += outcome == "missed"
        for line in found or ["nothing"]:
            print(f"goal safety.{name}: measured {line}, wanted {wanted}: {outcome}", flush=True)
        if outcome == "missed":
            print(printed[-3000:])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
