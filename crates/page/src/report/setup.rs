//! Facts for judging and repeating a run: ports, nodes and clocks, calibration, times, files, the plan.

use super::elements::{
    TableCell, number_column, prose_column, tabulate_rows, word_column, write_fact, write_wall_time,
};
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{NodeReport, PortReport, RunReport, SkewReport};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{PortInfo, StampKind};
use packetrig_units::Nanos;

/// Maximum number of rows of the tables of ports and nodes.
const MAX_ROWS: usize = 256;
/// Maximum number of bytes of the plan on the page.
const MAX_PLAN_BYTES: usize = 200_000;

pub(super) fn write_environment(page: &mut Markup, report: &RunReport) {
    write_facts(page, report);
    page.add_element("h3", &[], "Ports");
    write_ports(page, &report.ports);
    page.add_element("h3", &[], "Calibration of this rig");
    write_limits(page, &report.rig_limits);
    page.add_element("h3", &[], "Machines");
    write_machines(page, report);
    page.add_element("h3", &[], "Clocks and nodes");
    write_clocks(page, report);
    write_captures(page, report);
}

fn write_facts(page: &mut Markup, report: &RunReport) {
    page.open_element("div", &[("class", "table-box")]).open_element("table", &[("class", "facts")]);
    page.add_element("caption", &[("class", "visually-hidden")], "Facts about the run")
        .open_element("tbody", &[]);
    write_fact(page, "run", |cell| {
        cell.add_element("code", &[], &report.run.0);
    });
    write_fact(page, "started", |cell| write_wall_time(cell, report.started_wall_ns));
    write_fact(page, "packetrig", |cell| {
        cell.add_text(&report.packetrig_version);
    });
    write_fact(page, "seed", |cell| {
        cell.add_element("code", &[], &report.seed.to_string());
    });
    write_fact(page, "plan, SHA-256", |cell| {
        cell.add_element("code", &[("class", "hash")], report.plan_sha256.as_str());
    });
    let coverage = format!("{} of {} nodes reported", report.coverage.reported, report.coverage.expected);
    write_fact(page, "coverage", |cell| {
        cell.add_text(&coverage);
    });
    if let Some(times) = &report.times {
        let states =
            times.states.iter().map(|state| format!("{} {}", state.state, quantity::format_time(state.at)));
        let start = times.start.map(|start| format!("first frame due {}", quantity::format_time(start)));
        let all: Vec<String> = states.chain(start).collect();
        write_fact(page, "times since the first event", |cell| {
            cell.add_text(&all.join(", "));
        });
    }
    for reason in report.outcome.reasons() {
        write_fact(page, "missing", |cell| {
            cell.add_text(reason);
        });
    }
    page.close_element("tbody").close_element("table").close_element("div");
}

const fn stamp_kind_name(kind: StampKind) -> &'static str {
    match kind {
        StampKind::Hardware => "hardware",
        StampKind::Driver => "driver",
        StampKind::Software => "kernel",
        StampKind::User => "program",
    }
}

fn write_ports(page: &mut Markup, ports: &[PortReport]) {
    if ports.is_empty() {
        page.add_element("p", &[("class", "absent")], "No port has sent a report.");
        return;
    }
    let headings = [
        word_column("port"),
        word_column("interface"),
        word_column("driver"),
        word_column("link speed"),
        prose_column("back end, and why"),
        word_column("stamps: send, arrival"),
        number_column("arrival stamp error", ""),
        number_column("sent", "frames"),
        number_column("seen", "frames"),
        prose_column("events"),
    ];
    let rows: Vec<Vec<TableCell>> = ports.iter().take(MAX_ROWS).map(build_port_row).collect();
    tabulate_rows(page, "Ports", None, &headings, &rows);
    write_omitted_row_count(page, ports.len(), "ports.csv");
}

/// Writes the ports for which only static facts are known.
pub(super) fn write_port_infos(page: &mut Markup, ports: &[PortInfo]) {
    let headings = [
        word_column("port"),
        word_column("interface"),
        word_column("driver"),
        word_column("link speed"),
        word_column("back end, and why"),
        word_column("stamps: send, arrival"),
    ];
    let rows: Vec<Vec<TableCell>> = ports.iter().take(MAX_ROWS).map(build_port_info_cells).collect();
    tabulate_rows(page, "Ports", None, &headings, &rows);
}

fn build_port_info_cells(info: &PortInfo) -> Vec<TableCell> {
    let speed = info.speed.map(|speed| quantity::format_scaled(speed.bits_per_second() as f64, "bit/s"));
    vec![
        TableCell::text(info.name.clone()),
        TableCell::text(info.location.clone()),
        TableCell::text(info.driver.clone()),
        // Some drivers report no link speed, for example drivers of virtual interfaces.
        TableCell::text(speed.unwrap_or_else(|| "not known".to_owned())),
        TableCell::text(format!("{}: {}", info.back_end.name(), info.why)),
        TableCell::text(format!("{}, {}", stamp_kind_name(info.tx_stamp), stamp_kind_name(info.rx_stamp))),
    ]
}

fn write_omitted_row_count(page: &mut Markup, count: usize, file: &str) {
    if count > MAX_ROWS {
        page.open_element("p", &[("class", "muted")])
            .add_value(count - MAX_ROWS)
            .add_text(if count - MAX_ROWS == 1 { " more is in " } else { " more are in " })
            .add_text(file)
            .add_text(".")
            .close_element("p");
    }
}

fn build_port_row(port: &PortReport) -> Vec<TableCell> {
    let events: Vec<String> = port
        .events
        .iter()
        .map(|event| {
            let until = event.until.map_or_else(|| "the end".to_owned(), quantity::format_time);
            format!("{} from {} to {until}", event.description(), quantity::format_time(event.from))
        })
        .collect();
    let mut cells = build_port_info_cells(&port.info);
    // On a fleet, the name shows the node of the port, too.
    cells[0] = TableCell::text(port.full_name());
    cells.extend([
        TableCell::number(
            port.clock_bound.as_u64(),
            format!("± {}", quantity::format_time(port.clock_bound)),
        ),
        TableCell::count(port.tx.handed_over),
        TableCell::count(port.rx.seen),
        TableCell::text(if events.is_empty() { "none".to_owned() } else { events.join("; ") }),
    ]);
    cells
}

fn write_limits(page: &mut Markup, limits: &[RigLimit]) {
    if limits.is_empty() {
        let text = "Not calibrated: no limit of this rig is known for the drivers and back ends of these ports. \
            packetrig test calibrate measures the limits.";
        page.add_element("p", &[("class", "absent")], text);
        return;
    }
    let headings = [
        word_column("back end"),
        word_column("driver"),
        number_column("frame size", "B"),
        number_column("highest rate without loss by the rig", "frames/s"),
        number_column("latency of the rig itself", ""),
        number_column("send error p99", ""),
        number_column("one clock reading", ""),
        word_column("kernel"),
        word_column("measured"),
    ];
    let rows: Vec<Vec<TableCell>> = limits
        .iter()
        .map(|limit| {
            vec![
                TableCell::text(limit.back_end.name()),
                TableCell::text(limit.driver.clone()),
                TableCell::count(limit.size.into()),
                TableCell::count(limit.frames_per_second),
                TableCell::from_optional(limit.latency_floor.map(TableCell::time)),
                TableCell::from_optional(limit.send_error_p99.map(TableCell::time)),
                TableCell::time(limit.clock_reading),
                TableCell::text(limit.kernel.clone()),
                TableCell::text(quantity::format_utc(limit.measured_wall_ns)),
            ]
        })
        .collect();
    tabulate_rows(page, "Limits of this rig", None, &headings, &rows);
}

fn write_machines(page: &mut Markup, report: &RunReport) {
    // Reports of earlier versions have no facts about machines.
    if report.nodes.iter().all(|node| node.machine.is_none()) {
        let text = "No node reported its machine: no node has sent a report, or the report is from an \
            older version.";
        page.add_element("p", &[("class", "absent")], text);
        return;
    }
    let headings = [
        word_column("node"),
        word_column("kernel"),
        word_column("architecture"),
        word_column("processor"),
        number_column("processors", ""),
    ];
    let rows: Vec<Vec<TableCell>> = report.nodes.iter().take(MAX_ROWS).map(build_machine_row).collect();
    tabulate_rows(page, "Machines of the nodes", None, &headings, &rows);
    write_omitted_row_count(page, report.nodes.len(), "nodes.csv");
}

/// A row for each node, even for one that did not report its machine.
fn build_machine_row(node: &NodeReport) -> Vec<TableCell> {
    let machine = node.machine.as_ref();
    vec![
        TableCell::text(node.node.clone()),
        TableCell::from_optional(machine.map(|machine| TableCell::text(machine.kernel.clone()))),
        TableCell::from_optional(machine.map(|machine| TableCell::text(machine.architecture.clone()))),
        TableCell::from_optional(machine.and_then(|machine| machine.processor.clone()).map(TableCell::text)),
        TableCell::from_optional(
            machine.and_then(|machine| machine.processors).map(|count| TableCell::count(count.into())),
        ),
    ]
}

fn write_clocks(page: &mut Markup, report: &RunReport) {
    // If a single node has a clock comparison, it runs on another machine than its controller.
    if let [only] = report.nodes.as_slice()
        && only.clock.is_none()
    {
        let text = "One machine: sender and receivers read one clock, so no clocks are compared.";
        page.add_element("p", &[], text);
        return;
    }
    if report.nodes.is_empty() {
        page.add_element("p", &[("class", "absent")], "The report contains no node.");
        return;
    }
    let headings = [
        word_column("node"),
        word_column("reported"),
        word_column("clock compared by"),
        number_column("clock ahead of the controller", ""),
        number_column("error of the comparison", ""),
        number_column("first frame late by", ""),
        number_column("error of the lateness", ""),
    ];
    let rows: Vec<Vec<TableCell>> = report.nodes.iter().take(MAX_ROWS).map(build_node_row).collect();
    tabulate_rows(page, "Nodes and their clocks", None, &headings, &rows);
    write_omitted_row_count(page, report.nodes.len(), "nodes.csv");
    if let Some(skew) = &report.skew {
        page.add_element("p", &[], &describe_skew(skew));
    }
}

fn build_node_row(node: &NodeReport) -> Vec<TableCell> {
    let start = node.start;
    vec![
        TableCell::text(node.node.clone()),
        TableCell::text(if node.reported { "yes" } else { "no" }),
        TableCell::from_optional(node.clock.map(|clock| TableCell::text(clock.source.name()))),
        TableCell::from_optional(node.clock.and_then(|clock| clock.offset_ns).map(build_signed_cell)),
        TableCell::from_optional(node.clock.and_then(|clock| clock.bound).map(build_bound_cell)),
        TableCell::from_optional(start.and_then(|start| start.skew_ns).map(build_signed_cell)),
        TableCell::from_optional(start.and_then(|start| start.bound).map(build_bound_cell)),
    ]
}

fn build_signed_cell(ns: i64) -> TableCell {
    TableCell::with_value(ns.to_string(), quantity::format_signed_time(ns))
}

fn build_bound_cell(time: Nanos) -> TableCell {
    TableCell::number(time.as_u64(), format!("± {}", quantity::format_time(time)))
}

fn describe_skew(skew: &SkewReport) -> String {
    let spread = match skew.describe_spread(quantity::format_time) {
        Some(seen) => format!("Senders began {seen}."),
        None => "The difference between the start times of the senders is not known.".to_owned(),
    };
    match skew.wanted.zip(skew.verdict) {
        Some((wanted, verdict)) => {
            format!("{spread} The plan allows {}: {verdict}.", quantity::format_time(wanted))
        }
        None => spread,
    }
}

fn write_captures(page: &mut Markup, report: &RunReport) {
    if report.captures.is_empty() {
        return;
    }
    page.add_element("h3", &[], "Captures");
    let headings =
        [word_column("file"), number_column("written", "frames"), number_column("dropped", "frames")];
    let rows: Vec<Vec<TableCell>> = report
        .captures
        .iter()
        .map(|capture| {
            vec![
                TableCell::text(capture.file.clone()),
                TableCell::count(capture.written),
                TableCell::count(capture.dropped),
            ]
        })
        .collect();
    tabulate_rows(page, "Captures", None, &headings, &rows);
}

/// Writes the list of files beside the page.
// Links are relative, so a directory of results can be moved or copied as a whole.
pub(super) fn write_file_list<'a>(
    page: &mut Markup,
    files: impl IntoIterator<Item = &'a (&'a str, &'a str)>,
) {
    page.open_element("ul", &[("class", "files")]);
    for (name, about) in files {
        page.open_element("li", &[])
            .add_element("a", &[("href", name)], name)
            .add_text(": ")
            .add_text(about)
            .close_element("li");
    }
    page.close_element("ul");
}

/// Writes a plan, folded.
pub(super) fn write_plan(page: &mut Markup, title: &str, document: &str) {
    page.open_element("details", &[]).add_element("summary", &[], title);
    // A slice that ends within a UTF-8 character would panic.
    let shown = &document[..document.floor_char_boundary(MAX_PLAN_BYTES)];
    page.open_element("pre", &[("tabindex", "0")]).add_text(shown).close_element("pre");
    if shown.len() < document.len() {
        let text = format!(
            "The first {} of {}.",
            quantity::format_bytes(shown.len() as u64),
            quantity::format_bytes(document.len() as u64)
        );
        page.add_element("p", &[("class", "muted")], &text);
    }
    page.close_element("details");
}
