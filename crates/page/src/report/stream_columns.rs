//! The columns of the table of streams: those columns of the report's table that are shown on the page.

use super::elements::{ColumnHeading, TableCell, number_column, word_column};
use crate::quantity;
use packetrig_report::StreamReport;
use packetrig_report::columns::{CellValue, ColumnKind, ReportColumn, ReportTable, StreamTable};
use packetrig_units::Nanos;
use serde::Serialize;

/// A column of the table.
#[derive(Clone, Copy)]
pub(super) struct StreamColumn {
    pub(super) heading: ColumnHeading,
    column: &'static ReportColumn<StreamTable>,
}

/// All columns, in their order.
pub(super) fn stream_columns() -> Vec<StreamColumn> {
    let columns = StreamTable::page_columns().into_iter().map(|(place, column)| {
        let heading = match column.kind {
            ColumnKind::Text | ColumnKind::YesNo => word_column(place.heading),
            ColumnKind::Frames => number_column(place.heading, "frames"),
            // Other values show their own units.
            _ => number_column(place.heading, ""),
        };
        StreamColumn { heading, column }
    });
    columns.collect()
}

impl StreamColumn {
    /// Name of the form in which the page's script shows the values.
    pub(super) const fn form(&self) -> &'static str {
        match self.column.kind {
            ColumnKind::Frames | ColumnKind::Bytes | ColumnKind::Number => "frames",
            ColumnKind::MilliFramesPerSecond => "rate",
            ColumnKind::BitsPerSecond => "bits",
            ColumnKind::Nanoseconds => "time",
            ColumnKind::Percent => "share",
            _ => "text",
        }
    }

    /// The cell of this column for a stream.
    pub(super) fn stream_cell(&self, stream: &StreamReport) -> TableCell {
        TableCell::from_optional(self.column.value_in(&stream).map(|value| self.build_value_cell(&value)))
    }

    fn build_value_cell(&self, value: &CellValue) -> TableCell {
        match (value, self.column.kind) {
            (CellValue::Count(milli), ColumnKind::MilliFramesPerSecond) => {
                TableCell::number(*milli, quantity::format_frame_rate(*milli))
            }
            (CellValue::Count(bits), ColumnKind::BitsPerSecond) => {
                TableCell::number(*bits, quantity::format_scaled(*bits as f64, "bit/s"))
            }
            (CellValue::Count(ns), ColumnKind::Nanoseconds) => {
                TableCell::number(*ns, quantity::format_time(Nanos::new(*ns)))
            }
            (CellValue::Count(count), _) => TableCell::count(*count),
            (CellValue::Share { part, whole, .. }, _) => TableCell::with_value(
                format_share_value(*part, *whole),
                quantity::format_percent(*part, *whole),
            ),
            (value, _) => TableCell::text(format_cell_value(value)),
        }
    }

    /// The value for the page's script; `None` if it was not measured. Numbers that it cannot hold exactly are texts.
    pub(super) fn script_value_of_stream(&self, stream: &StreamReport) -> Option<ScriptValue> {
        Some(match self.column.value_in(&stream)? {
            CellValue::Count(value) => ScriptValue::from_number(value),
            // A quotient would be rounded, and shares of a few frames in 10^9 would become equal
            // when they are sorted.
            CellValue::Share { part, whole, .. } => ScriptValue::Text(format_share_value(part, whole)),
            value => ScriptValue::Text(format_cell_value(&value)),
        })
    }
}

fn format_cell_value(value: &CellValue) -> String {
    match value {
        // The space after each comma lets a line break between two names.
        CellValue::Names(names) => names.join(", "),
        other => other.to_string(),
    }
}

/// The share as `part/whole`: exact, and the script can divide it.
fn format_share_value(part: u64, whole: u64) -> String {
    format!("{part}/{whole}")
}

/// A value in the data of the page.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum ScriptValue {
    Text(String),
    Number(u64),
}

impl ScriptValue {
    fn from_number(value: u64) -> Self {
        // JavaScript numbers are exact up to 2^53.
        if value <= 1 << 53 { Self::Number(value) } else { Self::Text(value.to_string()) }
    }
}
