//! Datagrams of sFlow version 5 (sflow.org/sflow_version_5.txt): sampled packets, and counters of interfaces.
//!
//! All values are words of 32 bits in network order (XDR), and samples and their parts state their length. So unknown
//! samples and parts are skipped. A sampled packet becomes a record of one packet; counts are not multiplied by the
//! sampling rate. sFlow has no clock: records have the time at which their datagram arrived.
//!
//! Each sub-agent numbers its datagrams, and each of its samplers numbers its samples.
//!
//! Invariant: the work is proportional to the bytes of a datagram. A datagram makes at most one record for
//! each sample in it.

mod counters;
mod gateway;
mod record;
mod sample;
mod samplers;
#[cfg(test)]
mod tests;

pub use counters::InterfaceCounters;

use super::MalformedMessage;
use super::draft::MessageTime;
use super::memory::map_memory_bytes;
use super::reader::ByteReader;
use super::received::ReceivedMessage;
use super::sequence::{MessageSequenceFacts, message_fingerprint};
use super::session::ExportSession;
use crate::packet::mapped_address;
use counters::InterfaceTable;
use sample::{SampleKind, SampleSource};
use samplers::SamplerTable;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first word of a datagram.
pub(super) const VERSION: [u8; 4] = [0, 0, 0, 5];
/// Bytes of a header with an IPv4 address. A header with an IPv6 address is longer, one without an address shorter.
const HEADER: usize = 28;

/// Values from the header of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramHeader {
    /// `None` if the agent does not know its address.
    pub(super) agent: Option<IpAddr>,
    pub(super) sub_agent: u32,
    number: u32,
    uptime_ms: u32,
}

/// State of an agent that is kept between datagrams.
#[derive(Clone, Debug, Default)]
pub(super) struct SflowState {
    samplers: SamplerTable,
    interfaces: InterfaceTable,
}

impl SflowState {
    pub(super) fn memory_bytes(&self) -> usize {
        // Live views hold the counters too, and copy them once more for each reader.
        self.samplers.memory_bytes()
            + 3 * map_memory_bytes::<u32, InterfaceCounters>(self.interfaces.interface_count())
    }

    pub(super) fn interfaces(&self) -> Vec<InterfaceCounters> {
        self.interfaces.all_interfaces()
    }

    /// Forgets the samplers of an agent that was restarted: its samples are numbered from the beginning again.
    pub(super) fn forget_samplers(&mut self) {
        // Losses of the former run stay counted.
        self.samplers.forget_all_samplers();
    }

    /// Frees memory: forgets the counters of one interface or, if there are none, all samplers. Returns false if there
    /// was nothing to forget.
    pub(super) fn evict_counters_or_samplers(&mut self) -> bool {
        self.interfaces.evict_highest_interface() || self.samplers.forget_all_samplers()
    }
}

pub(super) fn read_header(message: &[u8]) -> Result<DatagramHeader, MalformedMessage> {
    let short = MalformedMessage::Short { found: message.len(), needed: HEADER };
    read_head(&mut ByteReader::new(message)).map(|(header, _)| header).ok_or(short)
}

/// Reads the header and the number of samples that follow it.
fn read_head(reader: &mut ByteReader<'_>) -> Option<(DatagramHeader, u32)> {
    let _version = reader.read_u32()?;
    let agent = Some(read_address(reader)?).filter(|agent| !agent.is_unspecified());
    let sub_agent = reader.read_u32()?;
    let number = reader.read_u32()?;
    let uptime_ms = reader.read_u32()?;
    Some((DatagramHeader { agent, sub_agent, number, uptime_ms }, reader.read_u32()?))
}

/// Reads the kind of an address and the address itself; `::` if the agent does not know it. `None` if the address is
/// truncated or of an unknown kind.
fn read_address(reader: &mut ByteReader<'_>) -> Option<IpAddr> {
    Some(match reader.read_u32()? {
        0 => Ipv6Addr::UNSPECIFIED.into(),
        1 => Ipv4Addr::from_bits(reader.read_u32()?).into(),
        2 => Ipv6Addr::from(<[u8; 16]>::try_from(reader.read_bytes(16)?).ok()?).to_canonical(),
        _ => return None,
    })
}

/// Returns the 16 bytes of an address, with IPv4 mapped to IPv6; zeros if the agent does not know it.
fn address_or_zero(address: IpAddr) -> [u8; 16] {
    if address.is_unspecified() { [0; 16] } else { mapped_address(address) }
}

pub(super) fn decode_datagram(
    session: &mut ExportSession,
    bytes: &[u8],
    now_ns: u64,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let mut reader = ByteReader::new(bytes);
    let short = MalformedMessage::Short { found: bytes.len(), needed: HEADER };
    let (header, samples) = read_head(&mut reader).ok_or(short)?;
    let moment = MessageTime {
        sent_ns: session.options.epoch_ns.saturating_add(now_ns),
        uptime_ms: Some(header.uptime_ms),
        boot_ms: None,
    };
    let claim = MessageSequenceFacts {
        number: header.number,
        fingerprint: message_fingerprint(bytes),
        // The agent's own clock is used: the arrival time cannot tell a late datagram from one after a restart.
        sent_s: header.uptime_ms / 1000,
        empty: false,
        rebooted: false,
    };
    let Some(message) = session.open_message(claim, moment, now_ns, out) else { return Ok(()) };
    let read = read_samples(session, &mut reader, samples, &moment, out);
    session.counts.lost_samples = session.sflow.samplers.lost_samples();
    session.close_message(message.with_units(1));
    read
}

fn read_samples(
    session: &mut ExportSession,
    reader: &mut ByteReader<'_>,
    samples: u32,
    moment: &MessageTime,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    for number in 1..=samples {
        let malformed = MalformedMessage::Sample { number };
        let kind = reader.read_u32().ok_or(malformed)?;
        let length = reader.read_u32().ok_or(malformed)?;
        let content = usize::try_from(length).ok().and_then(|length| reader.read_bytes(length));
        let content = content.ok_or(malformed)?;
        read_sample(session, kind, content, moment, out).ok_or(malformed)?;
    }
    Ok(())
}

/// Reads one sample; `None` if its content is cut off.
fn read_sample(
    session: &mut ExportSession,
    kind: u32,
    content: &[u8],
    moment: &MessageTime,
    out: &mut impl FnMut(ReceivedMessage),
) -> Option<()> {
    let mut reader = ByteReader::new(content);
    match SampleKind::from_number(kind) {
        Some(SampleKind::Flow { is_expanded }) => {
            session.counts.flow_samples += 1;
            let head = sample::read_flow_head(&mut reader, is_expanded)?;
            session.counts.sampler_drops += session.sflow.samplers.record_sample_numbers(&head);
            let read = record::read_record(&head, &mut reader, moment);
            match read.record {
                Some(record) => session.deliver_record(record, true, out),
                None => session.counts.samples_without_ip += 1,
            }
            read.is_whole.then_some(())
        }
        Some(SampleKind::Counters { is_expanded }) => {
            session.counts.counter_samples += 1;
            let _number = reader.read_u32()?;
            let _source = SampleSource::read_source(&mut reader, is_expanded)?;
            let noted = session.sflow.interfaces.read_sample(&mut reader, moment.sent_ns)?;
            session.counts.unread_samples += u64::from(!noted.is_known);
            session.counts.interfaces_no_room += u64::from(noted.has_no_room);
            Some(())
        }
        None => {
            session.counts.unread_samples += 1;
            Some(())
        }
    }
}
