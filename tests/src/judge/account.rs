//! Compares what a run reports of a stream with the log of the judge.

use super::JudgedStream;
use crate::program::Report;
use crate::rig_fault::RigFault;
use serde_json::Value;

/// What is wrong with the report of a stream, in words; nothing if it is right.
pub fn differences(report: &Report, stream: &str, truth: &JudgedStream, rig: RigFault) -> Vec<String> {
    if !has_result(report, stream) {
        return vec![format!("stream {stream}: no result")];
    }
    let number = |path: &str| report.number(stream, path);
    let (lost, in_doubt) = (number("/loss/lost"), number("/loss/in_doubt"));
    let (unique, frames) = (number("/received/sequence/unique"), number("/received/frames"));
    let astray = report.stream(stream).pointer("/misdelivery/frames").and_then(Value::as_u64).unwrap_or(0);
    let mut checks = vec![
        Check::equal("corrupt", number("/received/corrupt"), truth.corrupted()),
        Check::equal("astray", astray, truth.astray()),
        Check::equal("duplicates", number("/received/sequence/duplicates"), truth.left() - truth.delivered()),
        Check::equal("lost", lost + unique, number("/loss/expected")),
        Check::at_most("blamed on the device", lost - in_doubt, truth.lost_by_device()),
    ];
    let is_rx_whole = !matches!(
        rig,
        RigFault::RxDown | RigFault::RxCarrierLost | RigFault::RxDeleted | RigFault::BothDeleted
    );
    let is_tx_whole = !matches!(
        rig,
        RigFault::TxDown | RigFault::TxMtuLowered | RigFault::TxDeleted | RigFault::BothDeleted
    );
    let sent = number("/sent/frames");
    if is_tx_whole {
        checks.push(Check::equal("sent", sent, truth.received()));
    } else {
        checks.push(Check::at_most("at the device", truth.received(), sent));
    }
    if is_rx_whole {
        checks.push(Check::equal("received", frames, truth.left()));
        checks.push(Check::equal("unique", unique, truth.delivered()));
    } else {
        checks.push(Check::at_most("received", frames, truth.left()));
        checks.push(Check::at_most(
            "lost at the receiver and in no doubt",
            truth.delivered() - unique,
            in_doubt,
        ));
    }
    checks.into_iter().filter_map(|check| check.difference(stream)).collect()
}

/// Whether both ends of a stream reported.
pub fn has_result(report: &Report, stream: &str) -> bool {
    !report.stream(stream)["loss"].is_null()
}

/// Whether every planned frame of a stream arrived.
pub fn is_whole(report: &Report, stream: &str) -> bool {
    has_result(report, stream)
        && report.number(stream, "/received/sequence/unique") == report.number(stream, "/sent/planned")
}

struct Check {
    what: &'static str,
    got: u64,
    wanted: u64,
    or_less: bool,
}

impl Check {
    fn equal(what: &'static str, got: u64, wanted: u64) -> Self {
        Self { what, got, wanted, or_less: false }
    }

    fn at_most(what: &'static str, got: u64, wanted: u64) -> Self {
        Self { what, got, wanted, or_less: true }
    }

    fn difference(&self, stream: &str) -> Option<String> {
        let Self { what, got, wanted, or_less } = self;
        let is_right = got == wanted || *or_less && got < wanted;
        let words = if *or_less { "at most " } else { "" };
        (!is_right).then(|| format!("stream {stream}: {what}: {got}, by the judge {words}{wanted}"))
    }
}
