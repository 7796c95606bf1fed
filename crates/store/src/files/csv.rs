//! The tables of a report as CSV by RFC 4180, and their description as CSV on the Web metadata (W3C).

use packetrig_report::RunReport;
use packetrig_report::columns::{ColumnDescription, ColumnKind, ReportColumn, ReportTable, TableDescription};
use serde_json::{Map, Value, json};

/// A table of `report`: a header line with the names of the columns, then its rows. An unknown value is an empty cell, not zero.
pub fn table_csv<T: ReportTable>(report: &RunReport) -> String {
    let mut text = csv_line(T::COLUMNS.iter().map(|column| column.name.to_owned()));
    for row in T::report_rows(report) {
        text.push_str(&csv_line(T::COLUMNS.iter().map(|column| table_cell(column, &row))));
    }
    text
}

fn table_cell<T: ReportTable>(column: &ReportColumn<T>, row: &T::Row<'_>) -> String {
    // An unknown value is an empty cell, because zero would be a measurement.
    column.value_in(row).map(|value| value.to_string()).unwrap_or_default()
}

pub(super) fn csv_line(fields: impl Iterator<Item = String>) -> String {
    let fields: Vec<String> = fields.map(|field| csv_field(&field)).collect();
    // RFC 4180, section 2: lines end with CRLF.
    fields.join(",") + "\r\n"
}

/// First characters of formulas. Some spreadsheets also accept the wide forms of East Asian text.
const FORMULA_FIRST_CHARACTERS: [char; 11] =
    ['=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];

/// A field of CSV, in quotes only if it needs them. A text that a spreadsheet would run as a formula gets an apostrophe
/// before it.
pub fn csv_field(text: &str) -> String {
    // Spreadsheets run such a text as a formula, and names may come from other people. A text that is a
    // number stays unchanged.
    let is_formula = text.starts_with(FORMULA_FIRST_CHARACTERS) && text.parse::<f64>().is_err();
    let field = if is_formula { format!("'{text}") } else { text.to_owned() };
    // RFC 4180, section 2: fields with commas, quotes or line breaks are quoted, and quotes in them doubled.
    if field.contains([',', '"', '\r', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

/// The text of `csv-metadata.json` for the files with these names: type, unit and meaning of each column.
pub fn csv_metadata(files: &[&str]) -> String {
    let tables = TableDescription::all_tables().into_iter().filter(|table| files.contains(&table.file));
    let metadata = json!({
        "@context": "http://www.w3.org/ns/csvw",
        // A relative URL: the metadata is valid wherever the directory is copied.
        "tables": tables.map(|table| json!({
            "url": table.file,
            "dc:description": table.about,
            "tableSchema": {"columns": table.columns.iter().map(describe_column).collect::<Vec<_>>()},
        })).collect::<Vec<_>>(),
    });
    format!("{metadata:#}\n")
}

fn describe_column(column: &ColumnDescription) -> Value {
    let mut described = Map::new();
    described.insert("name".to_owned(), column.name.into());
    described.insert("titles".to_owned(), column.name.into());
    described.insert("datatype".to_owned(), csvw_datatype(column.kind).into());
    described.insert("dc:description".to_owned(), column.meaning.into());
    if let Some(unit) = column.kind.unit() {
        described.insert("schema:unitText".to_owned(), unit.into());
    }
    described.into()
}

const fn csvw_datatype(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Text => "string",
        ColumnKind::YesNo => "boolean",
        ColumnKind::SignedNanoseconds | ColumnKind::PartsPerMillion => "integer",
        ColumnKind::Percent | ColumnKind::BytesPerSecond | ColumnKind::FramesPerSecond => "decimal",
        ColumnKind::Frames
        | ColumnKind::Bytes
        | ColumnKind::Number
        | ColumnKind::Seconds
        | ColumnKind::Nanoseconds
        | ColumnKind::BitsPerSecond
        | ColumnKind::MilliFramesPerSecond => "nonNegativeInteger",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_when_they_must_be() {
        let fields = ["plain", "with, comma", "a \"word\"", "two\nlines", ""].map(str::to_owned);
        let wanted = "plain,\"with, comma\",\"a \"\"word\"\"\",\"two\nlines\",\r\n";
        assert_eq!(csv_line(fields.into_iter()), wanted);
    }
}
