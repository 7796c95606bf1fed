//! What a probe says, and how its answer is known: one method for each kind of probe that any host answers.
//!
//! A [`ProbeMethod`] writes frames and reads answers; when they leave and arrive is not its business, nor is what a series of them
//! says ([`crate::series`]).
//!
//! Invariant: a reply is given only for an answer that names a number this method has written, and comes from the target or is about
//! a packet of ours to it.

use crate::answer::{AnswerContent, PathTrouble, ProbeAnswer, QuotedPacket};
use crate::frame::{self, FrameEnds, PROTOCOL_TCP, PROTOCOL_UDP, TcpSegment, flags};
use crate::record::ProbeStamp;
use packetrig_units::MonoTime;
use packetrig_wire::pattern::mix;
use serde::Serialize;
use std::fmt::Debug;

/// A kind of probe towards one target.
pub trait ProbeMethod: Debug + Send {
    /// Writes the frame of a probe, which is to leave at an instant and to be `length` bytes long, or as short as this kind can be.
    fn write(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>);

    /// Which probe an answer that came in is of; `None`: none of this method's.
    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply>;
}

/// Lent, so that its owner can look at it afterwards.
impl<M: ProbeMethod> ProbeMethod for &mut M {
    fn write(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>) {
        (**self).write(number, at, length, frame);
    }

    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        (**self).read(answer)
    }
}

/// An answer that belongs to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// The number of the probe.
    pub number: u32,
    pub says: ReplyMeaning,
    /// All its checksums are right, and it has in it what the probe had.
    pub is_sound: bool,
    /// When the far end took the probe in, by its word.
    pub far_arrival: Option<ProbeStamp>,
    /// When the far end answered, by its word.
    pub far_departure: Option<ProbeStamp>,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyMeaning {
    /// What was asked came back.
    Echo,
    /// Somebody listens at the port.
    Open,
    /// Nobody listens at the port.
    Closed,
    /// It did not reach the target, or the target does not want it.
    Trouble(PathTrouble),
}

impl ReplyMeaning {
    /// The target itself has answered.
    pub const fn is_answer(self) -> bool {
        !matches!(self, Self::Trouble(_))
    }
}

/// In front of the number in a payload.
const MAGIC: [u8; 4] = *b"PRPB";
/// Bytes that say which probe it is.
const NAMED: usize = 8;

/// What a payload has in it: which probe it is, who probes and why, and a pattern to the end.
#[derive(Clone, Debug)]
struct ProbePayload {
    about: Option<String>,
    bytes: Vec<u8>,
}

impl ProbePayload {
    const fn new(about: Option<String>) -> Self {
        Self { about, bytes: Vec::new() }
    }

    /// Of `length` bytes, at least those that name the probe.
    fn write(&mut self, number: u32, length: usize) -> &[u8] {
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.extend(MAGIC);
        bytes.extend(number.to_be_bytes());
        let room = length.saturating_sub(NAMED);
        bytes.extend(frame::attribution(self.about.as_deref(), room));
        while bytes.len() < length {
            bytes.push(bytes.len().to_le_bytes()[0]);
        }
        bytes
    }

    /// Which probe it is of, and whether nothing else is in it than was written.
    fn read(&mut self, payload: &[u8]) -> Option<(u32, bool)> {
        let number = number_of(payload)?;
        let is_whole = self.write(number, payload.len()) == payload;
        Some((number, is_whole))
    }
}

fn number_of(payload: &[u8]) -> Option<u32> {
    let rest = payload.strip_prefix(&MAGIC)?;
    rest.first_chunk().copied().map(u32::from_be_bytes)
}

fn room(ends: &FrameEnds, header: usize, length: u32) -> usize {
    (length as usize).saturating_sub(ends.headers() + header).max(NAMED)
}

/// Whether an error is about a packet of ours to the target.
pub(crate) fn is_ours(ends: &FrameEnds, about: &QuotedPacket<'_>) -> bool {
    (about.source, about.target) == (ends.source, ends.target)
}

fn is_from(ends: &FrameEnds, answer: &ProbeAnswer<'_>) -> bool {
    (answer.from, answer.to) == (ends.target, ends.source)
}

/// What an error says: that nobody listens at a port is the answer of a target that was asked for that.
pub(crate) const fn says(what: PathTrouble) -> ReplyMeaning {
    match what {
        PathTrouble::PortUnreachable => ReplyMeaning::Closed,
        what => ReplyMeaning::Trouble(what),
    }
}

/// Which probe an error is about, as its quote says. Somebody who forbids probing ends the series whichever probe it was, so where the quote is
/// too short to tell, the last one is as good as any.
pub(crate) fn quoted(number: Option<u32>, what: PathTrouble, last: Option<u32>) -> Option<u32> {
    number.or(if what == PathTrouble::Prohibited { last } else { None })
}

pub(crate) const fn plain(number: u32, says: ReplyMeaning, is_sound: bool) -> ProbeReply {
    ProbeReply { number, says, is_sound, far_arrival: None, far_departure: None }
}

/// Echo requests of ICMP and ICMPv6.
#[derive(Clone, Debug)]
pub struct EchoMethod {
    ends: FrameEnds,
    identifier: u16,
    payload: ProbePayload,
    last: Option<u32>,
}

impl EchoMethod {
    /// With an identifier that no other program uses now, one hopes.
    pub const fn new(ends: FrameEnds, identifier: u16, about: Option<String>) -> Self {
        Self { ends, identifier, payload: ProbePayload::new(about), last: None }
    }
}

impl ProbeMethod for EchoMethod {
    fn write(&mut self, number: u32, _: MonoTime, length: u32, frame: &mut Vec<u8>) {
        let payload = self.payload.write(number, room(&self.ends, frame::UDP, length));
        // The header has room for the lower half; the whole number is in the payload.
        let [.., high, low] = number.to_be_bytes();
        self.last = Some(number);
        self.ends.echo(self.identifier, u16::from_be_bytes([high, low]), payload, frame);
    }

    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Echo { identifier, payload, .. }
                if identifier == self.identifier && is_from(&self.ends, answer) =>
            {
                let (number, is_whole) = self.payload.read(payload)?;
                Some(plain(number, ReplyMeaning::Echo, is_whole && answer.is_sound))
            }
            AnswerContent::Error { what, about }
                if is_ours(&self.ends, &about) && about.echo().0 == self.identifier =>
            {
                // Every quote has the header, and with it the lower half.
                let of_header = self.last.map(|last| {
                    let [.., high, low] = last.to_be_bytes();
                    last.wrapping_sub(u16::from_be_bytes([high, low]).wrapping_sub(about.echo().1).into())
                });
                Some(plain(number_of(about.rest).or(of_header)?, says(what), answer.is_sound))
            }
            _ => None,
        }
    }
}

/// Datagrams to a port that is closed, or echoes.
#[derive(Clone, Debug)]
pub struct DatagramMethod {
    ends: FrameEnds,
    own_port: u16,
    port: u16,
    payload: ProbePayload,
    last: Option<u32>,
}

impl DatagramMethod {
    /// From an own port, which is held, to a port of the target.
    pub const fn new(ends: FrameEnds, own_port: u16, port: u16, about: Option<String>) -> Self {
        Self { ends, own_port, port, payload: ProbePayload::new(about), last: None }
    }
}

impl ProbeMethod for DatagramMethod {
    fn write(&mut self, number: u32, _: MonoTime, length: u32, frame: &mut Vec<u8>) {
        let payload = self.payload.write(number, room(&self.ends, frame::UDP, length));
        self.last = Some(number);
        self.ends.udp(self.own_port, self.port, payload, frame);
    }

    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Udp { from, to, payload }
                if (from, to) == (self.port, self.own_port) && is_from(&self.ends, answer) =>
            {
                let (number, is_whole) = self.payload.read(payload)?;
                Some(plain(number, ReplyMeaning::Echo, is_whole && answer.is_sound))
            }
            AnswerContent::Error { what, about }
                if is_ours(&self.ends, &about)
                    && about.protocol == PROTOCOL_UDP
                    && about.ports() == (self.own_port, self.port) =>
            {
                Some(plain(quoted(number_of(about.rest), what, self.last)?, says(what), answer.is_sound))
            }
            _ => None,
        }
    }
}

/// Datagrams that are heard where they arrive: nobody answers them.
#[derive(Clone, Debug)]
pub struct OneWayMethod(DatagramMethod);

impl OneWayMethod {
    /// From an own port to a port of the target; both are held.
    pub const fn new(ends: FrameEnds, own_port: u16, port: u16, about: Option<String>) -> Self {
        Self(DatagramMethod::new(ends, own_port, port, about))
    }
}

impl ProbeMethod for OneWayMethod {
    fn write(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>) {
        self.0.write(number, at, length, frame);
    }

    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        let DatagramMethod { ends, own_port, port, payload: written, .. } = &mut self.0;
        match answer.content {
            AnswerContent::Udp { from, to, payload }
                if (from, to) == (*own_port, *port)
                    && (answer.from, answer.to) == (ends.source, ends.target) =>
            {
                let (number, is_whole) = written.read(payload)?;
                Some(plain(number, ReplyMeaning::Echo, is_whole && answer.is_sound))
            }
            _ => None,
        }
    }
}

/// The first segment of a TCP connection that is never made: the own port is not listened at, so that the kernel takes an offer back.
#[derive(Clone, Debug)]
pub struct SynMethod {
    ends: FrameEnds,
    own_port: u16,
    port: u16,
    first: u32,
}

impl SynMethod {
    /// From an own port to a port of the target; the seed makes sequence numbers.
    pub fn new(ends: FrameEnds, own_port: u16, port: u16, seed: u64) -> Self {
        let [a, b, c, d, ..] = mix(seed, 0).to_be_bytes();
        Self { ends, own_port, port, first: u32::from_be_bytes([a, b, c, d]) }
    }

    /// Sequence numbers of probes are so far apart that a target which remembers the last one takes the next for new.
    fn sequence(&self, number: u32) -> u32 {
        self.first.wrapping_add(number.wrapping_mul(STRIDE))
    }

    /// Which probe has this sequence number.
    fn number(&self, sequence: u32) -> Option<u32> {
        let distance = sequence.wrapping_sub(self.first);
        distance.is_multiple_of(STRIDE).then_some(distance / STRIDE)
    }
}

const STRIDE: u32 = 1 << 12;

impl ProbeMethod for SynMethod {
    fn write(&mut self, number: u32, _: MonoTime, _: u32, frame: &mut Vec<u8>) {
        let segment = TcpSegment {
            source_port: self.own_port,
            target_port: self.port,
            sequence: self.sequence(number),
            flags: flags::SYN,
            window: 1024,
            // Longest segment, as hosts expect it to be said.
            options: &[2, 4, 5, 0xb4],
            ..TcpSegment::default()
        };
        self.ends.tcp(&segment, frame);
    }

    fn read(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Tcp(tcp)
                if (tcp.source_port, tcp.target_port) == (self.port, self.own_port)
                    && tcp.flags & flags::ACK != 0
                    && is_from(&self.ends, answer) =>
            {
                let number = self.number(tcp.acknowledgement.wrapping_sub(1))?;
                let says = match tcp.flags {
                    flags if flags & flags::RST != 0 => ReplyMeaning::Closed,
                    flags if flags & flags::SYN != 0 => ReplyMeaning::Open,
                    _ => return None,
                };
                Some(plain(number, says, answer.is_sound))
            }
            AnswerContent::Error { what, about }
                if is_ours(&self.ends, &about)
                    && about.protocol == PROTOCOL_TCP
                    && about.ports() == (self.own_port, self.port) =>
            {
                let number = self.number(u32::from_be_bytes(about.second))?;
                Some(plain(number, says(what), answer.is_sound))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) use tests::error_about;

#[cfg(test)]
mod tests;
