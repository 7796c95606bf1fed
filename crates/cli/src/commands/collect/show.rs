//! Shows the counters of a collector: one line a second while it runs, tables or JSON at the end.

use super::counters::{self, missing_data};
use super::earlier::UnstoredByKilledCollectors;
use super::sinks::{SinkAccounts, SinkStoredCounts};
use crate::numbers::{format_count, format_scaled, per_second};
use crate::table::format_table;
use packetrig_flow::collect::{
    ExportProtocol, ExporterIdentity, InterfaceCounters, MessageTransport, SessionCounts,
};
use packetrig_flow_io::collect::{
    CollectLedger, ExporterLedger, IntakeCounts, MissingData, PacketBalance, PacketLoss, RelayCounts,
};
use packetrig_flow_store::SinkRecordCounts;
use packetrig_flow_store::alert::AlertCounts;
use packetrig_units::Nanos;
use serde::Serialize;
use std::fmt;

#[derive(Serialize)]
pub(super) struct CollectReport<'a> {
    #[serde(flatten)]
    ledger: &'a CollectLedger,
    sinks: &'a [SinkStoredCounts],
    /// Counts of alerts, for each rule.
    alerts: &'a [AlertCounts],
    /// Balance of packets from the wire to the stored records; absent if no meter sends its ledger.
    balance: Option<TotalBalance>,
    /// Data that was sent and is not stored; empty with exit code 0.
    missing: Vec<MissingData>,
    /// Data that killed collectors did not store, by exporter.
    earlier: Vec<UnstoredByKilledCollectors>,
    /// Descriptions of counters that contradict each other.
    imbalances: Vec<String>,
}

/// Balance of packets from the wire to the sink that stored the most of them.
#[derive(Debug, PartialEq, Serialize)]
struct TotalBalance {
    arrived: u64,
    stored: u64,
    losses: Vec<PacketLoss>,
    /// Packets in records that are newer than the meters' last ledgers: arrived + newer = stored + losses.
    newer: u64,
    fraction: f64,
}

pub(super) fn collector_report<'a>(
    ledger: &'a CollectLedger,
    sinks: &'a [SinkStoredCounts],
    alerts: &'a [AlertCounts],
) -> CollectReport<'a> {
    let balance = ledger.packet_balance().map(|balance| balance_with_sinks(balance, sinks, ledger));
    CollectReport {
        ledger,
        sinks,
        alerts,
        balance,
        missing: missing_data(ledger, sinks),
        earlier: counters::losses_of_killed_collectors(ledger, sinks),
        imbalances: counters::find_imbalances(ledger, sinks),
    }
}

/// Adds the last place where packets may be lost: the sinks. Without a sink that stores records, all received packets
/// count as stored.
fn balance_with_sinks(
    balance: PacketBalance,
    sinks: &[SinkStoredCounts],
    ledger: &CollectLedger,
) -> TotalBalance {
    let PacketBalance { arrived, received, mut losses, newer } = balance;
    // `counters::find_imbalances` reports a sink that has stored more than the collector passed to it.
    let stores = sinks.iter().filter(|sink| sink.stores_records);
    let missing = stores.map(|sink| ledger.handed.packets.saturating_sub(sink.kept.stored.packets));
    // A packet is stored if at least one sink has it, so the sink that lacks the fewest packets decides.
    let missing = missing.min().unwrap_or(0);
    if missing > 0 {
        losses.push(PacketLoss { place: "not stored", packets: missing });
    }
    let stored = received.saturating_sub(missing);
    TotalBalance {
        arrived,
        stored,
        losses,
        newer,
        // If nothing arrived, nothing is missing.
        fraction: if arrived == 0 { 1.0 } else { stored as f64 / arrived as f64 },
    }
}

pub(super) fn report_tables(ledger: &CollectLedger, sinks: &[SinkStoredCounts]) -> String {
    let total = &ledger.total;
    let mut text = format!(
        "{} messages, {} records, {} packets, {} in {:.1} s\n",
        // Refused messages arrived as well, so they belong to the sum.
        format_count(total.messages + ledger.refused.total_messages()),
        format_count(total.records),
        format_count(total.packets),
        format_scaled(total.bytes as f64, "B"),
        Nanos::new(ledger.elapsed_ns).as_secs_f64(),
    );
    let header = [
        "exporter",
        "domain",
        "messages",
        "records",
        "packets",
        "lost",
        "late",
        "doubled",
        "undecoded",
        "malformed",
    ];
    text.push_str(&format_table(&header, ledger.exporters.iter().map(exporter_row)));
    for exporter in &ledger.exporters {
        text.push_str(&exporter_remarks(exporter));
    }
    text.push_str(&interface_table(&ledger.exporters));
    text.push_str(&relay_lines(&ledger.relays));
    text.push_str(&intake_remarks(ledger));
    text.push_str(&dropped_data_remarks(ledger));
    text.push_str(&counters::exporters_counter_table(ledger));
    ledger.groups.iter().for_each(|group| text.push_str(&counters::format_group_tables(group)));
    text.push_str(&counters::format_sinks_table(sinks));
    if let Some(balance) = ledger.packet_balance() {
        text.push_str(&balance_text(&balance_with_sinks(balance, sinks, ledger)));
    }
    text.push_str(&counters::killed_collectors_text(ledger, sinks));
    text.push_str(&counters::describe_missing_data(ledger, sinks));
    for imbalance in counters::find_imbalances(ledger, sinks) {
        append_text(&mut text, format_args!("the counters do not balance: {imbalance}\n"));
    }
    text
}

/// Lines about messages that were refused or not read, and about forgotten exporters, one for each cause.
fn dropped_data_remarks(ledger: &CollectLedger) -> String {
    let forgotten = &ledger.forgotten;
    // The order is that of `refused_by_cause`.
    let [not_allowed, address_full, unknown_protocol, unread] = ledger.refused_by_cause().map(|(_, n)| n);
    let causes = [
        (unknown_protocol, "messages refused: unknown protocol"),
        (not_allowed, "messages dropped: their address is not on the list (--allow-exporter)"),
        (address_full, "messages refused: too many exporters at one address (--exporters-per-address)"),
        (unread, "messages not read: too many were waiting when the collector ended"),
        (forgotten.on_trial, "new exporters forgotten: too many exporters (--max-exporters)"),
        (forgotten.for_memory, "exporters forgotten: memory limit reached (--memory)"),
        (forgotten.silent, "silent exporters forgotten: too many exporters (--max-exporters)"),
    ];
    let mut text = String::new();
    for (value, what) in causes.into_iter().filter(|(value, _)| *value > 0) {
        append_text(&mut text, format_args!("{} {what}\n", format_count(value)));
    }
    text
}

/// Lines about problems at listeners and files.
fn intake_remarks(ledger: &CollectLedger) -> String {
    let mut text = String::new();
    for intake in &ledger.intake {
        let places = [
            (intake.connections, "connections"),
            (intake.open, "connections open"),
            (
                intake.not_allowed,
                "datagrams or connections dropped: their address is not on the list (--allow-exporter)",
            ),
            (intake.unread, "datagrams not read before the collector ended"),
            (intake.dropped, "datagrams dropped: socket buffer full (--receive-buffer)"),
            (intake.refused, "connections refused"),
            (
                intake.handshakes_failed,
                "connections refused: one side rejected the other's certificate or protocol",
            ),
            (intake.address_full, "connections refused: too many from one address"),
            (
                intake.broken_connections(),
                "connections ended within a message, or carried neither IPFIX nor SIM",
            ),
            (intake.slow, "connections closed: too slow"),
            (intake.silent, "connections closed: no message arrived"),
            (intake.cut, "connections closed with unread data when the collector ended"),
            (
                intake.made_room,
                "connections closed because all were in use and a new one arrived (--max-connections)",
            ),
        ];
        for (value, what) in places.into_iter().filter(|(value, _)| *value > 0) {
            append_text(&mut text, format_args!("{}: {} {what}\n", intake.place, format_count(value)));
        }
    }
    for intake in ledger.intake.iter().filter(|intake| intake.is_damaged_file()) {
        append_text(&mut text, format_args!("{}\n", describe_file_damage(intake)));
    }
    for intake in &ledger.intake {
        if let Some(why) = &intake.handshake_failure {
            append_text(&mut text, format_args!("{}: last refused connection: {why}\n", intake.place));
        }
        // The states come after the counters: a failed listener explains the numbers above.
        let states = [
            (intake.stopped, "not read to its end: the collector was stopped first"),
            (intake.failed, "failed: the collector reads no more data from it"),
        ];
        for (_, what) in states.into_iter().filter(|(is_so, _)| *is_so) {
            append_text(&mut text, format_args!("{}: {what}\n", intake.place));
        }
    }
    text
}

/// Describes the damage of a file that does not consist of whole messages.
pub(super) fn describe_file_damage(intake: &IntakeCounts) -> String {
    let file = &intake.place;
    if intake.messages == 0 {
        return format!(
            "{file} has no whole IPFIX or SIM message: it is another kind of file, or it is truncated"
        );
    }
    format!(
        "{file} ends within a message, or is damaged: the data after its last whole message is missing (whole \
        messages: {}, {} bytes)",
        format_count(intake.messages),
        format_count(intake.bytes),
    )
}

/// Appends formatted text. In contrast to `write!`, it has no error to handle: writing to a string cannot fail.
pub(super) fn append_text(text: &mut String, more: fmt::Arguments<'_>) {
    text.push_str(&more.to_string());
}

fn exporter_row(ledger: &ExporterLedger) -> Vec<String> {
    let counts = &ledger.counts;
    // Bytes that wait for a template count as undecoded so far.
    let undecoded = counts.undecoded_bytes + counts.pending_bytes;
    vec![
        exporter_name(&ledger.exporter),
        ledger.exporter.domain.to_string(),
        format_count(counts.messages),
        format_count(counts.records + counts.events),
        format_count(counts.packets),
        format!("{} {}", format_count(counts.lost), sequence_unit(ledger.exporter.protocol)),
        format_count(counts.late_units),
        format_count(counts.duplicates),
        format!("{} B", format_count(undecoded)),
        format_count(counts.malformed),
    ]
}

fn exporter_name(exporter: &ExporterIdentity) -> String {
    let source = &exporter.source;
    let protocol = exporter.protocol.name();
    let name = match (source.transport, source.port) {
        (MessageTransport::File, _) => format!("{protocol} file"),
        // This row sums the forgotten exporters at an address, so it has no port.
        (transport, 0) => format!("{protocol} {}://{} (gone)", transport.name(), source.address),
        (transport, port) => format!("{protocol} {}://{}:{port}", transport.name(), source.address),
    };
    // In sFlow, another machine may send the data of the agent.
    exporter.agent.map_or_else(|| name.clone(), |agent| format!("{name} agent {agent}"))
}

/// Unit that the sequence numbers of a protocol count.
const fn sequence_unit(protocol: ExportProtocol) -> &'static str {
    match protocol {
        ExportProtocol::Ipfix => "records",
        ExportProtocol::NetFlow9 => "packets",
        ExportProtocol::NetFlow5 => "flows",
        ExportProtocol::Sim => "events",
        ExportProtocol::SFlow => "datagrams",
    }
}

fn exporter_remarks(ledger: &ExporterLedger) -> String {
    let SessionCounts { restarts, timeless, untold, skipped, .. } = &ledger.counts;
    let mut remarks = Vec::new();
    if *restarts > 0 {
        remarks.push(format!("restarts: {}; losses across a restart are unknown", format_count(*restarts)));
    }
    if *timeless > 0 {
        remarks.push(format!(
            "records without a time, which got the time of their message: {}",
            format_count(*timeless)
        ));
    }
    if *untold > 0 {
        remarks.push(format!(
            "up to {} records (NetFlow v9: export packets) could not be decoded, because their template is missing",
            format_count(*untold)
        ));
    }
    if !skipped.is_empty() {
        let names: Vec<_> = skipped.iter().map(String::as_str).collect();
        remarks.push(format!("fields without a column, kept in otherFields: {}", names.join(", ")));
    }
    let exporter = exporter_name(&ledger.exporter);
    let mut text = String::new();
    for remark in remarks {
        append_text(&mut text, format_args!("{exporter}: {remark}\n"));
    }
    text
}

fn relay_lines(relays: &[RelayCounts]) -> String {
    let mut text = String::new();
    for relay in relays {
        for (_, what, count) in relay.named_counts().into_iter().filter(|(_, _, count)| *count > 0) {
            append_text(&mut text, format_args!("{}: {} {what}\n", relay.to, format_count(count)));
        }
        if let Some(why) = &relay.failure {
            append_text(&mut text, format_args!("{}: last failure: {why}\n", relay.to));
        }
    }
    text
}

/// Table of the interface counters that sFlow agents have sent; empty if there are none.
fn interface_table(exporters: &[ExporterLedger]) -> String {
    let all = exporters.iter().flat_map(|one| one.interfaces.iter().map(move |counters| (one, counters)));
    let rows: Vec<_> = all
        .map(|(exporter, counters)| {
            let InterfaceCounters { index, speed, .. } = *counters;
            let speed = if speed == 0 { "–".to_owned() } else { format_scaled(speed as f64, "bit/s") };
            let head = vec![exporter_name(&exporter.exporter), index.to_string(), speed];
            let counts = counters.named_counts().map(|(_, value)| format_count(value));
            [head, counts.to_vec()].concat()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let names = InterfaceCounters::default().named_counts().map(|(name, _)| name.replace('_', " "));
    let header: Vec<&str> =
        ["exporter", "interface", "speed"].into_iter().chain(names.iter().map(String::as_str)).collect();
    format_table(&header, rows)
}

fn balance_text(balance: &TotalBalance) -> String {
    let mut rows = vec![("arrived at the meters".to_owned(), balance.arrived)];
    rows.extend(balance.losses.iter().map(|loss| (format!("- {}", loss.place), loss.packets)));
    if balance.newer > 0 {
        rows.push(("+ not yet counted in the meters' ledgers".to_owned(), balance.newer));
    }
    rows.push(("stored".to_owned(), balance.stored));
    // Without arrivals, all shares are zero.
    let arrived = balance.arrived.max(1) as f64;
    let cells = rows.into_iter().map(|(what, packets)| {
        vec![what, format_count(packets), format!("{:.4} %", 100.0 * packets as f64 / arrived)]
    });
    format_table(&["from the wire", "packets", "share"], cells)
}

pub(super) fn metrics_text(ledger: &CollectLedger, kept: &[SinkRecordCounts]) -> String {
    let mut text = ledger.prometheus_text();
    text.push_str(&counters::sink_metrics_text(kept));
    text
}

/// One line of progress: totals, and rates since the last line.
pub(super) fn progress_line(
    ledger: &CollectLedger,
    last: Option<&CollectLedger>,
    sinks: &SinkAccounts,
) -> String {
    let total = &ledger.total;
    let kept = sinks.read_counts();
    let length = Nanos::new(ledger.elapsed_ns.saturating_sub(last.map_or(0, |last| last.elapsed_ns)));
    let new_records = total.records.saturating_sub(last.map_or(0, |last| last.total.records));
    let new_packets = total.packets.saturating_sub(last.map_or(0, |last| last.total.packets));
    let mut text = format!(
        "{} exporters, {} records ({}), {} packets ({})",
        ledger.exporters.len(),
        format_count(total.records),
        format_scaled(per_second(new_records, length), "records/s"),
        format_count(total.packets),
        format_scaled(per_second(new_packets, length), "packets/s"),
    );
    // The smallest count of all sinks is shown: at least so many records are stored in each of them.
    if let Some(stored) = sinks.count_records_stored_by_all_sinks() {
        append_text(&mut text, format_args!(", {} stored", format_count(stored)));
    }
    let refused = ledger.refused_by_cause();
    // These are the causes that an operator can act on; the tables at the end show all causes.
    let losses = [
        (ledger.dropped_by_sockets(), "dropped by sockets"),
        (total.lost, "lost on the way"),
        (total.malformed + ledger.refused.unknown_protocol, "malformed"),
        // The first two causes are: address not allowed, and too many exporters at one address.
        (refused[0].1 + refused[1].1, "refused"),
        (total.undecoded_no_room_bytes, "bytes undecoded: no memory"),
        (kept.iter().map(|kept| kept.lost.records).sum(), "lost by sinks"),
    ];
    for (value, what) in losses.into_iter().filter(|(value, _)| *value > 0) {
        append_text(&mut text, format_args!(", {} {what}", format_count(value)));
    }
    text
}
