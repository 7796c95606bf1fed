//! Shows the ledger of a meter (its packet counts) as text.

use crate::numbers::{format_count, format_percent, format_scaled, per_second};
use crate::table::format_table;
use packetrig_flow_io::group::GroupReport;
use packetrig_flow_io::ledger::{LedgerLine, LedgerReport, OutputReport, ledger_lines};
use packetrig_units::Nanos;

/// One line of progress: totals, and rates since the last report.
pub(super) fn progress_line(report: &LedgerReport, last: Option<&LedgerReport>) -> String {
    let length = Nanos::new(report.elapsed_ns - last.map_or(0, |last| last.elapsed_ns));
    let now = &report.ledger;
    let before = last.map(|last| last.ledger).unwrap_or_default();
    // Counters only grow, and `last` is an earlier report of this meter: the differences cannot be negative.
    let seen = now.packets.seen - before.packets.seen;
    let bytes = now.packets.seen_bytes - before.packets.seen_bytes;
    let flows = now.packets.flows - before.packets.flows;
    let mut text = format!(
        "{} packets ({}, {}), {} flows ({})",
        format_count(now.packets.seen),
        format_scaled(per_second(seen, length), "packets/s"),
        format_scaled(per_second(bytes, length) * 8.0, "bit/s"),
        format_count(now.packets.flows),
        format_scaled(per_second(flows, length), "flows/s"),
    );
    // Only losses are shown, and only if there are some: nobody reads a text that is always there.
    for line in ledger_lines(now).into_iter().filter(|line| line.is_loss) {
        if let Some(packets) = line.packets.filter(|packets| *packets > 0) {
            text.extend([", ", line.place, " ", line.what, ": ", &format_count(packets)]);
        }
    }
    text
}

/// The final result: a row for each count of the ledger, and a row for each output.
pub(super) fn result_text(inputs: &str, report: &LedgerReport) -> String {
    let packets = &report.ledger.packets;
    let elapsed = Nanos::new(report.elapsed_ns);
    let mut text = format!(
        "{inputs}: {} packets, {} of frames, {} flows, {} records in {:.3} s ({})\n",
        format_count(packets.seen),
        format_scaled(packets.seen_bytes as f64, "B"),
        format_count(packets.flows),
        format_count(packets.records),
        elapsed.as_secs_f64(),
        format_scaled(per_second(packets.seen, elapsed), "packets/s"),
    );
    text.push_str(&format_table(
        &["", "", "packets", ""],
        ledger_lines(&report.ledger).iter().map(ledger_row),
    ));
    text.push_str(&notes_text(report));
    text.extend(report.group.iter().map(group_text));
    if !report.outputs.is_empty() {
        let header = ["output", "records", "lost", "messages", "size"];
        text.push_str(&format_table(&header, report.outputs.iter().map(output_row)));
    }
    text.extend(report.outputs.iter().flat_map(OutputReport::loss_lines).map(|line| line + "\n"));
    text.extend(report.outputs.iter().flat_map(OutputReport::removal_lines).map(|line| line + "\n"));
    text
}

/// Roles of the meters of a group, and the packets that each has seen.
fn group_text(group: &GroupReport) -> String {
    let role = match (&group.term, group.is_ready) {
        (Some(term), _) => format!("active in term {term}"),
        (None, true) => "standby".to_owned(),
        (None, false) => "standby, not ready yet".to_owned(),
    };
    let switches = format_count(group.switch_count);
    let mut text =
        format!("group {}: meter {} is {role}; changes of role: {switches}\n", group.name, group.meter);
    let own = [format!("meter {}", group.meter), "this one".to_owned(), format_count(group.packets)];
    let peers = group.peers.iter().map(|peer| {
        // The last role of a silent peer means nothing: another meter may have taken over this role.
        let state = match (peer.is_alive, peer.is_active) {
            (false, _) => "silent",
            (true, true) => "active",
            (true, false) => "standby",
        };
        [format!("meter {}", peer.meter), state.to_owned(), format_count(peer.packets)]
    });
    text.push_str(&format_table(
        &["group", "", "packets of its copy of the link"],
        [own].into_iter().chain(peers).map(Vec::from),
    ));
    if group.is_blind {
        text.push_str("this meter receives no packets, but other meters do: its copy of the link is cut\n");
    }
    text.extend(group.order_error.iter().map(|error| format!("{error}\n")));
    text
}

fn output_row(output: &OutputReport) -> Vec<String> {
    let counts = &output.counts;
    // Parquet files hold records, not messages.
    let has_messages = counts.messages > 0 || counts.sent.records == 0;
    vec![
        output.to.clone(),
        format_count(counts.sent.records),
        format_count(output.losses.total_records().records),
        if has_messages { format_count(counts.messages) } else { "–".to_owned() },
        format_scaled(counts.message_bytes as f64, "B"),
    ]
}

fn ledger_row(line: &LedgerLine) -> Vec<String> {
    let packets = line.packets.map_or_else(|| "–".to_owned(), format_count);
    let share = line.packets.filter(|packets| line.is_loss && *packets > 0);
    let share = share.map_or_else(String::new, |packets| format_percent(packets, line.of));
    vec![line.place.to_owned(), line.what.to_owned(), packets, share]
}

/// Remarks on the metering as a whole.
fn notes_text(report: &LedgerReport) -> String {
    let packets = &report.ledger.packets;
    let said = [
        (packets.merged, "merged packets split again; each counts as its original packets on the wire"),
        (
            packets.unsplit,
            "packets merged before they reached the meter, in a way that cannot be undone: each counts as one, and \
            the record of its flow is marked (merged)",
        ),
        (packets.evicted, "flows reported early because the flow table was full; --flows makes it larger"),
        (packets.backwards, "packets with an earlier time than a packet before them in their flow"),
    ];
    let said = said.into_iter().filter(|(times, _)| *times > 0);
    let said = said.map(|(times, what)| format!("{} {what}\n", format_count(times)));
    said.chain(report.remarks.iter().map(|remark| format!("{remark}\n"))).collect()
}
