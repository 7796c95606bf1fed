//! `packetrig flows show`.

use super::values::{cell_text, csv_field, reason};
use super::{end, moment};
use crate::args::ShowFlows as Arguments;
use crate::error::Error;
use crate::numbers::count;
use crate::output::{CommandOutput, remark};
use crate::protocols;
use crate::table::table;
use packetrig_flow::element::ElementKind;
use packetrig_store::flows::columns::{FlowColumn, columns};
use packetrig_store::flows::json::append_cell;
use packetrig_store::flows::order::{FirstRecords, RecordOrder, first_records};
use packetrig_store::flows::scan::{EachChunk, RowChunk, flow_files, scan};
use packetrig_store::flows::tcp_flags;
use packetrig_units::Nanos;
use std::ops::ControlFlow;

/// Rows of a table when nothing is asked.
const MOST: usize = 50;
/// What a table shows if no columns are named.
const USUAL: [&str; 14] = [
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
const HEADER: [&str; 11] = [
    "start (UTC)",
    "lasts",
    "protocol",
    "source",
    "destination",
    "packets",
    "bytes",
    "packets back",
    "bytes back",
    "flags",
    "ended",
];

pub(super) fn perform(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    if arguments.form.json || arguments.form.csv {
        stream(arguments, output)
    } else {
        tabulate(arguments, output)
    }
}

/// The named columns, or all, of every record, as it is read, or of the first in an order.
fn stream(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let all: Vec<_> = columns().iter().collect();
    let wanted = if arguments.columns.is_empty() { &all } else { &arguments.columns };
    let names: Vec<_> = wanted.iter().map(|column| column.name).collect();
    if arguments.form.csv {
        output.line(names.join(","));
    }
    let append = |chunk: &RowChunk, row: usize, text: &mut String| {
        if arguments.form.csv {
            csv(chunk, row, wanted, text);
        } else {
            json(chunk, row, wanted, text);
        }
    };
    if let Some(order) = arguments.order {
        let found = first(arguments, &names, order, &mut |chunk, row| {
            let mut text = String::new();
            append(chunk, row, &mut text);
            text
        })?;
        output.text(found.shown.concat());
        return Ok(());
    }
    let mut left = arguments.most.unwrap_or(usize::MAX);
    visit(arguments, &names, &mut |chunk, rows| {
        let mut text = String::new();
        for &row in rows.iter().take(left) {
            append(chunk, row, &mut text);
        }
        output.text(text);
        left = left.saturating_sub(rows.len());
        if left == 0 || output.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn json(chunk: &RowChunk, row: usize, wanted: &[&FlowColumn], text: &mut String) {
    let mut before = '{';
    for column in wanted {
        text.push(before);
        before = ',';
        text.extend(["\"", column.name, "\":"]);
        append_cell(column.kind, chunk.column(column.name), row, text);
    }
    text.push_str("}\n");
}

/// As JSON, but for texts, which are in quotes only if they have to be.
fn csv(chunk: &RowChunk, row: usize, wanted: &[&FlowColumn], text: &mut String) {
    for (index, column) in wanted.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        let cells = chunk.column(column.name);
        if matches!(column.kind, ElementKind::Word | ElementKind::Fields) {
            text.push_str(&csv_field(cells.word(row)));
            continue;
        }
        let mut value = String::new();
        append_cell(column.kind, cells, row, &mut value);
        text.push_str(value.trim_matches('"'));
    }
    text.push('\n');
}

fn tabulate(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let most = arguments.most.unwrap_or(MOST);
    let wanted = &arguments.columns;
    let (header, names): (Vec<_>, Vec<_>) = if wanted.is_empty() {
        (HEADER.to_vec(), USUAL.to_vec())
    } else {
        wanted.iter().map(|column| (column.short, column.name)).unzip()
    };
    let show = |chunk: &RowChunk, row: usize| {
        let cell = |column: &&FlowColumn| cell_text(column, chunk.column(column.name), row);
        if wanted.is_empty() { line(chunk, row) } else { wanted.iter().map(cell).collect() }
    };
    let mut lines = Vec::new();
    let mut is_all = true;
    if let Some(order) = arguments.order {
        let found = first(arguments, &names, order, &mut |chunk, row| show(chunk, row))?;
        is_all = found.count == found.shown.len() as u64;
        lines = found.shown;
    } else {
        visit(arguments, &names, &mut |chunk, rows| {
            for &row in rows {
                if lines.len() == most {
                    is_all = false;
                    return ControlFlow::Break(());
                }
                lines.push(show(chunk, row));
            }
            ControlFlow::Continue(())
        })?;
    }
    output.text(table(&header, lines));
    if !is_all {
        remark(format_args!("show: more than {most} records match; --most N shows more"));
    }
    Ok(())
}

fn line(chunk: &RowChunk, row: usize) -> Vec<String> {
    let number = |name: &str| chunk.column(name).number(row);
    let address = |name: &str| chunk.column(name).address(row);
    vec![
        moment(number("flowStartNanoseconds")),
        Nanos::new(number("flowEndNanoseconds").saturating_sub(number("flowStartNanoseconds"))).to_string(),
        protocols::name(u8::try_from(number("protocolIdentifier")).unwrap_or(u8::MAX)),
        end(address("sourceIPv6Address"), number("sourceTransportPort")),
        end(address("destinationIPv6Address"), number("destinationTransportPort")),
        count(number("packetDeltaCount")),
        count(number("octetDeltaCount")),
        count(number("reversePacketDeltaCount")),
        count(number("reverseOctetDeltaCount")),
        tcp_flags::letters(number("tcpControlBits") | number("reverseTcpControlBits")),
        reason(number("flowEndReason")).into(),
    ]
}

/// The first records in an order.
fn first<T>(
    arguments: &Arguments,
    wanted: &[&'static str],
    order: RecordOrder,
    show: &mut dyn FnMut(&RowChunk, usize) -> T,
) -> Result<FirstRecords<T>, Error> {
    let files = flow_files(&arguments.places)?;
    let most = arguments.most.unwrap_or(MOST);
    Ok(first_records(&files, &arguments.filter.filter(), wanted, order, most, show)?)
}

/// Gives each chunk and the rows of it that are asked for.
fn visit(arguments: &Arguments, wanted: &[&'static str], each: &mut EachChunk<'_>) -> Result<(), Error> {
    Ok(scan(&flow_files(&arguments.places)?, &arguments.filter.filter(), wanted, each)?)
}
