//! `packetrig probe ping`: targets that run nothing of ours.

use super::{asking, bounds, show};
use crate::args::Ping;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{Output, remark};
use packetrig_probe::Permit;
use packetrig_probe::header::Header;
use packetrig_probe::method::{Datagram, Echo, Method, Says, Syn};
use packetrig_probe::series::Meaning;
use packetrig_prober::ask::{self, Event, Line};
use packetrig_prober::ear::Hush;
use packetrig_prober::path::Way;
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_sys::signal;
use serde_json::json;

pub(super) fn perform(arguments: &Ping, output: &mut Output) -> Result<Exit, Error> {
    let asking = &arguments.asking;
    bounds::tell_addresses(&arguments.targets);
    bounds::distinct(&arguments.targets)?;
    let permit = bounds::permit(&asking.bounds)?;
    let ways: Vec<Way> = arguments
        .targets
        .iter()
        .map(|target| asking::way(asking, &permit, target.address))
        .collect::<Result<_, _>>()?;
    let _loopback = asking::open_loopback(&ways)?;
    let port = OwnPort::hold(arguments, &ways)?;
    let mut ears = asking::ears(&ways, port.number())?;
    let (mut lines, headers) = lines(arguments, &permit, &ways, &port)?;
    signal::latch()?;
    let names: Vec<String> = arguments.targets.iter().map(ToString::to_string).collect();
    let is_told = !asking.quiet && !asking.json;
    let mut tell = |event: Event<'_>| {
        if is_told {
            say(&names, event, output);
        }
    };
    let outcomes = ask::run(&mut lines, &mut ears, asking::patience(asking), &mut tell)?;
    let lost: u64 = ears.iter_mut().map(|ear| ear.lost().unwrap_or(0)).sum();
    if lost > 0 {
        remark(format_args!("ping: {lost} frames came while nobody listened; answers may be among them"));
    }
    asking::write(asking, &headers, &outcomes)?;
    let each = headers.iter().zip(&outcomes);
    if asking.json {
        let each = each.map(|(header, outcome)| show::json(header, outcome));
        output.json(&json!({ "targets": each.collect::<Vec<_>>(), "unheard": lost }))?;
    } else {
        each.for_each(|(header, outcome)| output.text(show::summary(header, outcome)));
    }
    Ok(asking::exit(asking, &outcomes))
}

/// The own port that answers come to.
enum OwnPort {
    None,
    /// Nothing that comes to it is answered.
    Hushed(Hush),
    /// The kernel takes back what is offered to it.
    Reserved(ReservedPort),
}

impl OwnPort {
    fn hold(arguments: &Ping, ways: &[Way]) -> Result<Self, Error> {
        let Some(first) = ways.first() else { return Ok(Self::None) };
        let namespace = first.location.namespace.as_deref();
        let others: Vec<_> =
            ways.iter().map(|way| way.ends.source).filter(|ip| *ip != first.ends.source).collect();
        if arguments.tcp.is_some() {
            let netns = NetNs::open_or_current(namespace)?;
            return Ok(Self::Reserved(ReservedPort::tcp(&netns, first.ends.source)?));
        }
        if arguments.udp.is_none() {
            return Ok(Self::None);
        }
        let mut hush = Hush::any_port(namespace, first.ends.source)?;
        let mut held = vec![first.ends.source];
        for ip in others {
            if !held.contains(&ip) {
                hush.also(namespace, ip)?;
                held.push(ip);
            }
        }
        Ok(Self::Hushed(hush))
    }

    fn number(&self) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Hushed(hush) => Some(hush.port()),
            Self::Reserved(port) => Some(port.port()),
        }
    }
}

fn lines(
    arguments: &Ping,
    permit: &Permit,
    ways: &[Way],
    port: &OwnPort,
) -> Result<(Vec<Line<'static>>, Vec<Header>), Error> {
    let number = asking::any_number();
    let own = port.number().unwrap_or(0);
    let method = |way: &Way| -> Box<dyn Method> {
        let (ends, about) = (way.ends, permit.about.clone());
        match (arguments.udp, arguments.tcp) {
            (Some(port), _) => Box::new(Datagram::new(ends, own, port, about)),
            (_, Some(port)) => Box::new(Syn::new(ends, own, port, number)),
            _ => {
                let [.., high, low] = number.to_be_bytes();
                Box::new(Echo::new(ends, u16::from_be_bytes([high, low]), about))
            }
        }
    };
    let each = ways.iter().enumerate();
    let line = |(nth, way): (usize, &Way)| {
        asking::line(&arguments.asking, way.clone(), method(way), (nth, ways.len()))
    };
    let each: Result<Vec<_>, Error> = each.map(line).collect();
    Ok(each?.into_iter().unzip())
}

fn say(names: &[String], event: Event<'_>, output: &mut Output) {
    let (line, text) = match event {
        Event::Ended { line, end } => (line, show::end(&end).unwrap_or_default()),
        Event::Answered { line, reply, meaning, answer, length } => {
            let says = match reply.says {
                Says::Echo => String::new(),
                Says::Open => " open".into(),
                Says::Closed => " closed".into(),
                Says::Trouble(trouble) => format!(" {trouble:?} says {}", answer.from),
            };
            let means = match meaning {
                Meaning::First(took) => {
                    took.map(|took| format!(" time={}", show::took(took))).unwrap_or_default()
                }
                Meaning::Duplicate => " again".into(),
                Meaning::Corrupted => " damaged".into(),
                Meaning::Refused => " refused".into(),
                Meaning::Stray => return,
            };
            (line, format!("number={} {length} B hops={}{says}{means}", reply.number, answer.hops))
        }
    };
    output.line(format_args!("{}: {text}", names.get(line).map_or("", String::as_str)));
}
