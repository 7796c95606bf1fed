//! `packetrig probe ping`: measures round trips to targets that need no special software.

use super::asking::{self, ProbeLineRun, ProbeLineTurn, TargetProbeSeries};
use super::{bounds, show};
use crate::args::PingArgs;
use crate::error::Error;
use crate::{HostProgram, RecordFiles};
use packetrig_probe::ProbePermit;
use packetrig_probe::answer::PathFailure;
use packetrig_probe::method::{DatagramMethod, EchoMethod, ProbeMethod, ReplyMeaning, SynMethod};
use packetrig_probe::series::AnswerMeaning;
use packetrig_probe_io::ask::ProbeSeriesEvent;
use packetrig_probe_io::listener::SilencedPort;
use packetrig_probe_io::path::ProbePath;
use packetrig_program::exit::CommandExit;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_sys::signal;
use serde_json::json;

pub(super) fn run_ping(
    arguments: &PingArgs,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let asking = &arguments.asking;
    bounds::print_resolved_addresses(&arguments.targets);
    bounds::refuse_repeated_addresses(&arguments.targets)?;
    let permit = bounds::read_permit(&asking.bounds)?;
    let ways: Vec<ProbePath> = arguments
        .targets
        .iter()
        .map(|target| asking::find_permitted_path(asking, &permit, target.address))
        .collect::<Result<_, _>>()?;
    // The guards are bound to a variable with a name, because the pattern `_` would drop them at once: the
    // settings of the loopback interface are needed until the end of this function.
    let _loopback = asking::open_loopback(&ways)?;
    let port = AnswerPort::reserve_own_port(arguments, &ways)?;
    let mut listeners = asking::open_listeners(&ways, port.number())?;
    let mut lines = Vec::new();
    let mut headers = Vec::new();
    for asked in open_probe_lines(arguments, host.files, &permit, &ways, &port)? {
        lines.push(asked.line);
        headers.push(asked.header);
    }
    signal::record_end_signals()?;
    let names: Vec<String> = arguments.targets.iter().map(ToString::to_string).collect();
    let has_lines = !asking.quiet && !asking.json;
    let run = ProbeLineRun { asking, host, measured: "round trip to", headers: &headers };
    let outcomes = run.run_lines(&mut lines, &mut listeners, &mut |event: ProbeSeriesEvent<'_>| {
        if has_lines {
            print_event(&names, event, output);
        }
    })?;
    // A frame that the kernel dropped before packetrig read it must not be mistaken for a loss on the path.
    let lost: u64 = listeners.iter_mut().map(|listener| listener.read_dropped_frames().unwrap_or(0)).sum();
    if lost > 0 {
        print_remark(format_args!(
            "ping: warning: frames lost before packetrig read them: {lost}; answers may be among them"
        ));
    }
    asking::write_records(asking, host.files, &headers, &outcomes)?;
    let each = headers.iter().zip(&outcomes);
    if asking.json {
        let each = each.map(|(header, outcome)| show::series_json(header, outcome));
        output.write_json(&json!({ "targets": each.collect::<Vec<_>>(), "unheard": lost }))?;
    } else {
        each.for_each(|(header, outcome)| output.write_text(show::summary_text(header, outcome)));
    }
    Ok(asking::exit_code_of_series(asking, &outcomes))
}

/// The port of this machine at which answers arrive.
enum AnswerPort {
    /// For echo requests, which have no port: their identifier has the same purpose.
    None,
    /// For UDP probes: the kernel does not answer packets to this port.
    Silenced(SilencedPort),
    /// For TCP SYNs: the kernel answers packets to this port with a TCP reset.
    Reserved(ReservedPort),
}

impl AnswerPort {
    fn reserve_own_port(arguments: &PingArgs, ways: &[ProbePath]) -> Result<Self, Error> {
        let Some(first) = ways.first() else { return Ok(Self::None) };
        // All targets are reached from the same namespace: `--through` is given once, and the routing table
        // does not leave its namespace.
        let namespace = first.location.namespace.as_deref();
        let others: Vec<_> =
            ways.iter().map(|way| way.ends.source).filter(|ip| *ip != first.ends.source).collect();
        // An answered SYN leaves a half-open connection at the target. Only the RST of this machine's kernel
        // closes it, so the port is reserved but not silenced.
        if arguments.tcp.is_some() {
            let netns = NetNs::open_named_or_current_namespace(namespace)?;
            return Ok(Self::Reserved(ReservedPort::reserve_any_tcp(&netns, first.ends.source)?));
        }
        if arguments.udp.is_none() {
            return Ok(Self::None);
        }
        // Targets in different networks may be reached from different addresses of this machine, so the same
        // port is reserved at all of these addresses.
        let mut silenced = SilencedPort::reserve_any_port(namespace, first.ends.source)?;
        let mut addresses = vec![first.ends.source];
        for ip in others {
            if !addresses.contains(&ip) {
                silenced.reserve_same_port_at(namespace, ip)?;
                addresses.push(ip);
            }
        }
        Ok(Self::Silenced(silenced))
    }

    fn number(&self) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Silenced(port) => Some(port.port()),
            Self::Reserved(port) => Some(port.port()),
        }
    }
}

fn open_probe_lines(
    arguments: &PingArgs,
    files: RecordFiles,
    permit: &ProbePermit,
    ways: &[ProbePath],
    port: &AnswerPort,
) -> Result<Vec<TargetProbeSeries<'static>>, Error> {
    // Without a port this is 0: echo requests use an identifier instead.
    let own_port = port.number().unwrap_or(0);
    // The identifier differs from run to run, so that a late answer to an earlier run is not mistaken for an
    // answer to this run.
    let number = asking::random_number();
    let mut lines = Vec::new();
    for (nth, way) in ways.iter().enumerate() {
        let about = permit.about.clone();
        let method: Box<dyn ProbeMethod> = match (arguments.udp, arguments.tcp) {
            (Some(port), _) => Box::new(DatagramMethod::new(way.ends, own_port, port, about)),
            (_, Some(port)) => Box::new(SynMethod::new(way.ends, own_port, port, number)),
            _ => {
                let [.., high, low] = number.to_be_bytes();
                Box::new(EchoMethod::new(way.ends, u16::from_be_bytes([high, low]), about))
            }
        };
        let turn = ProbeLineTurn { nth, of: ways.len() };
        lines.push(asking::open_probe_line(&arguments.asking, files, way.clone(), method, turn)?);
    }
    Ok(lines)
}

fn print_event(names: &[String], event: ProbeSeriesEvent<'_>, output: &mut CommandOutput) {
    match event {
        ProbeSeriesEvent::Sent { .. } => {}
        ProbeSeriesEvent::Ended { line, end } => {
            print_line(names, line, show::series_end_text(&end).unwrap_or_default(), output);
        }
        ProbeSeriesEvent::Answered { line, reply, meaning, answer, length } => {
            let says = match reply.says {
                ReplyMeaning::Echo => String::new(),
                ReplyMeaning::Open => " open".into(),
                ReplyMeaning::Closed => " closed".into(),
                ReplyMeaning::Trouble(trouble) => {
                    format!(" {}: {}", answer.from, describe_path_failure(trouble))
                }
            };
            let means = match meaning {
                AnswerMeaning::First(Some(took)) => format!(" time={}", show::format_measured_time(took)),
                // The packet answers no probe of this series.
                AnswerMeaning::Stray => return,
                other => show::describe_answer_meaning(other).to_owned(),
            };
            // IPv4 and IPv6 have different names for this field; other ping programs print the same
            // abbreviations.
            let hop_limit = if answer.from.is_ipv4() { "ttl" } else { "hlim" };
            let number = reply.number;
            let text = format!("seq={number} {length} B {hop_limit}={}{says}{means}", answer.hop_limit);
            print_line(names, line, text, output);
        }
    }
}

const fn describe_path_failure(trouble: PathFailure) -> &'static str {
    match trouble {
        PathFailure::PortUnreachable => "port unreachable",
        PathFailure::Prohibited => "prohibited",
        PathFailure::Unreachable => "unreachable",
        PathFailure::TooManyHops => "TTL exceeded",
        PathFailure::TooLong => "packet too big",
        PathFailure::Other => "another ICMP error",
    }
}

fn print_line(names: &[String], line: usize, text: String, output: &mut CommandOutput) {
    output.write_line(format_args!("{}: {text}", names.get(line).map_or("", String::as_str)));
}
