//! Tables of a report for the terminal. `packetrig_report::columns` lists the columns, with their headings and the
//! order in which narrow tables leave them out.

use super::{MAX_ROWS, format_omitted_rows_line, shorten_name};
use crate::numbers::{format_count, format_percent, format_scaled, format_signed};
use crate::output::TextStyle;
use crate::table::format_fitted_table;
use packetrig_report::RunReport;
use packetrig_report::columns::{
    ALWAYS_SHOWN_RANK, CellValue, ColumnKind, ReportColumn, ReportTable, TerminalColumnPosition,
};
use packetrig_units::Nanos;

/// Text of a cell with an unknown value.
const UNKNOWN_CELL: &str = "–";

/// A column and its position in the table of the terminal.
type PlacedColumn<T> = (TerminalColumnPosition, &'static ReportColumn<T>);

fn format_cell<T: ReportTable>((place, column): &PlacedColumn<T>, row: &T::Row<'_>) -> Option<String> {
    let shown = format_value(&column.value_in(row)?, column.kind);
    Some(format!("{}{shown}", place.prefix))
}

/// Renders rows of a report as a table, at most [`MAX_ROWS`]; empty without rows.
pub(super) fn render_report_table<T: ReportTable>(
    report: &RunReport,
    columns: &[PlacedColumn<T>],
    rows: &[T::Row<'_>],
    subjects: &str,
    style: TextStyle,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let shown = &rows[..rows.len().min(MAX_ROWS)];
    // Only the shown rows decide which columns are shown: a column that is empty in all these rows is useless.
    let columns: Vec<&PlacedColumn<T>> = columns
        .iter()
        .filter(|(place, column)| {
            !place.is_hidden_when_unknown || shown.iter().any(|row| column.value_in(row).is_some())
        })
        .collect();
    let header: Vec<&str> = columns.iter().map(|(place, _)| place.heading).collect();
    // An unknown value is shown as a dash and never as a zero: a node that did not report has not measured zero.
    let cells: Vec<Vec<String>> = shown
        .iter()
        .map(|row| {
            let cells = columns.iter().map(|column| format_cell(column, row));
            cells.map(|cell| cell.unwrap_or_else(|| UNKNOWN_CELL.to_owned())).collect()
        })
        .collect();
    // The hint names the run, because `last` may be a newer one. Without `packetrig`, the line fits in 80 columns.
    let all_columns = format!("`report show {} --wide`", report.run);
    let text = format_fitted_table(
        style.width(),
        &header,
        &cells,
        &list_least_important_headings(&columns),
        &all_columns,
    );
    text + &format_omitted_rows_line(rows.len(), subjects, T::FILE)
}

/// Lists the headings of the columns that a narrow table may leave out, the least important first.
fn list_least_important_headings<T: ReportTable>(columns: &[&PlacedColumn<T>]) -> Vec<&'static str> {
    let mut droppable: Vec<TerminalColumnPosition> = columns.iter().map(|(place, _)| *place).collect();
    droppable.retain(|place| place.importance < ALWAYS_SHOWN_RANK);
    droppable.sort_by_key(|place| place.importance);
    droppable.iter().map(|place| place.heading).collect()
}

/// Formats a value for people.
fn format_value(value: &CellValue, kind: ColumnKind) -> String {
    match (value, kind) {
        (CellValue::Text(text), _) => shorten_name(text),
        (CellValue::Names(names), _) => shorten_name(&names.join(" ")),
        (CellValue::YesNo(value), _) => if *value { "yes" } else { "no" }.to_owned(),
        (CellValue::Share { part, whole, .. }, _) => format_percent(*part, *whole),
        (CellValue::Count(ns), ColumnKind::Nanoseconds) => Nanos::new(*ns).to_string(),
        (CellValue::Count(rate), ColumnKind::BitsPerSecond) => format_scaled(*rate as f64, "bit/s"),
        // The report has this rate in thousandths: so it has decimals for slow streams, but no floats.
        (CellValue::Count(milli), ColumnKind::MilliFramesPerSecond) => {
            format_scaled(*milli as f64 / 1000.0, "")
        }
        (CellValue::Count(number), _) => format_count(*number),
        (CellValue::Float(number), _) => format_scaled(*number, kind.unit().unwrap_or("")),
        (CellValue::Signed(ns), ColumnKind::SignedNanoseconds) => format_signed_time(*ns),
        (CellValue::Signed(ppm), ColumnKind::PartsPerMillion) => format!("{} ppm", format_signed(*ppm)),
        (CellValue::Signed(number), _) => format_signed(*number),
    }
}

fn format_signed_time(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", Nanos::new(ns.unsigned_abs()))
}
