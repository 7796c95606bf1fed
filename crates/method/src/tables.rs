//! Results as tables of text, with titles and units. Terminal tables, CSV and Markdown are made from them.
//!
//! A cell is empty if its value does not exist. Numbers have a decimal point and no grouping.

use crate::journal::MethodJournalEntry;
use crate::{
    Load, MethodJudgement, MethodOptions, MethodReport, MethodResult, RehearsedCost, TrialLength,
    TrialPurpose, TrialRequest,
};
use packetrig_units::{FrameSize, Nanos};
use std::fmt;

mod comparison;
mod convergence;
mod loss_share;
mod rfc2544;
mod searches;
mod senders;

/// A table of a result, before it is formatted for an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultTable {
    /// Base name of a file with the table: `throughput`.
    pub name: &'static str,
    pub title: String,
    pub columns: Vec<TableColumn>,
    /// Rows with as many cells as columns.
    pub rows: Vec<Vec<String>>,
    /// Notes to print below the table.
    pub notes: Vec<String>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableColumn {
    pub heading: &'static str,
    /// Unit of the values; empty for text and plain numbers.
    pub unit: &'static str,
}

impl TableColumn {
    /// Splits a heading that may end with its unit: `Load [frames/s]`.
    fn from_heading(text: &'static str) -> Self {
        match text.strip_suffix(']').and_then(|text| text.split_once(" [")) {
            Some((heading, unit)) => Self { heading, unit },
            None => Self { heading: text, unit: "" },
        }
    }
}

impl fmt::Display for TableColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            "" => f.write_str(self.heading),
            unit => write!(f, "{} [{unit}]", self.heading),
        }
    }
}

impl ResultTable {
    /// Returns the headings with their units.
    pub fn column_headings(&self) -> Vec<String> {
        self.columns.iter().map(TableColumn::to_string).collect()
    }

    /// Makes a table without rows. A heading may end with its unit: `Load [frames/s]`.
    pub(crate) fn new(name: &'static str, title: impl Into<String>, headings: &[&'static str]) -> Self {
        let columns = headings.iter().map(|heading| TableColumn::from_heading(heading)).collect();
        Self { name, title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn push_row(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.columns.len(), "{}", self.title);
        self.rows.push(row);
    }

    /// Returns `None` if the table has neither rows nor notes.
    fn none_if_empty(self) -> Option<Self> {
        (!self.rows.is_empty() || !self.notes.is_empty()).then_some(self)
    }
}

impl MethodReport {
    /// Returns the tables of the result, then the verdict.
    pub fn to_tables(&self) -> Vec<ResultTable> {
        let mut tables = match &self.result {
            MethodResult::Rfc2544(result) => rfc2544::tabulate_rfc2544(result),
            MethodResult::Convergence(result) => convergence::tabulate_convergence(result),
            MethodResult::Compare(result) => comparison::tabulate_comparison(result),
            MethodResult::LossShare(result) => loss_share::tabulate_loss_share(result),
            MethodResult::Mlrsearch(result) => searches::tabulate_mlrsearch(result),
            MethodResult::Bisect(result) => searches::tabulate_bisection(result),
        };
        tables.extend(senders::tabulate_senders(self).none_if_empty());
        tables.extend(tabulate_judgement(&self.judgement).none_if_empty());
        tables
    }
}

fn tabulate_judgement(judgement: &MethodJudgement) -> ResultTable {
    let title = match judgement.verdict {
        Some(verdict) => format!("Verdict: {verdict}"),
        None => "Verdict".to_owned(),
    };
    let mut table = ResultTable::new("verdict", title, &["Criterion", "Verdict", "Reason"]);
    for judged in &judgement.criteria {
        let verdict = judged.verdict.to_string();
        table.push_row(vec![judged.criterion.clone(), verdict, judged.reason.clone()]);
    }
    table.notes = judgement.unknown.iter().map(|reason| format!("Unknown: {reason}")).collect();
    table
}

/// Makes a row for every trial in the order in which it was made, repeated ones included.
pub fn tabulate_trials(trials: &[MethodJournalEntry]) -> ResultTable {
    let mut table = ResultTable::new(
        "trials",
        "Trials",
        &[
            "Trial",
            "Purpose",
            "Device",
            "Frame size [B]",
            "Load [frames/s]",
            "Length",
            "Sent [frames]",
            "Received [frames]",
            "Lost [frames]",
            "Unsent [frames]",
            "Loss [%]",
            "Outcome",
        ],
    );
    for entry in trials {
        table.push_row(build_trial_row(entry));
    }
    table
}

/// Makes a table of the trials of a dry run. Equal trials that follow each other share one row.
pub fn tabulate_plan(options: &MethodOptions, orders: &[TrialRequest]) -> ResultTable {
    let mut table = ResultTable::new(
        "plan",
        "Planned trials",
        &[
            "Trials",
            "Purpose",
            "Device",
            "Frame size [B]",
            "Load [frames/s]",
            "Length",
            "Sending time of each [s]",
            "Waits of each [s]",
        ],
    );
    for equal in orders.chunk_by(|order, next| order == next) {
        let order = &equal[0];
        table.push_row(vec![
            equal.len().to_string(),
            trial_purpose_name(order.purpose).to_owned(),
            order.device.to_string(),
            format_optional_cell(order.size, format_size_cell),
            format_rate_cell(order.load),
            format_length_cell(order.length),
            format_decimals(order.sending_time().as_secs_f64(), 3),
            format_decimals(options.trial_waits(order).total_wait().as_secs_f64(), 3),
        ]);
    }
    let cost = RehearsedCost::from_orders(options, orders);
    let RehearsedCost { trials, sending, waits } = cost;
    table.notes.push(format!(
        "{trials} trials: {sending} of sending and {waits} of waits, {} in all.",
        cost.total_time()
    ));
    table
}

fn format_length_cell(length: TrialLength) -> String {
    match length {
        TrialLength::Time(time) => time.to_string(),
        TrialLength::Frames(frames) => format!("{frames} frames"),
    }
}

fn build_trial_row(entry: &MethodJournalEntry) -> Vec<String> {
    let MethodJournalEntry { order, result, .. } = entry;
    let lost = match (result.lost.least, result.lost.most) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    };
    let outcome = match &result.rig_fault {
        // This check comes before the fault: a trial without loss is valid, even if the rig reports a fault.
        _ if result.is_without_loss() => "no loss".to_owned(),
        Some(fault) => format!("rig: {fault}"),
        None => "loss".to_owned(),
    };
    vec![
        entry.number.to_string(),
        trial_purpose_name(order.purpose).to_owned(),
        order.device.to_string(),
        format_optional_cell(order.size, format_size_cell),
        format_rate_cell(order.load),
        format_length_cell(order.length),
        result.sent.to_string(),
        result.received.to_string(),
        lost,
        result.unsent_frames().to_string(),
        format_decimals(result.loss_share() * 100.0, 4),
        outcome,
    ]
}

const fn trial_purpose_name(purpose: TrialPurpose) -> &'static str {
    match purpose {
        TrialPurpose::Search => "search",
        TrialPurpose::Latency => "latency",
        TrialPurpose::LossRate => "frame loss",
        TrialPurpose::BackToBack => "back-to-back",
        TrialPurpose::Recovery => "recovery",
        TrialPurpose::Reset => "reset",
        TrialPurpose::Convergence => "convergence",
        TrialPurpose::Repetition => "repetition",
    }
}

fn format_size_cell(size: FrameSize) -> String {
    size.bytes().to_string()
}

/// Formats frames per second; a rate below 1000 that is not a whole number has three decimals.
fn format_rate_cell(load: Load) -> String {
    let rate = load.frames_per_second();
    if rate < 1000.0 && rate.fract() != 0.0 { format_decimals(rate, 3) } else { format_decimals(rate, 0) }
}

fn format_decimals(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

fn format_microseconds(time: Nanos) -> String {
    format_decimals(time.as_u64() as f64 / 1e3, 3)
}

fn format_milliseconds(time: Nanos) -> String {
    format_decimals(time.as_u64() as f64 / 1e6, 3)
}

fn format_optional_cell<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map(show).unwrap_or_default()
}

#[cfg(test)]
mod tests;
