//! Schedules with gaps: what was lost before the rig's fault cannot be told from the length of the gap.

use super::account::wrong_verdict;
use super::check_on_all;
use super::table::UNKNOWN;
use packetrig_tests::judge::{Judge, differences};
use packetrig_tests::judged_run::{ON_A_BUSY_MACHINE, document, flow, lab};
use packetrig_tests::program::Running;
use packetrig_tests::rig_fault::{RigFault, await_frames};
use serde_json::json;

const KEY: u16 = 31_000;
const IN_A_BURST: u64 = 200;
/// Runs that are made until one is in time.
const MAX_TRIES: usize = 5;
/// Longer than a busy machine holds this test up between the end of a burst and the fault.
const GAP_NS: u64 = 1_000_000_000;

/// The interface goes down in the middle of a gap: the whole next burst is lost by the rig, and none of it before. A run whose next
/// burst had arrived before the machine let the fault begin is made again.
fn down_between_bursts(back_end: &str, fault: RigFault) -> Vec<String> {
    let mut runs = (0..MAX_TRIES).map(|_| run_program_once(back_end, fault));
    runs.find_map(|run| run).unwrap_or_else(|| vec!["no run was in time for its fault".to_owned()])
}

/// Differences of one run; `None` if its fault came too late.
fn run_program_once(back_end: &str, fault: RigFault) -> Option<Vec<String>> {
    let Some(lab) = lab(back_end) else { return Some(Vec::new()) };
    let Some(judge) = Judge::start(&lab, "") else { return Some(Vec::new()) };
    let gap = json!({"choice": "nanoseconds", "nanoseconds": GAP_NS});
    let bursts = json!({"bursts": 4, "packets": IN_A_BURST, "inter_burst_gap": gap});
    let flow = flow("bursts", KEY).pps(5000).with("duration", json!({"choice": "burst", "burst": bursts}));
    let flags = [&["--quiet", "--back-end", back_end], &ON_A_BUSY_MACHINE[..]].concat();
    let mut running = Running::run(&document(&lab, vec![flow]), &flags);
    let await_burst = |running: &mut Running, number: u64| {
        await_frames(&lab, running, number * IN_A_BURST);
        judge.await_read(&lab);
    };
    await_burst(&mut running, 2);
    fault.apply_during(&lab, &mut running, |running| await_burst(running, 3));
    let finished = running.finish();
    let report = finished.report();
    if report.number("bursts", "/received/sequence/unique") == 4 * IN_A_BURST {
        return None;
    }
    let mut found = differences(&report, "bursts", &judge.stop().stream(KEY), fault);
    found.extend(wrong_verdict(finished.code, &report, UNKNOWN, false));
    Some(found)
}

#[test]
fn receiver_down_between_bursts_is_rig_fault() {
    check_on_all(|back_end| down_between_bursts(back_end, RigFault::RxDown));
}

#[test]
fn carrier_loss_between_bursts_has_unknown_cause() {
    check_on_all(|back_end| down_between_bursts(back_end, RigFault::RxCarrierLost));
}
