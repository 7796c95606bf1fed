//! Probe methods: each writes one kind of probe and recognises the answers to it.
//!
//! A [`ProbeMethod`] writes frames and reads answers. It handles neither their times, nor the evaluation
//! of a series ([`crate::series`]).
//!
//! Invariant: a reply is returned only for an answer that names a number of this method, and that comes from the target
//! or quotes a packet of ours to it. For one-way probes, the "answer" is the probe itself at its target.

use crate::answer::{AnswerContent, PathFailure, ProbeAnswer, QuotedPacket};
use crate::frame::{self, PROTOCOL_TCP, PROTOCOL_UDP, ProbeFrameEndpoints, TcpSegment, flags};
use crate::record::ProbeStamp;
use packetrig_units::MonoTime;
use packetrig_wire::pattern::keyed_mix;
use serde::Serialize;
use std::fmt::Debug;

/// Writes one kind of probe to one target, and recognises the answers.
pub trait ProbeMethod: Debug + Send {
    /// Writes the frame of a probe with departure time `at`. The frame has `length` bytes, or the minimum
    /// that this kind of probe needs. SYN segments always have the same length.
    fn write_probe(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>);

    /// Finds the probe that a received packet answers; `None` if the packet answers no probe of this method.
    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply>;
}

/// Lets the owner of a method lend it to a series, and read afterwards what the method has found.
impl<M: ProbeMethod> ProbeMethod for &mut M {
    fn write_probe(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>) {
        (**self).write_probe(number, at, length, frame);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        (**self).read_reply(answer)
    }
}

/// An answer that belongs to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// The number of the probe.
    pub number: u32,
    pub says: ReplyMeaning,
    /// True if all checksums are right, and the content of the probe is unchanged in an answer that echoes it.
    pub is_sound: bool,
    /// Arrival of the probe at the far end, as that end reports it.
    pub far_arrival: Option<ProbeStamp>,
    /// Departure of the far end's answer, as that end reports it.
    pub far_departure: Option<ProbeStamp>,
}

/// Meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyMeaning {
    /// The target echoed the content of the probe.
    Echo,
    /// A program listens at the port.
    Open,
    /// No program listens at the port.
    Closed,
    /// The probe did not reach the target, or the target refuses it.
    Trouble(PathFailure),
}

impl ReplyMeaning {
    /// True if the target itself has answered.
    pub const fn is_answer(self) -> bool {
        !matches!(self, Self::Trouble(_))
    }
}

/// First bytes of a payload; the number of the probe follows.
const PROBE_PAYLOAD_MAGIC: [u8; 4] = *b"PRPB";
/// Length of magic and number together.
const MAGIC_AND_NUMBER_BYTES: usize = 8;

/// A payload: the probe's number, the contact and purpose, and a pattern to the end.
#[derive(Clone, Debug)]
struct ProbePayload {
    about: Option<String>,
    bytes: Vec<u8>,
}

impl ProbePayload {
    const fn new(about: Option<String>) -> Self {
        Self { about, bytes: Vec::new() }
    }

    /// Writes `length` bytes, or more if magic and number need them.
    fn write_payload(&mut self, number: u32, length: usize) -> &[u8] {
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.extend(PROBE_PAYLOAD_MAGIC);
        bytes.extend(number.to_be_bytes());
        let room = length.saturating_sub(MAGIC_AND_NUMBER_BYTES);
        bytes.extend(frame::attribution_bytes_or_default(self.about.as_deref(), room));
        while bytes.len() < length {
            bytes.push(bytes.len().to_le_bytes()[0]);
        }
        bytes
    }

    fn read_payload(&mut self, payload: &[u8]) -> Option<ParsedPayload> {
        let number = payload_number(payload)?;
        // The payload depends only on number and length, so it is not remembered but written again and
        // compared.
        let is_whole = self.write_payload(number, payload.len()) == payload;
        Some(ParsedPayload { number, is_whole })
    }
}

struct ParsedPayload {
    number: u32,
    /// True if all bytes of the payload are as they were written.
    is_whole: bool,
}

impl ParsedPayload {
    /// Makes the reply for an answer that echoed this payload.
    const fn reply_echoed_by(&self, answer: &ProbeAnswer<'_>) -> ProbeReply {
        reply_without_peer_times(self.number, ReplyMeaning::Echo, self.is_whole && answer.is_sound)
    }
}

fn payload_number(payload: &[u8]) -> Option<u32> {
    let rest = payload.strip_prefix(&PROBE_PAYLOAD_MAGIC)?;
    rest.first_chunk().copied().map(u32::from_be_bytes)
}

fn payload_room(ends: &ProbeFrameEndpoints, header: usize, length: u32) -> usize {
    (length as usize).saturating_sub(ends.header_bytes() + header).max(MAGIC_AND_NUMBER_BYTES)
}

/// Returns whether an ICMP error quotes a packet of ours to the target.
pub(crate) fn is_own_packet(ends: &ProbeFrameEndpoints, about: &QuotedPacket<'_>) -> bool {
    (about.source, about.target) == (ends.source, ends.target)
}

fn is_from_target(ends: &ProbeFrameEndpoints, answer: &ProbeAnswer<'_>) -> bool {
    (answer.from, answer.to) == (ends.target, ends.source)
}

/// Returns the meaning of an ICMP error. "Port unreachable" is the regular answer to a
/// datagram for a closed port.
pub(crate) const fn meaning_of_error(what: PathFailure) -> ReplyMeaning {
    match what {
        PathFailure::PortUnreachable => ReplyMeaning::Closed,
        what => ReplyMeaning::Trouble(what),
    }
}

/// Returns the number of the probe that an error is about. If the quote is too short to contain the number,
/// an error that prohibits probing counts for the last probe, because it ends the series anyway.
pub(crate) fn quoted_number_or_last(
    number: Option<u32>,
    what: PathFailure,
    last: Option<u32>,
) -> Option<u32> {
    number.or(if what == PathFailure::Prohibited { last } else { None })
}

pub(crate) const fn reply_without_peer_times(number: u32, says: ReplyMeaning, is_sound: bool) -> ProbeReply {
    ProbeReply { number, says, is_sound, far_arrival: None, far_departure: None }
}

/// Echo requests of ICMP and ICMPv6.
#[derive(Clone, Debug)]
pub struct EchoMethod {
    ends: ProbeFrameEndpoints,
    identifier: u16,
    payload: ProbePayload,
    last: Option<u32>,
}

impl EchoMethod {
    /// The identifier must not be in use by echo requests of other programs.
    pub const fn new(ends: ProbeFrameEndpoints, identifier: u16, about: Option<String>) -> Self {
        Self { ends, identifier, payload: ProbePayload::new(about), last: None }
    }
}

impl ProbeMethod for EchoMethod {
    fn write_probe(&mut self, number: u32, _: MonoTime, length: u32, frame: &mut Vec<u8>) {
        let payload = self.payload.write_payload(number, payload_room(&self.ends, frame::UDP, length));
        // The sequence field of the header has room for the lower half of the number; the payload has all of it.
        let [.., high, low] = number.to_be_bytes();
        self.last = Some(number);
        self.ends.write_echo_frame(self.identifier, u16::from_be_bytes([high, low]), payload, frame);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Echo { identifier, payload, .. }
                if identifier == self.identifier && is_from_target(&self.ends, answer) =>
            {
                Some(self.payload.read_payload(payload)?.reply_echoed_by(answer))
            }
            AnswerContent::Error { what, about }
                if is_own_packet(&self.ends, &about) && about.echo_numbers().0 == self.identifier =>
            {
                // A quote has at least the echo header, with the lower half of the number. The upper half is
                // that of the latest sent number with this lower half, because no error is older than 65 536
                // probes.
                let of_header = self.last.map(|last| {
                    let [.., high, low] = last.to_be_bytes();
                    last.wrapping_sub(
                        u16::from_be_bytes([high, low]).wrapping_sub(about.echo_numbers().1).into(),
                    )
                });
                Some(reply_without_peer_times(
                    payload_number(about.rest).or(of_header)?,
                    meaning_of_error(what),
                    answer.is_sound,
                ))
            }
            _ => None,
        }
    }
}

/// Datagrams to a closed port, or to an echo service.
#[derive(Clone, Debug)]
pub struct DatagramMethod {
    ends: ProbeFrameEndpoints,
    own_port: u16,
    port: u16,
    payload: ProbePayload,
    last: Option<u32>,
}

impl DatagramMethod {
    /// Makes datagrams from `own_port`, which no other program may use, to `port` of the target.
    pub const fn new(ends: ProbeFrameEndpoints, own_port: u16, port: u16, about: Option<String>) -> Self {
        Self { ends, own_port, port, payload: ProbePayload::new(about), last: None }
    }
}

impl ProbeMethod for DatagramMethod {
    fn write_probe(&mut self, number: u32, _: MonoTime, length: u32, frame: &mut Vec<u8>) {
        let payload = self.payload.write_payload(number, payload_room(&self.ends, frame::UDP, length));
        self.last = Some(number);
        self.ends.write_udp_frame(self.own_port, self.port, payload, frame);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Udp { from, to, payload }
                if (from, to) == (self.port, self.own_port) && is_from_target(&self.ends, answer) =>
            {
                Some(self.payload.read_payload(payload)?.reply_echoed_by(answer))
            }
            AnswerContent::Error { what, about }
                if is_own_packet(&self.ends, &about)
                    && about.protocol == PROTOCOL_UDP
                    && about.ports() == (self.own_port, self.port) =>
            {
                Some(reply_without_peer_times(
                    quoted_number_or_last(payload_number(about.rest), what, self.last)?,
                    meaning_of_error(what),
                    answer.is_sound,
                ))
            }
            _ => None,
        }
    }
}

/// Datagrams that this machine receives at another interface: they are not answered.
#[derive(Clone, Debug)]
pub struct OneWayMethod(DatagramMethod);

impl OneWayMethod {
    /// Makes datagrams from `own_port` to `port` of the target; no other program may use these ports.
    pub const fn new(ends: ProbeFrameEndpoints, own_port: u16, port: u16, about: Option<String>) -> Self {
        Self(DatagramMethod::new(ends, own_port, port, about))
    }
}

impl ProbeMethod for OneWayMethod {
    fn write_probe(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>) {
        self.0.write_probe(number, at, length, frame);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        let DatagramMethod { ends, own_port, port, payload: written, .. } = &mut self.0;
        match answer.content {
            AnswerContent::Udp { from, to, payload }
                // The probe itself arrives, and no answer: source and target are not exchanged.
                if (from, to) == (*own_port, *port)
                    && (answer.from, answer.to) == (ends.source, ends.target) =>
            {
                Some(written.read_payload(payload)?.reply_echoed_by(answer))
            }
            _ => None,
        }
    }
}

/// SYN segments of TCP connections that are never established. The kernel has no connection at the own port,
/// so it answers a SYN/ACK with a reset.
#[derive(Clone, Debug)]
pub struct SynMethod {
    ends: ProbeFrameEndpoints,
    own_port: u16,
    port: u16,
    first: u32,
}

impl SynMethod {
    /// Makes segments from `own_port` to `port` of the target. The first sequence number comes from the seed.
    pub fn new(ends: ProbeFrameEndpoints, own_port: u16, port: u16, seed: u64) -> Self {
        Self { ends, own_port, port, first: initial_sequence(seed, 0) }
    }

    /// The sequence number of a probe. The numbers are far apart, so that a target that still remembers the
    /// last SYN accepts the next one as new.
    fn probe_sequence(&self, number: u32) -> u32 {
        self.first.wrapping_add(number.wrapping_mul(SEQUENCE_NUMBER_STRIDE))
    }

    /// The number of the probe that has this sequence number; `None` if none has it.
    fn probe_number(&self, sequence: u32) -> Option<u32> {
        let distance = sequence.wrapping_sub(self.first);
        distance.is_multiple_of(SEQUENCE_NUMBER_STRIDE).then_some(distance / SEQUENCE_NUMBER_STRIDE)
    }
}

/// The initial sequence number of connection `n`, drawn from a seed.
pub(crate) fn initial_sequence(seed: u64, n: u64) -> u32 {
    // The shifted value always fits: 32 of 64 bits remain.
    u32::try_from(keyed_mix(seed, n) >> 32).unwrap_or(u32::MAX)
}

// Sequence numbers repeat after 2^20 probes; `probe_number` then finds the first probe that has it.
const SEQUENCE_NUMBER_STRIDE: u32 = 1 << 12;

impl ProbeMethod for SynMethod {
    fn write_probe(&mut self, number: u32, _: MonoTime, _: u32, frame: &mut Vec<u8>) {
        let segment = TcpSegment {
            source_port: self.own_port,
            target_port: self.port,
            sequence: self.probe_sequence(number),
            flags: flags::SYN,
            window: 1024,
            // Maximum segment size 1460, as the SYN of nearly every host has it (RFC 9293, 3.7.1).
            options: &[2, 4, 5, 0xb4],
            ..TcpSegment::default()
        };
        self.ends.write_tcp_frame(&segment, frame);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Tcp(tcp)
                if (tcp.source_port, tcp.target_port) == (self.port, self.own_port)
                    && tcp.flags & flags::ACK != 0
                    && is_from_target(&self.ends, answer) =>
            {
                // A SYN takes one sequence number, so its answer acknowledges one more (RFC 9293, 3.4).
                let number = self.probe_number(tcp.acknowledgement.wrapping_sub(1))?;
                let says = match tcp.flags {
                    flags if flags & flags::RST != 0 => ReplyMeaning::Closed,
                    flags if flags & flags::SYN != 0 => ReplyMeaning::Open,
                    _ => return None,
                };
                Some(reply_without_peer_times(number, says, answer.is_sound))
            }
            AnswerContent::Error { what, about }
                if is_own_packet(&self.ends, &about)
                    && about.protocol == PROTOCOL_TCP
                    && about.ports() == (self.own_port, self.port) =>
            {
                let number = self.probe_number(u32::from_be_bytes(about.second))?;
                Some(reply_without_peer_times(number, meaning_of_error(what), answer.is_sound))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) use tests::error_about;

#[cfg(test)]
mod tests;
