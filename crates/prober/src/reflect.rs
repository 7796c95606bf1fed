//! The far end of a STAMP session at work: a socket, the kernel's stamps, and the reflector that says what is sent back.
//!
//! Arrivals are the kernel's stamps. A reflection carries the time right before it is sent; when it has left in truth, the kernel says,
//! and the next reflection of the session, if it is asked.
//!
//! Invariant: nothing is sent but in answer to a request of an allowed address, and never more bytes than it had.

use crate::Error;
use packetrig_probe::session::StampReflector;
use packetrig_probe::session::reflector::{ArrivedRequest, PreparedReflection, ReflectionRefusal};
use packetrig_sys::clock;
use packetrig_sys::stamping::{KernelReport, ReceivedPacket};
use packetrig_sys::udp::WatchedSocket;
use packetrig_units::MonoTime;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// How long one waits before looking whether to end.
const PIECE_NS: u64 = 50_000_000;
/// Reflections whose departure the kernel may still tell.
const PENDING: usize = 256;
/// Requests taken in until one looks again whether to end.
const ROUND: usize = 256;
const LONGEST: usize = 65_535;

/// What became of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounts {
    pub requests: u64,
    /// Those that were reflected.
    pub reflected: u64,
    /// Those of addresses that are not allowed.
    pub foreign: u64,
    /// Those that were not reflected, by reason.
    pub refused: BTreeMap<ReflectionRefusal, u64>,
    /// Reflections the kernel did not take.
    pub unsent: u64,
}

/// Reflects until it is to stop.
pub fn run(
    socket: &mut WatchedSocket,
    reflector: &mut StampReflector,
    is_allowed: &dyn Fn(IpAddr) -> bool,
    stop: &dyn Fn(&RequestCounts) -> bool,
) -> Result<RequestCounts, Error> {
    let to_port = socket.address()?.port();
    let mut counts = RequestCounts::default();
    let mut pending: VecDeque<(u32, PreparedReflection)> = VecDeque::new();
    let (mut buffer, mut out) = (vec![0; LONGEST], Vec::with_capacity(LONGEST));
    while !stop(&counts) {
        socket.wait(PIECE_NS)?;
        note_departures(socket, reflector, &mut pending)?;
        for _ in 0..ROUND {
            let Some(received) = socket.receive(&mut buffer)? else { break };
            counts.requests += 1;
            let Some(arrived) = arrived(&buffer[..received.length], &received, to_port) else { continue };
            if !is_allowed(arrived.from.ip()) {
                counts.foreign += 1;
                continue;
            }
            match reflector.reflect(&arrived, &mut out) {
                Err(refused) => *counts.refused.entry(refused).or_default() += 1,
                Ok(ready) => {
                    reflector.finish(&ready, clock::wall_clock_ns(), &mut out);
                    match socket.send(&out, arrived.from) {
                        None => counts.unsent += 1,
                        Some(number) => {
                            counts.reflected += 1;
                            pending.push_back((number, ready));
                            if pending.len() > PENDING {
                                pending.pop_front();
                            }
                        }
                    }
                    note_departures(socket, reflector, &mut pending)?;
                }
            }
        }
    }
    Ok(counts)
}

fn arrived<'a>(bytes: &'a [u8], received: &ReceivedPacket, to_port: u16) -> Option<ArrivedRequest<'a>> {
    let (now, monotonic) = (clock::wall_clock_ns(), clock::monotonic_ns());
    let realtime_ns = received.stamps.software_ns.unwrap_or(now);
    // What the kernel has not stamped came at some time before now: since the last look, at most.
    let bound_ns = if received.stamps.software_ns.is_some() { 1_000 } else { PIECE_NS };
    Some(ArrivedRequest {
        bytes,
        from: received.from?,
        to_port,
        at: MonoTime::from_nanos(monotonic),
        realtime_ns,
        bound_ns,
        hops: received.hops,
        class: received.class,
    })
}

fn note_departures(
    socket: &WatchedSocket,
    reflector: &mut StampReflector,
    pending: &mut VecDeque<(u32, PreparedReflection)>,
) -> Result<(), Error> {
    /// As STAMP says that the kernel has stamped.
    const BY_KERNEL: u8 = 2;
    socket.reports(&mut |report| {
        let KernelReport::Departed { number, stamps, .. } = report else { return };
        let Some(at) = pending.iter().position(|(of, _)| *of == number) else { return };
        let Some((_, ready)) = pending.remove(at) else { return };
        if let Some(realtime_ns) = stamps.software_ns {
            reflector.departed(&ready, realtime_ns, BY_KERNEL);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
