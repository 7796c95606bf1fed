//! Formats the results of the run as a whole: ports, the ledger, captures and caveats.

use super::columns::render_report_table;
use super::merged::{ReportRemark, merge_remarks};
use super::{MAX_ROWS, format_omitted_rows_line};
use crate::numbers::format_count;
use crate::output::TextStyle;
use packetrig_report::columns::{PortTable, ReportTable, TerminalTable};
use packetrig_report::{PortReport, RunReport};
use packetrig_stats::ledger::LedgerAccount;
use packetrig_stats::result::CaptureResult;
use packetrig_units::text::one_line;
use std::collections::BTreeSet;

/// Formats the table of the ports' counts, and the reasons for the choice of their back ends.
pub(super) fn format_ports(report: &RunReport, style: TextStyle) -> String {
    let is_fleet = report.ports.iter().any(|port| port.fleet_node().is_some());
    let mut columns = PortTable::terminal_columns(TerminalTable::Counts);
    columns.retain(|(_, column)| is_fleet || column.name != "node");
    let mut text = render_report_table(report, &columns, &PortTable::report_rows(report), "ports", style);
    // On a fleet, most ports have the same back end for the same reason.
    let mut reasons: Vec<String> = report.ports.iter().map(describe_back_end_choice).collect();
    let mut shown = BTreeSet::new();
    reasons.retain(|reason| shown.insert(reason.clone()));
    text.extend(reasons.iter().map(|reason| format!("  {reason}\n")));
    text
}

fn describe_back_end_choice(port: &PortReport) -> String {
    format!("back end {}: {}", json_text_or_empty(&port.info.back_end), port.info.why)
}

/// Formats the ledger: the accounts in the order in which frames pass them, where frames were lost, and the rules that
/// do not hold or could not be checked.
pub(super) fn format_ledger(report: &RunReport) -> String {
    let mut text = String::new();
    for (side, accounts) in ACCOUNTS_BY_SIDE {
        // An account without a counter is left out; a zero would claim that frames were counted.
        let known = accounts.iter().filter_map(|account| Some((account, report.ledger.get(*account)?)));
        let parts =
            known.map(|(account, frames)| format!("{} {}", account_name(*account), format_count(frames)));
        let line = parts.collect::<Vec<_>>().join("  ");
        if !line.is_empty() {
            text.extend([format!("  {side:<14}{line}\n")]);
        }
    }
    text.push_str(&format_loss_line(report));
    text.extend(report.imbalances.iter().map(|wrong| format!("  does not balance: {wrong}\n")));
    text.extend(
        report.unchecked.iter().map(|rule| format!("  not checked, because a counter is missing: {rule}\n")),
    );
    text
}

/// Accounts of our sender, of our receiver and of both together, in the order in which frames pass them.
const ACCOUNTS_BY_SIDE: [(&str, &[LedgerAccount]); 3] = [
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

fn format_loss_line(report: &RunReport) -> String {
    let places = report.lost;
    // Without a loss there are no places, and a row of zeros would look like a finding.
    if places.total == 0 {
        return String::new();
    }
    format!(
        "  {:<14}{}: in our sender {}, in our receiver {}, during an event at a port {} (in doubt), in the device under test or on the path {}\n",
        "lost",
        format_count(places.total),
        count_or_unknown(places.sender),
        count_or_unknown(places.receiver),
        format_count(places.in_doubt),
        count_or_unknown(places.path)
    )
}

fn count_or_unknown(frames: Option<u64>) -> String {
    frames.map_or_else(|| "not known".to_owned(), format_count)
}

/// Longest path that is shown, in characters: the limit of Linux (PATH_MAX).
const MAX_PATH_CHARACTERS: usize = 4096;

/// Formats a line for each capture file, with the number of missing frames.
pub(super) fn format_captures(report: &RunReport) -> String {
    report.captures.iter().map(format_capture_line).collect()
}

fn format_capture_line(capture: &CaptureResult) -> String {
    let missing = match capture.dropped {
        0 => String::new(),
        dropped => format!(", missing frames: {}", format_count(dropped)),
    };
    // The path comes from another machine, so its length is limited.
    let file = one_line(&capture.file, MAX_PATH_CHARACTERS);
    format!("  {file}: {} frames{missing}\n", format_count(capture.written))
}

/// Formats the caveats of the run. Caveats of one kind about many streams, ports or nodes share a line.
pub(super) fn format_caveats(report: &RunReport, style: TextStyle) -> String {
    let mut lines = Vec::new();
    // Caveats that forbid PASS come first, so the limit on rows never hides one behind a note.
    for matters in [true, false] {
        let mark = if matters { style.doubtful("no PASS") } else { "note   ".to_owned() };
        let chosen = report.caveats.iter().filter(|caveat| caveat.matters == matters);
        let remarks: Vec<_> =
            chosen.map(|caveat| ReportRemark { subject: &caveat.subject, text: &caveat.text }).collect();
        lines.extend(merge_remarks(report, &remarks).iter().map(|line| format!("  {mark}  {line}\n")));
    }
    let more = format_omitted_rows_line(lines.len(), "caveats", "report.json");
    lines.into_iter().take(MAX_ROWS).chain([more]).collect()
}

/// Returns the name of an account as in the ledger's rules: `handed over` for `handed_over`.
fn account_name(account: LedgerAccount) -> String {
    json_text_or_empty(&account).replace('_', " ")
}

/// Returns the text that stands for a value in the report's JSON; empty if JSON represents the value otherwise.
fn json_text_or_empty(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
