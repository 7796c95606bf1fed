//! The tables of a report. Times are nanoseconds, rates bits per second, bytes with FCS; an empty cell is "not known".

use super::csv::{Csv, cell};
use packetrig_fleet::report::{LatencyReport, MeanRate, RunReport, StreamReport};
use packetrig_stats::series::RateSeries;
use packetrig_units::{BitRate, Nanos};
use std::collections::HashMap;

const STREAM_COLUMNS: &[&str] = &[
    "stream",
    "tx_port",
    "rx_ports",
    "planned",
    "sent",
    "unsent",
    "late",
    "sent_bytes",
    "tx_fps_milli",
    "tx_l2_bps",
    "tx_l1_bps",
    "rate_error_ppm",
    "send_error_p50_ns",
    "send_error_p99_ns",
    "send_error_max_ns",
    "received",
    "received_bytes",
    "unique",
    "rx_l2_bps",
    "expected",
    "lost",
    "lost_percent",
    "longest_burst",
    "loss_seconds",
    "duplicates",
    "reordered",
    "max_extent",
    "stale",
    "altered",
    "corrupt",
    "unnumbered",
    "latency_min_ns",
    "latency_mean_ns",
    "latency_max_ns",
    "latency_p50_ns",
    "latency_p90_ns",
    "latency_p99_ns",
    "latency_p999_ns",
    "latency_p9999_ns",
    "latency_error_p99_ns",
    "jitter_rfc3550_ns",
    "jitter_pdv_p999_ns",
    "jitter_ipdv_mean_ns",
    "jitter_ipdv_max_ns",
    "first_rx_ns",
    "last_rx_ns",
    "latency_clock_bound_ns",
    "bursts",
    "in_doubt",
    "longest_outage_ns",
    "misdelivered",
    "flooded",
    "reflected",
    "untagged_compared",
    "untagged_lost",
];

/// One line per stream.
pub fn streams_csv(report: &RunReport) -> String {
    let mut csv = Csv::new(STREAM_COLUMNS);
    for stream in &report.streams {
        let mut row = vec![stream.name.clone(), stream.tx_port.clone(), stream.rx_ports.join(" ")];
        row.extend(sent_cells(stream));
        row.extend(received_cells(stream));
        row.extend(time_cells(stream));
        row.extend(loss_cells(stream));
        csv.row(row);
    }
    csv.into_text()
}

fn loss_cells(stream: &StreamReport) -> Vec<String> {
    let (outages, astray) = (stream.outages.as_ref(), stream.misdelivery.as_ref());
    let contents = stream.contents;
    vec![
        cell(stream.loss.and_then(|loss| loss.bursts)),
        cell(stream.loss.map(|loss| loss.in_doubt)),
        cell(outages.and_then(|outages| outages.longest).map(ns)),
        cell(astray.map(|astray| astray.instead)),
        cell(astray.map(|astray| astray.flooded)),
        cell(astray.map(|astray| astray.reflected)),
        cell(contents.map(|contents| contents.compared)),
        cell(contents.map(|contents| contents.lost)),
    ]
}

/// One line per listed outage: the longest of each stream, times since T.
pub fn outages_csv(report: &RunReport) -> String {
    let columns =
        ["stream", "port", "first", "last", "frames", "gaps", "begin_ns", "end_ns", "in_doubt", "node"];
    let mut csv = Csv::new(&columns);
    let nodes = PortNodes::of(report);
    for stream in &report.streams {
        for row in stream.outages.iter().flat_map(|outages| &outages.listed) {
            csv.row(vec![
                stream.name.clone(),
                row.port.clone(),
                row.first.to_string(),
                row.last.to_string(),
                row.frames.to_string(),
                row.gaps.to_string(),
                cell(row.begin.map(ns)),
                cell(row.end.map(ns)),
                row.in_doubt.to_string(),
                nodes.cell(&row.port),
            ]);
        }
    }
    csv.into_text()
}

/// One line per stream and receiving port.
pub fn receivers_csv(report: &RunReport) -> String {
    let columns = [
        "stream",
        "port",
        "received",
        "received_bytes",
        "unique",
        "expected",
        "lost",
        "bursts",
        "duplicates",
        "reordered",
        "altered",
        "corrupt",
        "unnumbered",
        "latency_mean_ns",
        "latency_p99_ns",
        "latency_max_ns",
        "node",
    ];
    let mut csv = Csv::new(&columns);
    let nodes = PortNodes::of(report);
    for stream in &report.streams {
        for share in &stream.per_port {
            let (got, loss) = (&share.received, share.loss);
            csv.row(vec![
                stream.name.clone(),
                share.port.clone(),
                got.frames.to_string(),
                got.bytes.to_string(),
                got.sequence.unique.to_string(),
                cell(loss.map(|loss| loss.expected)),
                cell(loss.map(|loss| loss.lost)),
                cell(loss.and_then(|loss| loss.bursts)),
                got.sequence.duplicates.to_string(),
                got.sequence.reordered.to_string(),
                got.altered.to_string(),
                got.corrupt.to_string(),
                got.unnumbered.to_string(),
                cell(share.latency.map(|latency| ns(latency.mean))),
                cell(share.latency.map(|latency| ns(latency.p99))),
                cell(share.latency.map(|latency| ns(latency.max))),
                nodes.cell(&share.port),
            ]);
        }
    }
    csv.into_text()
}

/// Losses and delays of each second since T: one line per stream and second in which there was either.
pub fn quality_csv(report: &RunReport) -> String {
    let mut csv = Csv::new(&["stream", "second", "lost", "delayed", "latency_mean_ns", "latency_max_ns"]);
    for stream in &report.streams {
        let seconds = stream.received.iter().flat_map(|got| got.quality.seconds.iter().enumerate());
        for (second, of) in seconds.filter(|(_, of)| of.lost + of.delayed > 0) {
            csv.row(vec![
                stream.name.clone(),
                second.to_string(),
                of.lost.to_string(),
                of.delayed.to_string(),
                cell(of.delay_total_ns.checked_div(of.delayed)),
                cell((of.delayed > 0).then(|| ns(of.delay_max))),
            ]);
        }
    }
    csv.into_text()
}

/// The nodes of the ports of a run, by the ports' names. Ports of a node that did not report are missing.
struct PortNodes<'a>(HashMap<&'a str, &'a str>);

impl<'a> PortNodes<'a> {
    fn of(report: &'a RunReport) -> Self {
        Self(report.ports.iter().map(|port| (port.info.name.as_str(), port.node.as_str())).collect())
    }

    fn cell(&self, port: &str) -> String {
        cell(self.0.get(port))
    }
}

fn ns(time: Nanos) -> u64 {
    time.as_u64()
}

fn sent_cells(stream: &StreamReport) -> Vec<String> {
    let sent = stream.sent.as_ref();
    let rate = sent.and_then(|sent| sent.rate);
    let error = sent.and_then(|sent| sent.send_error);
    vec![
        cell(sent.map(|sent| sent.planned)),
        cell(sent.map(|sent| sent.frames)),
        cell(sent.map(|sent| sent.unsent)),
        cell(sent.map(|sent| sent.late)),
        cell(sent.map(|sent| sent.bytes)),
        cell(rate.map(|rate| rate.frames_milli)),
        cell(rate.map(|rate| rate.l2.bits_per_second())),
        cell(rate.map(|rate| rate.l1.bits_per_second())),
        cell(sent.and_then(|sent| sent.rate_error_ppm)),
        cell(error.map(|error| ns(error.p50))),
        cell(error.map(|error| ns(error.p99))),
        cell(error.map(|error| ns(error.max))),
    ]
}

fn received_cells(stream: &StreamReport) -> Vec<String> {
    let got = stream.received.as_ref();
    let sequence = got.map(|got| &got.sequence);
    let loss = stream.loss;
    vec![
        cell(got.map(|got| got.frames)),
        cell(got.map(|got| got.bytes)),
        cell(sequence.map(|counts| counts.unique)),
        cell(got.and_then(|got| got.rate).map(|rate| rate.l2.bits_per_second())),
        cell(loss.map(|loss| loss.expected)),
        cell(loss.map(|loss| loss.lost)),
        cell(loss.map(|loss| format!("{:.6}", loss.percent))),
        cell(loss.and_then(|loss| loss.longest_burst)),
        cell(loss.and_then(|loss| loss.seconds)),
        cell(sequence.map(|counts| counts.duplicates)),
        cell(sequence.map(|counts| counts.reordered)),
        cell(sequence.map(|counts| counts.max_extent)),
        cell(sequence.map(|counts| counts.stale)),
        cell(got.map(|got| got.altered)),
        cell(got.map(|got| got.corrupt)),
        cell(got.map(|got| got.unnumbered)),
    ]
}

fn time_cells(stream: &StreamReport) -> Vec<String> {
    let latency = |of: fn(&LatencyReport) -> Nanos| cell(stream.latency.as_ref().map(|times| ns(of(times))));
    let jitter = stream.jitter.as_ref();
    let got = stream.received.as_ref();
    vec![
        latency(|times| times.min),
        latency(|times| times.mean),
        latency(|times| times.max),
        latency(|times| times.p50),
        latency(|times| times.p90),
        latency(|times| times.p99),
        latency(|times| times.p999),
        latency(|times| times.p9999),
        cell(stream.latency.as_ref().and_then(|times| times.error.p99()).map(ns)),
        cell(jitter.map(|jitter| ns(jitter.rfc3550))),
        cell(jitter.map(|jitter| ns(jitter.pdv_p999))),
        cell(jitter.map(|jitter| ns(jitter.ipdv_mean))),
        cell(jitter.map(|jitter| ns(jitter.ipdv_max))),
        cell(got.and_then(|got| got.first).map(ns)),
        cell(got.and_then(|got| got.last).map(ns)),
        cell(stream.latency.as_ref().and_then(|times| times.error.clock).map(ns)),
    ]
}

/// One line per port.
pub fn ports_csv(report: &RunReport) -> String {
    let mut csv = Csv::new(&[
        "port",
        "node",
        "location",
        "back_end",
        "driver",
        "speed_bps",
        "tx_stamp",
        "rx_stamp",
        "tx_handed_over",
        "tx_refused",
        "tx_on_wire",
        "tx_dropped",
        "tx_bytes",
        "tx_l2_bps",
        "rx_arrived",
        "rx_dropped",
        "rx_ring_dropped",
        "rx_seen",
        "rx_foreign",
        "rx_unnumbered",
        "rx_bytes",
        "rx_l2_bps",
        "clock_bound_ns",
        "rx_protocol",
    ]);
    let bps = |rate: Option<MeanRate>| cell(rate.map(|rate| rate.l2.bits_per_second()));
    for port in &report.ports {
        csv.row(vec![
            port.info.name.clone(),
            port.node.clone(),
            port.info.location.clone(),
            word(port.info.back_end),
            port.info.driver.clone(),
            cell(port.info.speed.map(BitRate::bits_per_second)),
            word(port.info.tx_stamp),
            word(port.info.rx_stamp),
            port.tx.handed_over.to_string(),
            port.tx.refused.to_string(),
            cell(port.tx.on_wire),
            cell(port.tx.dropped),
            port.tx_bytes.to_string(),
            bps(port.tx_rate),
            cell(port.rx.arrived),
            cell(port.rx.dropped),
            port.rx.ring_dropped.to_string(),
            port.rx.seen.to_string(),
            port.rx.foreign.to_string(),
            port.rx.unnumbered.to_string(),
            port.rx.bytes.to_string(),
            bps(port.rx_rate),
            ns(port.clock_bound).to_string(),
            port.rx.protocol.to_string(),
        ]);
    }
    csv.into_text()
}

/// One line per node.
pub fn nodes_csv(report: &RunReport) -> String {
    let columns = [
        "node",
        "reported",
        "ports",
        "sent",
        "received",
        "clock_source",
        "clock_offset_ns",
        "clock_bound_ns",
        "start_skew_ns",
        "start_skew_bound_ns",
        "start_stamp",
    ];
    let mut csv = Csv::new(&columns);
    for node in &report.nodes {
        let (clock, start) = (node.clock, node.start);
        csv.row(vec![
            node.node.clone(),
            node.reported.to_string(),
            cell(node.reported.then_some(node.ports)),
            cell(node.sent),
            cell(node.received),
            cell(clock.map(|clock| clock.source.name())),
            cell(clock.and_then(|clock| clock.offset_ns)),
            cell(clock.and_then(|clock| clock.bound).map(ns)),
            cell(start.and_then(|start| start.skew_ns)),
            cell(start.and_then(|start| start.bound).map(ns)),
            cell(start.and_then(|start| start.stamp).map(word)),
        ]);
    }
    csv.into_text()
}

/// A unit variant by the name it has in JSON.
fn word(value: impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Frames and bytes of each second since T, in long form: one line per stream or port, direction and second.
pub fn series_csv(report: &RunReport) -> String {
    let mut csv = Csv::new(&["kind", "name", "direction", "second", "frames", "bytes", "node"]);
    for stream in &report.streams {
        let sides = [
            ("tx", stream.sent.as_ref().map(|sent| &sent.series)),
            ("rx", stream.received.as_ref().map(|got| &got.series)),
        ];
        for (direction, series) in sides {
            series_rows(&mut csv, ["stream", &stream.name, direction, ""], series);
        }
    }
    for port in &report.ports {
        for (direction, series) in [("tx", &port.tx_series), ("rx", &port.rx_series)] {
            series_rows(&mut csv, ["port", &port.info.name, direction, &port.node], Some(series));
        }
    }
    csv.into_text()
}

fn series_rows(csv: &mut Csv, [kind, name, direction, node]: [&str; 4], series: Option<&RateSeries>) {
    for (second, (frames, bytes)) in series.iter().flat_map(|series| series.seconds.iter().enumerate()) {
        let numbers = [second.to_string(), frames.to_string(), bytes.to_string()];
        let [kind, name, direction, node] = [kind, name, direction, node].map(str::to_owned);
        csv.row([vec![kind, name, direction], numbers.into(), vec![node]].concat());
    }
}
