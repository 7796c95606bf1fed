//! The tables of a report as data. Each column is described once: its name in files, kind, meaning and source
//! of its value. CSV files, their machine-readable description, terminal tables and the reference in the book
//! are made from these lists.
//!
//! Invariant: a published column keeps its name, and new columns come last, so that readers that
//! use positions still work.

mod arrivals;
mod ports;
mod probes;
mod series;
mod streams;
mod terminal;

pub use arrivals::{OutageTable, QualityTable, ReceiverTable};
pub use ports::{NodeTable, PortTable};
pub use probes::ProbeTable;
pub use series::SeriesTable;
pub use streams::StreamTable;
pub use terminal::{ALWAYS_SHOWN_RANK, TerminalColumnPosition, TerminalTable};

use super::RunReport;
use packetrig_units::Nanos;
use std::collections::HashMap;
use std::fmt;

/// A table of the report, one row per stream, port, node and so on.
pub trait ReportTable: Sized + 'static {
    /// Name of its CSV file.
    const FILE: &'static str;
    /// Meaning of a row, in a sentence.
    const ABOUT: &'static str;
    /// Columns in the order of the file.
    const COLUMNS: &'static [ReportColumn<Self>];
    /// Source of the values of a row.
    type Row<'a>;

    /// The rows in the order of the file.
    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>>;

    /// The columns that the report page shows, in its order.
    fn page_columns() -> Vec<(PageColumnPosition, &'static ReportColumn<Self>)> {
        let placed = Self::COLUMNS.iter().filter_map(|column| Some((column.page?, column)));
        let mut columns: Vec<_> = placed.collect();
        columns.sort_by_key(|(place, _)| place.position);
        columns
    }

    /// The columns of `table` on a terminal, in the order in which the terminal shows them.
    fn terminal_columns(table: TerminalTable) -> Vec<(TerminalColumnPosition, &'static ReportColumn<Self>)> {
        let placed = Self::COLUMNS.iter().filter_map(|column| Some((column.terminal?, column)));
        let mut columns: Vec<_> =
            placed.filter(|(place, _)| [table, TerminalTable::Every].contains(&place.table)).collect();
        columns.sort_by_key(|(place, _)| place.position);
        columns
    }
}

/// A column of a [`ReportTable`].
pub struct ReportColumn<T: ReportTable> {
    /// Name of the column in files.
    pub name: &'static str,
    /// Type and unit of its values.
    pub kind: ColumnKind,
    /// Meaning of the column, in a sentence.
    pub meaning: &'static str,
    /// Position in the table of the report page; absent if the page does not show the column.
    pub page: Option<PageColumnPosition>,
    /// Position in a table on a terminal; absent if no terminal table shows the column.
    pub terminal: Option<TerminalColumnPosition>,
    value: fn(&T::Row<'_>) -> Option<CellValue>,
}

/// Position of a column in a table of the report page. In files, new columns come last, so the order differs.
#[derive(Clone, Copy, Debug)]
pub struct PageColumnPosition {
    /// Number by which the page orders the columns.
    pub position: u8,
    pub heading: &'static str,
}

impl<T: ReportTable> ReportColumn<T> {
    const fn new(
        name: &'static str,
        kind: ColumnKind,
        meaning: &'static str,
        value: fn(&T::Row<'_>) -> Option<CellValue>,
    ) -> Self {
        Self { name, kind, meaning, page: None, terminal: None, value }
    }

    const fn on_page(self, position: u8, heading: &'static str) -> Self {
        Self { page: Some(PageColumnPosition { position, heading }), ..self }
    }

    /// Value of the column in this row; absent if the value is unknown (an unknown value is not zero).
    pub fn value_in(&self, row: &T::Row<'_>) -> Option<CellValue> {
        (self.value)(row)
    }

    fn describe_column(&self) -> ColumnDescription {
        ColumnDescription {
            name: self.name,
            kind: self.kind,
            meaning: self.meaning,
            terminal: self.terminal.map(|place| place.heading),
            page: self.page.map(|place| place.heading),
        }
    }
}

impl<T: ReportTable> fmt::Debug for ReportColumn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportColumn").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Type and unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Text,
    YesNo,
    Frames,
    Bytes,
    /// A count of anything else.
    Number,
    Seconds,
    Nanoseconds,
    SignedNanoseconds,
    BitsPerSecond,
    BytesPerSecond,
    FramesPerSecond,
    MilliFramesPerSecond,
    PartsPerMillion,
    Percent,
}

impl ColumnKind {
    /// Name of the unit; `None` for texts and plain numbers.
    pub const fn unit(self) -> Option<&'static str> {
        match self {
            Self::Text | Self::YesNo | Self::Number => None,
            Self::Frames => Some("frames"),
            Self::Bytes => Some("bytes"),
            Self::Seconds => Some("s"),
            Self::Nanoseconds | Self::SignedNanoseconds => Some("ns"),
            Self::BitsPerSecond => Some("bit/s"),
            Self::BytesPerSecond => Some("bytes/s"),
            Self::FramesPerSecond => Some("frames/s"),
            Self::MilliFramesPerSecond => Some("frames/1000 s"),
            Self::PartsPerMillion => Some("ppm"),
            Self::Percent => Some("%"),
        }
    }
}

/// Value of a cell. Its `Display` is the form in CSV files.
#[derive(Clone, Debug, PartialEq)]
pub enum CellValue {
    /// A name or a word.
    Text(String),
    /// Several names.
    Names(Vec<String>),
    YesNo(bool),
    /// A number that is never negative.
    Count(u64),
    /// A number with a sign.
    Signed(i64),
    /// A number with decimals, such as a rate of the last second.
    Float(f64),
    /// A share of a whole.
    Share {
        part: u64,
        whole: u64,
        /// The share in percent of the whole.
        percent: f64,
    },
}

impl fmt::Display for CellValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Names(names) => f.write_str(&names.join(" ")),
            Self::YesNo(value) => value.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Share { percent, .. } => write!(f, "{percent:.6}"),
        }
    }
}

impl From<u64> for CellValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<Nanos> for CellValue {
    fn from(time: Nanos) -> Self {
        Self::Count(time.as_u64())
    }
}

impl From<&String> for CellValue {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<&str> for CellValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Returns the JSON name of an enum's variant without data; `None` for any other value.
fn serialised_variant_name(value: impl serde::Serialize) -> Option<CellValue> {
    let value = serde_json::to_value(value).ok()?;
    value.as_str().map(CellValue::from)
}

/// Node of each port of a run, by the ports' names. Ports of a node that did not report are missing.
fn map_port_names_to_nodes(report: &RunReport) -> HashMap<&str, &str> {
    report.ports.iter().map(|port| (port.info.name.as_str(), port.node.as_str())).collect()
}

/// Description of a table, without its values.
#[derive(Clone, Debug)]
pub struct TableDescription {
    /// Name of its CSV file.
    pub file: &'static str,
    /// Meaning of a row, in a sentence.
    pub about: &'static str,
    /// Columns in the order of the file.
    pub columns: Vec<ColumnDescription>,
}

/// Description of a column, without its values.
#[derive(Clone, Copy, Debug)]
pub struct ColumnDescription {
    /// Name of the column in files.
    pub name: &'static str,
    /// Type and unit of its values.
    pub kind: ColumnKind,
    /// Meaning of the column, in a sentence.
    pub meaning: &'static str,
    /// Its heading on a terminal, if it is shown there.
    pub terminal: Option<&'static str>,
    /// Its heading on the report page, if it is shown there.
    pub page: Option<&'static str>,
}

impl TableDescription {
    /// All tables of a report.
    pub fn all_tables() -> [Self; 8] {
        [
            Self::from_table::<StreamTable>(),
            Self::from_table::<ReceiverTable>(),
            Self::from_table::<OutageTable>(),
            Self::from_table::<QualityTable>(),
            Self::from_table::<SeriesTable>(),
            Self::from_table::<PortTable>(),
            Self::from_table::<NodeTable>(),
            Self::from_table::<ProbeTable>(),
        ]
    }

    fn from_table<T: ReportTable>() -> Self {
        Self {
            file: T::FILE,
            about: T::ABOUT,
            columns: T::COLUMNS.iter().map(ReportColumn::describe_column).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn stream_columns_have_own_places_on_the_page() {
        let columns = StreamTable::page_columns();
        let positions: BTreeSet<u8> = columns.iter().map(|(place, _)| place.position).collect();
        assert_eq!(positions.len(), columns.len());
        assert_eq!(columns.first().map(|(_, column)| column.name), Some("stream"), "it names the row");
    }

    #[test]
    fn terminal_columns_have_own_places_and_name_their_rows() {
        for table in [TerminalTable::Counts, TerminalTable::Sending, TerminalTable::Latency] {
            assert_places(&StreamTable::terminal_columns(table), "stream");
        }
        assert_places(&PortTable::terminal_columns(TerminalTable::Counts), "port");
        assert_places(&NodeTable::terminal_columns(TerminalTable::Counts), "node");
    }

    fn assert_places<T: ReportTable>(
        columns: &[(TerminalColumnPosition, &ReportColumn<T>)],
        names_row: &str,
    ) {
        let positions: BTreeSet<u8> = columns.iter().map(|(place, _)| place.position).collect();
        assert_eq!(positions.len(), columns.len(), "{}", T::FILE);
        assert_eq!(columns.first().map(|(_, column)| column.name), Some(names_row));
    }

    #[test]
    fn report_columns_have_unique_names_and_sentences() {
        for table in TableDescription::all_tables() {
            let names: BTreeSet<_> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(names.len(), table.columns.len(), "{}", table.file);
            for column in &table.columns {
                assert!(column.meaning.ends_with('.'), "{} of {}", column.name, table.file);
            }
        }
    }
}
