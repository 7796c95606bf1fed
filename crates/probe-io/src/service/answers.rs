//! The thread that hears answers and gives each to the client whose packet it answers.
//!
//! It listens while a client wants answers, and while packets may be answered: an error that says that probing is administratively
//! prohibited closes its target for all clients.
//!
//! Invariant: a client gets only answers to its own packets.

use super::PIECE_NS;
use super::flows::SentFlow;
use super::report;
use super::shared::ServiceShared;
use crate::listener::{HeardFrame, PacketListener, PacketsToAllPorts};
use crate::{Error, now, path, small_count};
use packetrig_plan::PortLocation;
use packetrig_probe::answer::{AnswerContent, PathTrouble, ProbeAnswer, QuotedPacket};
use packetrig_probe::service::PacketFlow;
use packetrig_release::message::HeardAnswer;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::atomic::Ordering;

/// Frames for which the ring has room while the thread does other things.
const FRAMES: u32 = 256;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// How long it waits before it tries again to open what could not be opened.
const RETRY_NS: u64 = 500_000_000;
/// How often the addresses of the interface are looked up.
const ADDRESSES_EVERY: Nanos = Nanos::from_secs(2);
/// An answer of any kind may come within this time.
const ANSWERED_WITHIN: Nanos = Nanos::from_secs(60);
/// A report that probing is prohibited counts only if the packet that it quotes left within this time: it is easy to forge.
const PROHIBITED_WITHIN: Nanos = Nanos::from_secs(10);

pub(super) fn run(shared: &ServiceShared) {
    while !shared.has_ended() {
        shared.ports.free_idle(now());
        if !is_wanted(shared) {
            clock::sleep_until_ns(clock::monotonic_ns() + PIECE_NS);
        } else if listen(shared).is_err() {
            // The interface may be down or without an address.
            clock::sleep_until_ns(clock::monotonic_ns() + RETRY_NS);
        }
        shared.hears_answers.store(false, Ordering::Release);
    }
}

fn is_wanted(shared: &ServiceShared) -> bool {
    shared.has_listeners() || !shared.flows.is_empty()
}

/// Listens until nobody wants answers any more, or the addresses of the interface change.
fn listen(shared: &ServiceShared) -> Result<(), Error> {
    let interface = &shared.interface;
    // The thread is in the namespace of the interface.
    let inside = PortLocation { namespace: None, ..interface.location.clone() };
    let addresses = path::own_addresses(&inside)?;
    let wanted = PacketsToAllPorts { addresses: addresses.clone() };
    let mut listener = PacketListener::open_for_all_ports(&inside, interface.index, &wanted, FRAMES)?;
    shared.hears_answers.store(true, Ordering::Release);
    let mut looked_at = now();
    while is_wanted(shared) && !shared.has_ended() {
        listener.wait(Nanos::new(PIECE_NS))?;
        listener.listen(|heard| give(&heard, shared));
        if now().since(looked_at) > ADDRESSES_EVERY {
            looked_at = now();
            shared.ports.free_idle(looked_at);
            if path::own_addresses(&inside)? != addresses {
                break;
            }
        }
    }
    Ok(())
}

fn give(heard: &HeardFrame<'_>, shared: &ServiceShared) {
    let Some(answer) = heard.answer() else { return };
    let Some(answered) = answered_flow(&answer) else { return };
    let within = if answered.is_prohibited { PROHIBITED_WITHIN } else { ANSWERED_WITHIN };
    let Some(owner) = shared.flows.owner(&answered.flow, within, now()) else { return };
    if answered.is_prohibited && answer.is_sound {
        shared.close_target(answered.flow.target);
    }
    let Some(client) = shared.client(owner) else { return };
    let Some(arrival) = report::stamp(heard.at) else { return };
    let message = HeardAnswer {
        arrival,
        lost: 0,
        lacks_checksum: heard.lacks_checksum,
        frame_size: small_count(heard.frame.len()),
        bytes: heard.frame.to_vec(),
    };
    client.offer_answer(answer.from, answered.protocol, answered.own_port, message);
}

/// An answer, and the flow of the packet that it answers.
struct AnsweredFlow {
    flow: SentFlow,
    protocol: u8,
    own_port: Option<u16>,
    is_prohibited: bool,
}

fn answered_flow(answer: &ProbeAnswer<'_>) -> Option<AnsweredFlow> {
    let (source, target) = (answer.to, answer.from);
    let icmp = if source.is_ipv4() { ICMP } else { ICMPV6 };
    let answered = match &answer.content {
        AnswerContent::Echo { identifier, .. } => {
            let flow = SentFlow { source, target, flow: PacketFlow::Icmp { identifier: *identifier } };
            AnsweredFlow { flow, protocol: icmp, own_port: None, is_prohibited: false }
        }
        AnswerContent::Udp { from, to, .. } => {
            let flow =
                SentFlow { source, target, flow: PacketFlow::Udp { own_port: *to, target_port: *from } };
            AnsweredFlow { flow, protocol: UDP, own_port: Some(*to), is_prohibited: false }
        }
        AnswerContent::Tcp(segment) => {
            let (own_port, target_port) = (segment.target_port, segment.source_port);
            let flow = SentFlow { source, target, flow: PacketFlow::Tcp { own_port, target_port } };
            AnsweredFlow { flow, protocol: TCP, own_port: Some(own_port), is_prohibited: false }
        }
        AnswerContent::Error { what, about } => {
            let flow = quoted_flow(about)?;
            AnsweredFlow {
                flow,
                protocol: icmp,
                own_port: None,
                is_prohibited: *what == PathTrouble::Prohibited,
            }
        }
    };
    Some(answered)
}

/// The flow of a packet that an error quotes.
fn quoted_flow(about: &QuotedPacket<'_>) -> Option<SentFlow> {
    let (own_port, target_port) = about.ports();
    let flow = match about.protocol {
        TCP => PacketFlow::Tcp { own_port, target_port },
        UDP => PacketFlow::Udp { own_port, target_port },
        ICMP | ICMPV6 => PacketFlow::Icmp { identifier: about.echo().0 },
        _ => return None,
    };
    Some(SentFlow { source: about.source, target: about.target, flow })
}
