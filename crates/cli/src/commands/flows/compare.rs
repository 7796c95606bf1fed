//! `packetrig flows compare`: how groups of flows differ between two time windows or two directories.

use super::top::grouping_with_names;
use super::values::{group_json, group_text, sampling_remark, text_or_dash};
use crate::args::CompareFlows as Arguments;
use crate::error::Error;
use crate::numbers::{format_count, format_scaled};
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::grouping::GroupPart;
use packetrig_flow_store::scan::{ListedFiles, TimeSpan, list_flow_files};
use packetrig_flow_store::top::{
    ChangeKind, ComparedSide, GroupChange, GroupComparison, GroupComparisonQuery, GroupTotals, TopOrder,
    compare_groups,
};
use packetrig_store::files::csv_field;
use serde_json::{Value, json};
use std::path::PathBuf;

const FILES_CHANGED_ERROR: &str = "compare: files were removed or replaced during the query: their records may be \
    missing from the sums; repeat the query";
/// Names of the numbers that JSON and CSV have for each of the two compared sides.
const SIDE_COLUMN_NAMES: [&str; 5] = ["flows", "packets", "bytes", "packets_per_second", "bits_per_second"];

pub(super) fn compare_flows(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let names = arguments.filter.read_names()?;
    let filter = arguments.filter.to_flow_filter(&names)?;
    let question = GroupComparisonQuery {
        grouping: grouping_with_names(&arguments.by, &names)?,
        order: arguments.order.into(),
        most: arguments.most,
        only: arguments.only.iter().copied().map(ChangeKind::from).collect(),
    };
    let (before, after) = list_compared_files(arguments)?;
    // Without a separate list, the second side is another time window of the same files.
    let files: [&[PathBuf]; 2] = [&before, after.as_deref().unwrap_or(&before)];
    let sides = [0, 1].map(|side| build_compared_side(arguments, files[side], &filter, side));
    let answer = compare_groups([&sides[0], &sides[1]], &question)?;
    write_changes(arguments, &question, &answer, output);
    if answer.files_have_changed {
        print_remark(FILES_CHANGED_ERROR);
    }
    let sampled_records = answer.totals.iter().map(|total| total.sampled_records).sum();
    if let Some(remark) = sampling_remark(sampled_records) {
        print_remark(format_args!("compare: {remark}"));
    }
    if let Some(rate) = answer.uncompared_rate {
        let unit = rate_unit(question.order);
        print_remark(format_args!(
            "compare: there are too many groups to compare all of them: changes of less than {} may be missing",
            format_scaled(rate, unit)
        ));
    }
    Ok(())
}

/// Lists the files of both sides. For two time windows of the same files, there is only the first list.
fn list_compared_files(arguments: &Arguments) -> Result<(ListedFiles, Option<ListedFiles>), Error> {
    let places = &arguments.places;
    match (arguments.a.zip(arguments.b), &places[..]) {
        (Some(_), _) => Ok((list_flow_files(places)?, None)),
        (None, [before, after]) => {
            let after = list_flow_files(std::slice::from_ref(after))?;
            Ok((list_flow_files(std::slice::from_ref(before))?, Some(after)))
        }
        (None, _) => Err(Error::Usage(
            "compare two windows of the records (--a FROM..TO --b FROM..TO), or two directories".into(),
        )),
    }
}

fn build_compared_side<'a>(
    arguments: &Arguments,
    files: &'a [PathBuf],
    filter: &FlowFilter,
    side: usize,
) -> ComparedSide<'a> {
    match [arguments.a, arguments.b][side] {
        Some(window) => ComparedSide {
            files,
            filter: filter.clone().and(FlowFilter::started_in(TimeSpan {
                from_ns: Some(window.from_ns),
                to_ns: Some(window.to_ns),
            })),
            length_ns: Some(window.to_ns - window.from_ns),
        },
        None => ComparedSide { files, filter: filter.clone(), length_ns: None },
    }
}

fn write_changes(
    arguments: &Arguments,
    question: &GroupComparisonQuery,
    answer: &GroupComparison,
    output: &mut CommandOutput,
) {
    let parts = question.grouping.parts();
    if arguments.form.json {
        for change in &answer.changes {
            output.write_line(change_json(parts, question.order, answer, change));
        }
    } else if arguments.form.csv {
        let sides = ["a", "b"].iter().flat_map(|side| SIDE_COLUMN_NAMES.map(|name| format!("{side}_{name}")));
        let names = parts.iter().map(|part| part.name().to_owned()).chain(["change".to_owned()]);
        let last = ["difference", "factor"].map(str::to_owned);
        output.write_line(names.chain(sides).chain(last).collect::<Vec<_>>().join(","));
        for change in &answer.changes {
            output.write_line(change_csv(parts, question.order, answer, change));
        }
    } else {
        output.write_text(changes_table(question, answer));
        output.write_line(change_kinds_line(answer));
    }
}

const fn rate_unit(order: TopOrder) -> &'static str {
    match order {
        TopOrder::Packets => "packets/s",
        TopOrder::Flows => "flows/s",
        _ => "bit/s",
    }
}

const fn change_kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::New => "new",
        ChangeKind::Gone => "gone",
        ChangeKind::Grown => "grown",
        ChangeKind::Shrunk => "shrunk",
    }
}

/// Rate of the second side divided by the rate of the first side; `None` if one of them is zero.
fn compute_rate_factor(answer: &GroupComparison, sums: [GroupTotals; 2], order: TopOrder) -> Option<f64> {
    let [before, after] = [0, 1].map(|side| answer.group_rate(side, sums[side], order));
    (before > 0.0 && after > 0.0).then(|| after / before)
}

fn changes_table(question: &GroupComparisonQuery, answer: &GroupComparison) -> String {
    let GroupComparisonQuery { grouping, order, .. } = question;
    let unit = rate_unit(*order);
    let names = grouping.parts().iter().map(GroupPart::name);
    let header: Vec<_> = names.chain(["change", "before", "after", "difference", "factor"]).collect();
    let rate_cells = |sums: [GroupTotals; 2]| {
        let [before, after] =
            [0, 1].map(|side| format_scaled(answer.group_rate(side, sums[side], *order), unit));
        let change = answer.rate_change(sums, *order);
        let sign = if change < 0.0 { "−" } else { "+" };
        let factor =
            compute_rate_factor(answer, sums, *order).map_or_else(|| "–".to_owned(), |by| format!("{by:.2}"));
        [before, after, format!("{sign}{}", format_scaled(change.abs(), unit)), factor]
    };
    let rows = answer.changes.iter().map(|change| {
        let values = grouping.parts().iter().zip(&change.values);
        let values = values.map(|(part, value)| text_or_dash(group_text(part, value)));
        values.chain([change_kind_name(change.kind).to_owned()]).chain(rate_cells(change.sums)).collect()
    });
    let mut all = vec![String::new(); grouping.parts().len() + 1];
    "all".clone_into(&mut all[0]);
    all.extend(rate_cells(answer.totals.map(|total| total.sum)));
    format_table(&header, rows.chain([all]))
}

fn change_kinds_line(answer: &GroupComparison) -> String {
    let counts = answer
        .kinds
        .iter()
        .map(|(kind, count)| format!("{} {}", format_count(*count), change_kind_name(*kind)));
    let counts: Vec<_> = counts.collect();
    let of_whom = if answer.has_other_groups { " among the largest groups of both sides" } else { "" };
    match &counts[..] {
        [] => "nothing has changed".to_owned(),
        counts => format!("groups: {}{of_whom}", counts.join(", ")),
    }
}

/// Rounds to three decimals: further decimals would only show errors of binary fractions.
fn round_to_3_decimals(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The numbers of a side, in the order of [`SIDE_COLUMN_NAMES`].
fn list_side_values(answer: &GroupComparison, side: usize, sum: GroupTotals) -> [Value; 5] {
    let rate = |order| round_to_3_decimals(answer.group_rate(side, sum, order)).into();
    [sum.flows.into(), sum.packets.into(), sum.bytes.into(), rate(TopOrder::Packets), rate(TopOrder::Bytes)]
}

fn change_json(
    parts: &[GroupPart],
    order: TopOrder,
    answer: &GroupComparison,
    change: &GroupChange,
) -> Value {
    let values = parts.iter().zip(&change.values);
    let values = values.map(|(part, value)| (part.name().to_owned(), group_json(part, value)));
    let [a, b] = [0, 1].map(|side| {
        let numbers = list_side_values(answer, side, change.sums[side]);
        Value::Object(SIDE_COLUMN_NAMES.iter().map(|name| (*name).to_owned()).zip(numbers).collect())
    });
    let others = [
        ("change", change_kind_name(change.kind).into()),
        ("a", a),
        ("b", b),
        ("difference", json!(round_to_3_decimals(answer.rate_change(change.sums, order)))),
        ("factor", json!(compute_rate_factor(answer, change.sums, order).map(round_to_3_decimals))),
    ];
    // Each line repeats this value, because JSON lines have no place for remarks about all lines.
    let uncompared =
        answer.uncompared_rate.map(|rate| ("uncompared_below".to_owned(), json!(round_to_3_decimals(rate))));
    Value::Object(
        values.chain(uncompared).chain(others.map(|(name, value)| (name.to_owned(), value))).collect(),
    )
}

fn change_csv(
    parts: &[GroupPart],
    order: TopOrder,
    answer: &GroupComparison,
    change: &GroupChange,
) -> String {
    let values = parts.iter().zip(&change.values).map(|(part, value)| csv_field(&group_text(part, value)));
    let numbers = [0, 1].into_iter().flat_map(|side| list_side_values(answer, side, change.sums[side]));
    let factor = compute_rate_factor(answer, change.sums, order).map(round_to_3_decimals);
    let last = [
        round_to_3_decimals(answer.rate_change(change.sums, order)).to_string(),
        factor.map_or_else(String::new, |by| by.to_string()),
    ];
    let cells = values
        .chain([change_kind_name(change.kind).to_owned()])
        .chain(numbers.map(|number| number.to_string()));
    cells.chain(last).collect::<Vec<_>>().join(",")
}
