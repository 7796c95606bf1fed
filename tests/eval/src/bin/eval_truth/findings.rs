//! What a run says beside the truth: its verdict, its counts, its latency and its outages.

use crate::scenario::{KEY, Kind, Scenario};
use packetrig_tests::judge::{JudgedOutage, JudgedStream, differences, has_result, is_whole};
use packetrig_tests::judged_run::Judged;
use packetrig_tests::program::Report;
use packetrig_tests::rig_fault::RigFault;
use serde_json::{Value, json};

pub(crate) const STREAM: &str = "stream";
/// What a time may be off beside one frame interval.
const TOLERANCE_NS: u64 = 1_000_000;
/// By default a sender may be late by 200 ms.
const TOLERATED_LATENESS_NS: u64 = 150_000_000;
/// A report lists at most so many outages.
const MOST_LISTED: usize = 64;

/// Whether a verdict is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Right,
    /// INCONCLUSIVE although no fault of the rig overlaps a loss.
    Unknown,
    Wrong,
}

/// One line of the file of results.
pub(crate) fn record(scenario: &Scenario, judged: &Judged) -> Value {
    let (report, truth) = (judged.finished.report(), judged.log.stream(KEY));
    let class = class(scenario, &report, &truth);
    let counts = differences(&report, STREAM, &truth, scenario.rig_fault);
    let (outages, missed) = outages(scenario, &report, &truth, judged.fault_began_ns);
    json!({
        "index": scenario.index,
        "kind": format!("{:?}", scenario.kind),
        "back_end": scenario.back_end,
        "rig": format!("{:?}", scenario.rig_fault),
        "rules": scenario.rules,
        "verdict": report.verdict(),
        "reasons": report.0["verdict"]["reasons"],
        "class": format!("{class:?}"),
        "counts": counts,
        "latency": latency(scenario, &report, &truth),
        "outages": outages,
        "outages_missed": missed,
        "was_held_up": longest_pause(&truth, judged) > TOLERATED_LATENESS_NS,
    })
}

/// How long no frame came to the forwarder although the rig had no fault: the machine held up the sender, or the forwarder.
fn longest_pause(truth: &JudgedStream, judged: &Judged) -> u64 {
    truth.longest_pause_ns(judged.fault_began_ns.unwrap_or(u64::MAX))
}

/// Whether the device did anything that the default criteria forbid.
fn is_device_faulty(truth: &JudgedStream) -> bool {
    truth.lost_by_device() + truth.corrupted() + truth.astray() > 0 || truth.left() > truth.delivered()
}

fn class(scenario: &Scenario, report: &Report, truth: &JudgedStream) -> Class {
    if has_result(report, STREAM) && certain_loss(report) > truth.lost_by_device() {
        return Class::Wrong;
    }
    let is_faulty = is_device_faulty(truth);
    match (scenario.kind, report.verdict()) {
        (Kind::NoRigFault | Kind::Apart, "INCONCLUSIVE")
            if is_faulty || scenario.kind == Kind::NoRigFault =>
        {
            Class::Unknown
        }
        (_, "INCONCLUSIVE") => Class::Right,
        (_, "FAIL") if is_faulty => Class::Right,
        (_, "PASS") if !is_faulty && is_whole(report, STREAM) => Class::Right,
        _ => Class::Wrong,
    }
}

/// Frames that the report blames on the device.
fn certain_loss(report: &Report) -> u64 {
    report.number(STREAM, "/loss/lost") - report.number(STREAM, "/loss/in_doubt")
}

/// When the stream began, on the judge's clock: the earliest frame, by its schedule. Only frames before any fault of the rig.
fn start_ns(scenario: &Scenario, truth: &JudgedStream) -> Option<u64> {
    let early = (0..).zip(&truth.0).take((scenario.fault_after / 2) as usize);
    early.map(|(number, frame)| frame.received_ns.saturating_sub(due_ns(scenario, number))).min()
}

fn due_ns(scenario: &Scenario, number: u64) -> u64 {
    number * 1_000_000_000 / scenario.pps
}

/// What is wrong with the latency: it must be at least the time that frames spent in the forwarder, and on average at most the
/// time from when they were due until they left the forwarder, and a little for the way.
fn latency(scenario: &Scenario, report: &Report, truth: &JudgedStream) -> Vec<String> {
    let latency = &report.stream(STREAM)["latency"];
    let is_rx_whole = !matches!(scenario.rig_fault, RigFault::RxDown | RigFault::RxCarrierLost);
    let figure = |name: &str| latency[name].as_u64();
    let (Some(least), Some(mean), Some(most), true) =
        (figure("min"), figure("mean"), figure("max"), is_rx_whole)
    else {
        return Vec::new();
    };
    let error = latency["error"]["tx_p99"].as_u64().unwrap_or(0)
        + latency["error"]["rx_conversion"].as_u64().unwrap_or(0);
    let residence: Vec<u64> =
        truth.0.iter().flat_map(|frame| frame.left_ns.iter().map(|left| left - frame.received_ns)).collect();
    let mut wrong = Vec::new();
    let mut at_least = |name: &str, got: u64, wanted: Option<u64>| {
        if wanted.is_some_and(|wanted| got + error < wanted) {
            wrong.push(format!("{name} {got}, in the forwarder alone {wanted:?}"));
        }
    };
    at_least("min", least, residence.iter().min().copied());
    at_least("mean", mean, average(&residence));
    at_least("max", most, residence.iter().max().copied());
    let bound = longest_mean(scenario, truth);
    if bound.is_some_and(|bound| mean > bound + error + TOLERANCE_NS) {
        wrong.push(format!("mean {mean}, from due to leaving the forwarder {bound:?}"));
    }
    wrong
}

/// Mean time from when frames were due until they left the forwarder; none where numbers at the judge are not those sent.
fn longest_mean(scenario: &Scenario, truth: &JudgedStream) -> Option<u64> {
    let start = start_ns(scenario, truth).filter(|_| is_tx_whole(scenario.rig_fault))?;
    let due = |number: u64| start + due_ns(scenario, number);
    let times = (0..)
        .zip(&truth.0)
        .flat_map(|(number, frame)| frame.left_ns.iter().map(move |left| left.saturating_sub(due(number))));
    average(&times.collect::<Vec<u64>>())
}

fn average(times: &[u64]) -> Option<u64> {
    times.iter().sum::<u64>().checked_div(times.len() as u64)
}

fn is_tx_whole(fault: RigFault) -> bool {
    matches!(fault, RigFault::None | RigFault::RxDown | RigFault::RxCarrierLost | RigFault::Stalled)
}

/// How many outages the device made apart from faults of the rig, and those that the report does not have.
fn outages(
    scenario: &Scenario,
    report: &Report,
    truth: &JudgedStream,
    fault_began_ns: Option<u64>,
) -> (usize, Vec<String>) {
    let listed = report.stream(STREAM)["outages"]["listed"].as_array();
    let (Some(listed), Some(start)) = (listed, start_ns(scenario, truth)) else { return (0, Vec::new()) };
    let is_before = |at: Option<u64>| at.is_some_and(|at| fault_began_ns.is_none_or(|began| at < began));
    let wanted = truth.outages().into_iter().filter(|outage| is_before(outage.after_ns));
    let wanted: Vec<JudgedOutage> = wanted.collect();
    if truth.outages().len() > MOST_LISTED {
        return (0, Vec::new());
    }
    let tolerance = due_ns(scenario, 1) + TOLERANCE_NS;
    let is_found = |outage: &JudgedOutage| listed.iter().any(|row| is_same(row, outage, start, tolerance));
    let missed = wanted.iter().filter(|outage| !is_found(outage));
    let nearest = |first: u64| listed.iter().find(|row| row["first"].as_u64() == Some(first));
    let missed: Vec<String> = missed
        .map(|outage| {
            let in_run = |at: Option<u64>| at.map(|at| at - start.min(at));
            let (begin, end) = (in_run(outage.before_ns), in_run(outage.after_ns));
            format!("{outage:?}: {begin:?} to {end:?}, report: {:?}", nearest(outage.first))
        })
        .collect();
    (wanted.len(), missed)
}

fn is_same(row: &Value, outage: &JudgedOutage, start: u64, tolerance: u64) -> bool {
    let is_near = |reported: &Value, truth: Option<u64>| match (reported.as_u64(), truth) {
        (Some(reported), Some(truth)) => (start + reported).abs_diff(truth) <= tolerance,
        (None, None) => true,
        _ => false,
    };
    row["first"].as_u64() == Some(outage.first)
        && row["last"].as_u64() == Some(outage.last)
        && is_near(&row["begin"], outage.before_ns)
        && is_near(&row["end"], outage.after_ns)
}
