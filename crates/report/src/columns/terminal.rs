//! Position, heading and importance of columns in the tables that a terminal shows.

use super::{ReportColumn, ReportTable};

/// Rank of a column that is always shown, even in a narrow table.
pub const ALWAYS_SHOWN_RANK: u8 = u8::MAX;

/// A table on a terminal. Streams have several, because their columns do not fit side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalTable {
    /// A column that all tables have, such as the name of the row.
    Every,
    Counts,
    Sending,
    Latency,
}

/// How a column is shown on a terminal: in which table, at which position, with which heading, and when it is left out.
#[derive(Clone, Copy, Debug)]
pub struct TerminalColumnPosition {
    pub table: TerminalTable,
    /// Number by which the terminal orders the columns.
    pub position: u8,
    pub heading: &'static str,
    /// Rank of the column: if the table is too wide, columns with the smallest rank are left out first.
    /// Columns with [`ALWAYS_SHOWN_RANK`] are never left out.
    pub importance: u8,
    /// Text before every value.
    pub prefix: &'static str,
    /// True to hide the column if no row has a value.
    pub is_hidden_when_unknown: bool,
}

impl<T: ReportTable> ReportColumn<T> {
    pub(super) const fn on_terminal(
        self,
        table: TerminalTable,
        position: u8,
        heading: &'static str,
        importance: u8,
    ) -> Self {
        let place = TerminalColumnPosition {
            table,
            position,
            heading,
            importance,
            prefix: "",
            is_hidden_when_unknown: false,
        };
        Self { terminal: Some(place), ..self }
    }

    /// Puts `prefix` before every value on a terminal.
    pub(super) const fn with_prefix(self, prefix: &'static str) -> Self {
        match self.terminal {
            Some(place) => Self { terminal: Some(TerminalColumnPosition { prefix, ..place }), ..self },
            None => self,
        }
    }

    /// Hides the column on a terminal if no row has a value.
    pub(super) const fn hidden_when_unknown(self) -> Self {
        match self.terminal {
            Some(place) => Self {
                terminal: Some(TerminalColumnPosition { is_hidden_when_unknown: true, ..place }),
                ..self
            },
            None => self,
        }
    }
}
