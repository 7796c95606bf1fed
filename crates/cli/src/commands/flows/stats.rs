//! `packetrig flows stats`.

use super::{exporter, moment};
use crate::args::FlowStats as Arguments;
use crate::error::Error;
use crate::numbers::{count, per_second, percent, scaled};
use crate::output::{CommandOutput, remark};
use crate::protocols;
use crate::table::table;
use packetrig_flow::{IgnoredReason, MeterLedger};
use packetrig_store::flows::RecordMaker;
use packetrig_store::flows::filter::address;
use packetrig_store::flows::ledgers;
use packetrig_store::flows::scan::flow_files;
use packetrig_store::flows::totals::{self, FlowTotals, TotalsRow};
use packetrig_units::Nanos;
use std::collections::BTreeMap;

/// Largest number of ledgers that are shown as text.
const METERS_MOST: usize = 10;

type FlowLedgers = BTreeMap<RecordMaker, (u64, MeterLedger)>;

pub(super) fn perform(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let files = flow_files(&arguments.places)?;
    let totals = totals::totals(&files, &arguments.filter.filter()?, arguments.bucket)?;
    let ledgers = ledgers::newest(&arguments.places)?;
    if arguments.json {
        return Ok(output.json(&json(files.len(), &totals, &ledgers))?);
    }
    output.text(text(files.len(), &totals));
    for (source, (at_ns, ledger)) in ledgers.iter().take(METERS_MOST) {
        output.line(format_args!("\nLedger of {} at {} UTC, packets", exporter(*source), moment(*at_ns)));
        output.text(ledger_text(ledger));
    }
    if ledgers.len() > METERS_MOST {
        remark(format_args!(
            "stats: {} more ledgers are not shown; --json prints all",
            ledgers.len() - METERS_MOST
        ));
    }
    Ok(())
}

fn json(files: usize, totals: &FlowTotals, ledgers: &FlowLedgers) -> serde_json::Value {
    let ledgers: Vec<_> = ledgers
        .iter()
        .map(|(source, (at_ns, ledger))| {
            // Files do not store imbalances: they are computed from the ledger's numbers.
            let broken: Vec<_> = ledger.imbalances().iter().map(ToString::to_string).collect();
            serde_json::json!({
                "exporter": address(source.exporter).to_string(), "domain": source.domain, "at_ns": at_ns,
                "ledger": ledger, "imbalances": broken,
            })
        })
        .collect();
    let mut json = serde_json::json!(totals);
    json["files"] = files.into();
    json["ledgers"] = ledgers.into();
    json
}

fn text(files: usize, totals: &FlowTotals) -> String {
    let sum = &totals.sum;
    let mut text = format!(
        "{} records of {} flows in {} files\n",
        count(totals.records),
        count(sum.flows),
        count(files as u64)
    );
    let Some((first, last)) = totals.first_ns.zip(totals.last_ns) else { return text };
    let time = Nanos::new(last.saturating_sub(first));
    text.extend([format!("from {} to {} UTC ({time})\n", moment(first), moment(last))]);
    // The rate counts whole frames, the load of links; bytes of IP leave out the headers below.
    let bits = scaled(per_second(totals.frame_bytes.saturating_mul(8), time), "bit/s");
    let packets = scaled(per_second(sum.packets, time), "packets/s");
    text.extend([format!(
        "{} packets, {} bytes of IP, {} bytes of frames: {packets}, {bits}\n",
        count(sum.packets),
        count(sum.bytes),
        count(totals.frame_bytes)
    )]);
    if totals.records_with_loss > 0 {
        text.extend([format!(
            "{} records are of flows during which packets were lost before the meter\n",
            count(totals.records_with_loss)
        )]);
    }
    if totals.records_with_merges > 0 {
        text.extend([format!(
            "{} records are of flows of which packets were merged before the meter and count as one: too few packets and bytes\n",
            count(totals.records_with_merges)
        )]);
    }
    // The number breaks ties, so that the same records always give the same table.
    let mut by_bytes: Vec<_> = totals.protocols.iter().collect();
    by_bytes.sort_by_key(|(number, row)| (std::cmp::Reverse(row.sum.bytes), **number));
    let protocols = by_bytes.into_iter().map(|(number, one)| row(protocols::name(*number), one, sum.bytes));
    text += "\n";
    text += &table(&["protocol", "records", "flows", "packets", "IP bytes", "share"], protocols);
    let header = format!("flows that began within {}", Nanos::new(totals.bucket_ns));
    let timeline = totals.timeline.iter().map(|(at, one)| row(moment(*at), one, sum.bytes));
    text += "\n";
    text += &table(&[&header, "records", "flows", "packets", "IP bytes", "share"], timeline);
    if totals.beside_timeline > 0 {
        text.extend([format!(
            "  and {} records outside this timeline; give --bucket a longer step\n",
            count(totals.beside_timeline)
        )]);
    }
    text
}

fn row(name: String, totals: &TotalsRow, whole: u64) -> Vec<String> {
    let TotalsRow { records, sum } = totals;
    let bytes = scaled(sum.bytes as f64, "B");
    vec![name, count(*records), count(sum.flows), count(sum.packets), bytes, percent(sum.bytes, whole)]
}

fn known(value: Option<u64>) -> String {
    value.map_or_else(|| "not known".to_owned(), count)
}

/// Table of a ledger, in the order in which packets pass the meter.
fn ledger_text(ledger: &MeterLedger) -> String {
    let MeterLedger { capture, packets, export } = ledger;
    let mut rows = vec![
        vec!["arrived at the interface".to_owned(), known(capture.arrived)],
        vec!["dropped by the driver".into(), known(capture.driver_dropped)],
        vec!["dropped: ring full".into(), count(capture.ring_dropped)],
        vec!["seen by the parser".into(), count(packets.seen)],
    ];
    for cause in IgnoredReason::ALL.into_iter().filter(|cause| packets.ignored[*cause as usize] > 0) {
        rows.push(vec![format!("ignored: {}", cause.name()), count(packets.ignored[cause as usize])]);
    }
    rows.extend([
        vec!["metered".into(), count(packets.metered)],
        vec!["not tracked: flow table full".into(), count(packets.untracked)],
        vec!["in flows that have not ended".into(), count(packets.live)],
        vec!["in records".into(), count(packets.recorded)],
        vec!["dropped: export queue full".into(), count(export.queue_dropped.packets)],
        vec!["refused by the transport".into(), count(export.refused.packets)],
        vec!["left to the active meter of the group".into(), count(export.left_to_others.packets)],
        vec!["waiting to be sent".into(), count(export.waiting.packets)],
        vec!["sent".into(), count(export.sent.packets)],
    ]);
    let mut text = table(&["", "packets"], rows);
    for imbalance in ledger.imbalances() {
        text.extend([format!("  does not balance: {imbalance}\n")]);
    }
    text
}
