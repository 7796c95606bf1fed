//! `packetrig flows show`.

use super::{end, moment};
use crate::args::ShowFlows as Arguments;
use crate::error::Error;
use crate::numbers::count;
use crate::output::{Output, remark};
use crate::protocols;
use crate::table::table;
use packetrig_store::flows::columns::columns;
use packetrig_store::flows::filter::FILTER_COLUMNS;
use packetrig_store::flows::json::append_cell;
use packetrig_store::flows::scan::{Chunk, flow_files, scan};
use packetrig_units::Nanos;
use std::ops::ControlFlow;

/// Rows of a table when nothing is asked.
const MOST: usize = 50;
/// What a table shows beside the filter's columns.
const SHOWN: [&str; 8] = [
    "flowEndNanoseconds",
    "packetDeltaCount",
    "octetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "tcpControlBits",
    "reverseTcpControlBits",
    "flowEndReason",
];

pub(super) fn perform(arguments: &Arguments, output: &mut Output) -> Result<(), Error> {
    if arguments.form.json || arguments.form.csv {
        stream(arguments, output)
    } else {
        tabulate(arguments, output)
    }
}

/// Every column of every record, as it is read.
fn stream(arguments: &Arguments, output: &mut Output) -> Result<(), Error> {
    let others = columns().iter().map(|column| column.name).filter(|name| !FILTER_COLUMNS.contains(name));
    let wanted: Vec<_> = FILTER_COLUMNS.into_iter().chain(others).collect();
    // The order of the columns, not of the wanted ones.
    let place = |name: &str| wanted.iter().position(|wanted| *wanted == name).unwrap_or(0);
    let order: Vec<_> = columns().iter().map(|column| (column.name, place(column.name))).collect();
    if arguments.form.csv {
        let names: Vec<_> = order.iter().map(|(name, _)| *name).collect();
        output.line(names.join(","));
    }
    let mut left = arguments.most.unwrap_or(usize::MAX);
    visit(arguments, &wanted, &mut |chunk, rows| {
        let mut text = String::new();
        for &row in rows.iter().take(left) {
            if arguments.form.csv {
                csv(chunk, row, &order, &mut text);
            } else {
                json(chunk, row, &order, &mut text);
            }
        }
        output.text(text);
        left = left.saturating_sub(rows.len());
        if left == 0 || output.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn json(chunk: &Chunk, row: usize, order: &[(&str, usize)], text: &mut String) {
    let mut before = '{';
    for (name, place) in order {
        text.push(before);
        before = ',';
        text.extend(["\"", name, "\":"]);
        append_cell(&chunk.columns[*place], row, text);
    }
    text.push_str("}\n");
}

/// As JSON without quotes: no value of ours holds a comma, and those of others keep their quotes if they do.
fn csv(chunk: &Chunk, row: usize, order: &[(&str, usize)], text: &mut String) {
    for (index, (_, place)) in order.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        let mut value = String::new();
        append_cell(&chunk.columns[*place], row, &mut value);
        let bare = value.trim_matches('"');
        let needs_quotes = bare.contains([',', '"', '\\']);
        text.push_str(if needs_quotes { &value } else { bare });
    }
    text.push('\n');
}

fn tabulate(arguments: &Arguments, output: &mut Output) -> Result<(), Error> {
    let most = arguments.most.unwrap_or(MOST);
    let mut lines = Vec::new();
    let mut is_all = true;
    visit(arguments, &[&FILTER_COLUMNS[..], &SHOWN[..]].concat(), &mut |chunk, rows| {
        for &row in rows {
            if lines.len() == most {
                is_all = false;
                return ControlFlow::Break(());
            }
            lines.push(line(chunk, row));
        }
        ControlFlow::Continue(())
    })?;
    let header = [
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
    output.text(table(&header, lines));
    if !is_all {
        remark(format_args!("show: there are more than {most}; --most N shows more"));
    }
    Ok(())
}

fn line(chunk: &Chunk, row: usize) -> Vec<String> {
    let number = |column: usize| chunk.columns[column].number(row);
    let address = |column: usize| chunk.columns[column].address(row);
    vec![
        moment(number(0)),
        Nanos::new(number(6).saturating_sub(number(0))).to_string(),
        protocols::name(u8::try_from(number(5)).unwrap_or(u8::MAX)),
        end(address(1), number(3)),
        end(address(2), number(4)),
        count(number(7)),
        count(number(8)),
        count(number(9)),
        count(number(10)),
        flags(number(11) | number(12)),
        reason(number(13)).into(),
    ]
}

/// TCP flags of both directions, by their first letters.
fn flags(bits: u64) -> String {
    "FSRPAUEC".chars().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, letter)| letter).collect()
}

const fn reason(number: u64) -> &'static str {
    match number {
        1 => "idle",
        2 => "active",
        3 => "end",
        4 => "forced",
        5 => "no room",
        _ => "–",
    }
}

/// Gives each chunk and the rows of it that are asked for.
fn visit(
    arguments: &Arguments,
    wanted: &[&str],
    each: &mut dyn FnMut(&Chunk, &[usize]) -> ControlFlow<()>,
) -> Result<(), Error> {
    let filter = arguments.filter.filter();
    scan(&flow_files(&arguments.places)?, wanted, filter.span, &mut |chunk| {
        let rows: Vec<_> = (0..chunk.rows).filter(|&row| filter.keeps(chunk, row)).collect();
        each(chunk, &rows)
    })?;
    Ok(())
}
