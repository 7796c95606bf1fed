//! The figures of a run that can be compared with those of another run.

use super::{LatencyReport, ProbeFindings, ProbesReport, RunReport, StreamReport};
use packetrig_stats::figure::{BetterDirection, ReportFigure};
use packetrig_stats::probe::ProbeTimes;
use packetrig_units::{Nanos, Ratio};

/// Subject of figures of the whole run.
const RUN: &str = "run";
const FRAME_RATE: &str = "frames/s";
const TIME: &str = "ns";
const PERCENT: &str = "%";

/// The figures of a run: those of all streams together, then of each stream, then of each line of probes. What is not known is
/// absent.
pub fn run_figures(report: &RunReport) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    // Those of the whole run would only repeat those of its one stream.
    if report.streams.len() > 1 {
        figures.extend(whole_run(report));
    }
    figures.extend(report.streams.iter().filter(|stream| stream.measured).flat_map(stream_figures));
    figures.extend(report.probes.iter().flat_map(probe_figures));
    figures.retain(|figure| figure.value.is_some());
    figures
}

fn whole_run(report: &RunReport) -> Vec<ReportFigure> {
    let measured: Vec<_> = report.streams.iter().filter(|stream| stream.measured).collect();
    // A sum without one of its parts is no sum.
    let rates: Option<Vec<f64>> = measured.iter().map(|stream| throughput(stream)).collect();
    let losses: Option<Vec<_>> = measured.iter().map(|stream| stream.loss).collect();
    let sum = |of: fn(&super::FrameLoss) -> u64| {
        let losses = losses.as_ref()?;
        Some(losses.iter().map(of).fold(0, u64::saturating_add))
    };
    let expected = sum(|loss| loss.expected);
    let share = |part: Option<u64>| Some(Ratio::new(part?, expected?).percent());
    let rate = rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum());
    vec![
        higher("throughput", RUN, rate, FRAME_RATE),
        lower("loss", RUN, share(sum(|loss| loss.lost)), PERCENT)
            .with_uncertainty(share(sum(|loss| loss.in_doubt))),
        higher("load-factor", RUN, report.load.map(|load| load.k), ""),
    ]
}

fn stream_figures(stream: &StreamReport) -> Vec<ReportFigure> {
    let name = &stream.name;
    let loss = stream.loss.filter(|loss| loss.expected > 0);
    let sequence = stream.received.as_ref().map(|received| (&received.sequence, received.frames));
    let share = |part: u64, whole: u64| (whole > 0).then(|| Ratio::new(part, whole).percent());
    let sent_rate = stream.sent.as_ref().and_then(|sent| sent.rate).map(|rate| rate.frames_per_second());
    let outage = stream.outages.as_ref().and_then(|outages| outages.longest);
    let mut figures = vec![
        higher("throughput", name, throughput(stream), FRAME_RATE),
        lower("loss", name, loss.map(|loss| loss.ratio().percent()), PERCENT)
            .with_uncertainty(loss.and_then(|loss| share(loss.in_doubt, loss.expected))),
        lower("duplicates", name, sequence.and_then(|(counts, all)| share(counts.duplicates, all)), PERCENT),
        lower("reordered", name, sequence.and_then(|(counts, all)| share(counts.reordered, all)), PERCENT),
        lower("longest-outage", name, outage.map(in_ns), TIME),
    ];
    figures.extend(stream.latency.iter().flat_map(|latency| latency_figures(name, latency)));
    figures.extend([
        lower("jitter", name, stream.jitter.map(|jitter| in_ns(jitter.rfc3550)), TIME),
        ReportFigure::new("sent-rate", name, sent_rate, FRAME_RATE, BetterDirection::Neither),
    ]);
    figures
}

/// Frames per second that arrived; absent of a single frame, which has no rate.
fn throughput(stream: &StreamReport) -> Option<f64> {
    let received = stream.received.as_ref()?;
    match received.rate {
        Some(rate) => Some(rate.frames_per_second()),
        None => (received.frames == 0).then_some(0.0),
    }
}

fn latency_figures(stream: &str, latency: &LatencyReport) -> Vec<ReportFigure> {
    let values = [
        ("latency-min", latency.min),
        ("latency-mean", latency.mean),
        ("latency-p50", latency.p50),
        ("latency-p99", latency.p99),
        ("latency-max", latency.max),
    ];
    let doubt = latency.error.p99().map(in_ns);
    let figures = values
        .into_iter()
        .map(|(name, value)| lower(name, stream, Some(in_ns(value)), TIME).with_uncertainty(doubt));
    figures.collect()
}

fn probe_figures(probes: &ProbesReport) -> Vec<ReportFigure> {
    let found = probes.lines.iter().filter_map(|line| Some((line.name(), line.found.as_ref()?)));
    found.flat_map(|(line, found)| line_figures(&line, found)).collect()
}

fn line_figures(line: &str, found: &ProbeFindings) -> Vec<ReportFigure> {
    let sent = found.counts.sent;
    let loss = (sent > 0).then(|| Ratio::new(found.counts.lost, sent).percent());
    let mut figures = vec![lower("probe-loss", line, loss, PERCENT)];
    let times = [
        ("round-trip", found.round_trip),
        ("delay-there", found.delay_there),
        ("delay-back", found.delay_back),
    ];
    for (name, times) in times.into_iter().filter_map(|(name, times)| Some((name, times?))) {
        figures.extend(times_figures(name, line, times));
    }
    figures
}

fn times_figures(name: &str, line: &str, times: ProbeTimes) -> [ReportFigure; 2] {
    [("p50", times.p50_ns), ("p99", times.p99_ns)].map(|(quantile, ns)| {
        lower(&format!("{name}-{quantile}"), line, Some(ns as f64), TIME)
            .with_uncertainty(Some(times.bound_ns as f64))
    })
}

fn in_ns(time: Nanos) -> f64 {
    time.as_u64() as f64
}

fn higher(name: &str, subject: &str, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Higher)
}

fn lower(name: &str, subject: &str, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Lower)
}
