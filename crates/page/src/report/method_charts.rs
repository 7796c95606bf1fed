//! Charts of a test method: the search with its bounds, throughput, loss curves, latency against load.

use super::figures::{LegendEntry, write_absent_figure, write_figure};
use crate::draw::chart::{AxisUnit, Chart, ChartAxis, ChartLine, ChartPoint, MarkShape};
use crate::draw::scale::AxisScale;
use crate::markup::Markup;
use crate::quantity;
use packetrig_method::convergence::ConvergenceResult;
use packetrig_method::journal::MethodJournalEntry;
use packetrig_method::loss_share::LossShareResult;
use packetrig_method::rfc2544::{Rfc2544Result, SizeBenchmark};
use packetrig_method::{
    Load, MethodOptions, MethodReport, MethodResult, TrialLatency, TrialPurpose, TrialResult,
};
use packetrig_units::{FrameSize, Nanos};

const CHART_LEGEND: &str =
    "Ring: carried without loss. Cross: frames lost. Square: the rig could not sustain the trial.";

pub(super) fn write_charts(page: &mut Markup, report: &MethodReport, trials: &[MethodJournalEntry]) {
    page.open_element("div", &[("class", "charts")]);
    match &report.result {
        MethodResult::Rfc2544(result) => write_rfc2544_charts(page, result),
        MethodResult::LossShare(result) => write_loss_share_chart(page, result),
        MethodResult::Convergence(result) => write_convergence_chart(page, result),
        // The result of these methods is in the charts of their search below, or in tables alone.
        MethodResult::Compare(_) | MethodResult::Mlrsearch(_) | MethodResult::Bisect(_) => {}
    }
    // Only trials of the search belong to its bounds: trials for latency or loss curves have other loads.
    let goals = list_accepted_losses(&report.options);
    let searches: Vec<&MethodJournalEntry> =
        trials.iter().filter(|entry| entry.order.purpose == TrialPurpose::Search).collect();
    for group in group_by_size(&searches) {
        write_search_chart(page, &group, &goals);
    }
    let with_latency: Vec<&MethodJournalEntry> =
        trials.iter().filter(|entry| entry.result.latency.is_some()).collect();
    for group in group_by_size(&with_latency) {
        write_latency(page, &group);
    }
    if with_latency.is_empty() {
        write_absent_figure(page, "h3", "Latency against load", "no trial measured latency.");
    }
    page.close_element("div");
}

/// Trials of one device with one frame size.
struct TrialGroup<'a> {
    name: String,
    trials: Vec<&'a MethodJournalEntry>,
}

fn group_by_size<'a>(trials: &[&'a MethodJournalEntry]) -> Vec<TrialGroup<'a>> {
    let mut groups: Vec<((u8, Option<FrameSize>), TrialGroup<'a>)> = Vec::new();
    let has_devices = trials.iter().any(|entry| entry.order.device > 0);
    for entry in trials {
        let key = (entry.order.device, entry.order.size);
        // Groups keep the order of the trials, and there are few of them: a list is enough.
        if let Some((_, group)) = groups.iter_mut().find(|(known, _)| *known == key) {
            group.trials.push(entry);
            continue;
        }
        let size = key.1.map_or_else(|| "sizes of the plan".to_owned(), |size| format!("{} B", size.bytes()));
        let name = if has_devices { format!("device {}, {size}", key.0) } else { size };
        groups.push((key, TrialGroup { name, trials: vec![entry] }));
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The accepted loss of a goal: a load passes if its loss is not higher.
struct AcceptedLoss {
    name: String,
    ratio: f64,
}

fn list_accepted_losses(options: &MethodOptions) -> Vec<AcceptedLoss> {
    let one = |ratio: f64| vec![AcceptedLoss { name: String::new(), ratio }];
    match options {
        MethodOptions::Bisect(options) => one(options.search.accepted_loss),
        MethodOptions::Mlrsearch(options) => {
            let goals = options.search.goals.iter();
            goals.map(|goal| AcceptedLoss { name: format!("{goal}: "), ratio: goal.loss_ratio }).collect()
        }
        // Other searches accept no loss: RFC 2544, 26.1, defines throughput without it.
        _ => one(0.0),
    }
}

const fn choose_mark_shape(result: &TrialResult) -> MarkShape {
    // This check comes first: if no frame was lost, a fault of the rig does not matter.
    if result.is_without_loss() {
        MarkShape::Carried
    } else if result.rig_fault.is_some() {
        MarkShape::Rig
    } else {
        MarkShape::Lost
    }
}

fn describe_trial(entry: &MethodJournalEntry) -> String {
    let result = &entry.result;
    let outcome = match &result.rig_fault {
        // The order is that of `choose_mark_shape`, so that the text and the mark agree.
        _ if result.is_without_loss() => "carried without loss".to_owned(),
        Some(fault) => format!("the rig could not sustain it: {fault}"),
        None => {
            let loss = result.loss_ratio();
            format!(
                "lost {} of {} ({})",
                quantity::format_count(loss.part),
                quantity::format_count(loss.whole),
                quantity::format_percent(loss.part, loss.whole)
            )
        }
    };
    format!("Trial {}: {}, {outcome}", entry.number, entry.order.load)
}

fn build_axis(name: &str, unit: AxisUnit, scale: AxisScale) -> ChartAxis {
    ChartAxis { name: name.to_owned(), unit, scale }
}

fn highest_load(trials: &[&MethodJournalEntry]) -> f64 {
    // The number is at least 1, so that the axis has a length even if there are no trials.
    trials.iter().map(|entry| entry.order.load.frames_per_second()).fold(1.0, f64::max)
}

fn write_search_chart(page: &mut Markup, group: &TrialGroup<'_>, goals: &[AcceptedLoss]) {
    let count = group.trials.len() as f64;
    let mut chart = Chart::new(
        format!(
            "Trials of the search, {}, with the highest passing and the lowest failing load after each trial",
            group.name
        ),
        // The axis is half a trial longer than needed, so that the last mark is not on the edge of the plot.
        build_axis("trial of the search", AxisUnit::Number, AxisScale::from_bounds(0.0, count + 0.5)),
        build_axis(
            "offered load, frames/s",
            AxisUnit::FramesPerSecond,
            AxisScale::from_zero(highest_load(&group.trials)),
        ),
    );
    let points = (1..).zip(&group.trials).map(|(number, entry)| ChartPoint {
        x: f64::from(number),
        y: entry.order.load.frames_per_second(),
        shape: choose_mark_shape(&entry.result),
        text: describe_trial(entry),
    });
    let points = points.collect();
    let mut legend = Vec::new();
    // There are five styles: two for each of two goals, and one for the trials.
    for (index, goal) in goals.iter().take(2).enumerate() {
        let style = 1 + index * 2;
        let carried = compute_running_bounds(
            group,
            // A trial that sent nothing lost nothing, and proves nothing.
            |entry| entry.result.loss_share() <= goal.ratio && entry.result.sent > 0,
            f64::max,
        );
        // If the rig could not sustain a trial, the trial says nothing about the device.
        let failed = compute_running_bounds(
            group,
            |entry| entry.result.loss_share() > goal.ratio && entry.result.rig_fault.is_none(),
            f64::min,
        );
        for (name, style, line) in [
            ("highest load of a trial that passed", style, carried),
            ("lowest load of a trial that failed", style + 1, failed),
        ] {
            // Without a trial of this kind there is no bound yet, and no entry in the legend.
            let Some(last) = line.last() else { continue };
            let text = Load::new(last.y).to_string();
            legend.push(LegendEntry { name: format!("{}{name}", goal.name), style, is_level: false, text });
            chart.lines.push(ChartLine::Points { style, points: line, is_joined: true, has_steps: true });
        }
    }
    // The trials come last, so that their marks lie on the lines of the bounds.
    chart.lines.push(ChartLine::Points { style: 5, points, is_joined: false, has_steps: false });
    write_figure(page, "h3", &format!("Search, {}", group.name), &chart, &legend, Some(CHART_LEGEND));
}

/// For each trial from the first selected one on, the best load of the selected trials so far.
fn compute_running_bounds(
    group: &TrialGroup<'_>,
    is_of_line: impl Fn(&MethodJournalEntry) -> bool,
    best_of: fn(f64, f64) -> f64,
) -> Vec<ChartPoint> {
    let mut best: Option<f64> = None;
    let mut line = Vec::new();
    for (number, entry) in (1..).zip(&group.trials) {
        if is_of_line(entry) {
            let load = entry.order.load.frames_per_second();
            // A later trial that is no better leaves the bound where it is.
            best = Some(best.map_or(load, |known| best_of(known, load)));
        }
        if let Some(y) = best {
            line.push(ChartPoint { x: f64::from(number), y, shape: MarkShape::Hidden, text: String::new() });
        }
    }
    line
}

fn write_latency(page: &mut Markup, group: &TrialGroup<'_>) {
    let latencies: Vec<(&MethodJournalEntry, TrialLatency)> =
        group.trials.iter().filter_map(|entry| Some((*entry, entry.result.latency?))).collect();
    let low = latencies.iter().map(|(_, latency)| latency.p50.as_u64()).min().unwrap_or(1);
    let high = latencies.iter().map(|(_, latency)| latency.max.as_u64()).max().unwrap_or(1);
    // On a linear scale, one long latency would press all other values onto the axis.
    let is_log = high > low.saturating_mul(20);
    let scale = if is_log {
        AxisScale::log_from_decades(low as f64, high as f64)
    } else {
        AxisScale::from_zero(high as f64)
    };
    let mut chart = Chart::new(
        format!("Latency of the trials against their load, {}", group.name),
        build_axis(
            "offered load, frames/s",
            AxisUnit::FramesPerSecond,
            AxisScale::from_zero(highest_load(&group.trials)),
        ),
        build_axis(if is_log { "latency, log scale" } else { "latency" }, AxisUnit::Time, scale),
    );
    let mut legend = Vec::new();
    type OfLatency = fn(&TrialLatency) -> Nanos;
    let lines: [(&str, usize, OfLatency); 3] = [
        ("p50", 1, |latency| latency.p50),
        ("p99", 3, |latency| latency.p99),
        ("max", 2, |latency| latency.max),
    ];
    for (name, style, of) in lines {
        let points = latencies.iter().map(|(entry, latency)| ChartPoint {
            x: entry.order.load.frames_per_second(),
            y: of(latency).as_u64() as f64,
            shape: MarkShape::Dot,
            text: format!(
                "{name} {}, trial {} at {}",
                quantity::format_time(of(latency)),
                entry.number,
                entry.order.load
            ),
        });
        let values = latencies.iter().map(|(_, latency)| of(latency));
        let text = values.clone().min().zip(values.max()).map_or_else(String::new, |(low, high)| {
            format!("{} to {}", quantity::format_time(low), quantity::format_time(high))
        });
        legend.push(LegendEntry { name: name.to_owned(), style, is_level: false, text });
        chart.lines.push(ChartLine::Points {
            style,
            points: points.collect(),
            is_joined: false,
            has_steps: false,
        });
    }
    // The largest bound of all trials, because the note is about every point of the chart.
    let bound = latencies.iter().map(|(_, latency)| latency.bound).max();
    let note = bound.map(|bound| format!("Values may be wrong by up to {}.", quantity::format_time(bound)));
    let title = format!("Latency against load, {}", group.name);
    write_figure(page, "h3", &title, &chart, &legend, note.as_deref());
}

fn write_rfc2544_charts(page: &mut Markup, result: &Rfc2544Result) {
    write_throughput_chart(page, &result.sizes);
    write_loss_curves(page, &result.sizes);
}

/// Draws the throughput as RFC 2544, 26.1, demands: frame rate against frame size, theoretical and measured.
fn write_throughput_chart(page: &mut Markup, sizes: &[SizeBenchmark]) {
    // A test without throughput trials, for example of loss curves alone, has no such chart.
    let measured: Vec<&SizeBenchmark> = sizes.iter().filter(|size| size.throughput.is_some()).collect();
    if measured.is_empty() {
        return;
    }
    let largest = sizes.iter().map(|size| size.frame_size_bytes.bytes()).max().unwrap_or(64);
    let highest =
        sizes.iter().map(|size| size.theoretical_frames_per_second.frames_per_second()).fold(1.0, f64::max);
    let mut chart = Chart::new(
        "Throughput against frame size".to_owned(),
        build_axis("frame size, B", AxisUnit::Bytes, AxisScale::from_zero(f64::from(largest))),
        build_axis("throughput, frames/s", AxisUnit::FramesPerSecond, AxisScale::from_zero(highest)),
    );
    let point = |size: &SizeBenchmark, load: Load, shape, what: &str| ChartPoint {
        x: f64::from(size.frame_size_bytes.bytes()),
        y: load.frames_per_second(),
        shape,
        text: format!("{what} {load} with frames of {} B", size.frame_size_bytes.bytes()),
    };
    let theory = sizes
        .iter()
        .map(|size| point(size, size.theoretical_frames_per_second, MarkShape::Dot, "the line carries"));
    let found = measured.iter().filter_map(|size| {
        let bounds = size.throughput.as_ref()?;
        // If the rig could not send more, the value is only a lower bound of the device's throughput.
        let shape = if bounds.is_known() { MarkShape::Carried } else { MarkShape::Rig };
        Some(point(
            size,
            bounds.frames_per_second?,
            shape,
            if bounds.is_known() { "throughput" } else { "at least" },
        ))
    });
    let lines = [(5, theory.collect::<Vec<_>>()), (1, found.collect())];
    for (style, points) in lines {
        chart.lines.push(ChartLine::Points { style, points, is_joined: true, has_steps: false });
    }
    let entry = |name: &str, style| LegendEntry {
        name: name.to_owned(),
        style,
        is_level: false,
        text: "frames/s".to_owned(),
    };
    let legend = [entry("line rate", 5), entry("measured", 1)];
    write_figure(
        page,
        "h3",
        "Throughput (RFC 2544, 26.1)",
        &chart,
        &legend,
        Some("Square: the rig could not sustain more, so the device may carry more."),
    );
}

/// Draws the frame loss as RFC 2544, 26.3, demands: both axes from 0 to 100 %, a line for each size.
fn write_loss_curves(page: &mut Markup, sizes: &[SizeBenchmark]) {
    let curves: Vec<(&SizeBenchmark, _)> = sizes
        .iter()
        .filter_map(|size| Some((size, size.frame_loss.as_ref().filter(|curve| !curve.points.is_empty())?)))
        .collect();
    // More than five lines in one drawing cannot be distinguished.
    for part in curves.chunks(5) {
        let mut chart = Chart::new(
            "Frame loss against offered load".to_owned(),
            build_axis(
                "offered, % of the highest rate",
                AxisUnit::Percent,
                AxisScale::from_bounds(0.0, 100.0),
            ),
            build_axis("frame loss, %", AxisUnit::Percent, AxisScale::from_bounds(0.0, 100.0)),
        );
        let mut legend = Vec::new();
        for (index, (size, curve)) in part.iter().enumerate() {
            let style = index + 1;
            let points = curve.points.iter().map(|point| ChartPoint {
                x: point.percent_of_maximum,
                // The mark shows the worse end of the bounds: frames that the rig may have lost count against
                // the device in the picture. The text of the point has both ends.
                y: point.most_loss_percent,
                shape: if point.rig_fault.is_some() { MarkShape::Rig } else { MarkShape::Dot },
                text: format!(
                    "{} B at {} % ({}): loss {} to {} %",
                    size.frame_size_bytes.bytes(),
                    quantity::format_decimals(point.percent_of_maximum, 2),
                    point.frames_per_second,
                    quantity::format_decimals(point.least_loss_percent, 4),
                    quantity::format_decimals(point.most_loss_percent, 4)
                ),
            });
            let worst = curve.points.iter().map(|point| point.most_loss_percent).fold(0.0, f64::max);
            let text = format!("up to {} %", quantity::format_decimals(worst, 4));
            legend.push(LegendEntry {
                name: format!("{} B", size.frame_size_bytes.bytes()),
                style,
                is_level: false,
                text,
            });
            chart.lines.push(ChartLine::Points {
                style,
                points: points.collect(),
                is_joined: true,
                has_steps: false,
            });
        }
        write_figure(page, "h3", "Frame loss (RFC 2544, 26.3)", &chart, &legend, None);
    }
}

fn write_loss_share_chart(page: &mut Markup, result: &LossShareResult) {
    let highest =
        result.rates.iter().map(|rate| rate.frames_per_second.frames_per_second()).fold(1.0, f64::max);
    let mut chart = Chart::new(
        "Share of runs that lost frames, against the rate".to_owned(),
        build_axis("rate, frames/s", AxisUnit::FramesPerSecond, AxisScale::from_zero(highest)),
        build_axis("runs with loss, %", AxisUnit::Percent, AxisScale::from_bounds(0.0, 100.0)),
    );
    let line =
        |of: fn(&packetrig_method::loss_share::RateLossShare) -> Option<f64>, shape| -> Vec<ChartPoint> {
            let points = result.rates.iter().filter_map(|rate| {
                let share = of(rate)?;
                Some(ChartPoint {
                    x: rate.frames_per_second.frames_per_second(),
                    y: share * 100.0,
                    shape,
                    text: format!(
                        "{} of {} runs lost frames at {}",
                        rate.runs_with_loss, rate.runs, rate.frames_per_second
                    ),
                })
            });
            points.collect()
        };
    let lines = [
        // With few runs the share is uncertain, so the confidence interval is drawn as well.
        ("measured", 1, line(|rate| rate.share_with_loss, MarkShape::Dot)),
        (
            "95 % interval, upper end",
            2,
            line(|rate| rate.confidence_95.map(|interval| interval.high), MarkShape::Hidden),
        ),
        (
            "95 % interval, lower end",
            3,
            line(|rate| rate.confidence_95.map(|interval| interval.low), MarkShape::Hidden),
        ),
    ];
    let mut legend = Vec::new();
    for (name, style, points) in lines {
        legend.push(LegendEntry {
            name: name.to_owned(),
            style,
            is_level: false,
            text: "share of runs".to_owned(),
        });
        chart.lines.push(ChartLine::Points { style, points, is_joined: true, has_steps: false });
    }
    write_figure(page, "h3", "Runs with loss", &chart, &legend, None);
}

fn write_convergence_chart(page: &mut Markup, result: &ConvergenceResult) {
    let worst: Vec<Option<Nanos>> = result
        .trials
        .iter()
        // The worst stream counts: traffic is restored when the last stream is. `max` of nothing is `None`, so
        // a trial without measured streams has no mark.
        .map(|trial| trial.streams.iter().filter_map(|stream| stream.loss_of_connectivity_ns).max())
        .collect();
    let high = worst.iter().flatten().max().map_or(1, |time| time.as_u64());
    let mut chart = Chart::new(
        "Loss of connectivity of each trial".to_owned(),
        build_axis("trial", AxisUnit::Number, AxisScale::from_bounds(0.0, worst.len() as f64 + 0.5)),
        build_axis("loss of connectivity, worst stream", AxisUnit::Time, AxisScale::from_zero(high as f64)),
    );
    let points = (1..).zip(&worst).filter_map(|(number, time)| {
        let time = (*time)?;
        let text = format!("trial {number}: {}", quantity::format_time(time));
        Some(ChartPoint { x: f64::from(number), y: time.as_u64() as f64, shape: MarkShape::Dot, text })
    });
    chart.lines.push(ChartLine::Points {
        style: 1,
        points: points.collect(),
        is_joined: false,
        has_steps: false,
    });
    write_figure(
        page,
        "h3",
        "Loss of connectivity",
        &chart,
        &[],
        Some("Trials that measured nothing have no mark."),
    );
}
