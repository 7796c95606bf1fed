//! Compares what a run said with what was true. Pure.

use crate::fault::{InjectedFault, LEASE_S, RunPhase, Trial, Victim};
use crate::network::{NODES, facing, is_sender, node_name, node_number};
use crate::perform::{Observation, TRIAL_FRAMES, why_not};
use serde_json::Value;

/// The next run must pass with all nodes this long after fault and run have ended.
pub(crate) const USABLE_MS: u64 = 5000;
/// A sender that was told nothing may send this long after its lease: its check, a batch, and the witness's look.
const SLACK_MS: u64 = 100;
/// Frames that a sender hands over at once.
const BATCH: u64 = 64;

/// Words for controller and message server.
const MIDDLE: [&str; 5] = ["controller", "message server", "nats", "broker", "server"];

/// Words for a machine that has no processor time for its programs.
const OVERLOAD: [&str; 2] = ["overloaded", "did not run for"];

/// What is held against a trial, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// A report says what is not so.
    pub(crate) wrong: Vec<String>,
    /// A report names a culprit that is none.
    pub(crate) culprit: Vec<String>,
    /// Results of a node that lives are in no report.
    pub(crate) lost: Vec<String>,
    pub(crate) doubled: Vec<String>,
    /// Frames that left after the lease.
    pub(crate) late: Vec<String>,
    /// The fleet was not usable in time.
    pub(crate) unusable: Vec<String>,
    /// A second controller, or machines that wanted to join, were turned away.
    pub(crate) turned_away: Vec<String>,
}

impl Findings {
    /// All with their kind.
    pub(crate) fn all(&self) -> Vec<String> {
        let kinds = [
            ("wrong report", &self.wrong),
            ("wrong culprit", &self.culprit),
            ("results lost", &self.lost),
            ("doubled", &self.doubled),
            ("last frame", &self.late),
            ("not usable", &self.unusable),
            ("turned away", &self.turned_away),
        ];
        let mut all = Vec::new();
        for (kind, findings) in kinds {
            all.extend(findings.iter().map(|finding| format!("{kind}: {finding}")));
        }
        all
    }
}

pub(crate) fn judge(trial: &Trial, seen: &Observation) -> Findings {
    let mut findings = Findings::default();
    for (which, report) in [("printed", &seen.end.report), ("final", &seen.final_report)] {
        if let Some(report) = report {
            judge_report(trial, seen, which, report, &mut findings);
        }
    }
    if seen.end.report.is_none() {
        judge_culprit(trial, "error", &[&why_not(&seen.end)], &mut findings);
    }
    judge_losses(trial, seen, &mut findings);
    if seen.reports > 1 {
        findings.doubled.push(format!("{} reports of one run", seen.reports));
    }
    judge_silence(trial, seen, &mut findings);
    judge_usability(seen, &mut findings);
    if seen.end.hung {
        findings.unusable.push("the run did not end".to_owned());
    }
    findings
}

fn judge_report(trial: &Trial, seen: &Observation, which: &str, report: &Value, findings: &mut Findings) {
    let verdict = report["verdict"]["verdict"].as_str().unwrap_or_default();
    let is_complete = report["outcome"]["state"] == "complete";
    let sent: Option<u64> =
        (0..NODES).filter(|node| is_sender(*node)).map(|node| true_frames(seen, node)).sum();
    let planned = TRIAL_FRAMES * (NODES / 2) as u64;
    if let Some(sent) = sent.filter(|sent| verdict == "PASS" && *sent != planned) {
        findings.wrong.push(format!("{which}: PASS although {sent} of {planned} frames were sent"));
    }
    if verdict == "PASS" && report["coverage"]["reported"] != NODES {
        findings
            .wrong
            .push(format!("{which}: PASS with {} of {NODES} nodes", report["coverage"]["reported"]));
    }
    if verdict == "FAIL" {
        let reasons = &report["verdict"]["reasons"];
        findings.wrong.push(format!("{which}: FAIL, and there is no device: {reasons}"));
    }
    if let Some(frames) = report["lost"]["path"].as_u64().filter(|frames| *frames > 0) {
        findings.wrong.push(format!("{which}: {frames} frames lost on the path, which is a cable"));
    }
    let text = report.to_string();
    for claim in ["nothing was sent", "no stream with metrics was sent"] {
        if let Some(sent) = sent.filter(|sent| *sent > 0 && text.contains(claim)) {
            findings.wrong.push(format!("{which}: \"{claim}\", although {sent} frames were"));
        }
    }
    // Nobody takes over while a run goes on: who waits for its end is no other controller.
    if which == "printed" && text.contains("another controller has taken over") {
        findings.wrong.push(format!("{which}: another controller has taken over, and there was none"));
    }
    for row in report["nodes"].as_array().into_iter().flatten() {
        judge_counts(seen, which, row, is_complete, report, findings);
    }
    let outcome = &report["outcome"];
    let reasons = outcome["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let reasons: Vec<&str> = reasons.chain(outcome["fault"]["text"].as_str()).collect();
    judge_culprit(trial, which, &reasons, findings);
}

/// Frames of a node by the kernel's counters, without those that the reports of split starts have. `None`: such a report says that the
/// node's result is missing, as when its process was killed.
fn true_frames(seen: &Observation, node: usize) -> Option<u64> {
    let key = if is_sender(node) { "sent" } else { "received" };
    let name = node_name(node);
    let rows = seen.split_starts.iter().flat_map(|report| report["nodes"].as_array().into_iter().flatten());
    let mut left = seen.truth[node].of_trial;
    for row in rows.filter(|row| row["node"] == name.as_str()) {
        // A report that counts too many leaves too few: the run's own count is then too large.
        left = left.saturating_sub(row[key].as_u64().filter(|_| row["reported"] == true)?);
    }
    Some(left)
}

/// A node's row beside the kernel's counters. What receivers did not count must be explained by the rig's own loss, or leave the run
/// incomplete; what senders sent is known to the frame.
fn judge_counts(
    seen: &Observation,
    which: &str,
    row: &Value,
    is_complete: bool,
    report: &Value,
    findings: &mut Findings,
) {
    let name = row["node"].as_str().unwrap_or_default();
    let Some(node) = node_number(name) else { return };
    let key = if is_sender(node) { "sent" } else { "received" };
    let (Some(truth), Some(said)) = (true_frames(seen, node), row[key].as_u64()) else { return };
    let lost = &report["lost"];
    let own: u64 = ["receiver", "in_doubt"].iter().filter_map(|key| lost[*key].as_u64()).sum();
    if said > truth {
        findings.doubled.push(format!("{which}: {name} {key} {said}, truly {truth}"));
    } else if said < truth && (is_sender(node) || (is_complete && said + own < truth)) {
        findings.wrong.push(format!("{which}: {name} {key} {said}, truly {truth}"));
    }
}

/// Reasons that name nodes which nothing happened to must also name what something happened to.
fn judge_culprit(trial: &Trial, which: &str, reasons: &[&str], findings: &mut Findings) {
    // Machines that join are many: a machine without processor time must be named as such.
    let is_overload = matches!(trial.fault, InjectedFault::JoinBurst(_));
    if is_overload && name_any(reasons, &OVERLOAD.map(str::to_owned)) {
        return;
    }
    if let InjectedFault::DiskFull(..) | InjectedFault::SecondController | InjectedFault::ServeBeside =
        trial.fault
    {
        return;
    }
    let hit = trial.fault.nodes();
    // A receiver that hears nothing more of its sender may say so.
    let beside = (0..NODES).filter(|node| hit.contains(node) || hit.contains(&facing(*node)));
    let culprits: Vec<String> = beside.map(node_name).chain(MIDDLE.map(str::to_owned)).collect();
    let nodes: Vec<String> = (0..NODES).map(node_name).collect();
    if name_any(reasons, &nodes) && !name_any(reasons, &culprits) {
        findings.culprit.push(format!("{which}: {}", reasons.join("; ")));
    }
}

/// Whether one of the reasons has one of these words.
fn name_any(reasons: &[&str], words: &[String]) -> bool {
    reasons.iter().any(|reason| words.iter().any(|word| reason.contains(word.as_str())))
}

fn judge_losses(trial: &Trial, seen: &Observation, findings: &mut Findings) {
    let took_part = seen.truth.iter().any(|counts| counts.of_trial > 0);
    if !took_part {
        return;
    }
    let rows = seen.final_report.as_ref().and_then(|report| report["nodes"].as_array());
    for node in (0..NODES).filter(|node| !(seen.was_hit && trial.fault.costs_results_of(*node))) {
        let name = node_name(node);
        let row = rows.and_then(|rows| rows.iter().find(|row| row["node"] == name.as_str()));
        if row.is_none_or(|row| row["reported"] != true) {
            let truth = seen.truth[node].of_trial;
            let waiting = seen.waiting[node];
            findings.lost.push(format!("{name} ({truth} frames, {waiting} segments wait)"));
        }
    }
}

/// The latest that a sender's last frame may leave after the fault began, in milliseconds.
fn silence_limit_ms(fault: InjectedFault, node: usize) -> Option<u64> {
    let lease_ms = LEASE_S * 1000 + SLACK_MS;
    match fault {
        InjectedFault::Kill(Victim::Controller) | InjectedFault::NumberReused => Some(lease_ms),
        InjectedFault::Freeze(Victim::Controller | Victim::Server, seconds) => {
            (seconds > LEASE_S).then_some(lease_ms)
        }
        InjectedFault::Kill(victim) => (victim.node() == Some(node)).then_some(SLACK_MS),
        InjectedFault::Reboot(rebooted) => (rebooted == node).then_some(SLACK_MS),
        InjectedFault::Cut { links, seconds, .. } => {
            (seconds > LEASE_S && links.nodes().contains(&node)).then_some(lease_ms)
        }
        _ => None,
    }
}

fn judge_silence(trial: &Trial, seen: &Observation, findings: &mut Findings) {
    // A run that is started after the fault has leases of its own.
    if !seen.was_hit || trial.phase == RunPhase::Idle {
        return;
    }
    for node in (0..NODES).filter(|node| is_sender(*node)) {
        let name = node_name(node);
        let after_ns = seen.last_frame_ns[node].map(|last_ns| last_ns.saturating_sub(seen.fault_began_ns));
        let after_ms = after_ns.unwrap_or(0) / 1_000_000;
        if silence_limit_ms(trial.fault, node).is_some_and(|limit_ms| after_ms > limit_ms) {
            findings.late.push(format!("{name} sent {after_ms} ms after the fault began"));
        }
        let thawed = seen.truth[node].of_trial - seen.sent_at_fault[node];
        // One that had not begun may be told to begin when it is back, with a new lease.
        let had_begun = seen.sent_at_fault[node] > 0;
        if had_begun && is_frozen_beyond_lease(trial.fault, node) && thawed > BATCH {
            findings.late.push(format!("{name} sent {thawed} frames when it went on, {BATCH} allowed"));
        }
    }
}

fn is_frozen_beyond_lease(fault: InjectedFault, node: usize) -> bool {
    matches!(fault, InjectedFault::Freeze(Victim::Worker(frozen) | Victim::Node(frozen), seconds)
        if frozen == node && seconds > LEASE_S)
}

fn judge_usability(seen: &Observation, findings: &mut Findings) {
    let after_ms = seen.usable_after_ns.map(|ns| ns / 1_000_000);
    if after_ms.is_none_or(|ms| ms > USABLE_MS) {
        let when = after_ms.map_or_else(|| "never".to_owned(), |ms| format!("after {ms} ms"));
        let first = seen.refusals.first().map_or("none", String::as_str);
        let count = seen.refusals.len();
        findings.unusable.push(format!("{when} ({count} runs did not pass before; the first: {first})"));
    }
    if let Some(second) = &seen.second
        && second.code != Some(0)
    {
        findings.turned_away.push(format!("the second controller: {}", why_not(second)));
    }
    if let Some(why) = &seen.served {
        findings.turned_away.push(format!("`serve --on-fleet`: {why}"));
    }
    if let Some(first) = seen.not_joined.first() {
        let count = seen.not_joined.len();
        findings.turned_away.push(format!("{count} machines did not join in time: {first}"));
    }
}
