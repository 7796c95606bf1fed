//! Shows the results of series of probes as text or JSON.

use packetrig_probe::header::ProbeHeader;
use packetrig_probe::series::{AnswerMeaning, MeasuredTime, SeriesSummary, SeriesTimes};
use packetrig_probe_io::ask::{ProbeSeriesOutcome, SeriesEndReason};
use packetrig_program::numbers::{format_count, format_percent};
use serde_json::{Value, json};

/// Formats a time with its sign, in the unit that fits its size.
pub(super) fn format_ns(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", packetrig_units::Nanos::new(ns.unsigned_abs()))
}

/// Formats a measured time with its error bound.
pub(super) fn format_measured_time(took: MeasuredTime) -> String {
    let bound = packetrig_units::Nanos::new(took.bound_ns);
    format!("{} \u{b1}{bound}", format_ns(clamp_to_possible_time_ns(took.ns, took.bound_ns)))
}

/// Returns the possible time that is closest to a measured one: a probe cannot arrive before it has left. A
/// time that is below zero by more than its bound stays as it is, because it shows that the two clocks are
/// not related as assumed.
const fn clamp_to_possible_time_ns(ns: i64, bound_ns: u64) -> i64 {
    if ns < 0 && ns.unsigned_abs() <= bound_ns { 0 } else { ns }
}

/// Returns the statistics of times as one line.
pub(super) fn format_times_line(name: &str, times: &SeriesTimes) -> String {
    let values = [Some(times.min_ns), Some(times.p50_ns), times.p95_ns, times.p99_ns, Some(times.max_ns)];
    // A percentile is absent if the sample is too small for it.
    let values = values.map(|ns| ns.map(|ns| clamp_to_possible_time_ns(ns, times.bound_ns)));
    let values = values.map(|ns| ns.map_or_else(|| super::UNKNOWN_FIGURE.to_owned(), format_ns)).join("/");
    #[expect(clippy::cast_possible_truncation, reason = "shown only")]
    let mdev = format_ns(times.mdev_ns as i64);
    let bound = packetrig_units::Nanos::new(times.bound_ns);
    let jitter = times.jitter_ns.map(|ns| format!(", jitter {}", packetrig_units::Nanos::new(ns)));
    format!(
        "{name} min/p50/p95/p99/max {values}, mdev {mdev}{}, error of each at most \u{b1}{bound}, {} samples\n",
        jitter.unwrap_or_default(),
        format_count(times.samples),
    )
}

/// Returns the result of a series as a few lines of text.
pub(super) fn summary_text(header: &ProbeHeader, outcome: &ProbeSeriesOutcome) -> String {
    // Zero counts are left out, except in the first part: without a loss count, readers could not be sure
    // that nothing was lost.
    let summary = outcome.series.summary();
    let counts = summary.counts;
    let mut text = format!(
        "{}: {} sent, {} answered, {} lost ({})",
        header.targets.join(", "),
        format_count(counts.sent),
        format_count(counts.answered),
        format_count(counts.lost),
        format_percent(counts.lost, counts.sent),
    );
    for (what, number) in [
        ("refused", counts.refused),
        ("duplicates", counts.duplicates),
        ("reordered", counts.reordered),
        ("corrupted", counts.corrupted),
        ("not sent", counts.unsent),
        ("release uncertain", summary.doubtful),
    ] {
        if number > 0 {
            text.extend([format!(", {} {what}", format_count(number))]);
        }
    }
    text.push('\n');
    text.push_str(&summary.rtt.map(|rtt| format_times_line("  round trip", &rtt)).unwrap_or_default());
    text.extend([format!("  released by {} ({})\n", header.mechanism, header.why)]);
    text.push_str(
        &series_end_text(&outcome.end).map(|why| format!("  ended early: {why}\n")).unwrap_or_default(),
    );
    text
}

/// Returns the reason why a series ended early; `None` if it ended normally or by an interrupt.
pub(super) fn series_end_text(end: &SeriesEndReason) -> Option<String> {
    match end {
        // The user caused the interrupt, so it needs no explanation.
        SeriesEndReason::Done | SeriesEndReason::Stopped => None,
        SeriesEndReason::Lossy => Some(
            "too many probes were lost; a permit file can allow more (loss_percent; --permit, or the owner's \
                /etc/packetrig/probe.toml)"
                .into(),
        ),
        SeriesEndReason::Prohibited => {
            Some("a host on the path forbids these probes (administratively prohibited)".into())
        }
        SeriesEndReason::Limits(exceeded) => Some(exceeded.to_string()),
    }
}

/// Returns the result of a series for `--json`.
pub(super) fn series_json(header: &ProbeHeader, outcome: &ProbeSeriesOutcome) -> Value {
    let SeriesSummary { counts, said, rtt, doubtful } = outcome.series.summary();
    let end = match outcome.end {
        SeriesEndReason::Done => "done",
        SeriesEndReason::Stopped => "stopped",
        SeriesEndReason::Lossy => "lossy",
        SeriesEndReason::Prohibited => "prohibited",
        SeriesEndReason::Limits(_) => "limits",
    };
    json!({
        "target": header.targets.join(", "),
        "mechanism": header.mechanism,
        "why": header.why,
        "end": end,
        "counts": counts,
        "said": said,
        "rtt": rtt,
        "doubtful": doubtful,
    })
}

/// Returns the text that is appended to the line about an answer; empty for the first answer to a probe.
pub(super) const fn describe_answer_meaning(meaning: AnswerMeaning) -> &'static str {
    match meaning {
        AnswerMeaning::First(_) => "",
        AnswerMeaning::Duplicate => " duplicate",
        AnswerMeaning::Corrupted => " damaged",
        AnswerMeaning::Refused => " refused",
        AnswerMeaning::Stray => " answers no probe of this series",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_below_zero_within_bound_is_zero() {
        let shown = [0, -400, -500, -501].map(|ns| format_measured_time(MeasuredTime { ns, bound_ns: 500 }));
        assert!(shown[..3].iter().all(|text| *text == shown[0]), "{shown:?}");
        assert!(shown[3].starts_with('-'), "clocks that are wrong must be seen: {shown:?}");
        let times = SeriesTimes {
            samples: 3,
            min_ns: -30,
            p50_ns: -10,
            p95_ns: None,
            p99_ns: None,
            max_ns: 20,
            mean_ns: 0.0,
            mdev_ns: 9.0,
            jitter_ns: None,
            bound_ns: 500,
        };
        let text = format_times_line("round trip", &times);
        assert!(!text.contains('-'), "{text}");
    }
}
