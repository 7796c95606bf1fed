//! `packetrig flows stats`: sums of the records by protocol and over time, and the meters' packet counts (ledgers).

use super::values::sampling_remark;
use super::{exporter_name, utc_time_text};
use crate::args::FlowStats as Arguments;
use crate::error::Error;
use crate::numbers::{format_count, format_count_with_unit, format_percent, format_scaled, per_second};
use crate::output::{CommandOutput, print_remark};
use crate::protocols;
use crate::table::format_table;
use packetrig_flow::{IgnoredReason, MeterLedger};
use packetrig_flow_store::RecordExporter;
use packetrig_flow_store::filter::canonical_address;
use packetrig_flow_store::ledgers;
use packetrig_flow_store::scan::list_flow_files;
use packetrig_flow_store::totals::{self, FlowTotals, TotalsRow};
use packetrig_units::Nanos;
use std::collections::BTreeMap;

/// Largest number of ledgers that are shown as text.
const MAX_METERS: usize = 10;

type FlowLedgers = BTreeMap<RecordExporter, (u64, MeterLedger)>;

pub(super) fn show_flow_stats(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let files = list_flow_files(&arguments.places)?;
    let filter = arguments.filter.to_flow_filter(&*arguments.filter.read_names()?)?;
    let totals = totals::flow_totals(&files, &filter, arguments.bucket)?;
    let ledgers = ledgers::newest_ledgers(&arguments.places)?;
    if arguments.json {
        return Ok(output.write_json(&stats_json(files.len(), &totals, &ledgers))?);
    }
    output.write_text(stats_text(files.len(), &totals));
    let selection = if arguments.filter.selects_all_records() {
        ""
    } else {
        " (all of them, not only the selected ones)"
    };
    // A directory of a large collector has hundreds of meters, whose ledgers would hide the totals.
    for (source, (at_ns, ledger)) in ledgers.iter().take(MAX_METERS) {
        output.write_line(format_args!(
            "\nLedger of {} from its start to {} UTC, packets{selection}",
            exporter_name(*source),
            utc_time_text(*at_ns)
        ));
        output.write_text(ledger_text(ledger));
    }
    if ledgers.len() > MAX_METERS {
        print_remark(format_args!(
            "stats: ledgers that are not shown: {}; --json prints all",
            ledgers.len() - MAX_METERS
        ));
    }
    Ok(())
}

fn stats_json(files: usize, totals: &FlowTotals, ledgers: &FlowLedgers) -> serde_json::Value {
    let ledgers: Vec<_> = ledgers
        .iter()
        .map(|(source, (at_ns, ledger))| {
            // Files do not store imbalances: they are computed from the ledger's numbers.
            let broken: Vec<_> = ledger.find_imbalances().iter().map(ToString::to_string).collect();
            serde_json::json!({
                "exporter": canonical_address(source.exporter).to_string(), "domain": source.domain, "at_ns": at_ns,
                "ledger": ledger, "imbalances": broken,
            })
        })
        .collect();
    let mut json = serde_json::json!(totals);
    json["files"] = files.into();
    json["ledgers"] = ledgers.into();
    json
}

fn stats_text(files: usize, totals: &FlowTotals) -> String {
    let sum = &totals.sum;
    let mut text = format!(
        "{} of {} in {}\n",
        format_count_with_unit(totals.records, "record"),
        format_count_with_unit(sum.flows, "flow"),
        format_count_with_unit(files as u64, "file")
    );
    // Without a record there is no time span, and no rate.
    let Some((first, last)) = totals.first_ns.zip(totals.last_ns) else { return text };
    let time = Nanos::new(last.saturating_sub(first));
    text.extend([format!("from {} to {} UTC ({time})\n", utc_time_text(first), utc_time_text(last))]);
    // The rate counts whole frames, because they are the load of links. The bytes of IP leave out the headers of
    // lower layers.
    let bits = format_scaled(per_second(totals.frame_bytes.saturating_mul(8), time), "bit/s");
    let packets = format_scaled(per_second(sum.packets, time), "packets/s");
    text.extend([format!(
        "{} packets, {} bytes of IP, {} bytes of frames: {packets}, {bits}\n",
        format_count(sum.packets),
        format_count(sum.bytes),
        format_count(totals.frame_bytes)
    )]);
    if totals.records_with_loss > 0 {
        text.extend([format!(
            "records of flows during which packets were lost before they reached the meter: {}\n",
            format_count(totals.records_with_loss)
        )]);
    }
    if totals.records_with_merges > 0 {
        text.extend([format!(
            "records of flows with packets that were merged before they reached the meter: {}; merged packets count \
            as one, so the counts of packets and bytes in these records are too low\n",
            format_count(totals.records_with_merges)
        )]);
    }
    if let Some(remark) = sampling_remark(totals.sampled_records) {
        text.extend([remark, "\n".to_owned()]);
    }
    // The protocol number breaks ties, so that the same records always give the same table.
    let mut by_bytes: Vec<_> = totals.protocols.iter().collect();
    by_bytes.sort_by_key(|(number, row)| (std::cmp::Reverse(row.sum.bytes), **number));
    let protocols = by_bytes
        .into_iter()
        .map(|(number, one)| totals_row(protocols::protocol_name(*number), one, sum.bytes));
    text += "\n";
    text += &format_table(&["protocol", "records", "flows", "packets", "IP bytes", "share"], protocols);
    let header = format!("flows by start, in steps of {}", Nanos::new(totals.bucket_ns));
    let timeline = totals.timeline.iter().map(|(at, one)| totals_row(utc_time_text(*at), one, sum.bytes));
    text += "\n";
    text += &format_table(&[&header, "records", "flows", "packets", "IP bytes", "share"], timeline);
    if totals.beside_timeline > 0 {
        text.extend([format!(
            "  and {} records outside this timeline; give --bucket a longer step\n",
            format_count(totals.beside_timeline)
        )]);
    }
    text
}

fn totals_row(name: String, totals: &TotalsRow, whole: u64) -> Vec<String> {
    let TotalsRow { records, sum } = totals;
    let bytes = format_scaled(sum.bytes as f64, "B");
    vec![
        name,
        format_count(*records),
        format_count(sum.flows),
        format_count(sum.packets),
        bytes,
        format_percent(sum.bytes, whole),
    ]
}

fn count_or_unknown(value: Option<u64>) -> String {
    value.map_or_else(|| "not known".to_owned(), format_count)
}

/// Table of a ledger, in the order in which packets pass the meter.
fn ledger_text(ledger: &MeterLedger) -> String {
    let MeterLedger { capture, packets, export } = ledger;
    let mut rows = vec![
        vec!["arrived at the interface".to_owned(), count_or_unknown(capture.arrived)],
        vec!["sent by this machine".into(), format_count(capture.sent)],
        vec!["dropped by the driver".into(), count_or_unknown(capture.driver_dropped)],
        vec!["dropped: ring full".into(), format_count(capture.ring_dropped)],
        vec!["seen by the parser".into(), format_count(packets.seen)],
    ];
    for cause in IgnoredReason::ALL.into_iter().filter(|cause| packets.ignored[*cause as usize] > 0) {
        rows.push(vec![format!("ignored: {}", cause.name()), format_count(packets.ignored[cause as usize])]);
    }
    rows.extend([
        vec!["metered".into(), format_count(packets.metered)],
        vec!["not tracked: flow table full".into(), format_count(packets.untracked)],
        vec!["in flows that have not ended".into(), format_count(packets.live)],
        vec!["in records".into(), format_count(packets.recorded)],
        vec!["dropped: export queue full".into(), format_count(export.queue_dropped.packets)],
        vec!["refused by the transport".into(), format_count(export.refused.packets)],
        vec!["left to the active meter of the group".into(), format_count(export.left_to_others.packets)],
        vec!["waiting to be sent".into(), format_count(export.waiting.packets)],
        vec!["sent".into(), format_count(export.sent.packets)],
    ]);
    let mut text = format_table(&["", "packets"], rows);
    for imbalance in ledger.find_imbalances() {
        text.extend([format!("  does not balance: {imbalance}\n")]);
    }
    text
}
