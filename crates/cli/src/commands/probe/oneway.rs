//! `packetrig probe oneway`: from one interface of this machine to another, by one clock; or to another node, by clocks that are compared.

use super::{asking, bounds, show, stamp};
use crate::args::{OneWay, ProbeDestination, SessionFlags};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_plan::PortLocation;
use packetrig_probe::method::OneWayMethod;
use packetrig_probe::series::AnswerMeaning;
use packetrig_prober::ask::{self, AskEvent};
use packetrig_prober::ear::{PacketListener, SilencedPort, WantedPackets};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::signal;
use std::net::IpAddr;

pub(super) fn perform(arguments: &OneWay, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    refuse_idle(arguments)?;
    match &arguments.to {
        ProbeDestination::Here(to) => here(arguments, to, output),
        ProbeDestination::Node(node) => {
            let wanted = stamp::WantedSession { target: *node, compares_clocks: true };
            stamp::session(wanted, &arguments.session, &arguments.asking, output)
        }
    }
}

/// Refuses flags that mean nothing for where probes go.
fn refuse_idle(arguments: &OneWay) -> Result<(), Error> {
    let SessionFlags { auth, clock_bound, ntp } = &arguments.session;
    let refused = |what: &str| Err(Error::Usage(what.to_owned()));
    match &arguments.to {
        ProbeDestination::Node(_) if arguments.address.is_some() => {
            refused("--address is only for an interface of this machine; name a node by its address")
        }
        ProbeDestination::Here(_) if auth.is_some() || clock_bound.is_some() || *ntp => refused(
            "--auth, --clock-bound and --ntp are for a session with another node; both interfaces of this machine have one clock",
        ),
        ProbeDestination::Node(_) | ProbeDestination::Here(_) => Ok(()),
    }
}

/// To another interface of this machine.
fn here(arguments: &OneWay, to: &PortLocation, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let asking = &arguments.asking;
    let permit = bounds::permit(&asking.bounds)?;
    let (index, address) = arrival(to, arguments.address)?;
    let way = asking::way(asking, &permit, address)?;
    let namespace = |location: &PortLocation| location.namespace.clone();
    let own = SilencedPort::any_port(namespace(&way.location).as_deref(), way.ends.source)?;
    let there = SilencedPort::any_port(namespace(to).as_deref(), address)?;
    let wanted = WantedPackets { addresses: vec![address], port: Some(there.port()) };
    let mut ears = [PacketListener::open(to, index, &wanted)?];
    let method = OneWayMethod::new(way.ends, own.port(), there.port(), permit.about.clone());
    let from = way.location.to_string();
    let (line, mut header) = asking::line(asking, way, Box::new(method), (0, 1))?;
    header.targets = vec![format!("{from} to {to}")];
    let headers = [header];
    signal::latch()?;
    let is_told = !asking.quiet && !asking.json;
    let mut tell = |event: AskEvent<'_>| {
        if let AskEvent::Answered { reply, meaning: AnswerMeaning::First(Some(took)), .. } = event
            && is_told
        {
            output.line(format_args!("number={} delay={}", reply.number, show::took(took)));
        }
    };
    let outcomes = ask::run(&mut [line], &mut ears, asking::patience(asking), &mut tell)?;
    asking::write(asking, &headers, &outcomes)?;
    for (header, outcome) in headers.iter().zip(&outcomes) {
        if asking.json {
            let mut value = show::json(header, outcome);
            // One clock for both ends: what is a round trip elsewhere is the way there.
            value["delay"] = value["rtt"].take();
            value["clock"] = "one".into();
            output.json(&value)?;
        } else {
            let text = show::summary(header, outcome).replace("  round trip", "  delay, by one clock,");
            output.text(text.replace("answered", "arrived"));
        }
    }
    Ok(asking::exit(asking, &outcomes))
}

/// Where probes arrive: the interface's number and the address to send to.
fn arrival(to: &PortLocation, wanted: Option<IpAddr>) -> Result<(u32, IpAddr), Error> {
    let netns = NetNs::open_or_current(to.namespace.as_deref())?;
    let mut links = NamespaceLinks::open(&netns)?;
    let index = links.by_name(&to.interface)?.index;
    let mut addresses: Vec<IpAddr> =
        links.addresses()?.into_iter().filter(|address| address.index == index).map(|a| a.ip).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    let found = addresses.into_iter().find(|ip| wanted.is_none_or(|wanted| wanted == *ip));
    let none = || {
        let what = wanted.map_or_else(|| "no address".to_owned(), |ip| format!("not the address {ip}"));
        Error::Usage(format!("{to} has {what}; add an address that probes can be sent to"))
    };
    found.map(|ip| (index, ip)).ok_or_else(none)
}
