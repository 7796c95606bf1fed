//! The table, cell by cell. Streams of one run meet different faults of the device; the rig's fault meets them all.

use super::account::{has_event, judgement, wrong_verdict};
use super::check_on;
use super::table::{BACK_ENDS, DEVICE_FAULTS, DeviceFault, FAIL, Row, Verdict, Wanted, row_of};
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::Flow;
use packetrig_tests::judge::{differences, has_result, is_whole};
use packetrig_tests::judged_run::{Judged, JudgedRun, LONG_DRAIN, ON_A_BUSY_MACHINE, flow};
use packetrig_tests::program::Report;
use packetrig_tests::rig_fault::RigFault;

const FIRST_KEY: u16 = 30_000;
/// Longer than a busy machine holds up the watcher of the ports, which must see the fault.
const FAULT_NS: u64 = 700_000_000;
/// A sender that is late by this is not stalled: longer than a busy machine holds it up.
const LATE_NS: u64 = 600_000_000;
const STALL_NS: u64 = 1_300_000_000;
/// The faults of the device that are not random are over by then.
const EARLY_NS: u64 = 700_000_000;
const MAX_TRIES: usize = 10;
/// Long enough for a lowered MTU to matter.
const SIZE: u32 = 1000;
/// Of each stream: in the last half of its 1.8 seconds the rig's fault begins. That is later than the faults of the device by
/// more than a busy machine holds anything up.
const PPS: u64 = 600;
const PACKETS: u64 = 1080;

/// Runs one row on these back ends, its two runs at the same time where they mostly sleep.
fn check(fault: RigFault, back_ends: &[&'static str]) {
    let row = row_of(fault);
    check_on(back_ends, |back_end| {
        if back_end == "xdp" {
            // While live frames are sent, their sender takes a processor before all others: two would take the whole machine.
            return [alone(row, back_end), with_device(row, back_end)].concat();
        }
        let runs = [alone, with_device];
        for_all(&runs, |run| run(row, back_end)).concat()
    });
}

/// A run of a row. A run that the machine itself disturbed before the stall, or that was over before it, is made again.
fn run(row: &Row, back_end: &str, flows: &[Flow], rules: &str) -> Option<Judged> {
    let mut runs = (0..MAX_TRIES).map(|_| run_program_once(row, back_end, flows.to_vec(), rules));
    let most_before = PACKETS * flows.len() as u64 * 9 / 10;
    let is_in_time = |judged: &Judged| judged.frames_at_fault < Some(most_before);
    let is_good = |judged: &Judged| {
        row.fault != RigFault::Stalled || is_in_time(judged) && !was_late_early(&judged.finished.report())
    };
    let found = runs.find(|judged| judged.as_ref().is_none_or(is_good));
    found.expect("a machine that is in time once in ten runs")
}

/// Whether the sender was too late long before it was stopped.
fn was_late_early(report: &Report) -> bool {
    let events = report.0["ports"][0]["events"].as_array().unwrap();
    let mut stalls = events.iter().filter(|event| event["kind"] == "sender_stalled");
    stalls.any(|stall| {
        stall["from"].as_u64() < Some(EARLY_NS)
            && stall["most_late"].as_u64().is_none_or(|late| late > LATE_NS)
    })
}

fn run_program_once(row: &Row, back_end: &str, flows: Vec<Flow>, rules: &str) -> Option<Judged> {
    let fault_after = PACKETS / 2 * flows.len() as u64;
    // Without a fault the first half is all.
    let packets = if row.fault == RigFault::None { PACKETS / 2 } else { PACKETS };
    let flows = flows.into_iter().map(|flow| flow.size(SIZE).pps(PPS).packets(packets)).collect();
    let is_stall = row.fault == RigFault::Stalled;
    // Only a stall is about lateness.
    let late = format!("{LATE_NS}ns");
    let flags = if is_stall { &["--max-late", &late, "--drain", LONG_DRAIN] } else { &ON_A_BUSY_MACHINE };
    let fault_ns = if is_stall { STALL_NS } else { FAULT_NS };
    JudgedRun { back_end, flows, rules, rig_fault: row.fault, fault_after, fault_ns, flags }.run()
}

/// The rig's fault with a device that does nothing wrong.
fn alone(row: &Row, back_end: &str) -> Vec<String> {
    let streams = [("one", FIRST_KEY), ("two", FIRST_KEY + 1)];
    let flows = streams.map(|(name, key)| flow(name, key));
    let Some(Judged { finished, log, .. }) = run(row, back_end, &flows, "") else { return Vec::new() };
    let report = finished.report();
    let mut found = Vec::new();
    let is_whole = streams.iter().all(|(name, _)| is_whole(&report, name));
    found.extend(wrong_verdict(finished.code, &report, row.wanted[0], is_whole));
    for (name, key) in streams {
        found.extend(differences(&report, name, &log.stream(key), row.fault));
    }
    found.extend(missing_event(row, &report));
    found.extend(unexplained(&report));
    named("alone", &report, found)
}

/// The rig's fault with all faults of the device, each on a stream of its own.
fn with_device(row: &Row, back_end: &str) -> Vec<String> {
    let keys = || (FIRST_KEY..).zip(&DEVICE_FAULTS);
    let flows: Vec<Flow> = keys().map(|(key, device)| flow(device.name, key)).collect();
    let with_rule = keys().filter(|(_, device)| !device.rule.is_empty());
    let rules: Vec<String> = with_rule.map(|(key, device)| format!("{} key={key}", device.rule)).collect();
    let Some(Judged { finished, log, .. }) = run(row, back_end, &flows, &rules.join("\n")) else {
        return Vec::new();
    };
    let report = finished.report();
    let mut found = Vec::new();
    for ((key, device), wanted) in keys().zip(row.wanted) {
        found.extend(wrong_cell(&report, device, wanted));
        found.extend(differences(&report, device.name, &log.stream(key), row.fault));
    }
    found.extend(wrong_verdict(finished.code, &report, FAIL, false));
    found.extend(missing_event(row, &report));
    named("with the device's faults", &report, found)
}

fn wrong_cell(report: &Report, device: &DeviceFault, wanted: Wanted) -> Vec<String> {
    if !has_result(report, device.name) {
        return Vec::new();
    }
    let (verdict, broken) = judgement(report, device.name);
    let certain = report.number(device.name, "/loss/lost") - report.number(device.name, "/loss/in_doubt");
    // This machine held the sender up, and what it sent to catch up explains each single loss. Whatever else is broken stays so.
    let is_explained =
        device.breaks.contains(&"loss") && certain == 0 && report.sent_ahead() > device.least_certain;
    let others: Vec<&str> = device.breaks.iter().copied().filter(|broken| *broken != "loss").collect();
    let of_others = if others.is_empty() { Verdict::Inconclusive } else { Verdict::Fail };
    if is_explained && verdict == of_others && broken == others {
        return Vec::new();
    }
    let mut found = Vec::new();
    if !wanted.is_kept(verdict, is_whole(report, device.name)) || broken != device.breaks {
        found.push(format!(
            "stream {}: {verdict:?} by {broken:?}, wanted {wanted:?} by {:?}",
            device.name, device.breaks
        ));
    }
    if certain + report.sent_ahead() < device.least_certain {
        found.push(format!(
            "stream {}: {certain} certainly lost, wanted {}",
            device.name, device.least_certain
        ));
    }
    found
}

fn missing_event(row: &Row, report: &Report) -> Option<String> {
    let (kind, cause) = row.event.filter(|(kind, cause)| !has_event(report, kind, cause))?;
    Some(format!("no event {kind} with cause {cause} in {}", report.0["ports"]))
}

fn events_of(report: &Report) -> String {
    let ports = report.0["ports"].as_array().unwrap().iter().map(|port| &port["events"]);
    let streams = report.0["streams"].as_array().unwrap().iter().map(|stream| &stream["outages"]);
    format!("events {:?}, outages {:?}", ports.collect::<Vec<_>>(), streams.take(2).collect::<Vec<_>>())
}

/// With a device without faults, nothing may be lost in it.
fn unexplained(report: &Report) -> Option<String> {
    let path = report.0["lost"]["path"].as_u64().unwrap_or(0);
    (path > 0).then(|| format!("{path} frames lost in the device: {}", report.0["lost"]))
}

/// Differences with the name of the run; what helps to understand them at the end.
fn named(what: &str, report: &Report, mut found: Vec<String>) -> Vec<String> {
    if !found.is_empty() {
        found.push(events_of(report));
    }
    found.into_iter().map(|one| format!("{what}: {one}")).collect()
}

#[test]
fn a_rig_without_faults() {
    check(RigFault::None, &BACK_ENDS);
}

#[test]
fn the_sending_interface_is_down_for_a_while() {
    check(RigFault::TxDown, &BACK_ENDS);
}

#[test]
fn lowered_sender_mtu_is_attributed_to_rig() {
    check(RigFault::TxMtuLowered, &BACK_ENDS);
}

#[test]
fn the_sending_interface_is_deleted() {
    check(RigFault::TxDeleted, &BACK_ENDS);
}

#[test]
fn the_receiving_interface_is_deleted() {
    check(RigFault::RxDeleted, &BACK_ENDS);
}

#[test]
fn both_interfaces_are_deleted() {
    check(RigFault::BothDeleted, &BACK_ENDS);
}

#[test]
fn the_receiving_interface_is_down_for_a_while() {
    check(RigFault::RxDown, &BACK_ENDS);
}

#[test]
fn receiver_carrier_loss_has_unknown_cause() {
    check(RigFault::RxCarrierLost, &BACK_ENDS);
}

#[test]
fn the_program_is_stopped_for_a_while() {
    check(RigFault::Stalled, &BACK_ENDS);
}
