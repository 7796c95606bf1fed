//! `packetrig probe oneprobe`: measures loss, reordering and round trips of both directions from the answers
//! of a web server.

use super::bounds;
use super::mechanism::{self, ChosenMechanism};
use super::setup::ProbeSetup;
use crate::args::{OneprobeArgs, ProbeTarget};
use crate::error::Error;
use packetrig_probe::oneprobe::{
    ArrivalOrder, DirectionCounts, ForwardOutcome, HttpRequest, OneprobeMachine, OneprobeOptions,
    OneprobeOutcome, OneprobeReport, ProbeVerdict, TimeSpread,
};
use packetrig_probe_io::oneprobe::{OneprobeDriver, OneprobeEndReason};
use packetrig_program::exit::CommandExit;
use packetrig_program::is_interrupted;
use packetrig_program::numbers::{format_count, format_percent};
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_sys::{clock, private_files, signal};
use packetrig_units::Nanos;
use serde_json::json;
use std::io;
use std::path::Path;

pub(super) fn run_oneprobe(
    arguments: &OneprobeArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let ProbeTarget { address, name } = &arguments.target;
    bounds::print_resolved_addresses([&arguments.target]);
    let setup = ProbeSetup::new(&arguments.bounds, &arguments.outlet, *address, mechanism::choose_mechanism)?;
    signal::record_end_signals()?;
    // The Host header contains the host in the form that a URI has, with brackets around an IPv6 address (RFC
    // 3986 section 3.2.2).
    let host = arguments.host.as_ref().or(name.as_ref()).cloned().unwrap_or_else(|| match address {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    });
    let request = HttpRequest::new(&host, &arguments.path, setup.permit.about.as_deref());
    let options = OneprobeOptions {
        count: arguments.count,
        every_ns: arguments.interval.as_u64(),
        payload: arguments.payload,
        answer: arguments.answer,
        seed: clock::wall_clock_ns(),
    };
    let mut machine = OneprobeMachine::new(options, request);
    let mut dispatcher = setup.open_dispatcher()?;
    // Only a few segments are in flight at a time, so the packet ring needs no extra blocks.
    let mut listener = setup.open_listener(0)?;
    let mut talk = OneprobeDriver {
        way: &setup.way,
        port: arguments.port,
        own_port: setup.own_port(),
        dispatcher: &mut dispatcher,
        listener: &mut listener,
    };
    let has_lines = !arguments.quiet && !arguments.json;
    let mut told = |outcome: &OneprobeOutcome| {
        if has_lines {
            output.write_line(outcome_line(outcome));
        }
    };
    // The report is written and printed for every reason why the series ended: the probes before a failure
    // were measured all the same.
    let end = talk.run_series(&mut machine, &is_interrupted, &mut told)?;
    let report = machine.report().0;
    if let Some(file) = &arguments.write {
        write_outcomes(file, report)
            .map_err(|source| Error::Write { what: format!("to {}", file.display()), source })?;
    }
    print_report(arguments, report, end, &setup.chosen, output)?;
    Ok(match end {
        OneprobeEndReason::Done => CommandExit::Ok,
        OneprobeEndReason::Stopped => CommandExit::Interrupted,
        OneprobeEndReason::Lossy | OneprobeEndReason::Prohibited => CommandExit::Inconclusive,
        OneprobeEndReason::Failed(_) => CommandExit::World,
    })
}

/// Describes the outcome of a probe in one line.
fn outcome_line(outcome: &OneprobeOutcome) -> String {
    let what = match outcome.verdict {
        ProbeVerdict::Ambiguous(why) => format!("ambiguous: {}", why.as_text()),
        ProbeVerdict::Told { forward, reverse } => {
            let lost = [("forward", forward.lost_segments()), ("reverse", reverse.lost_segments())];
            let lost = lost.iter().filter(|(_, segments)| *segments > 0);
            let mut parts: Vec<_> = lost.map(|(way, segments)| format!("{segments} lost {way}")).collect();
            let is_overtaken = forward == ForwardOutcome::Both(ArrivalOrder::Changed);
            parts.extend(is_overtaken.then(|| "reordered forward".to_owned()));
            parts.extend((reverse.order == ArrivalOrder::Changed).then(|| "reordered reverse".to_owned()));
            parts.extend(outcome.round_trip_ns.map(|ns| format!("time={}", Nanos::new(ns))));
            parts.join(", ")
        }
    };
    format!("seq={} {what}", outcome.number)
}

fn write_outcomes(file: &Path, report: &OneprobeReport) -> io::Result<()> {
    let mut lines = String::new();
    for outcome in &report.outcomes {
        lines.push_str(&serde_json::to_string(outcome)?);
        lines.push('\n');
    }
    private_files::write_file(file, lines)
}

fn print_report(
    arguments: &OneprobeArgs,
    report: &OneprobeReport,
    end: OneprobeEndReason,
    by: &ChosenMechanism,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    match end {
        OneprobeEndReason::Done | OneprobeEndReason::Stopped => {}
        OneprobeEndReason::Lossy => {
            print_remark("oneprobe: stopped: more probes were lost than the limits allow");
        }
        OneprobeEndReason::Prohibited => {
            print_remark("oneprobe: stopped: a host on the path forbids these probes");
        }
        OneprobeEndReason::Failed(failure) => print_remark(format_args!("oneprobe: {failure}")),
    }
    // The two are reported separately: the server's kernel answers a handshake, but the server program
    // answers data, and it may be slow.
    let data = TimeSpread::from_times(&report.round_trips);
    let handshake = TimeSpread::from_times(&report.handshakes);
    if arguments.json {
        output.write_json(&json!({
            "target": arguments.target.address,
            "port": arguments.port,
            "mechanism": by.mechanism,
            "why": by.why,
            "end": end,
            "report": report,
            "round_trip": data,
            "handshake": handshake,
        }))?;
        return Ok(());
    }
    output.write_text(report_text(report, data, handshake));
    output.write_line(format_args!("released by {} ({})", by.mechanism, by.why));
    Ok(())
}

fn report_text(report: &OneprobeReport, data: Option<TimeSpread>, handshake: Option<TimeSpread>) -> String {
    let mut lines = vec![format!(
        "probes: {}, TCP connections: {}, probes with an unambiguous answer: {}",
        format_count(report.probes),
        format_count(report.connections),
        format_count(report.told)
    )];
    // If several courses of events can explain the answers to a probe, the probe proves nothing: it counts
    // neither as lost nor as arrived.
    for (why, number) in &report.ambiguous {
        lines.push(format!("  ambiguous: {} ({})", format_count(*number), why.as_text()));
    }
    for (name, way) in [("forward", report.forward), ("reverse", report.reverse)] {
        lines.push(direction_text(name, way));
    }
    for (name, spread) in [("round trip (data)", data), ("round trip (handshake)", handshake)] {
        let Some(spread) = spread else { continue };
        let [min, p50, max] = [spread.min_ns, spread.p50_ns, spread.max_ns].map(Nanos::new);
        let p95 =
            spread.p95_ns.map_or_else(|| super::UNKNOWN_FIGURE.to_owned(), |ns| Nanos::new(ns).to_string());
        lines.push(format!(
            "{name}: min {min}, p50 {p50}, p95 {p95}, max {max} of {}",
            format_count(spread.samples)
        ));
    }
    lines.join("\n") + "\n"
}

fn direction_text(name: &str, way: DirectionCounts) -> String {
    format!(
        "{name}: {} of {} segments lost ({}), {} of {} pairs reordered ({})",
        format_count(way.lost),
        format_count(way.sent),
        format_percent(way.lost, way.sent),
        format_count(way.reordered),
        format_count(way.ordered),
        format_percent(way.reordered, way.ordered)
    )
}
