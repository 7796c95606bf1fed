//! Results of the run as a whole: ports, the ledger, captures, caveats.

use super::columns::{ShownColumn, always, if_room, report_table};
use super::merged::{ReportRemark, merge};
use super::{MOST_ROWS, left_out};
use crate::numbers::count;
use crate::output::TextStyle;
use packetrig_fleet::report::columns::{PortTable, ReportTable};
use packetrig_fleet::report::{PortReport, RunReport};
use packetrig_stats::ledger::LedgerAccount;
use packetrig_stats::result::CaptureResult;

const PORTS: &[ShownColumn] = &[
    always("port", "port"),
    always("node", "node"),
    if_room("location", "location", 4),
    if_room("back_end", "back end", 2),
    if_room("driver", "driver", 0),
    always("tx_handed_over", "sent"),
    if_room("tx_l2_bps", "tx rate", 3),
    always("rx_of_run", "received"),
    if_room("rx_l2_bps", "rx rate", 3),
    if_room("rx_foreign", "foreign", 5),
    always("rx_ring_dropped", "ring drops"),
    if_room("tx_stamp", "tx stamp", 1),
    if_room("rx_stamp", "rx stamp", 1),
];

/// Table of the ports' counts, and the reasons for their back ends.
pub(super) fn ports(report: &RunReport, style: TextStyle) -> String {
    let is_fleet = report.ports.iter().any(|port| port.fleet_node().is_some());
    let columns: Vec<ShownColumn> =
        PORTS.iter().filter(|column| is_fleet || column.name() != "node").copied().collect();
    let mut text = report_table::<PortTable>(&columns, &PortTable::rows(report), "ports", style);
    // On a fleet, most ports have the same back end for the same reason.
    let mut reasons: Vec<String> = report.ports.iter().map(why).collect();
    reasons.dedup();
    text.extend(reasons.iter().map(|reason| format!("  {reason}\n")));
    text
}

fn why(port: &PortReport) -> String {
    format!("back end {}: {}", word(&port.info.back_end), port.info.why)
}

/// Every account in the order in which frames pass, then the places of losses.
pub(super) fn ledger(report: &RunReport) -> String {
    let mut text = String::new();
    for (side, accounts) in SIDES {
        // An account that no counter feeds is left out; a zero would claim that it was counted.
        let known = accounts.iter().filter_map(|account| Some((account, report.ledger.get(*account)?)));
        let parts = known.map(|(account, frames)| format!("{} {}", name(*account), count(frames)));
        let line = parts.collect::<Vec<_>>().join("  ");
        if !line.is_empty() {
            text.extend([format!("  {side:<14}{line}\n")]);
        }
    }
    text.push_str(&lost(report));
    text.extend(report.imbalances.iter().map(|wrong| format!("  does not balance: {wrong}\n")));
    text.extend(
        report.unchecked.iter().map(|rule| format!("  not checked, because a counter is missing: {rule}\n")),
    );
    text
}

/// Accounts by the side that keeps them, in the order in which frames pass.
const SIDES: [(&str, &[LedgerAccount]); 3] = [
    (
        "our sender",
        &[
            LedgerAccount::Planned,
            LedgerAccount::Unsent,
            LedgerAccount::Built,
            LedgerAccount::Refused,
            LedgerAccount::HandedOver,
            LedgerAccount::TxDropped,
            LedgerAccount::OnWire,
        ],
    ),
    (
        "our receiver",
        &[
            LedgerAccount::Arrived,
            LedgerAccount::RingDropped,
            LedgerAccount::Seen,
            LedgerAccount::Foreign,
            LedgerAccount::Protocol,
            LedgerAccount::Misdelivered,
            LedgerAccount::OtherRuns,
            LedgerAccount::Recognised,
            LedgerAccount::Counted,
            LedgerAccount::Duplicate,
            LedgerAccount::Stale,
            LedgerAccount::Unnumbered,
        ],
    ),
    ("end to end", &[LedgerAccount::Expected, LedgerAccount::Lost]),
];

fn lost(report: &RunReport) -> String {
    let places = report.lost;
    if places.total == 0 {
        return String::new();
    }
    format!(
        "  {:<14}{}: in our sender {}, in our receiver {}, during an event at a port {} (in doubt), in the device under test or on the path {}\n",
        "lost",
        count(places.total),
        known(places.sender),
        known(places.receiver),
        count(places.in_doubt),
        known(places.path)
    )
}

fn known(frames: Option<u64>) -> String {
    frames.map_or_else(|| "not known".to_owned(), count)
}

/// Capture files and their missing frames.
pub(super) fn captures(report: &RunReport) -> String {
    report.captures.iter().map(capture_line).collect()
}

fn capture_line(capture: &CaptureResult) -> String {
    let missing = match capture.dropped {
        0 => String::new(),
        dropped => format!(", {} frames missing", count(dropped)),
    };
    format!("  {}: {} frames{missing}\n", capture.file, count(capture.written))
}

/// Doubts, those that forbid PASS first.
pub(super) fn caveats(report: &RunReport, style: TextStyle) -> String {
    let mut lines = Vec::new();
    for matters in [true, false] {
        let mark = if matters { style.doubtful("no PASS") } else { "note   ".to_owned() };
        let chosen = report.caveats.iter().filter(|caveat| caveat.matters == matters);
        let remarks: Vec<_> =
            chosen.map(|caveat| ReportRemark { subject: &caveat.subject, text: &caveat.text }).collect();
        lines.extend(merge(report, &remarks).iter().map(|line| format!("  {mark}  {line}\n")));
    }
    let more = left_out(lines.len(), "caveats", "report.json");
    lines.into_iter().take(MOST_ROWS).chain([more]).collect()
}

/// Name of an account as in the ledger's rules: `handed over` for `handed_over`.
fn name(account: LedgerAccount) -> String {
    word(&account).replace('_', " ")
}

/// Word of a value in the report's JSON.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
