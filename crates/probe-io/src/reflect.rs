//! Runs the reflector of STAMP sessions (RFC 8762): a socket with kernel timestamps, and the [`StampReflector`]
//! that decides what to send back.
//!
//! The kernel stamps the arriving requests. A reflection carries a clock reading from right before it is sent.
//! The kernel reports later when the reflection really left; if the sender asks for that time, the session's
//! next reflection carries it.
//!
//! Invariant: the reflector sends only in answer to a request from an allowed address, and never more bytes
//! than the request had.

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

/// Longest wait before the loop checks whether to stop.
const STOP_CHECK_INTERVAL_NS: u64 = 50_000_000;
/// Maximum number of reflections that wait for their departure stamps; older ones are dropped from the list.
const MAX_PENDING_REFLECTIONS: usize = 256;
/// Maximum number of requests that are handled before the reflector checks again whether to stop.
const MAX_REQUESTS_PER_ROUND: usize = 256;
const MAX_REQUEST_BYTES: usize = 65_535;

/// Requests, counted by their outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounts {
    pub requests: u64,
    pub reflected: u64,
    /// Requests from addresses that are not allowed.
    pub foreign: u64,
    /// Requests that were not reflected, by reason.
    pub refused: BTreeMap<ReflectionRefusal, u64>,
    /// Reflections that the kernel did not accept.
    pub unsent: u64,
}

/// Reflects requests until `stop`, which gets the counts so far, returns true. Returns the final counts.
pub fn run_reflector(
    socket: &mut WatchedSocket,
    reflector: &mut StampReflector,
    is_allowed: &dyn Fn(IpAddr) -> bool,
    stop: &dyn Fn(&RequestCounts) -> bool,
) -> Result<RequestCounts, Error> {
    let to_port = socket.address()?.port();
    let mut counts = RequestCounts::default();
    let mut pending: VecDeque<(u32, PreparedReflection)> = VecDeque::new();
    let mut buffer = vec![0; MAX_REQUEST_BYTES];
    let mut out = Vec::with_capacity(MAX_REQUEST_BYTES);
    while !stop(&counts) {
        socket.wait_for_event(STOP_CHECK_INTERVAL_NS)?;
        // Departures first: Follow-Up Telemetry (RFC 8972, 4.7) carries the departure of the reflection before this one.
        record_departures(socket, reflector, &mut pending)?;
        for _ in 0..MAX_REQUESTS_PER_ROUND {
            let Some(received) = socket.receive_datagram(&mut buffer)? else { break };
            counts.requests += 1;
            let Some(arrived) = to_arrived_request(&buffer[..received.length], &received, to_port) else {
                continue;
            };
            if !is_allowed(arrived.from.ip()) {
                counts.foreign += 1;
                continue;
            }
            match reflector.reflect_request(&arrived, &mut out) {
                Err(refused) => *counts.refused.entry(refused).or_default() += 1,
                Ok(ready) => {
                    // The clock is read last, right before the call that sends, so that little time passes between
                    // the stamp and the departure.
                    reflector.finish_reflection(&ready, clock::wall_clock_ns(), &mut out);
                    match socket.send_datagram(&out, arrived.from) {
                        None => counts.unsent += 1,
                        Some(number) => {
                            counts.reflected += 1;
                            pending.push_back((number, ready));
                            // A stamp that never comes must not let the list grow without end.
                            if pending.len() > MAX_PENDING_REFLECTIONS {
                                pending.pop_front();
                            }
                        }
                    }
                    record_departures(socket, reflector, &mut pending)?;
                }
            }
        }
    }
    Ok(counts)
}

fn to_arrived_request<'a>(
    bytes: &'a [u8],
    received: &ReceivedPacket,
    to_port: u16,
) -> Option<ArrivedRequest<'a>> {
    let realtime_ns = received.stamps.software_ns.unwrap_or_else(clock::wall_clock_ns);
    // A packet without a kernel stamp arrived at some time since the last wait began.
    let bound_ns = if received.stamps.software_ns.is_some() { 1_000 } else { STOP_CHECK_INTERVAL_NS };
    Some(ArrivedRequest {
        bytes,
        from: received.from?,
        to_port,
        at: MonoTime::from_nanos(clock::monotonic_ns()),
        realtime_ns,
        bound_ns,
        hops: received.hops,
        class: received.class,
    })
}

fn record_departures(
    socket: &WatchedSocket,
    reflector: &mut StampReflector,
    pending: &mut VecDeque<(u32, PreparedReflection)>,
) -> Result<(), Error> {
    /// Timestamping method "SW local" (RFC 8972, 4.3).
    const KERNEL_TIMESTAMP_METHOD: u8 = 2;
    socket.drain_reports(&mut |report| {
        let KernelReport::Departed { number, stamps, .. } = report else { return };
        // The reflection may have been dropped from the list before its stamp arrived.
        let Some(at) = pending.iter().position(|(of, _)| *of == number) else { return };
        let Some((_, ready)) = pending.remove(at) else { return };
        if let Some(realtime_ns) = stamps.software_ns {
            reflector.record_departure_stamp(&ready, realtime_ns, KERNEL_TIMESTAMP_METHOD);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
