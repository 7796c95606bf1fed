//! `packetrig flows top --bucket`: how the largest groups change over time.

use super::utc_time_text;
use super::values::{group_json, group_text, text_or_dash};
use crate::args::FlowTop as Arguments;
use crate::error::Error;
use crate::numbers::{format_count, format_scaled};
use crate::output::CommandOutput;
use crate::sparkline::render_sparkline;
use crate::table::format_table;
use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::grouping::{GroupPart, GroupValue};
use packetrig_flow_store::top::{
    GroupTotals, TopGroupsQuery, TopGroupsResult, TopOrder, TopSeries, TopSeriesError, compute_top_series,
};
use packetrig_store::files::csv_field;
use packetrig_units::Nanos;
use serde_json::Value;
use std::path::PathBuf;

/// Maximum number of blocks in the sparkline of a group.
const MAX_BLOCKS: usize = 60;
const NANOS_PER_SECOND: f64 = 1e9;

/// Prints the series of the largest groups, and returns the groups.
pub(super) fn show_series(
    arguments: &Arguments,
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
    step: Nanos,
    output: &mut CommandOutput,
) -> Result<TopGroupsResult, Error> {
    if !question.order.is_sum_order() {
        return Err(Error::Usage(
            "--bucket shows sums: use --order bytes, --order packets or --order flows".into(),
        ));
    }
    if !question.more_orders.is_empty() {
        return Err(Error::Usage("--bucket needs a single --order".into()));
    }
    let found = compute_top_series(files, filter, question, step).map_err(|error| match error {
        TopSeriesError::Read(error) => error.into(),
        other => Error::Usage(format!("--bucket: {other}")),
    })?;
    let parts = question.grouping.parts();
    if arguments.form.json {
        for_each_step_and_group(&found, |at_ns, values, sum| {
            output.write_line(step_json(parts, &found, at_ns, values, sum));
        });
    } else if arguments.form.csv {
        let numbers = ["flows", "packets", "bytes", "packets_per_second", "bits_per_second"];
        let names = ["start_ns"].into_iter().chain(parts.iter().map(GroupPart::name)).chain(numbers);
        output.write_line(names.collect::<Vec<_>>().join(","));
        for_each_step_and_group(&found, |at_ns, values, sum| {
            output.write_line(step_csv(parts, &found, at_ns, values, sum));
        });
    } else {
        output.write_text(series_table(question, &found));
    }
    Ok(found.top)
}

/// Calls `each` for every step and group, with the start of the step, the group and the group's sum in the step.
fn for_each_step_and_group(found: &TopSeries, mut each: impl FnMut(u64, &[GroupValue], GroupTotals)) {
    let steps = found.series.first().map_or(0, Vec::len);
    let mut at_ns = found.first_ns;
    for step in 0..steps {
        for (group, sums) in found.top.groups.iter().zip(&found.series) {
            each(at_ns, &group.values, sums[step]);
        }
        // The start of a step after the last one may exceed 64 bits.
        at_ns = at_ns.saturating_add(found.step_ns);
    }
}

/// Converts an amount in one step into a rate per second.
fn step_rate(found: &TopSeries, amount: u64) -> f64 {
    let rate = amount as f64 * NANOS_PER_SECOND / found.step_ns as f64;
    // The rate is rounded to three decimals: further decimals would only show errors of binary fractions.
    (rate * 1000.0).round() / 1000.0
}

fn step_json(
    parts: &[GroupPart],
    found: &TopSeries,
    at_ns: u64,
    values: &[GroupValue],
    sum: GroupTotals,
) -> Value {
    let values = parts.iter().zip(values);
    let values = values.map(|(part, value)| (part.name().to_owned(), group_json(part, value)));
    let numbers: [(&str, Value); 5] = [
        ("flows", sum.flows.into()),
        ("packets", sum.packets.into()),
        ("bytes", sum.bytes.into()),
        ("packets_per_second", step_rate(found, sum.packets).into()),
        ("bits_per_second", step_rate(found, sum.bytes.saturating_mul(8)).into()),
    ];
    let numbers = numbers.map(|(name, value)| (name.to_owned(), value));
    Value::Object([("start_ns".to_owned(), at_ns.into())].into_iter().chain(values).chain(numbers).collect())
}

fn step_csv(
    parts: &[GroupPart],
    found: &TopSeries,
    at_ns: u64,
    values: &[GroupValue],
    sum: GroupTotals,
) -> String {
    let values = parts.iter().zip(values).map(|(part, value)| csv_field(&group_text(part, value)));
    let numbers = [
        sum.flows.to_string(),
        sum.packets.to_string(),
        sum.bytes.to_string(),
        step_rate(found, sum.packets).to_string(),
        step_rate(found, sum.bytes.saturating_mul(8)).to_string(),
    ];
    [at_ns.to_string()].into_iter().chain(values).chain(numbers).collect::<Vec<_>>().join(",")
}

/// Table with a row for each group: its sums, its largest rate and when it occurred, and a sparkline of all steps.
fn series_table(question: &TopGroupsQuery, found: &TopSeries) -> String {
    let (unit, amount): (_, fn(GroupTotals) -> u64) = match question.order {
        TopOrder::Packets => ("packets/s", |sum| sum.packets),
        TopOrder::Flows => ("flows/s", |sum| sum.flows),
        _ => ("bit/s", |sum| sum.bytes.saturating_mul(8)),
    };
    // Neighbouring steps share a block if there are too many.
    let steps = found.series.first().map_or(0, Vec::len);
    let joined = steps.div_ceil(MAX_BLOCKS).max(1);
    let over_time = format!(
        "from {}, {} a block",
        utc_time_text(found.first_ns),
        Nanos::new(found.step_ns * joined as u64)
    );
    let names = question.grouping.parts().iter().map(|part| -> &str { part.name() });
    let header: Vec<_> =
        names.chain(["flows", "packets", "IP bytes", "greatest", "at (UTC)", &over_time]).collect();
    let rows = found.top.groups.iter().zip(&found.series).map(|(group, sums)| {
        let values = question.grouping.parts().iter().zip(&group.values);
        let values = values.map(|(part, value)| text_or_dash(group_text(part, value)));
        // The first of several equal steps.
        let greatest =
            sums.iter().enumerate().rev().max_by_key(|(_, sum)| amount(**sum)).map_or(0, |(step, _)| step);
        let rate = step_rate(found, sums.get(greatest).copied().map_or(0, amount));
        let blocks = sums.chunks(joined).map(|some| Some(some.iter().map(|sum| amount(*sum) as f64).sum()));
        values
            .chain([
                format_count(group.has.sum.flows),
                format_count(group.has.sum.packets),
                format_count(group.has.sum.bytes),
                format_scaled(rate, unit),
                utc_time_text(found.first_ns + greatest as u64 * found.step_ns),
                render_sparkline(&blocks.collect::<Vec<_>>(), MAX_BLOCKS),
            ])
            .collect()
    });
    format_table(&header, rows)
}
