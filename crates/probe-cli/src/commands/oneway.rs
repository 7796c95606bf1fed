//! `packetrig probe oneway`: measures one-way delays. Between two interfaces of this machine, one clock
//! measures both ends. To another node, the session compares the clocks of both ends.

use super::asking::{self, ProbeLineRun, ProbeLineTurn, TargetProbeSeries};
use super::{bounds, show, stamp};
use crate::HostProgram;
use crate::args::{OneWayArgs, ProbeDestination, SessionFlags};
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::method::OneWayMethod;
use packetrig_probe::series::AnswerMeaning;
use packetrig_probe_io::ask::ProbeSeriesEvent;
use packetrig_probe_io::listener::{PacketListener, SilencedPort, WantedPackets};
use packetrig_program::exit::CommandExit;
use packetrig_program::output::CommandOutput;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::signal;
use std::net::IpAddr;

pub(super) fn run_oneway(
    arguments: &OneWayArgs,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    refuse_unused_options(arguments)?;
    match &arguments.to {
        ProbeDestination::Here(to) => measure_local_interfaces(arguments, to, host, output),
        ProbeDestination::Node(node) => {
            let wanted = stamp::StampSessionRequest { target: *node, compares_clocks: true };
            stamp::run_session(wanted, &arguments.session, &arguments.asking, host, output)
        }
    }
}

/// Refuses flags that have no effect for this kind of destination.
fn refuse_unused_options(arguments: &OneWayArgs) -> Result<(), Error> {
    let SessionFlags { auth, clock_bound, ntp } = &arguments.session;
    let refusal = match &arguments.to {
        ProbeDestination::Node(_) if arguments.address.is_some() => {
            "--address is only for an interface of this machine; name a node by its address"
        }
        ProbeDestination::Here(_) if auth.is_some() || clock_bound.is_some() || *ntp => {
            "--auth, --clock-bound and --ntp are for a session with another node; interfaces of this machine share one clock"
        }
        ProbeDestination::Node(_) | ProbeDestination::Here(_) => return Ok(()),
    };
    Err(Error::Usage(refusal.to_owned()))
}

/// Measures the delay from one interface of this machine to another.
fn measure_local_interfaces(
    arguments: &OneWayArgs,
    to: &PortLocation,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let asking = &arguments.asking;
    let permit = bounds::read_permit(&asking.bounds)?;
    let ArrivalInterface { index, address } = find_arrival_interface(to, arguments.address)?;
    let way = asking::find_permitted_path(asking, &permit, address)?;
    // Both ports are reserved and silenced: the kernel must answer neither the arriving probes nor the
    // packets that they cause.
    let own = SilencedPort::reserve_any_port(way.location.namespace.as_deref(), way.ends.source)?;
    let there = SilencedPort::reserve_any_port(to.namespace.as_deref(), address)?;
    // The listener is at the receiving interface. The port distinguishes these probes from all other traffic
    // there.
    let wanted = WantedPackets { addresses: vec![address], port: Some(there.port()) };
    let mut listeners = [PacketListener::open_at_interface(to, index, &wanted)?];
    let method = OneWayMethod::new(way.ends, own.port(), there.port(), permit.about.clone());
    let from = way.location.to_string();
    let TargetProbeSeries { line, mut header } =
        asking::open_probe_line(asking, host.files, way, Box::new(method), ProbeLineTurn::ALONE)?;
    header.targets = vec![format!("{from} to {to}")];
    let headers = [header];
    signal::record_end_signals()?;
    let has_lines = !asking.quiet && !asking.json;
    let run = ProbeLineRun { asking, host, measured: "one way from", headers: &headers };
    let outcomes = run.run_lines(&mut [line], &mut listeners, &mut |event: ProbeSeriesEvent<'_>| {
        if let ProbeSeriesEvent::Answered { reply, meaning: AnswerMeaning::First(Some(took)), .. } = event
            && has_lines
        {
            output.write_line(format_args!(
                "seq={} delay={}",
                reply.number,
                show::format_measured_time(took)
            ));
        }
    })?;
    asking::write_records(asking, host.files, &headers, &outcomes)?;
    for (header, outcome) in headers.iter().zip(&outcomes) {
        if asking.json {
            let mut value = show::series_json(header, outcome);
            // The arrival of the probe itself takes the place of an answer, so the field for the round trip
            // contains the one-way delay.
            value["delay"] = value["rtt"].take();
            value["clock"] = "one".into();
            output.write_json(&value)?;
        } else {
            // The summary is written for round trips. Only these two phrases of it are wrong for one
            // direction.
            let text = show::summary_text(header, outcome).replace("  round trip", "  delay, by one clock,");
            output.write_text(text.replace("answered", "arrived"));
        }
    }
    Ok(asking::exit_code_of_series(asking, &outcomes))
}

struct ArrivalInterface {
    /// Index of the interface.
    index: u32,
    address: IpAddr,
}

fn find_arrival_interface(to: &PortLocation, wanted: Option<IpAddr>) -> Result<ArrivalInterface, Error> {
    let netns = NetNs::open_named_or_current_namespace(to.namespace.as_deref())?;
    let mut links = NamespaceLinks::open_in(&netns)?;
    let index = links.find_link_by_name(&to.interface)?.index;
    let mut addresses: Vec<IpAddr> =
        links.list_addresses()?.into_iter().filter(|address| address.index == index).map(|a| a.ip).collect();
    // The sort is stable, so the first entry is the kernel's first IPv4 address, or its first IPv6 address if
    // there is no IPv4 address.
    addresses.sort_by_key(IpAddr::is_ipv6);
    let found = addresses.into_iter().find(|ip| wanted.is_none_or(|wanted| wanted == *ip));
    found.map(|address| ArrivalInterface { index, address }).ok_or_else(|| {
        let what = wanted
            .map_or_else(|| "has no address".to_owned(), |ip| format!("does not have the address {ip}"));
        Error::Usage(format!("{to} {what}; add an address that probes can be sent to"))
    })
}
