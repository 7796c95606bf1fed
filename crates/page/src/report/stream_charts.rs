//! The details of one stream: its figures, and charts of rate, loss, latency over time and the distribution of latency.

use super::elements::{NamedFigure, TableCell, number_column, tabulate_rows, word_column, write_figure_list};
use super::figures::{LegendEntry, write_absent_figure, write_figure};
use crate::draw::chart::{
    AxisUnit, Chart, ChartAxis, ChartLine, HistogramBar, MAX_COLUMNS, MarkedSpan, NamedValue,
};
use crate::draw::columns::SampleColumns;
use crate::draw::scale::AxisScale;
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{LatencyReport, OutageReport, RunReport, StreamReport};
use packetrig_stats::series::{QualitySecond, RateSeries};
use packetrig_units::Nanos;

/// Maximum number of outages in the table of a stream.
const MAX_OUTAGES: usize = 20;

/// Returns the number of columns of each series: the more streams, the fewer, so that the page stays below a megabyte.
pub(super) fn choose_columns_per_series(streams: usize) -> usize {
    (3_000 / streams.max(1)).clamp(45, MAX_COLUMNS)
}

pub(super) fn write_stream_section(
    page: &mut Markup,
    stream: &StreamReport,
    report: &RunReport,
    most: usize,
) {
    write_figure_list(page, &list_stream_figures(stream));
    page.open_element("div", &[("class", "charts")]);
    let time = StreamTime::from_stream(stream, most);
    write_rate_chart(page, stream, &time);
    write_loss_chart(page, stream, &time);
    write_latency(page, stream, &time, report);
    write_latency_histogram(page, stream);
    page.close_element("div");
    write_outages(page, stream);
    write_ports(page, stream);
}

fn list_stream_figures(stream: &StreamReport) -> Vec<NamedFigure> {
    let sent = stream.sent.as_ref();
    let received = stream.received.as_ref();
    let mut all = vec![
        NamedFigure::frame_count("sent", sent.map(|sent| sent.frames)),
        NamedFigure::frame_count("received", received.map(|received| received.frames)),
        NamedFigure::frame_count("lost", stream.loss.map(|loss| loss.lost)).with_addition(
            stream.loss.map_or_else(String::new, |loss| quantity::format_percent(loss.lost, loss.expected)),
        ),
        build_optional_figure("asked rate", stream.asked_milli.map(quantity::format_frame_rate)),
        build_optional_figure(
            "rate sent",
            sent.and_then(|sent| sent.rate).map(|rate| quantity::format_frame_rate(rate.frames_milli)),
        ),
        build_optional_figure(
            "rate received",
            received
                .and_then(|received| received.rate)
                .map(|rate| quantity::format_frame_rate(rate.frames_milli)),
        ),
        build_optional_figure(
            "jitter (RFC 3550)",
            stream.jitter.map(|jitter| quantity::format_time(jitter.rfc3550)),
        ),
    ];
    if let Some(latency) = stream.latency {
        let p99 = latency.error.p99().map_or_else(|| "error not known".to_owned(), describe_latency_error);
        all.push(NamedFigure::new("latency min", quantity::format_time(latency.min)));
        all.push(NamedFigure::new("latency mean", quantity::format_time(latency.mean)));
        all.push(NamedFigure::new("latency p99", quantity::format_time(latency.p99)).with_addition(p99));
        all.push(NamedFigure::new("latency max", quantity::format_time(latency.max)));
    }
    all
}

/// Describes the error of a latency. Time stamps make a latency look longer; two clocks make it look longer or shorter.
fn describe_latency_error(error: Nanos) -> String {
    format!("wrong by up to {}", quantity::format_time(error))
}

const fn build_optional_figure(name: &'static str, text: Option<String>) -> NamedFigure {
    NamedFigure { name, text, value: None, addition: String::new() }
}

const TRUNCATED_SERIES_NOTE: &str =
    "The run lasted longer than the per-second series: later seconds are only in the sums.";

/// The time axis that all charts of a stream share.
struct StreamTime {
    seconds: usize,
    most: usize,
    /// True if the run lasted longer than the series can hold.
    is_cut: bool,
    /// The second in which sending ended and which therefore contains fewer frames; `None` if it was a whole second.
    partial: Option<(f64, f64)>,
}

impl StreamTime {
    fn from_stream(stream: &StreamReport, most: usize) -> Self {
        let sent = stream.sent.as_ref().map_or(0, |sent| sent.series.seconds.len());
        let received = stream.received.as_ref().map_or(0, |received| received.series.seconds.len());
        let quality = stream.received.as_ref().map_or(0, |received| received.quality.seconds.len());
        let seconds = sent.max(received).max(quality).max(1);
        let series = [
            stream.sent.as_ref().map(|sent| &sent.series),
            stream.received.as_ref().map(|received| &received.series),
        ];
        let is_cut = series.into_iter().flatten().any(|series| series.beyond.0 > 0);
        Self {
            seconds,
            most,
            is_cut,
            partial: find_partial_second(stream).filter(|(_, until)| *until <= seconds as f64),
        }
    }

    fn time_axis(&self) -> ChartAxis {
        ChartAxis {
            name: "seconds since the start".to_owned(),
            unit: AxisUnit::Seconds,
            scale: AxisScale::from_bounds(0.0, self.seconds as f64),
        }
    }

    /// Divides a series into columns. All series of the stream get the same length, because frames may arrive after
    /// the last one was sent.
    fn to_columns(&self, samples: &[Option<u64>]) -> SampleColumns {
        let mut whole = samples.to_vec();
        whole.resize(self.seconds.max(samples.len()), None);
        SampleColumns::from_samples(&whole, self.most)
    }

    fn mark_partial_second(&self, chart: &mut Chart) {
        if let Some((from, until)) = self.partial {
            let text = "Sending ended within this second, so it holds fewer frames.".to_owned();
            chart.spans.push(MarkedSpan { from, until, text, is_partial: true });
        }
    }
}

/// The second in which sending ended; `None` if all frames of that second were sent.
fn find_partial_second(stream: &StreamReport) -> Option<(f64, f64)> {
    let last = stream.sent.as_ref()?.last?.as_secs_f64();
    let gap = stream.asked_milli.filter(|milli| *milli > 0).map_or(0.0, |milli| 1000.0 / milli as f64);
    let is_whole = (last + gap).floor() > last.floor() || last.fract() >= 0.95;
    (!is_whole).then(|| (last.floor(), last.floor() + 1.0))
}

fn list_frames_per_second(series: &RateSeries) -> Vec<Option<u64>> {
    series.seconds.iter().map(|(frames, _)| Some(*frames)).collect()
}

fn write_rate_chart(page: &mut Markup, stream: &StreamReport, time: &StreamTime) {
    let sent = stream.sent.as_ref().map(|sent| time.to_columns(&list_frames_per_second(&sent.series)));
    let received =
        stream.received.as_ref().map(|received| time.to_columns(&list_frames_per_second(&received.series)));
    let asked = stream.asked_milli.map(|milli| milli as f64 / 1000.0);
    let most = [&sent, &received].into_iter().flatten().filter_map(SampleColumns::high).max().unwrap_or(0);
    if sent.is_none() && received.is_none() {
        return write_absent_figure(
            page,
            "h4",
            "Rate",
            "neither the sender nor a receiver reported counts for each second.",
        );
    }
    let y = ChartAxis {
        name: "rate, frames/s".to_owned(),
        unit: AxisUnit::FramesPerSecond,
        scale: AxisScale::from_zero((most as f64).max(asked.unwrap_or(0.0)).max(4.0)),
    };
    let description = format!("Rate of stream {} over time, in frames per second", stream.name);
    let mut chart = Chart::new(description, time.time_axis(), y);
    time.mark_partial_second(&mut chart);
    let mut legend = Vec::new();
    for (name, style, columns) in [("sent", 1, sent), ("received", 2, received)] {
        let Some(columns) = columns else { continue };
        legend.push(LegendEntry::from_columns(name, style, &columns, &|rate| {
            format!("{} frames/s", quantity::format_count(rate))
        }));
        chart.lines.push(ChartLine::Series { name: name.to_owned(), style, columns });
    }
    if let Some(value) = asked {
        let text = quantity::format_frame_rate(stream.asked_milli.unwrap_or(0));
        chart.lines.push(ChartLine::Level { name: format!("asked: {text}"), style: 5, value });
        legend.push(LegendEntry { name: "asked".to_owned(), style: 5, is_level: true, text });
    }
    let shaded = time.partial.map(|_| "Shaded: a second in which sending ended.");
    let note = time.is_cut.then_some(TRUNCATED_SERIES_NOTE).or(shaded);
    write_figure(page, "h4", "Rate", &chart, &legend, note);
}

/// Measured counts of one kind for each second.
fn list_quality_counts(
    stream: &StreamReport,
    of: impl Fn(&QualitySecond) -> Option<u64>,
) -> Vec<Option<u64>> {
    stream.received.iter().flat_map(|received| &received.quality.seconds).map(of).collect()
}

fn write_loss_chart(page: &mut Markup, stream: &StreamReport, time: &StreamTime) {
    let Some(loss) = stream.loss else {
        return write_absent_figure(page, "h4", "Loss over time", explain_absent_loss(stream));
    };
    let mut lost = list_quality_counts(stream, |second| Some(second.lost));
    if lost.is_empty() && loss.lost > 0 {
        return write_absent_figure(
            page,
            "h4",
            "Loss over time",
            "the report does not say in which second frames were lost.",
        );
    }
    // The series has no seconds after the last loss. Unless the series was full, no frame was lost in these seconds.
    lost.resize(time.seconds.max(lost.len()), Some(0));
    let columns = time.to_columns(&lost);
    let most = columns.high().unwrap_or(0);
    let y = ChartAxis {
        name: "frames lost in a second".to_owned(),
        unit: AxisUnit::Frames,
        scale: AxisScale::from_zero((most as f64).max(4.0)),
    };
    let description = format!("Frames of stream {} lost in each second", stream.name);
    let mut chart = Chart::new(description, time.time_axis(), y);
    let outages = stream.outages.as_ref();
    chart.spans.extend(outages.iter().flat_map(|outages| build_outage_spans(outages, time)));
    let text = format!("{} in all", quantity::format_count_with_unit(loss.lost, "frame"));
    let legend = [LegendEntry { name: "lost".to_owned(), style: 2, is_level: false, text }];
    chart.lines.push(ChartLine::Series { name: "lost".to_owned(), style: 2, columns });
    let note = outages.map(describe_outages);
    write_figure(page, "h4", "Loss over time", &chart, &legend, note.as_deref());
}

const fn explain_absent_loss(stream: &StreamReport) -> &'static str {
    if !stream.measured {
        "the plan does not request metrics of this stream, so its frames carry no test tag."
    } else if stream.sent.is_none() {
        "the sending node did not report."
    } else {
        "a receiver did not report."
    }
}

fn describe_outages(outages: &OutageReport) -> String {
    match (outages.count, outages.longest) {
        (0, _) => "No outage.".to_owned(),
        (count, Some(longest)) => format!(
            "Triangles: outages. {} in all, the longest {}.",
            quantity::format_count_with_unit(count, "outage"),
            quantity::format_time(longest)
        ),
        (count, None) => {
            format!("Triangles: outages. {} in all.", quantity::format_count_with_unit(count, "outage"))
        }
    }
}

fn build_outage_spans(outages: &OutageReport, time: &StreamTime) -> Vec<MarkedSpan> {
    let rows = outages.listed.iter().map(|row| {
        let from = row.begin.map_or(0.0, Nanos::as_secs_f64);
        let until = row.end.map_or(time.seconds as f64, Nanos::as_secs_f64);
        let length =
            row.begin.zip(row.end).map(|(begin, end)| quantity::format_time(end.saturating_sub(begin)));
        let length = length.map_or_else(String::new, |length| format!(" within {length}"));
        let text = format!(
            "{} lost{length} at {}, from {:.3} s",
            quantity::format_count_with_unit(row.frames, "frame"),
            row.port,
            from
        );
        MarkedSpan { from, until, text, is_partial: false }
    });
    rows.collect()
}

fn write_latency(page: &mut Markup, stream: &StreamReport, time: &StreamTime, report: &RunReport) {
    let Some(latency) = stream.latency else {
        return write_absent_figure(page, "h4", "Latency over time", &explain_absent_latency(stream, report));
    };
    let means = list_quality_counts(stream, |second| second.delay_total_ns.checked_div(second.delayed));
    let longest =
        list_quality_counts(stream, |second| (second.delayed > 0).then(|| second.delay_max.as_u64()));
    if means.iter().all(Option::is_none) {
        let reason = "the report has no latency for each second.";
        return write_absent_figure(page, "h4", "Latency over time", reason);
    }
    let [medians, p99s] = list_second_percentiles(stream);
    let known = KnownPercentiles::from_seconds(&means, &medians);
    let mut lines = vec![("maximum of a second", 2, longest)];
    if known != KnownPercentiles::None {
        lines.extend([("p99 of a second", 3, p99s), ("median of a second", 1, medians)]);
    }
    if known != KnownPercentiles::All {
        lines.push(("mean of a second", 4, means));
    }
    let lines = lines.into_iter().map(|(name, style, values)| (name, style, time.to_columns(&values)));
    let lines: Vec<_> = lines.collect();
    // A small clock difference can make a delay 0, which a logarithmic scale cannot show.
    let low = lines.iter().filter_map(|(_, _, columns)| columns.low()).filter(|low| *low > 0).min();
    let low = low.unwrap_or(1);
    let high = lines.iter().filter_map(|(_, _, columns)| columns.high()).max().unwrap_or(1);
    // On a linear scale, a single stall would press everything else onto the axis.
    let is_log = high > low.saturating_mul(20);
    let scale = if is_log {
        AxisScale::log_from_decades(low as f64, high as f64)
    } else {
        AxisScale::from_zero(high as f64)
    };
    let name = if is_log { "latency, log scale" } else { "latency" };
    let y = ChartAxis { name: name.to_owned(), unit: AxisUnit::Time, scale };
    let description = format!("One-way latency of stream {} over time", stream.name);
    let mut chart = Chart::new(description, time.time_axis(), y);
    let mut legend = Vec::new();
    for (name, style, columns) in lines {
        let text = &|ns| quantity::format_time(Nanos::new(ns));
        legend.push(LegendEntry::from_columns(name, style, &columns, text));
        chart.lines.push(ChartLine::Series { name: name.to_owned(), style, columns });
    }
    let kept = known.percentile_note();
    let note = match latency.error.p99() {
        Some(error) => {
            format!("The latencies of 99 % of the frames are {}. {kept}", describe_latency_error(error))
        }
        None => kept.to_owned(),
    };
    write_figure(page, "h4", "Latency over time", &chart, &legend, Some(&note));
}

/// The seconds with delays for which the percentiles are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownPercentiles {
    All,
    Some,
    None,
}

impl KnownPercentiles {
    fn from_seconds(means: &[Option<u64>], medians: &[Option<u64>]) -> Self {
        let measured = means.iter().flatten().count();
        match medians.iter().flatten().count() {
            0 => Self::None,
            known if known == measured => Self::All,
            _ => Self::Some,
        }
    }

    const fn percentile_note(self) -> &'static str {
        match self {
            Self::All => {
                "The maximum of a second is not rounded; its percentiles are rounded up by at most 6.25 %."
            }
            Self::Some => {
                "Maximum and mean of a second are not rounded; its percentiles are rounded up by at most 6.25 %, and \
                unknown for seconds with several receivers or with time stamps out of order by more than a \
                second."
            }
            Self::None => {
                "The report has no percentiles of single seconds: several receivers measured this stream, or the report is from an older version."
            }
        }
    }
}

/// Measured median and 99th percentile of each second.
fn list_second_percentiles(stream: &StreamReport) -> [Vec<Option<u64>>; 2] {
    let quality = stream.received.as_ref().map(|received| &received.quality);
    let seconds = quality.map_or(0, |quality| quality.percentiles.len());
    let both: Vec<_> = (0..seconds).map(|second| quality?.percentiles_of(second)).collect();
    let p50 = both.iter().map(|both| both.map(|(p50, _)| p50.as_u64())).collect();
    [p50, both.iter().map(|both| both.map(|(_, p99)| p99.as_u64())).collect()]
}

fn explain_absent_latency(stream: &StreamReport, report: &RunReport) -> String {
    let caveats = report.caveats.iter().filter(|caveat| {
        use packetrig_stats::caveat::CaveatKind;
        matches!(caveat.doubt, CaveatKind::NoSendTime | CaveatKind::Clock) && caveat.subject == stream.name
    });
    let reasons: Vec<&str> = caveats.map(|caveat| caveat.text.as_str()).collect();
    match reasons.first() {
        Some(reason) => format!("{reason}."),
        None if !stream.measured => explain_absent_loss(stream).to_owned(),
        None => "the plan does not request latency, or no frame that arrived carried a send time.".to_owned(),
    }
}

fn write_latency_histogram(page: &mut Markup, stream: &StreamReport) {
    let Some(latency) = stream.latency else { return };
    if stream.latency_histogram.is_empty() {
        return write_absent_figure(
            page,
            "h4",
            "Latency distribution",
            "the version of packetrig that made this report did not store the distribution.",
        );
    }
    let buckets = &stream.latency_histogram;
    let most = buckets.iter().map(|bucket| bucket.frames).max().unwrap_or(1);
    let last = buckets.last().map_or(1, |bucket| bucket.below.as_u64());
    let first = buckets.first().map_or(1, |bucket| bucket.from.as_u64());
    let x = ChartAxis {
        name: "latency, log scale".to_owned(),
        unit: AxisUnit::Time,
        scale: AxisScale::log_from_bounds(first as f64 * 0.9, last as f64 * 1.1),
    };
    let y = ChartAxis {
        name: "frames, log scale".to_owned(),
        unit: AxisUnit::Frames,
        scale: AxisScale::log_from_decades(1.0, most as f64 * 1.2),
    };
    let mut chart = Chart::new(describe_distribution(stream, &latency), x, y);
    chart.bars = buckets
        .iter()
        .map(|bucket| HistogramBar {
            from: bucket.from.as_u64(),
            below: bucket.below.as_u64(),
            frames: bucket.frames,
        })
        .collect();
    chart.values = latency_percentiles(&latency)
        .into_iter()
        .map(|(name, value)| NamedValue { name: name.to_owned(), value: value.as_u64() as f64 })
        .collect();
    let known: Vec<String> = latency_percentiles(&latency)
        .iter()
        .map(|(name, value)| format!("{name} {}", quantity::format_time(*value)))
        .collect();
    let note = format!(
        "{}. {} measured.",
        known.join(", "),
        quantity::format_count_with_unit(latency.count, "frame")
    );
    write_figure(page, "h4", "Latency distribution", &chart, &[], Some(&note));
}

fn latency_percentiles(latency: &LatencyReport) -> [(&'static str, Nanos); 6] {
    [
        ("p50", latency.p50),
        ("p90", latency.p90),
        ("p99", latency.p99),
        ("p99.9", latency.p999),
        ("p99.99", latency.p9999),
        ("max", latency.max),
    ]
}

fn describe_distribution(stream: &StreamReport, latency: &LatencyReport) -> String {
    let known =
        latency_percentiles(latency).map(|(name, value)| format!("{name} {}", quantity::format_time(value)));
    format!("Histogram of the latency of stream {}: {}", stream.name, known.join(", "))
}

fn write_outages(page: &mut Markup, stream: &StreamReport) {
    let Some(outages) = stream.outages.as_ref().filter(|outages| !outages.listed.is_empty()) else { return };
    page.open_element("details", &[]);
    page.add_element("summary", &[], &format!("Outages: {}", quantity::format_count(outages.count)));
    let mut longest: Vec<_> = outages.listed.iter().collect();
    longest.sort_by_key(|row| std::cmp::Reverse(row.frames));
    longest.truncate(MAX_OUTAGES);
    // The worst outages are listed in the order of their times.
    longest.sort_by_key(|row| (row.begin, row.first));
    let headings = [
        word_column("at port"),
        number_column("last arrival before", ""),
        number_column("first arrival after", ""),
        number_column("lost", "frames"),
        number_column("in doubt", "frames"),
        word_column("numbers"),
    ];
    let rows: Vec<Vec<TableCell>> = longest
        .iter()
        .map(|row| {
            let numbers =
                format!("{} to {}", quantity::format_count(row.first), quantity::format_count(row.last));
            vec![
                TableCell::text(row.port.clone()),
                TableCell::from_optional(row.begin.map(TableCell::time)),
                TableCell::from_optional(row.end.map(TableCell::time)),
                TableCell::count(row.frames),
                TableCell::count(row.in_doubt),
                TableCell::text(numbers),
            ]
        })
        .collect();
    tabulate_rows(page, &format!("Outages of stream {}", stream.name), None, &headings, &rows);
    if outages.count > rows.len() as u64 {
        page.add_element(
            "p",
            &[("class", "muted")],
            &format!("The {} outages with the most lost frames; outages.csv has more.", rows.len()),
        );
    }
    page.close_element("details");
}

/// Writes the counts of each receiving port, if there are several.
fn write_ports(page: &mut Markup, stream: &StreamReport) {
    if stream.per_port.len() < 2 {
        return;
    }
    page.open_element("details", &[]).add_element(
        "summary",
        &[],
        &format!("Receiving ports: {}", stream.per_port.len()),
    );
    let headings = [
        word_column("port"),
        number_column("received", "frames"),
        number_column("lost", "frames"),
        number_column("latency p50", ""),
        number_column("latency p99", ""),
        number_column("latency max", ""),
    ];
    let rows: Vec<Vec<TableCell>> = stream
        .per_port
        .iter()
        .map(|share| {
            let latency = share.latency.as_ref();
            vec![
                TableCell::text(share.port.clone()),
                TableCell::count(share.received.frames),
                TableCell::from_optional(share.loss.map(|loss| TableCell::count(loss.lost))),
                TableCell::from_optional(latency.map(|times| TableCell::time(times.p50))),
                TableCell::from_optional(latency.map(|times| TableCell::time(times.p99))),
                TableCell::from_optional(latency.map(|times| TableCell::time(times.max))),
            ]
        })
        .collect();
    tabulate_rows(page, &format!("Stream {} by receiving port", stream.name), None, &headings, &rows);
    page.close_element("details");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_is_drawn_if_percentiles_are_incomplete() {
        let means = [Some(5), None, Some(7)];
        assert!(KnownPercentiles::from_seconds(&means, &[]) == KnownPercentiles::None);
        assert!(KnownPercentiles::from_seconds(&means, &[Some(5)]) == KnownPercentiles::Some);
        assert!(KnownPercentiles::from_seconds(&means, &[Some(5), None, Some(6)]) == KnownPercentiles::All);
    }

    #[test]
    fn series_of_different_lengths_share_column_seconds() {
        let time = StreamTime { seconds: 61, most: 60, is_cut: false, partial: None };
        let [sent, received] = [60, 61].map(|seconds| time.to_columns(&vec![Some(1); seconds]));
        assert_eq!(sent.step, received.step);
        assert_eq!(sent.values.len(), received.values.len());
    }
}
