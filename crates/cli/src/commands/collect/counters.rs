//! Every counter of a collector and its sinks, as tables and as metrics.
//!
//! Invariant: every number in `--json` is in the tables too, if it is not zero, and in the metrics. A test walks all of them.

use super::earlier::{self, UnstoredByKilledCollectors};
use super::show::append_text;
use super::sinks::SinkStoredCounts;
use crate::identity::format_utc_date_time;
use crate::numbers::format_count;
use crate::table::format_table;
use packetrig_flow::CarriedRecords;
use packetrig_flow::collect::{GroupSwitch, SESSION_COUNTS};
use packetrig_flow_io::collect::{CollectLedger, GroupLedger, MissingData};
use packetrig_flow_store::SinkRecordCounts;
use packetrig_units::Nanos;
use packetrig_units::RemovedFiles;
use packetrig_units::exposition::MetricsText;

/// Data that exporters sent and that did not reach the store of every sink.
pub(super) fn missing_data(ledger: &CollectLedger, sinks: &[SinkStoredCounts]) -> Vec<MissingData> {
    let mut missing = ledger.missing_data();
    let in_queues: u64 = sinks.iter().map(|sink| sink.kept.queue_dropped.records).sum();
    // The count `lost` of a sink includes the records that the sink's queue dropped. Both numbers are shown
    // separately, because their remedies differ.
    let lost: u64 = sinks.iter().map(|sink| sink.kept.lost.records).sum();
    let of_sinks = [
        ("records from datagrams dropped: the queue of a sink was full", in_queues),
        ("records that a sink could not store", lost - in_queues),
        ("records that a killed collector could not store", records_given_up_before(sinks)),
    ];
    let found = of_sinks.into_iter().filter(|(_, amount)| *amount > 0);
    missing.extend(found.map(|(what, amount)| MissingData { what, amount }));
    missing.extend(earlier::missing_data_sums(&losses_of_killed_collectors(ledger, sinks)));
    missing
}

/// Records that killed collectors in the same directories had received and could not store.
fn records_given_up_before(sinks: &[SinkStoredCounts]) -> u64 {
    sinks.iter().map(|sink| sink.before.given_up.records).sum()
}

/// Lists, for each exporter, what killed collectors did not store in the directory. Empty if none was killed.
pub(super) fn losses_of_killed_collectors(
    ledger: &CollectLedger,
    sinks: &[SinkStoredCounts],
) -> Vec<UnstoredByKilledCollectors> {
    sinks.iter().flat_map(|sink| earlier::losses_by_exporter(ledger, &sink.before.stored)).collect()
}

/// Describes the losses of killed collectors, one line for each exporter.
pub(super) fn killed_collectors_text(ledger: &CollectLedger, sinks: &[SinkStoredCounts]) -> String {
    let mut text = String::new();
    let given_up = records_given_up_before(sinks);
    if given_up > 0 {
        append_text(
            &mut text,
            format_args!(
                "an earlier collector was killed; records that it could not store: {} (the lines below count them as stored)\n",
                format_count(given_up)
            ),
        );
    }
    for UnstoredByKilledCollectors { exporter, domain, stored_records, missing, unit } in
        losses_of_killed_collectors(ledger, sinks)
    {
        let missing = missing.map_or_else(
            || "the number of missing records is unknown, because the exporter sent no count that continues its earlier counts".to_owned(),
            |missing| format!("{} {unit} are missing, according to the exporter's own counts", format_count(missing)),
        );
        let stored = format_count(stored_records);
        append_text(
            &mut text,
            format_args!(
                "an earlier collector was killed: {stored} records of {exporter}, domain {domain}, were stored, and {missing}\n"
            ),
        );
    }
    text
}

/// Describes the counters that contradict each other; empty if all agree. A surplus is as wrong as a deficit, because
/// it could hide a loss elsewhere.
pub(super) fn find_imbalances(ledger: &CollectLedger, sinks: &[SinkStoredCounts]) -> Vec<String> {
    let mut found: Vec<String> = ledger.imbalances().iter().map(ToString::to_string).collect();
    for sink in sinks {
        let handed = &ledger.handed;
        let kept = &sink.kept;
        // Every sink gets every record. Packets and bytes are compared too: a record counted twice could
        // otherwise hide a lost record.
        let counts = [
            ("records", handed.records, kept.offered.records),
            ("packets", handed.packets, kept.offered.packets),
            ("bytes", handed.bytes, kept.offered.bytes),
        ];
        let name = &sink.sink;
        for (what, given, offered) in counts.into_iter().filter(|(_, given, offered)| given != offered) {
            found.push(format!(
                "{name}: the collector passed {given} {what} to this sink, but the sink counted {offered}"
            ));
        }
        if !kept.is_balanced() {
            found.push(format!("{}: offered is not equal to stored + lost + waiting: {kept:?}", sink.sink));
        }
    }
    found
}

/// Describes the missing data in one line; empty if nothing is missing.
pub(super) fn describe_missing_data(ledger: &CollectLedger, sinks: &[SinkStoredCounts]) -> String {
    let missing = missing_data(ledger, sinks);
    let amounts: Vec<_> =
        missing.iter().map(|one| format!("{} {}", format_count(one.amount), one.what)).collect();
    if amounts.is_empty() { String::new() } else { format!("missing: {}\n", amounts.join("; ")) }
}

/// Table of the counters, summed over all exporters. Counters that are zero are left out.
pub(super) fn exporters_counter_table(ledger: &CollectLedger) -> String {
    let handed = ledger.handed.named_counts().map(|(_, meaning, value)| (meaning, value));
    let counts = SESSION_COUNTS.iter().map(|one| (one.meaning, (one.get)(&ledger.total)));
    let intake = [
        (
            "messages received by sockets, connections and files",
            ledger.intake.iter().map(|one| one.messages).sum(),
        ),
        ("bytes of these messages", ledger.intake.iter().map(|one| one.bytes).sum()),
    ];
    let memory = [("bytes of memory in use for exporters", ledger.memory)];
    let all = intake.into_iter().chain(counts).chain(handed).chain(memory);
    let rows = all
        .filter(|(_, value)| *value > 0)
        .map(|(meaning, value)| vec![meaning.to_owned(), format_count(value)]);
    format_table(&["of all exporters", "count"], rows)
}

/// Tables of a meter group: its counters, its meters, and the changes of its active meter.
pub(super) fn format_group_tables(group: &GroupLedger) -> String {
    let counts = group.named_counts().into_iter().filter(|(_, _, value)| *value > 0);
    let all = format_table(
        &[&format!("of group {}", group.group), "count"],
        counts.map(|(_, meaning, value)| vec![meaning.to_owned(), format_count(value)]),
    );
    let rows = group.counts.meters.iter().map(|(number, part)| {
        let numbers = [part.records, part.packets, part.new_packets];
        let copy = part.copy_packets.map_or_else(|| "–".to_owned(), format_count);
        let lacking = format_count(group.lacking_packets(*number));
        // A meter that has sent nothing yet has no time.
        let heard = if part.heard_ns > 0 { format_utc_date_time(part.heard_ns) } else { "–".to_owned() };
        [vec![number.to_string()], numbers.map(format_count).to_vec(), vec![copy, lacking, heard]].concat()
    });
    let head = ["meter", "records", "packets", "first to report", "of its copy", "lacking", "last heard"];
    all + &format_table(&head, rows) + &format_role_changes_table(group)
}

/// Table of the changes of the group's active meter; empty if it never changed.
fn format_role_changes_table(group: &GroupLedger) -> String {
    if group.counts.switches.is_empty() {
        return String::new();
    }
    let rows = group.counts.switches.iter().map(|switch| {
        let GroupSwitch { at_ns, meter, term, silent_ns, replayed, repeated, .. } = *switch;
        // At the start of a group no meter was active. The first active meter waited for the other meters,
        // and this wait is not a silence.
        let silent = if silent_ns == 0 { "no active meter" } else { &Nanos::new(silent_ns).to_string() };
        let numbers = [replayed, repeated].map(format_count);
        [
            vec![format_utc_date_time(at_ns), meter.to_string(), term.to_string(), silent.to_owned()],
            numbers.to_vec(),
        ]
        .concat()
    });
    // The list contains only the latest changes; `switch_count` counts all.
    let left_out = group.counts.switch_count - group.counts.switches.len() as u64;
    let note = if left_out > 0 {
        format!("earlier changes that are not shown: {}\n", format_count(left_out))
    } else {
        String::new()
    };
    format_table(
        &["changed", "to meter", "term", "earlier active meter silent for", "kept and sent", "duplicates"],
        rows,
    ) + &note
}

/// Returns the counters of a sink, each with its name in metrics and its name in tables.
const fn list_sink_counters(kept: &SinkRecordCounts) -> [(&'static str, &'static str, CarriedRecords); 5] {
    [
        ("offered", "offered", kept.offered),
        ("stored", "stored", kept.stored),
        ("lost", "lost", kept.lost),
        ("queue_dropped", "lost because the queue was full (included in lost)", kept.queue_dropped),
        ("waiting", "waiting", kept.waiting),
    ]
}

pub(super) fn format_sinks_table(sinks: &[SinkStoredCounts]) -> String {
    let mut rows = Vec::new();
    let mut remarks = String::new();
    for sink in sinks {
        for (_, what, carried) in list_sink_counters(&sink.kept) {
            let CarriedRecords { records, packets, bytes } = carried;
            if carried != CarriedRecords::default() {
                rows.push(vec![
                    format!("{}: {what}", sink.sink),
                    format_count(records),
                    format_count(packets),
                    format_count(bytes),
                ]);
            }
        }
        if sink.kept.failures > 0 {
            let failures = format_count(sink.kept.failures);
            append_text(&mut remarks, format_args!("{}: failed attempts to store: {failures}\n", sink.sink));
        }
        if sink.kept.file_bytes > 0 {
            let bytes = format_count(sink.kept.file_bytes);
            append_text(&mut remarks, format_args!("{}: bytes written to files: {bytes}\n", sink.sink));
        }
        for (_, what, count) in
            sink.kept.removed.named_counts().into_iter().filter(|(_, _, count)| *count > 0)
        {
            append_text(&mut remarks, format_args!("{}: {} {what}\n", sink.sink, format_count(count)));
        }
        if let Some(why) = &sink.failure {
            append_text(&mut remarks, format_args!("{}: {why}\n", sink.sink));
        }
    }
    let all = if sinks.is_empty() {
        String::new()
    } else {
        format_table(&["sink", "records", "packets", "bytes"], rows)
    };
    all + &remarks
}

/// Formats the counters of all sinks as Prometheus metrics. The label `sink` is the position of the sink.
pub(super) fn sink_metrics_text(kept: &[SinkRecordCounts]) -> String {
    type Unit = (&'static str, fn(&CarriedRecords) -> u64);
    let units: [Unit; 3] = [("records", |c| c.records), ("packets", |c| c.packets), ("bytes", |c| c.bytes)];
    let mut text = MetricsText::with_prefix("packetrig_collect_sink_");
    let numbers: Vec<String> = (0..kept.len()).map(|number| number.to_string()).collect();
    let mut write = |name: &str, help: &str, value: &dyn Fn(&SinkRecordCounts) -> u64| {
        text.write_metric(name, help, |samples| {
            for (number, kept) in numbers.iter().zip(kept) {
                samples.add_sample(&[("sink", number)], value(kept));
            }
        });
    };
    // Only the names come from the default counts. The values come from each sink, at the same index.
    for (at, (name, what, _)) in list_sink_counters(&SinkRecordCounts::default()).into_iter().enumerate() {
        for (unit, value) in units {
            // The number of waiting records goes up and down. All others only grow, so their names end
            // in `_total` by convention.
            let total = if name == "waiting" { "" } else { "_total" };
            let help = format!("Sinks, {unit}: {what}.");
            write(&format!("{name}_{unit}{total}"), &help, &|kept| value(&list_sink_counters(kept)[at].2));
        }
    }
    write("failures_total", "Failed attempts of the sinks to store records.", &|kept| kept.failures);
    write("file_bytes_total", "Bytes that the sinks wrote to files.", &|kept| kept.file_bytes);
    for (at, (name, what, _)) in RemovedFiles::default().named_counts().into_iter().enumerate() {
        write(name, &format!("Sinks: {what}."), &|kept| kept.removed.named_counts()[at].2);
    }
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::super::show;
    use super::*;
    use packetrig_flow_store::progress::KilledCollectorRecords;
    use serde_json::{Value, json};

    const LABELS: [&str; 3] = ["port", "domain", "elapsed_ns"];

    /// Gives every number below a value another one, and says which.
    fn number_all(value: &mut Value, name: &str, next: &mut u64, given: &mut Vec<(String, u64)>) {
        match value {
            Value::Number(_) if !LABELS.contains(&name) => {
                *next += 1;
                *value = json!(*next);
                given.push((name.to_owned(), *next));
            }
            Value::Array(all) => {
                for one in all {
                    number_all(one, name, next, given);
                }
            }
            Value::Object(all) => {
                for (key, one) in all {
                    number_all(one, key, next, given);
                }
            }
            _ => {}
        }
    }

    fn ledger() -> Value {
        let total = serde_json::to_value(packetrig_flow::collect::SessionCounts::default()).unwrap();
        let intake =
            packetrig_flow_io::collect::IntakeCounts { place: "udp://a".into(), ..Default::default() };
        json!({
            "elapsed_ns": 1,
            "intake": [intake],
            "exporters": [],
            "total": total,
            "refused": packetrig_flow::collect::RefusedMessages::default(),
            "forgotten": packetrig_flow::collect::ForgottenExporters::default(),
            "memory": 0,
            "handed": packetrig_flow_io::collect::HandedOverRecords::default(),
            "groups": [],
        })
    }

    #[test]
    fn json_counters_appear_in_tables_and_metrics() {
        let mut given = Vec::new();
        let mut next = 1_000_000_007;
        let mut all = ledger();
        number_all(&mut all, "", &mut next, &mut given);
        // Sums of different causes are shown for what sockets refused: one of them at a time.
        let of_collector = std::mem::replace(&mut all["refused"]["not_allowed"], json!(0));
        given.retain(|(_, value)| of_collector != *value);
        let exporter = json!({"address": "192.0.2.1", "port": 1, "transport": "udp", "protocol": "ipfix",
            "domain": 1, "is_here": true, "counts": all["total"].clone(), "reported": null});
        all["exporters"] = json!([exporter]);
        let ledger: CollectLedger = serde_json::from_value(all).unwrap();
        let mut kept = serde_json::to_value(SinkRecordCounts::default()).unwrap();
        number_all(&mut kept, "", &mut next, &mut given);
        // `lost` includes the dropped records, so the larger number is the lost one.
        let less = kept["lost"].take();
        kept["lost"] = std::mem::replace(&mut kept["queue_dropped"], less);
        let kept: SinkRecordCounts = serde_json::from_value(kept).unwrap();
        let sinks = [SinkStoredCounts {
            stores_records: true,
            sink: "records".into(),
            kept,
            failure: None,
            recovered: None,
            before: KilledCollectorRecords::default(),
        }];
        let (tables, metrics) = (show::report_tables(&ledger, &sinks), show::metrics_text(&ledger, &[kept]));
        for (name, value) in &given {
            assert!(tables.contains(&format_count(*value)), "{name} is not in the tables:\n{tables}");
            assert!(metrics.contains(&format!(" {value}\n")), "{name} is not in the metrics:\n{metrics}");
        }
        assert!(given.len() > 60, "{given:?}");
    }
}
