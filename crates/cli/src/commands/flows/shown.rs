//! The columns that `packetrig flows show` prints: those of records, and the names of addresses, ports
//! and systems in them.

use super::values::{cell_text, text_or_dash};
use crate::args::ShownColumn;
use packetrig_flow::element::ElementKind;
use packetrig_flow_store::cells::ColumnCells;
use packetrig_flow_store::json::{append_cell, append_plain_cell};
use packetrig_flow_store::names::{FlowNames, NameValue};
use packetrig_flow_store::scan::RowChunk;
use packetrig_store::files::csv_field;
use serde_json::Value;

/// The wanted columns, with the names that some of them need.
pub(super) struct ShownColumns<'a> {
    pub(super) columns: &'a [ShownColumn],
    pub(super) names: &'a FlowNames,
}

impl ShownColumns<'_> {
    /// The columns that must be read from the files to show the wanted columns.
    pub(super) fn needed_columns(&self) -> Vec<&'static str> {
        let needed = self.columns.iter().flat_map(|column| match column {
            ShownColumn::Stored(column) => vec![column.name],
            ShownColumn::Named(column) => column.needed_columns(),
        });
        needed.collect()
    }

    /// The cells of the stored columns in a chunk, in the order of the columns; missing ones for names.
    pub(super) fn find_cells<'c>(&self, chunk: &'c RowChunk) -> Vec<&'c ColumnCells> {
        let cells = self.columns.iter().map(|column| match column {
            ShownColumn::Stored(column) => chunk.column(column.name),
            ShownColumn::Named(_) => &ColumnCells::Missing,
        });
        cells.collect()
    }

    /// Appends a row; `cells` are those of its chunk.
    pub(super) fn append_json_row(
        &self,
        chunk: &RowChunk,
        cells: &[&ColumnCells],
        row: usize,
        text: &mut String,
    ) {
        // This code writes JSON by hand: a JSON value for each of millions of records would cost
        // more than reading them.
        let mut before = '{';
        for (column, cells) in self.columns.iter().zip(cells) {
            text.push(before);
            before = ',';
            text.extend(["\"", column.full_name(), "\":"]);
            match column {
                ShownColumn::Stored(column) => append_cell(column.kind, cells, row, text),
                ShownColumn::Named(column) => {
                    let value = match column.value_in_row(self.names, chunk, row) {
                        NameValue::Number(number) => Value::from(number),
                        NameValue::Word(word) => Value::from(word),
                    };
                    text.push_str(&value.to_string());
                }
            }
        }
        text.push_str("}\n");
    }

    /// Appends values as in JSON, except that texts are in quotes only if CSV needs them.
    pub(super) fn append_csv_row(
        &self,
        chunk: &RowChunk,
        cells: &[&ColumnCells],
        row: usize,
        text: &mut String,
    ) {
        for (index, (column, cells)) in self.columns.iter().zip(cells).enumerate() {
            if index > 0 {
                text.push(',');
            }
            match column {
                // Texts come from exporters and may contain anything; values of other kinds never need quotes.
                ShownColumn::Stored(column)
                    if matches!(column.kind, ElementKind::Word | ElementKind::Fields) =>
                {
                    text.push_str(&csv_field(cells.word_at(row)));
                }
                ShownColumn::Stored(_) => append_plain_cell(cells, row, text),
                ShownColumn::Named(column) => {
                    text.push_str(&csv_field(&name_text(column.value_in_row(self.names, chunk, row))));
                }
            }
        }
        text.push('\n');
    }

    /// A row of a table.
    pub(super) fn row_cells(&self, chunk: &RowChunk, row: usize) -> Vec<String> {
        let cells = self.columns.iter().map(|column| match column {
            ShownColumn::Stored(column) => cell_text(column, chunk.column(column.name), row),
            ShownColumn::Named(column) => {
                text_or_dash(name_text(column.value_in_row(self.names, chunk, row)))
            }
        });
        cells.collect()
    }
}

fn name_text(value: NameValue<'_>) -> String {
    match value {
        // Number 0 stands for an unknown autonomous system.
        NameValue::Number(0) => String::new(),
        NameValue::Number(number) => number.to_string(),
        NameValue::Word(word) => word.to_owned(),
    }
}
