//! Tables of a report for the terminal: their columns, headings, and the order in which columns are left out of narrow tables.

use super::{ALL_COLUMNS, MOST_ROWS, left_out_line, shorten_name};
use crate::numbers::{format_count, format_percent, format_scaled, format_signed};
use crate::output::TextStyle;
use crate::table::fitted_table;
use packetrig_report::columns::{CellValue, ColumnKind, ReportTable};
use packetrig_units::Nanos;

/// Text of a cell with an unknown value.
const UNKNOWN: &str = "–";

/// A column of a terminal table.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownColumn {
    /// Name of the report's column.
    column: &'static str,
    heading: &'static str,
    /// Text before every value.
    prefix: &'static str,
    /// Rank of the column: if the table is too wide, columns with the smallest rank are left out first.
    importance: u8,
    /// True to hide the column if no row has a value.
    is_hidden_when_empty: bool,
}

/// A column that is never left out.
pub(super) const fn always_shown(column: &'static str, heading: &'static str) -> ShownColumn {
    shown_if_fits(column, heading, u8::MAX)
}

/// A column that is left out of narrow tables, those of the smallest `importance` first.
pub(super) const fn shown_if_fits(
    column: &'static str,
    heading: &'static str,
    importance: u8,
) -> ShownColumn {
    ShownColumn { column, heading, prefix: "", importance, is_hidden_when_empty: false }
}

impl ShownColumn {
    /// Name of the report's column.
    pub(super) const fn name(&self) -> &'static str {
        self.column
    }

    /// Puts `prefix` before every value.
    pub(super) const fn with_prefix(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// Hides the column if no row has a value.
    pub(super) const fn hidden_when_empty(self) -> Self {
        Self { is_hidden_when_empty: true, ..self }
    }

    fn cell_text<T: ReportTable>(&self, row: &T::Row<'_>) -> Option<String> {
        // Names of columns are those of the CSV files, so a value is computed in one place only.
        let column = T::find_column(self.column)?;
        let shown = value_text(&column.value_in(row)?, column.kind);
        Some(format!("{}{shown}", self.prefix))
    }
}

/// Renders the table of these rows; empty without rows.
pub(super) fn report_table<T: ReportTable>(
    columns: &[ShownColumn],
    rows: &[T::Row<'_>],
    subjects: &str,
    style: TextStyle,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let shown = &rows[..rows.len().min(MOST_ROWS)];
    // Only shown rows decide: a column that is empty on the screen is of no use there.
    let columns: Vec<&ShownColumn> = columns
        .iter()
        .filter(|column| {
            !column.is_hidden_when_empty || shown.iter().any(|row| column.cell_text::<T>(row).is_some())
        })
        .collect();
    let header: Vec<&str> = columns.iter().map(|column| column.heading).collect();
    // Unknown is a dash and never a zero: a node that did not report has not measured zero.
    let cells: Vec<Vec<String>> = shown
        .iter()
        .map(|row| {
            let cells = columns.iter().map(|column| column.cell_text::<T>(row));
            cells.map(|cell| cell.unwrap_or_else(|| UNKNOWN.to_owned())).collect()
        })
        .collect();
    let text = fitted_table(style.width(), &header, &cells, &least_important(&columns), ALL_COLUMNS);
    text + &left_out_line(rows.len(), subjects, T::FILE)
}

/// The headings of the columns that may be left out, the least important first.
fn least_important(columns: &[&ShownColumn]) -> Vec<&'static str> {
    let mut droppable: Vec<&&ShownColumn> =
        columns.iter().filter(|column| column.importance < u8::MAX).collect();
    droppable.sort_by_key(|column| column.importance);
    droppable.iter().map(|column| column.heading).collect()
}

/// Formats a value for people.
fn value_text(value: &CellValue, kind: ColumnKind) -> String {
    match (value, kind) {
        (CellValue::Text(text), _) => shorten_name(text),
        (CellValue::Names(names), _) => shorten_name(&names.join(" ")),
        (CellValue::YesNo(value), _) => if *value { "yes" } else { "no" }.to_owned(),
        (CellValue::Share { part, whole, .. }, _) => format_percent(*part, *whole),
        (CellValue::Count(ns), ColumnKind::Nanoseconds) => Nanos::new(*ns).to_string(),
        (CellValue::Count(rate), ColumnKind::BitsPerSecond) => format_scaled(*rate as f64, "bit/s"),
        // Rates come in thousandths, so that slow streams have decimals without floats in the report.
        (CellValue::Count(milli), ColumnKind::MilliFramesPerSecond) => {
            format_scaled(*milli as f64 / 1000.0, "")
        }
        (CellValue::Count(number), _) => format_count(*number),
        (CellValue::Float(number), _) => format_scaled(*number, kind.unit().unwrap_or("")),
        (CellValue::Signed(ns), ColumnKind::SignedNanoseconds) => signed_time(*ns),
        (CellValue::Signed(ppm), ColumnKind::PartsPerMillion) => format!("{} ppm", format_signed(*ppm)),
        (CellValue::Signed(number), _) => format_signed(*number),
    }
}

fn signed_time(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", Nanos::new(ns.unsigned_abs()))
}
