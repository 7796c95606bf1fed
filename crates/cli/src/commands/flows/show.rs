//! `packetrig flows show`: single records as a table, JSON or CSV.

use super::shown::ShownColumns;
use super::values::{end_reason_text, is_icmp, protocol_with_type};
use super::{endpoint_text, utc_time_text};
use crate::args::{ShowFlows as Arguments, ShownColumn};
use crate::error::Error;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_remark};
use crate::table::format_fitted_table;
use packetrig_flow_store::cells::ColumnCells;
use packetrig_flow_store::columns::flow_columns;
use packetrig_flow_store::names::FlowNames;
use packetrig_flow_store::order::{FirstRecords, RecordOrder, first_records};
use packetrig_flow_store::scan::{RowChunk, list_flow_files, map_records, scan_records};
use packetrig_flow_store::tcp_flags;
use packetrig_units::Nanos;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of a row of a few columns.
const USUAL_ROW_BYTES: usize = 80;
/// Rows of a table without `--most`.
const DEFAULT_ROW_LIMIT: usize = 50;
/// Columns that are read for a table without `--columns`.
const DEFAULT_COLUMNS: [&str; 14] = [
    "flowStartNanoseconds",
    "flowEndNanoseconds",
    "protocolIdentifier",
    "sourceIPv6Address",
    "sourceTransportPort",
    "destinationIPv6Address",
    "destinationTransportPort",
    "packetDeltaCount",
    "octetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "tcpControlBits",
    "reverseTcpControlBits",
    "flowEndReason",
];
const DEFAULT_HEADINGS: [&str; 11] = [
    "start (UTC)",
    "lasts",
    "protocol",
    "source",
    "destination",
    "packets",
    "IP bytes",
    "packets back",
    "IP bytes back",
    "flags",
    "ended",
];

/// Columns that the usual table leaves out on a narrow terminal, the first ones first.
const LEAST_IMPORTANT_HEADINGS: [&str; 6] =
    ["ended", "flags", "packets back", "IP bytes back", "lasts", "IP bytes"];

pub(super) fn show_flows(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    if arguments.form.json || arguments.form.csv {
        stream_records(arguments, output)
    } else {
        print_table(arguments, output)
    }
}

/// Prints the named columns, or all, as JSON or CSV. Without an order, records are printed as they are read.
fn stream_records(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let all: Vec<_> = flow_columns().iter().map(ShownColumn::Stored).collect();
    let columns = if arguments.columns.is_empty() { &all } else { &arguments.columns };
    let names = read_needed_names(arguments)?;
    let shown = ShownColumns { columns, names: &names };
    let needed = shown.needed_columns();
    if arguments.form.csv {
        let heading: Vec<_> = columns.iter().map(|column| column.full_name()).collect();
        output.write_line(heading.join(","));
    }
    let append = |chunk: &RowChunk, cells: &[&ColumnCells], row: usize, text: &mut String| {
        if arguments.form.csv {
            shown.append_csv_row(chunk, cells, row, text);
        } else {
            shown.append_json_row(chunk, cells, row, text);
        }
    };
    if let Some(order) = arguments.order {
        let found = find_first_records(arguments, &shown, &needed, order, &mut |chunk, row| {
            let mut text = String::new();
            append(chunk, &shown.find_cells(chunk), row, &mut text);
            text
        })?;
        output.write_text(found.shown.concat());
        return Ok(());
    }
    let files = list_flow_files(&arguments.places)?;
    let render = |chunk: &RowChunk, rows: &[usize]| {
        let cells = shown.find_cells(chunk);
        RenderedRows::render(rows, |row, text| append(chunk, &cells, row, text))
    };
    let mut left = arguments.most.unwrap_or(usize::MAX);
    // The reading threads also render the rows, because rendering costs more than reading.
    let filter = arguments.filter.to_flow_filter(&names)?;
    Ok(map_records(&files, &filter, &needed, render, &mut |rendered| {
        output.write_text(rendered.first_rows(left));
        // The subtraction saturates: the last chunk may have more rows than the caller still wants.
        left = left.saturating_sub(rendered.ends.len());
        // A closed pipe ends the reading, too: `flows show | head` must not read a year of files.
        if left == 0 || output.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?)
}

/// Rows of a chunk as text, in one piece: a write per record would cost more than the reading.
struct RenderedRows {
    text: String,
    /// End of each row in `text`.
    ends: Vec<usize>,
}

impl RenderedRows {
    fn render(rows: &[usize], append: impl Fn(usize, &mut String)) -> Self {
        let text = String::with_capacity(rows.len() * USUAL_ROW_BYTES);
        let mut rendered = Self { text, ends: Vec::with_capacity(rows.len()) };
        for &row in rows {
            append(row, &mut rendered.text);
            rendered.ends.push(rendered.text.len());
        }
        rendered
    }

    /// Returns the text of the first `most` rows, or of all rows if there are fewer.
    fn first_rows(&self, most: usize) -> &str {
        let end = self.ends.get(..most.min(self.ends.len())).and_then(|ends| ends.last());
        &self.text[..end.copied().unwrap_or(0)]
    }
}

fn print_table(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let most = arguments.most.unwrap_or(DEFAULT_ROW_LIMIT);
    let names = read_needed_names(arguments)?;
    let shown = ShownColumns { columns: &arguments.columns, names: &names };
    let header: Vec<_> = shown.columns.iter().map(|column| column.short_name()).collect();
    let needed = shown.needed_columns();
    let is_usual = shown.columns.is_empty();
    let header = if is_usual { &DEFAULT_HEADINGS[..] } else { &header };
    let needed = if is_usual { &DEFAULT_COLUMNS[..] } else { &needed };
    // Only these columns are read: Parquet files store each column separately.
    let mut lines = Vec::new();
    let mut is_all = true;
    if let Some(order) = arguments.order {
        let mut cells = |chunk: &RowChunk, row| row_cells(&shown, chunk, row);
        let found = find_first_records(arguments, &shown, needed, order, &mut cells)?;
        is_all = found.count == found.shown.len() as u64;
        lines = found.shown;
    } else {
        let files = list_flow_files(&arguments.places)?;
        scan_records(&files, &arguments.filter.to_flow_filter(&names)?, needed, &mut |chunk, rows| {
            for &row in rows {
                // A record beyond the limit shows that the table is not complete.
                if lines.len() == most {
                    is_all = false;
                    return ControlFlow::Break(());
                }
                lines.push(row_cells(&shown, chunk, row));
            }
            ControlFlow::Continue(())
        })?;
    }
    // Columns that the user has named are all shown.
    let least_important = if is_usual { &LEAST_IMPORTANT_HEADINGS[..] } else { &[] };
    let width = output.style().width();
    output.write_text(format_fitted_table(width, header, &lines, least_important, "`--csv`"));
    if !is_all {
        print_remark(format_args!("show: more than {most} records match; --most N shows more"));
    }
    Ok(())
}

/// Reads the files of `--names`. Fails if `--columns` has a column whose names are in none of these files.
fn read_needed_names(arguments: &Arguments) -> Result<Arc<FlowNames>, Error> {
    let names = arguments.filter.read_names()?;
    for column in &arguments.columns {
        if let ShownColumn::Named(column) = column
            && !names.has_names_of_kind(column.kind)
        {
            let wanted = column.kind.needed_file_description();
            return Err(Error::Usage(format!(
                "--columns: `{}` needs {wanted}; give it with --names FILE",
                column.short
            )));
        }
    }
    Ok(names)
}

/// A row of the named columns, or of the usual table.
fn row_cells(shown: &ShownColumns<'_>, chunk: &RowChunk, row: usize) -> Vec<String> {
    if shown.columns.is_empty() {
        return StoredRow { chunk, row }.default_cells();
    }
    shown.row_cells(chunk, row)
}

struct StoredRow<'a> {
    chunk: &'a RowChunk,
    row: usize,
}

impl StoredRow<'_> {
    fn cell_number(&self, name: &str) -> u64 {
        self.chunk.column(name).number_at(self.row)
    }

    fn endpoint_cell(&self, address: &str, port: &str) -> String {
        // Exporters put the ICMP type and code into the field of the port.
        let has_ports = !is_icmp(self.cell_number("protocolIdentifier"));
        let port = if has_ports { self.cell_number(port) } else { 0 };
        endpoint_text(self.chunk.column(address).address_at(self.row), port)
    }

    /// One cell for each heading of [`DEFAULT_HEADINGS`]; some columns of [`DEFAULT_COLUMNS`] share a cell.
    fn default_cells(&self) -> Vec<String> {
        let start = self.cell_number("flowStartNanoseconds");
        // The table has one column for both directions of a flow.
        let flags = self.cell_number("tcpControlBits") | self.cell_number("reverseTcpControlBits");
        vec![
            utc_time_text(start),
            Nanos::new(self.cell_number("flowEndNanoseconds").saturating_sub(start)).to_string(),
            protocol_with_type(
                self.cell_number("protocolIdentifier"),
                self.cell_number("destinationTransportPort"),
            ),
            self.endpoint_cell("sourceIPv6Address", "sourceTransportPort"),
            self.endpoint_cell("destinationIPv6Address", "destinationTransportPort"),
            format_count(self.cell_number("packetDeltaCount")),
            format_count(self.cell_number("octetDeltaCount")),
            format_count(self.cell_number("reversePacketDeltaCount")),
            format_count(self.cell_number("reverseOctetDeltaCount")),
            tcp_flags::format_tcp_flags(flags),
            end_reason_text(self.cell_number("flowEndReason")).into(),
        ]
    }
}

/// Finds the records that come first in this order, at most as many as the user wants.
fn find_first_records<T>(
    arguments: &Arguments,
    shown: &ShownColumns<'_>,
    needed: &[&'static str],
    order: RecordOrder,
    show: &mut dyn FnMut(&RowChunk, usize) -> T,
) -> Result<FirstRecords<T>, Error> {
    let files = list_flow_files(&arguments.places)?;
    // With an order, the default limit holds for JSON and CSV, too: the records that may be shown stay in memory until
    // the last file is read.
    let most = arguments.most.unwrap_or(DEFAULT_ROW_LIMIT);
    let filter = arguments.filter.to_flow_filter(shown.names)?;
    Ok(first_records(&files, &filter, needed, order, most, show)?)
}
