//! `packetrig probe ping`: targets that run nothing of ours.

use super::{asking, bounds, show};
use crate::args::PingArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, remark};
use packetrig_probe::ProbePermit;
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::method::{DatagramMethod, EchoMethod, ProbeMethod, ReplyMeaning, SynMethod};
use packetrig_probe::series::AnswerMeaning;
use packetrig_prober::ask::{self, AskEvent, ProbeLine};
use packetrig_prober::ear::SilencedPort;
use packetrig_prober::path::ProbePath;
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_sys::signal;
use serde_json::json;

pub(super) fn perform(arguments: &PingArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let asking = &arguments.asking;
    bounds::tell_addresses(&arguments.targets);
    bounds::distinct(&arguments.targets)?;
    let permit = bounds::permit(&asking.bounds)?;
    let ways: Vec<ProbePath> = arguments
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
    let mut tell = |event: AskEvent<'_>| {
        if is_told {
            say(&names, event, output);
        }
    };
    let outcomes = ask::run(&mut lines, &mut ears, asking::patience(asking), &mut tell)?;
    let lost: u64 = ears.iter_mut().map(|ear| ear.lost().unwrap_or(0)).sum();
    if lost > 0 {
        remark(format_args!(
            "ping: {lost} frames were lost before packetrig read them; answers may be among them"
        ));
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
    Hushed(SilencedPort),
    /// The kernel takes back what is offered to it.
    Reserved(ReservedPort),
}

impl OwnPort {
    fn hold(arguments: &PingArgs, ways: &[ProbePath]) -> Result<Self, Error> {
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
        let mut hush = SilencedPort::any_port(namespace, first.ends.source)?;
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
    arguments: &PingArgs,
    permit: &ProbePermit,
    ways: &[ProbePath],
    port: &OwnPort,
) -> Result<(Vec<ProbeLine<'static>>, Vec<ProbeHeader>), Error> {
    let number = asking::any_number();
    let own = port.number().unwrap_or(0);
    let method = |way: &ProbePath| -> Box<dyn ProbeMethod> {
        let (ends, about) = (way.ends, permit.about.clone());
        match (arguments.udp, arguments.tcp) {
            (Some(port), _) => Box::new(DatagramMethod::new(ends, own, port, about)),
            (_, Some(port)) => Box::new(SynMethod::new(ends, own, port, number)),
            _ => {
                let [.., high, low] = number.to_be_bytes();
                Box::new(EchoMethod::new(ends, u16::from_be_bytes([high, low]), about))
            }
        }
    };
    let each = ways.iter().enumerate();
    let line = |(nth, way): (usize, &ProbePath)| {
        asking::line(&arguments.asking, way.clone(), method(way), (nth, ways.len()))
    };
    let each: Result<Vec<_>, Error> = each.map(line).collect();
    Ok(each?.into_iter().unzip())
}

fn say(names: &[String], event: AskEvent<'_>, output: &mut CommandOutput) {
    let (line, text) = match event {
        AskEvent::Ended { line, end } => (line, show::end(&end).unwrap_or_default()),
        AskEvent::Answered { line, reply, meaning, answer, length } => {
            let says = match reply.says {
                ReplyMeaning::Echo => String::new(),
                ReplyMeaning::Open => " open".into(),
                ReplyMeaning::Closed => " closed".into(),
                ReplyMeaning::Trouble(trouble) => format!(" {trouble:?} says {}", answer.from),
            };
            let means = match meaning {
                AnswerMeaning::First(took) => {
                    took.map(|took| format!(" time={}", show::took(took))).unwrap_or_default()
                }
                AnswerMeaning::Duplicate => " again".into(),
                AnswerMeaning::Corrupted => " damaged".into(),
                AnswerMeaning::Refused => " refused".into(),
                AnswerMeaning::Stray => return,
            };
            (line, format!("number={} {length} B hops={}{says}{means}", reply.number, answer.hops))
        }
    };
    output.line(format_args!("{}: {text}", names.get(line).map_or("", String::as_str)));
}
