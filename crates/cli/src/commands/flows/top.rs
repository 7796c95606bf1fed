//! `packetrig flows top`: the largest groups of flows.

use super::series;
use super::values::{group_json, group_text, sampling_remark, text_or_dash};
use crate::args::{FlowOrderArg, FlowTop as Arguments};
use crate::error::Error;
use crate::numbers::{format_count, format_percent, format_scaled};
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use clap::ValueEnum as _;
use packetrig_flow_store::grouping::{FlowGrouping, GroupPart};
use packetrig_flow_store::names::FlowNames;
use packetrig_flow_store::scan::list_flow_files;
use packetrig_flow_store::top::{self, GroupSum, TopGroup, TopGroupsQuery, TopGroupsResult, TopOrder};
use packetrig_store::files::csv_field;
use packetrig_units::Nanos;
use serde_json::Value;
use std::sync::Arc;

/// Name of a number of each group in JSON and CSV, and the function that computes it.
type GroupMeasure = (&'static str, fn(&GroupSum) -> Value);

// One list serves all outputs, so that JSON, CSV and the page's API have the same numbers. An unknown number
// is null, or an empty field.
const TOP_FLOW_MEASURES: [GroupMeasure; 10] = [
    ("flows", |has| has.sum.flows.into()),
    ("packets", |has| has.sum.packets.into()),
    ("bytes", |has| has.sum.bytes.into()),
    (FIRST_TIME_COLUMN, |has| has.first_ns.into()),
    (LAST_TIME_COLUMN, |has| has.last_ns.into()),
    ("duration_ns", |has| has.order_value(TopOrder::Duration).into()),
    ("packets_per_second", |has| has.packet_rate().into()),
    ("bits_per_second", |has| has.bit_rate().into()),
    ("bytes_per_packet", |has| has.packet_size().into()),
    ("sampled_records", |has| has.sampled_records.into()),
];

const ORDER_COLUMN: &str = "order";
const FIRST_TIME_COLUMN: &str = "first_ns";
const LAST_TIME_COLUMN: &str = "last_ns";

/// The numbers of a group by name, without its times.
pub(crate) fn group_measures(has: &GroupSum) -> impl Iterator<Item = (&'static str, Value)> {
    TOP_FLOW_MEASURES
        .iter()
        .filter(|(name, _)| ![FIRST_TIME_COLUMN, LAST_TIME_COLUMN].contains(name))
        .map(|(name, measure)| (*name, measure(has)))
}

const FILES_CHANGED_ERROR: &str = "top: files were removed or replaced during the query: their records may be missing \
    from the groups; repeat the query";

pub(super) fn show_top_flows(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let files = list_flow_files(&arguments.places)?;
    let names = arguments.filter.read_names()?;
    let mut named: Vec<FlowOrderArg> = Vec::new();
    for order in &arguments.order {
        if !named.contains(order) {
            named.push(*order);
        }
    }
    let mut orders = named.iter().map(|order| TopOrder::from(*order));
    let question = TopGroupsQuery {
        grouping: grouping_with_names(&arguments.by, &names)?,
        order: orders.next().unwrap_or(TopOrder::Bytes),
        more_orders: orders.collect(),
        most: arguments.most,
        least_packets: arguments.min_packets,
        least_bytes: arguments.min_bytes,
    };
    let filter = arguments.filter.to_flow_filter(&names)?;
    let top = if let Some(step) = arguments.bucket {
        series::show_series(arguments, &files, &filter, &question, step, output)?
    } else {
        let top = top::find_top_groups(&files, &filter, &question)?;
        write_groups_in_orders(arguments, &question, &named, &top, output);
        top
    };
    if top.files_have_changed {
        print_remark(FILES_CHANGED_ERROR);
    }
    if let Some(remark) = sampling_remark(top.total.sampled_records) {
        print_remark(format_args!("top: {remark}"));
    }
    Ok(())
}

/// Gives the grouping the names that it needs. Fails if they are not in the files of `--names`.
pub(super) fn grouping_with_names(by: &FlowGrouping, names: &Arc<FlowNames>) -> Result<FlowGrouping, Error> {
    by.clone().with_names(names).map_err(|error| Error::Usage(format!("--by: {error}")))
}

/// Writes the groups in each order. If there are several, each row of CSV and JSON names its order.
fn write_groups_in_orders(
    arguments: &Arguments,
    question: &TopGroupsQuery,
    named: &[FlowOrderArg],
    top: &TopGroupsResult,
    output: &mut CommandOutput,
) {
    let parts = arguments.by.parts();
    let is_named = !question.more_orders.is_empty();
    if arguments.form.csv {
        let order = is_named.then_some(ORDER_COLUMN);
        let names = parts.iter().map(GroupPart::name).chain(TOP_FLOW_MEASURES.iter().map(|(name, _)| *name));
        output.write_line(order.into_iter().chain(names).collect::<Vec<_>>().join(","));
    }
    let in_orders = [&top.groups].into_iter().chain(&top.groups_in_more_orders);
    for ((order, argument), groups) in question.orders().zip(named).zip(in_orders) {
        let name = is_named.then(|| argument_name(*argument));
        if arguments.form.json {
            for group in groups {
                output.write_line(top_group_json(name.as_deref(), parts, group, top.files_have_changed));
            }
        } else if arguments.form.csv {
            for group in groups {
                output.write_line(
                    name.iter().cloned().chain(group_csv(parts, group)).collect::<Vec<_>>().join(","),
                );
            }
        } else {
            let heading = name.map_or_else(String::new, |name| format!("by {name}\n"));
            output.write_text(heading + &groups_table(&arguments.by, groups, top, order));
        }
    }
}

fn argument_name(order: FlowOrderArg) -> String {
    order.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

const fn order_unit(order: TopOrder) -> &'static str {
    match order {
        TopOrder::Bytes => "bytes",
        TopOrder::Packets => "packets",
        TopOrder::Flows => "flows",
        TopOrder::PacketRate => "packets/s",
        TopOrder::BitRate => "bit/s",
        TopOrder::PacketSize => "bytes/packet",
        TopOrder::Duration => "lasts",
    }
}

fn group_csv(parts: &[GroupPart], group: &TopGroup) -> impl Iterator<Item = String> {
    let values = parts.iter().zip(&group.values).map(|(part, value)| csv_field(&group_text(part, value)));
    let numbers = TOP_FLOW_MEASURES.iter().map(|(_, measure)| match measure(&group.has) {
        Value::Null => String::new(),
        number => number.to_string(),
    });
    values.chain(numbers)
}

fn top_group_json(
    order: Option<&str>,
    parts: &[GroupPart],
    group: &TopGroup,
    files_have_changed: bool,
) -> Value {
    let order = order.map(|order| (ORDER_COLUMN.to_owned(), order.into()));
    let values = parts.iter().zip(&group.values);
    let values = values.map(|(part, value)| (part.name().to_owned(), group_json(part, value)));
    let numbers = TOP_FLOW_MEASURES.iter().map(|(name, measure)| ((*name).to_owned(), measure(&group.has)));
    // Each line repeats this value, because JSON lines have no place for remarks about all lines.
    let changed = files_have_changed.then(|| ("files_have_changed".to_owned(), true.into()));
    Value::Object(order.into_iter().chain(values).chain(numbers).chain(changed).collect())
}

/// The value that orders the groups, as text: a share of the whole, a rate, a size or a time.
fn order_value_text(has: &GroupSum, total: &GroupSum, order: TopOrder) -> String {
    let value = has.order_value(order);
    match order {
        // Only sums have a total of which a group can be a share: the rates of groups do not add up to the
        // rate of all records.
        TopOrder::Bytes | TopOrder::Packets | TopOrder::Flows => {
            format_percent(value, total.order_value(order))
        }
        TopOrder::PacketRate | TopOrder::BitRate => format_scaled(value as f64, ""),
        TopOrder::PacketSize => format_count(value),
        TopOrder::Duration => Nanos::new(value).to_string(),
    }
}

fn groups_table(by: &FlowGrouping, groups: &[TopGroup], top: &TopGroupsResult, order: TopOrder) -> String {
    let last = if order.is_sum_order() { "share" } else { order_unit(order) };
    let names = by.parts().iter().map(GroupPart::name);
    let header: Vec<_> = names.chain(["flows", "packets", "IP bytes", last]).collect();
    let groups = groups.iter().map(|TopGroup { values, has }| {
        let values = by.parts().iter().zip(values).map(|(part, value)| text_or_dash(group_text(part, value)));
        values.chain(format_sum_cells(has, &top.total, order)).collect()
    });
    let about = if top.groups_are_estimated { "about " } else { "" };
    let mut all = vec![String::new(); by.parts().len()];
    all[0] = format!("all ({about}{})", format_count(top.groups_seen));
    all.extend(format_sum_cells(&top.total, &top.total, order));
    let table = format_table(&header, groups.chain([all]));
    // The table repeats this note: a saved table must say that groups may be incomplete.
    if top.files_have_changed { format!("{table}{FILES_CHANGED_ERROR}\n") } else { table }
}

fn format_sum_cells(has: &GroupSum, total: &GroupSum, order: TopOrder) -> [String; 4] {
    let sum = has.sum;
    [
        format_count(sum.flows),
        format_count(sum.packets),
        format_count(sum.bytes),
        order_value_text(has, total, order),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use packetrig_flow_store::grouping::GroupValue;
    use packetrig_flow_store::top::GroupTotals;

    #[derive(Parser)]
    struct TopLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn an_estimate_and_files_that_changed_are_marked() {
        let arguments = TopLine::parse_from(["top", "records"]).arguments;
        let shown = |groups_are_estimated, files_have_changed| {
            let top = TopGroupsResult {
                groups_seen: 12,
                groups_are_estimated,
                files_have_changed,
                ..TopGroupsResult::default()
            };
            groups_table(&arguments.by, &top.groups, &top, TopOrder::Bytes)
        };
        assert!(shown(false, false).contains("all (12)"), "{}", shown(false, false));
        assert!(!shown(false, false).contains("files were removed"));
        assert!(shown(true, false).contains("all (about 12)"), "{}", shown(true, false));
        assert!(shown(false, true).contains("files were removed"));
        let by: FlowGrouping = "exporter,protocol".parse().unwrap();
        assert_eq!(top_group_json(None, by.parts(), &group(), true)["files_have_changed"], true);
    }

    #[test]
    fn top_table_has_one_value_under_each_heading() {
        let by: FlowGrouping = "exporter,protocol".parse().unwrap();
        let top = TopGroupsResult { groups: vec![group()], groups_seen: 1, ..TopGroupsResult::default() };
        let table = groups_table(&by, &top.groups, &top, TopOrder::Bytes);
        let columns = |line: &str| line.split("  ").filter(|cell| !cell.trim().is_empty()).count();
        let counts: Vec<usize> = table.lines().map(columns).collect();
        assert_eq!(counts[0], counts[1], "{table}");
    }

    fn group() -> TopGroup {
        let sum = GroupTotals { flows: 1, packets: 4, bytes: 1000 };
        TopGroup {
            values: vec![GroupValue::Exporter([0; 16], 7), GroupValue::Number(6)],
            has: GroupSum { sum, first_ns: 0, last_ns: 1_500_000_000, sampled_records: 0 },
        }
    }

    #[test]
    fn csv_name_with_comma_is_quoted() {
        let by: FlowGrouping = "exporter,protocol".parse().unwrap();
        let expected =
            "\"this machine, domain 7\",tcp,1,4,1000,0,1500000000,1500000000,2.667,5333.333,250.0,0";
        assert_eq!(group_csv(by.parts(), &group()).collect::<Vec<_>>().join(","), expected);
    }

    #[test]
    fn programs_find_every_value_under_its_name() {
        let by: FlowGrouping = "exporter,protocol".parse().unwrap();
        let json = top_group_json(None, by.parts(), &group(), false);
        assert_eq!((&json["exporter"], &json["protocol"]), (&"this machine, domain 7".into(), &6.into()));
        assert_eq!((&json["packets"], &json["bits_per_second"]), (&4.into(), &5333.333.into()));
    }
}
