//! `packetrig probe reflect`: runs a STAMP reflector, which answers the test packets of STAMP senders.

use super::{bounds, stamp};
use crate::args::ReflectArgs;
use crate::error::Error;
use crate::needs;
use packetrig_probe::session::reflector::ReflectorSettings;
use packetrig_probe::session::{ReflectionRefusal, StampReflector};
use packetrig_probe_io::reflect::{self, RequestCounts};
use packetrig_program::exit::CommandExit;
use packetrig_program::is_interrupted;
use packetrig_program::numbers::format_count;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_program::sandbox;
use packetrig_sys::netns::NetNs;
use packetrig_sys::udp::WatchedSocket;
use packetrig_sys::{clock, signal};

pub(super) fn run_reflect_command(
    arguments: &ReflectArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let opening = sandbox::begin_sandbox(&arguments.user.sandbox, needs::reflect_program_needs(arguments))?;
    let permit = bounds::read_permit(&arguments.bounds)?;
    let settings = ReflectorSettings {
        key: arguments.auth.as_deref().map(stamp::read_key).transpose()?,
        is_stateful: !arguments.stateless,
        interval: arguments.min_interval,
        burst: arguments.burst,
        synchronised_ns: arguments.clock_bound.map(packetrig_units::Nanos::as_u64),
    };
    // At an unspecified address, the routing table would choose the source address of each answer, and
    // senders ignore answers from another address than the one that they sent to.
    if arguments.address.ip().is_unspecified() {
        let why = "a reflector answers only from the address that it listens on; name one address, and start \
            one reflector for each address";
        return Err(Error::Usage(format!("{}: {why}", arguments.address)));
    }
    let netns = NetNs::open_named_or_current_namespace(arguments.netns.as_deref())?;
    // A port below 1024 and another namespace both need rights, so the socket is opened before the rights are
    // dropped.
    let mut socket = WatchedSocket::bind_in(&netns, arguments.address)?;
    signal::record_end_signals()?;
    print_remark(format_args!("reflect: listening on {}", socket.address()?));
    // The socket is open now, and answering requests needs no further rights.
    opening.drop_rights()?;
    let end = arguments.time.map(|time| clock::monotonic_ns().saturating_add(time.as_u64()));
    let counts = reflect::run_reflector(
        &mut socket,
        &mut StampReflector::new(settings),
        // The permission is checked for each request, because its last day can pass while the reflector runs.
        &|ip| bounds::permit_target(&permit, ip).is_ok(),
        &|_: &RequestCounts| is_interrupted() || end.is_some_and(|end| clock::monotonic_ns() >= end),
    )?;
    if arguments.json {
        output.write_json(&counts)?;
    } else {
        output.write_text(counts_text(&counts));
    }
    Ok(CommandExit::Ok)
}

fn counts_text(counts: &RequestCounts) -> String {
    let mut text =
        format!("{} requests, {} reflected", format_count(counts.requests), format_count(counts.reflected));
    if counts.foreign > 0 {
        text.extend([format!(
            ", {} from addresses that are not allowed (see --allow)",
            format_count(counts.foreign)
        )]);
    }
    for (why, number) in &counts.refused {
        text.extend([format!(", {} {}", format_count(*number), describe_refusal(*why))]);
    }
    text.push('\n');
    text
}

const fn describe_refusal(why: ReflectionRefusal) -> &'static str {
    match why {
        ReflectionRefusal::Unreadable => "too short or with a wrong digest",
        ReflectionRefusal::Repeated => "with a repeated or too old sequence number",
        ReflectionRefusal::TooSoon => "above the rate limit of their address",
        ReflectionRefusal::Unsealed => "with unauthenticated TLVs",
    }
}
