//! Facts for judging and repeating a run: ports, nodes and clocks, calibration, times, files, the plan.

use super::elements::{Cell, fact, number, prose, table, wall_time, words};
use crate::markup::Markup;
use crate::quantity;
use packetrig_fleet::report::{NodeReport, PortReport, RunReport, SkewReport};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{PortInfo, StampKind};
use packetrig_units::Nanos;

/// Most rows of the tables of ports and nodes.
const MOST_ROWS: usize = 256;
/// Most bytes of the plan on the page.
const MOST_PLAN: usize = 200_000;

pub(super) fn write_environment(page: &mut Markup, report: &RunReport) {
    write_facts(page, report);
    page.element("h3", &[], "Ports");
    write_ports(page, &report.ports);
    page.element("h3", &[], "Calibration of this rig");
    write_limits(page, &report.rig_limits);
    page.element("h3", &[], "Machines");
    write_machines(page, report);
    page.element("h3", &[], "Clocks and nodes");
    write_clocks(page, report);
    write_captures(page, report);
}

fn write_facts(page: &mut Markup, report: &RunReport) {
    page.open("div", &[("class", "table-box")]).open("table", &[("class", "facts")]);
    page.element("caption", &[("class", "visually-hidden")], "Facts about the run").open("tbody", &[]);
    fact(page, "run", |cell| {
        cell.element("code", &[], &report.run.0);
    });
    fact(page, "started", |cell| wall_time(cell, report.started_wall_ns));
    fact(page, "packetrig", |cell| {
        cell.text(&report.packetrig_version);
    });
    fact(page, "seed", |cell| {
        cell.element("code", &[], &report.seed.to_string());
    });
    fact(page, "plan, SHA-256", |cell| {
        cell.element("code", &[("class", "hash")], report.plan_sha256.as_str());
    });
    let coverage = format!("{} of {} nodes reported", report.coverage.reported, report.coverage.expected);
    fact(page, "coverage", |cell| {
        cell.text(&coverage);
    });
    if let Some(times) = &report.times {
        let states = times.states.iter().map(|state| format!("{} {}", state.state, quantity::time(state.at)));
        let start = times.start.map(|start| format!("first frame due {}", quantity::time(start)));
        let all: Vec<String> = states.chain(start).collect();
        fact(page, "since it was begun", |cell| {
            cell.text(&all.join(", "));
        });
    }
    for reason in report.outcome.reasons() {
        fact(page, "missing", |cell| {
            cell.text(reason);
        });
    }
    page.close("tbody").close("table").close("div");
}

const fn stamp_word(kind: StampKind) -> &'static str {
    match kind {
        StampKind::Hardware => "hardware",
        StampKind::Driver => "driver",
        StampKind::Software => "kernel",
        StampKind::User => "program",
    }
}

fn write_ports(page: &mut Markup, ports: &[PortReport]) {
    if ports.is_empty() {
        page.element("p", &[("class", "absent")], "No port reported.");
        return;
    }
    let headings = [
        words("port"),
        words("interface"),
        words("driver"),
        words("link speed"),
        prose("back end, and why"),
        words("stamps: send, arrival"),
        number("arrival stamp error", ""),
        number("sent", "frames"),
        number("seen", "frames"),
        prose("events"),
    ];
    let rows: Vec<Vec<Cell>> = ports.iter().take(MOST_ROWS).map(port_row).collect();
    table(page, "Ports", None, &headings, &rows);
    note_rest(page, ports.len(), "ports.csv");
}

/// Writes the ports for which only static facts are known.
pub(super) fn write_port_infos(page: &mut Markup, ports: &[PortInfo]) {
    let headings = [
        words("port"),
        words("interface"),
        words("driver"),
        words("link speed"),
        words("back end, and why"),
        words("stamps: send, arrival"),
    ];
    let rows: Vec<Vec<Cell>> = ports.iter().take(MOST_ROWS).map(info_cells).collect();
    table(page, "Ports", None, &headings, &rows);
}

fn info_cells(info: &PortInfo) -> Vec<Cell> {
    let speed = info.speed.map(|speed| quantity::scaled(speed.bits_per_second() as f64, "bit/s"));
    vec![
        Cell::text(info.name.clone()),
        Cell::text(info.location.clone()),
        Cell::text(info.driver.clone()),
        Cell::text(speed.unwrap_or_else(|| "not known".to_owned())),
        Cell::text(format!("{}: {}", info.back_end.name(), info.why)),
        Cell::text(format!("{}, {}", stamp_word(info.tx_stamp), stamp_word(info.rx_stamp))),
    ]
}

fn note_rest(page: &mut Markup, count: usize, file: &str) {
    if count > MOST_ROWS {
        page.open("p", &[("class", "muted")])
            .show(count - MOST_ROWS)
            .text(" more are in ")
            .text(file)
            .text(".")
            .close("p");
    }
}

fn port_row(port: &PortReport) -> Vec<Cell> {
    let events: Vec<String> = port
        .events
        .iter()
        .map(|event| {
            let until = event.until.map_or_else(|| "the end".to_owned(), quantity::time);
            format!("{} from {} to {until}", event.description(), quantity::time(event.from))
        })
        .collect();
    let mut cells = info_cells(&port.info);
    cells[0] = Cell::text(port.full_name());
    cells.extend([
        Cell::number(port.clock_bound.as_u64(), format!("± {}", quantity::time(port.clock_bound))),
        Cell::count(port.tx.handed_over),
        Cell::count(port.rx.seen),
        Cell::text(if events.is_empty() { "none".to_owned() } else { events.join("; ") }),
    ]);
    cells
}

fn write_limits(page: &mut Markup, limits: &[RigLimit]) {
    if limits.is_empty() {
        let text = "Not calibrated: no limit of this rig is known for the drivers and back ends of these ports. \
            packetrig test calibrate measures them.";
        page.element("p", &[("class", "absent")], text);
        return;
    }
    let headings = [
        words("back end"),
        words("driver"),
        number("frame size", "B"),
        number("highest rate without own loss", "frames/s"),
        number("latency of the rig itself", ""),
        number("send error p99", ""),
        number("one clock reading", ""),
        words("kernel"),
        words("measured"),
    ];
    let time = |time: Nanos| Cell::number(time.as_u64(), quantity::time(time));
    let rows: Vec<Vec<Cell>> = limits
        .iter()
        .map(|limit| {
            vec![
                Cell::text(limit.back_end.name()),
                Cell::text(limit.driver.clone()),
                Cell::count(limit.size.into()),
                Cell::count(limit.frames_per_second),
                Cell::or_absent(limit.latency_floor.map(time)),
                Cell::or_absent(limit.send_error_p99.map(time)),
                time(limit.clock_reading),
                Cell::text(limit.kernel.clone()),
                Cell::text(quantity::utc(limit.measured_wall_ns)),
            ]
        })
        .collect();
    table(page, "Limits of this rig", None, &headings, &rows);
}

fn write_machines(page: &mut Markup, report: &RunReport) {
    if report.nodes.iter().all(|node| node.machine.is_none()) {
        let text = "No node said what it runs on: none reported, or the report is from an older version.";
        page.element("p", &[("class", "absent")], text);
        return;
    }
    let headings =
        [words("node"), words("kernel"), words("architecture"), words("processor"), number("processors", "")];
    let rows: Vec<Vec<Cell>> = report.nodes.iter().take(MOST_ROWS).map(machine_row).collect();
    table(page, "Machines of the nodes", None, &headings, &rows);
    note_rest(page, report.nodes.len(), "nodes.csv");
}

/// A row for each node, even for one that did not report its machine.
fn machine_row(node: &NodeReport) -> Vec<Cell> {
    let machine = node.machine.as_ref();
    vec![
        Cell::text(node.node.clone()),
        Cell::or_absent(machine.map(|machine| Cell::text(machine.kernel.clone()))),
        Cell::or_absent(machine.map(|machine| Cell::text(machine.architecture.clone()))),
        Cell::or_absent(machine.and_then(|machine| machine.processor.clone()).map(Cell::text)),
        Cell::or_absent(
            machine.and_then(|machine| machine.processors).map(|count| Cell::count(count.into())),
        ),
    ]
}

fn write_clocks(page: &mut Markup, report: &RunReport) {
    if let [only] = report.nodes.as_slice()
        && only.clock.is_none()
    {
        let text = "One machine: sender and receivers read one clock, so no clocks are compared.";
        page.element("p", &[], text);
        return;
    }
    if report.nodes.is_empty() {
        page.element("p", &[("class", "absent")], "No node is known.");
        return;
    }
    let headings = [
        words("node"),
        words("reported"),
        words("clock compared by"),
        number("clock ahead of the controller", ""),
        number("error of that", ""),
        number("first frame late by", ""),
        number("error of that", ""),
    ];
    let rows: Vec<Vec<Cell>> = report.nodes.iter().take(MOST_ROWS).map(node_row).collect();
    table(page, "Nodes and their clocks", None, &headings, &rows);
    note_rest(page, report.nodes.len(), "nodes.csv");
    if let Some(skew) = &report.skew {
        page.element("p", &[], &skew_words(skew));
    }
}

fn node_row(node: &NodeReport) -> Vec<Cell> {
    let signed = |ns: i64| Cell::valued(ns.to_string(), quantity::signed_time(ns));
    let bound = |time: Nanos| Cell::number(time.as_u64(), format!("± {}", quantity::time(time)));
    let start = node.start;
    vec![
        Cell::text(node.node.clone()),
        Cell::text(if node.reported { "yes" } else { "no" }),
        Cell::or_absent(node.clock.map(|clock| Cell::text(clock.source.name()))),
        Cell::or_absent(node.clock.and_then(|clock| clock.offset_ns).map(signed)),
        Cell::or_absent(node.clock.and_then(|clock| clock.bound).map(bound)),
        Cell::or_absent(start.and_then(|start| start.skew_ns).map(signed)),
        Cell::or_absent(start.and_then(|start| start.bound).map(bound)),
    ]
}

fn skew_words(skew: &SkewReport) -> String {
    let spread = match skew.seen(quantity::time) {
        Some(seen) => format!("Senders began {seen}."),
        None => "How far apart senders began is not known.".to_owned(),
    };
    match skew.wanted.zip(skew.verdict) {
        Some((wanted, verdict)) => format!("{spread} Wanted at most {}: {verdict}.", quantity::time(wanted)),
        None => spread,
    }
}

fn write_captures(page: &mut Markup, report: &RunReport) {
    if report.captures.is_empty() {
        return;
    }
    page.element("h3", &[], "Captures");
    let headings = [words("file"), number("written", "frames"), number("dropped", "frames")];
    let rows: Vec<Vec<Cell>> = report
        .captures
        .iter()
        .map(|capture| {
            vec![Cell::text(capture.file.clone()), Cell::count(capture.written), Cell::count(capture.dropped)]
        })
        .collect();
    table(page, "Captures", None, &headings, &rows);
}

/// Writes the list of files beside the page.
pub(super) fn write_files<'a>(page: &mut Markup, files: impl IntoIterator<Item = &'a (&'a str, &'a str)>) {
    page.open("ul", &[("class", "files")]);
    for (name, about) in files {
        page.open("li", &[]).element("a", &[("href", name)], name).text(": ").text(about).close("li");
    }
    page.close("ul");
}

/// Writes a plan, folded.
pub(super) fn write_plan(page: &mut Markup, title: &str, document: &str) {
    page.open("details", &[]).element("summary", &[], title);
    // Slicing inside a character would panic.
    let shown = &document[..document.floor_char_boundary(MOST_PLAN)];
    page.open("pre", &[("tabindex", "0")]).text(shown).close("pre");
    if shown.len() < document.len() {
        let text = format!(
            "The first {} of {}.",
            quantity::bytes(shown.len() as u64),
            quantity::bytes(document.len() as u64)
        );
        page.element("p", &[("class", "muted")], &text);
    }
    page.close("details");
}
