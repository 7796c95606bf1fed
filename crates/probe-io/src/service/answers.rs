//! The thread that receives answers and delivers each to the client whose packet it answers.
//!
//! It listens before any packet leaves, while a program is connected, and as long as a report that prohibits
//! probing may still arrive. After such a report, the service refuses packets to the target from the user whose
//! packet the report quotes (the target is closed for ten minutes).
//!
//! Invariant: a client gets only answers to packets of its user, and no packet leaves from an address without a listener.

use super::STOP_CHECK_INTERVAL_NS;
use super::flows::{ANSWER_TIMEOUT, SentFlow};
use super::report;
use super::shared::ServiceShared;
use crate::listener::{PacketListener, PacketsToAllPorts, ReceivedFrame};
use crate::{Error, now, path, small_count};
use packetrig_plan::PortLocation;
use packetrig_probe::answer::{AnswerContent, PathFailure, ProbeAnswer, QuotedPacket};
use packetrig_probe::service::{PacketFlow, RequestMark};
use packetrig_release::message::ReceivedAnswer;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::net::IpAddr;

/// Number of frames that the ring holds while the thread is busy.
const ANSWER_RING_FRAMES: u32 = 256;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Pause before the next attempt to open a listener after a failure.
const LISTENER_RETRY_NS: u64 = 500_000_000;
/// Time between two look-ups of the interface's addresses.
const ADDRESS_LOOKUP_INTERVAL: Nanos = Nanos::from_secs(2);
/// A report that probing is prohibited is easy to forge, so it counts only if the packet that it quotes left within
/// this time.
const PROHIBITION_VALID_TIME: Nanos = Nanos::from_secs(10);

/// Time for which the thread continues to listen when answers are no longer wanted, because a program may connect soon.
const IDLE_LISTEN_TIME: Nanos = Nanos::from_secs(2);

pub(super) fn run_answer_thread(shared: &ServiceShared) {
    while !shared.has_ended() {
        shared.ports.free_idle_ports(now());
        if !are_answers_wanted(shared) {
            clock::sleep_until_ns(clock::monotonic_ns() + STOP_CHECK_INTERVAL_NS);
        } else if listen_until_unused(shared).is_err() {
            // The interface may be down or without an address.
            clock::sleep_until_ns(clock::monotonic_ns() + LISTENER_RETRY_NS);
        }
        // The sending thread sends nothing until a listener is open again.
        shared.set_heard_addresses(None);
    }
}

fn are_answers_wanted(shared: &ServiceShared) -> bool {
    shared.client_count() > 0 || shared.flows.has_any_packet_left_within(PROHIBITION_VALID_TIME, now())
}

/// Listens until answers are no longer wanted.
fn listen_until_unused(shared: &ServiceShared) -> Result<(), Error> {
    let (mut listener, mut addresses) = open_listener(shared)?;
    let mut looked_at = now();
    let mut wanted_at = now();
    while now().since(wanted_at) < IDLE_LISTEN_TIME && !shared.has_ended() {
        listener.wait_for_frames(Nanos::new(STOP_CHECK_INTERVAL_NS))?;
        listener.receive_waiting_frames(|heard| deliver_answer(&heard, shared));
        let now = now();
        if are_answers_wanted(shared) {
            wanted_at = now;
        }
        if now.since(looked_at) > ADDRESS_LOOKUP_INTERVAL {
            looked_at = now;
            shared.ports.free_idle_ports(looked_at);
            if path::own_addresses(&location_inside_namespace(shared))? != addresses {
                // The old listener receives until the new one is open.
                let mut last = std::mem::replace(&mut listener, {
                    let opened = open_listener(shared)?;
                    addresses = opened.1;
                    opened.0
                });
                last.receive_waiting_frames(|heard| deliver_answer(&heard, shared));
            }
        }
    }
    Ok(())
}

/// Returns the location of the interface for a thread inside its namespace, which does not name the namespace.
fn location_inside_namespace(shared: &ServiceShared) -> PortLocation {
    PortLocation { namespace: None, ..shared.interface.location.clone() }
}

/// Opens a listener for all addresses of the interface. From then on, packets may leave from these addresses.
fn open_listener(shared: &ServiceShared) -> Result<(PacketListener, Vec<IpAddr>), Error> {
    let inside = location_inside_namespace(shared);
    let addresses = path::own_addresses(&inside)?;
    let wanted = PacketsToAllPorts { addresses: addresses.clone() };
    let listener =
        PacketListener::open_for_all_ports(&inside, shared.interface.index, &wanted, ANSWER_RING_FRAMES)?;
    shared.set_heard_addresses(Some(addresses.iter().copied().collect()));
    Ok((listener, addresses))
}

fn deliver_answer(heard: &ReceivedFrame<'_>, shared: &ServiceShared) {
    let Some(answer) = heard.read_answer() else { return };
    let Some(answered) = identify_answered_packet(&answer) else { return };
    let within = if answered.is_prohibited { PROHIBITION_VALID_TIME } else { ANSWER_TIMEOUT };
    let senders = shared.flows.find_senders(&answered.flow, answered.mark, within, now());
    // All senders belong to one user, as `find_senders` guarantees.
    let Some(user) = senders.first().map(|sender| sender.user) else { return };
    // An ICMP error with a wrong checksum must not close a target.
    if answered.is_prohibited && answer.is_sound {
        shared.close_target(answered.flow.target, user);
    }
    let Some(arrival) = report::packet_stamp(heard.at) else { return };
    for client in senders.iter().filter_map(|sender| shared.find_client(sender.client)) {
        let message = ReceivedAnswer {
            arrival,
            lost: 0,
            lacks_checksum: heard.lacks_checksum,
            frame_size: small_count(heard.frame.len()),
            bytes: heard.frame.to_vec(),
        };
        client.queue_received_answer(answer.from, answered.protocol, answered.own_port, message);
    }
}

/// The sent packet that an answer refers to (`flow` and `mark`), and properties of the answer
/// itself (the other fields).
struct AnsweredPacket {
    flow: SentFlow,
    mark: Option<RequestMark>,
    protocol: u8,
    own_port: Option<u16>,
    is_prohibited: bool,
}

fn identify_answered_packet(answer: &ProbeAnswer<'_>) -> Option<AnsweredPacket> {
    let (source, target) = (answer.to, answer.from);
    let icmp = if source.is_ipv4() { ICMP } else { ICMPV6 };
    let answered = match &answer.content {
        AnswerContent::Echo { identifier, .. } => {
            let flow = SentFlow { source, target, flow: PacketFlow::Icmp { identifier: *identifier } };
            let mark = RequestMark::from_reply(answer);
            AnsweredPacket { flow, mark, protocol: icmp, own_port: None, is_prohibited: false }
        }
        AnswerContent::Udp { from, to, .. } => {
            let flow =
                SentFlow { source, target, flow: PacketFlow::Udp { own_port: *to, target_port: *from } };
            AnsweredPacket { flow, mark: None, protocol: UDP, own_port: Some(*to), is_prohibited: false }
        }
        AnswerContent::Tcp(segment) => {
            let (own_port, target_port) = (segment.target_port, segment.source_port);
            let flow = SentFlow { source, target, flow: PacketFlow::Tcp { own_port, target_port } };
            AnsweredPacket { flow, mark: None, protocol: TCP, own_port: Some(own_port), is_prohibited: false }
        }
        AnswerContent::Error { what, about } => {
            let flow = read_quoted_flow(about)?;
            AnsweredPacket {
                flow,
                mark: read_quoted_mark(about),
                protocol: icmp,
                own_port: None,
                is_prohibited: *what == PathFailure::Prohibited,
            }
        }
    };
    Some(answered)
}

/// Returns the flow of the packet that an ICMP error quotes; `None` if the packet is neither TCP nor UDP nor ICMP.
fn read_quoted_flow(about: &QuotedPacket<'_>) -> Option<SentFlow> {
    let (own_port, target_port) = about.ports();
    let flow = match about.protocol {
        TCP => PacketFlow::Tcp { own_port, target_port },
        UDP => PacketFlow::Udp { own_port, target_port },
        ICMP | ICMPV6 => PacketFlow::Icmp { identifier: about.echo_numbers().0 },
        _ => return None,
    };
    Some(SentFlow { source: about.source, target: about.target, flow })
}

/// Returns the mark of the ICMP request that an ICMP error quotes; `None` if it quotes another kind of packet.
fn read_quoted_mark(about: &QuotedPacket<'_>) -> Option<RequestMark> {
    // An error quotes at least eight bytes of the IP payload, which suffice for a mark.
    let [kind, code, high, low] = about.first;
    let [a, b, c, d] = about.second;
    let is_request = matches!(about.protocol, ICMP | ICMPV6);
    is_request.then(|| RequestMark::from_request([kind, code, high, low, a, b, c, d]))
}
