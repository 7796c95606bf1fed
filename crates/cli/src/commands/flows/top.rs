//! `packetrig flows top`.

use super::exporter;
use crate::args::{FlowTop as Arguments, GroupBy};
use crate::error::Error;
use crate::numbers::{count, percent, scaled};
use crate::output::{Output, remark};
use crate::protocols;
use crate::table::table;
use packetrig_store::flows::Source;
use packetrig_store::flows::filter::address;
use packetrig_store::flows::scan::flow_files;
use packetrig_store::flows::top::{self, Group, Order, Sum, Top};

pub(super) fn perform(arguments: &Arguments, output: &mut Output) -> Result<(), Error> {
    let files = flow_files(&arguments.places)?;
    let order = Order::from(arguments.order);
    let filter = arguments.filter.filter();
    let top = top::top(&files, &filter, arguments.by.into(), order, arguments.most)?;
    if arguments.form.json {
        for (group, sum) in &top.groups {
            output.line(json(*group, *sum));
        }
    } else if arguments.form.csv {
        output.line(format_args!("{},flows,packets,bytes", title(arguments.by)));
        for (group, sum) in &top.groups {
            output.line(csv(*group, *sum));
        }
    } else {
        output.text(text(arguments, &top, order));
    }
    if top.doubt > 0 {
        remark(format_args!(
            "top: there are more groups than are kept in memory ({}); each may have up to {} more {} than shown",
            count(top::GROUPS_MOST as u64),
            count(top.doubt),
            unit(order),
        ));
    }
    Ok(())
}

const fn title(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Source => "source",
        GroupBy::Destination => "destination",
        GroupBy::Pair => "pair",
        GroupBy::Protocol => "protocol",
        GroupBy::Port => "port",
        GroupBy::Exporter => "exporter",
    }
}

const fn unit(order: Order) -> &'static str {
    match order {
        Order::Bytes => "bytes",
        Order::Packets => "packets",
        Order::Flows => "flows",
    }
}

fn name(group: Group) -> String {
    match group {
        Group::Address(one) => address(one).to_string(),
        Group::Pair(one, other) => format!("{} <-> {}", address(one), address(other)),
        Group::Protocol(number) => protocols::name(number),
        Group::Port(protocol, port) => format!("{}/{port}", protocols::name(protocol)),
        Group::Exporter(address, domain) => exporter(Source { exporter: address, domain }),
    }
}

/// One row. The name of a group may hold a comma, and no quotes.
fn csv(group: Group, Sum { flows, packets, bytes }: Sum) -> String {
    let name = name(group);
    let quote = if name.contains(',') { "\"" } else { "" };
    format!("{quote}{name}{quote},{flows},{packets},{bytes}")
}

fn json(group: Group, Sum { flows, packets, bytes }: Sum) -> serde_json::Value {
    serde_json::json!({"group": name(group), "flows": flows, "packets": packets, "bytes": bytes})
}

fn text(arguments: &Arguments, top: &Top, order: Order) -> String {
    let header = [title(arguments.by), "flows", "packets", "bytes", "", "share"];
    let row = |name: String, sum: Sum| {
        let share = percent(sum.of(order), top.total.of(order));
        let bytes = scaled(sum.bytes as f64, "B");
        vec![name, count(sum.flows), count(sum.packets), count(sum.bytes), bytes, share]
    };
    let groups = top.groups.iter().map(|(group, sum)| row(name(*group), *sum));
    // A group that was let go and came back is counted twice.
    let at_most = if top.doubt > 0 { "at most " } else { "" };
    let all = format!("all ({at_most}{})", count(top.groups_seen));
    table(&header, groups.chain([row(all, top.total)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn groups_that_were_let_go_make_their_number_a_bound_from_above() {
        let arguments = Line::parse_from(["top", "records"]).arguments;
        let shown = |doubt| {
            let top = Top { groups_seen: 12, doubt, ..Top::default() };
            text(&arguments, &top, Order::Bytes)
        };
        assert!(shown(0).contains("all (12)"), "{}", shown(0));
        assert!(shown(1).contains("all (at most 12)"), "{}", shown(1));
    }

    #[test]
    fn a_name_with_a_comma_is_one_field_of_csv() {
        let sum = Sum { flows: 1, packets: 2, bytes: 3 };
        assert_eq!(csv(Group::Exporter([0; 16], 7), sum), "\"this machine, domain 7\",1,2,3");
        assert_eq!(csv(Group::Port(17, 53), sum), "udp/53,1,2,3");
    }
}
