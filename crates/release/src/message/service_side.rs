//! Messages of the service: its properties, acknowledgements, reports and answers.

use super::client_side::mapped;
use super::report::{ENTRY, FAULT, PacketFault, PacketReport, PacketStamp};
use super::{HEADER, LONGEST_MESSAGE, MessageHeader, read_header, written};
use crate::fields::{FieldReader, FieldWriter};
use std::net::{IpAddr, Ipv6Addr};

const WELCOME: u16 = 129;
const ACCEPTED: u16 = 130;
const REPORT: u16 = 131;
const CANCELLED: u16 = 132;
const LISTENING: u16 = 133;
const ANSWER: u16 = 134;
const ERROR: u16 = 135;
const STATE: u16 = 136;
const LIMITS: u16 = 137;

/// Bytes of the name of an interface.
const INTERFACE: usize = 16;
/// Bytes of the text of an error.
const TEXT: usize = 200;
/// Stands for no number of a packet or of a byte.
const NONE: u32 = u32::MAX;

/// Limits of a target, for all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketLimits {
    pub packets_per_s: u64,
    /// Bits of frames per second.
    pub bits_per_s: u64,
    /// Total number of packets of one user.
    pub most: u64,
    /// Packets at once, or of one train.
    pub burst: u32,
}

/// Properties of the service that a client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    pub version: u16,
    /// Number of the release mechanism.
    pub mechanism: u16,
    pub interface: u32,
    pub interface_name: String,
    pub mac: [u8; 6],
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    /// Most packets of one batch.
    pub batch_packets: u32,
    /// Maximum number of packets and bytes of this client in the queue.
    pub quota_packets: u32,
    pub quota_bytes: u64,
    /// Minimum time between the submission of a packet and its release.
    pub lead_ns: u64,
    /// Delay from which a packet is flagged late.
    pub tolerance_ns: u64,
    /// Maximum time ahead: later release times are refused.
    pub horizon_ns: u64,
    /// The priority that was granted to the client.
    pub priority: u8,
    /// Maximum number of packets of a train, and longest time from its first to its last one.
    pub train_packets: u32,
    pub train_ns: u64,
    /// Bytes of the longest frame, without FCS, that the release mechanism sends.
    pub frame_bytes: u32,
    /// Maximum number of targets of one client.
    pub targets: u32,
    /// Lower bound of the limits of all permitted targets; TARGET returns those of one target.
    pub limits: PacketLimits,
}

/// A frame that answers a packet of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardAnswer {
    pub arrival: PacketStamp,
    /// Number of answers so far that the client did not take in time.
    pub lost: u32,
    /// True if its sender is on this machine and left the checksum to a card.
    pub lacks_checksum: bool,
    /// Bytes of the whole frame.
    pub frame_size: u32,
    /// The frame from its Ethernet header on, up to the length that the client wants.
    pub bytes: Vec<u8>,
}

/// Counts of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    pub queued: u32,
    /// Clients of the service.
    pub clients: u32,
    pub sent: u64,
    pub late: u64,
    pub shifted: u64,
    pub refused: u64,
    pub answers: u64,
}

/// Reason for an error of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolErrorCode {
    BrokenMessage = 1,
    UnknownVersion = 2,
    NotAllowed = 3,
    TooManyClients = 4,
    CannotListen = 5,
}

impl ProtocolErrorCode {
    fn from_number(number: u16) -> Option<Self> {
        let all = [
            Self::BrokenMessage,
            Self::UnknownVersion,
            Self::NotAllowed,
            Self::TooManyClients,
            Self::CannotListen,
        ];
        all.into_iter().find(|code| *code as u16 == number)
    }
}

/// Position in a client's message of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPlace {
    /// Number of the packet in SUBMIT, from 0.
    pub packet: Option<u32>,
    /// First byte of the wrong field in the message.
    pub byte: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceMessage {
    Welcome {
        id: u64,
        facts: ServiceFacts,
    },
    Accepted {
        batch: u64,
        accepted: u32,
        refused: u32,
        queued: u32,
    },
    Report {
        reports: Vec<PacketReport>,
    },
    Cancelled {
        id: u64,
        count: u32,
    },
    Listening {
        id: u64,
    },
    Answer(HeardAnswer),
    State {
        id: u64,
        state: ServiceState,
    },
    Error {
        id: u64,
        code: ProtocolErrorCode,
        closes: bool,
        text: String,
        place: Option<ErrorPlace>,
    },
    /// `limits` `None`: the target may not be probed.
    Limits {
        id: u64,
        address: IpAddr,
        limits: Option<PacketLimits>,
    },
}

impl ServiceMessage {
    /// Most reports in one message.
    pub const MOST_REPORTS: usize = (LONGEST_MESSAGE - HEADER - 8) / (ENTRY + FAULT);

    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Welcome { id, facts } => written(WELCOME, *id, |fields| write_facts(facts, fields)),
            Self::Accepted { batch, accepted, refused, queued } => written(ACCEPTED, *batch, |fields| {
                fields.u32(*accepted).u32(*refused).u32(*queued).u32(0);
            }),
            Self::Report { reports } => written(REPORT, 0, |fields| {
                fields.u32(u32::try_from(reports.len()).unwrap_or(u32::MAX)).u32(0);
                for report in reports {
                    report.write(fields);
                }
                // Faults follow all entries: fields are only ever added at the end of a message.
                for report in reports {
                    PacketFault::write(report.fault, fields);
                }
            }),
            Self::Cancelled { id, count } => written(CANCELLED, *id, |fields| {
                fields.u32(*count).u32(0);
            }),
            Self::Listening { id } => written(LISTENING, *id, |fields| {
                fields.u64(0);
            }),
            Self::Answer(answer) => written(ANSWER, 0, |fields| write_answer(answer, fields)),
            Self::State { id, state } => written(STATE, *id, |fields| {
                fields.u32(state.queued).u32(state.clients);
                fields
                    .u64(state.sent)
                    .u64(state.late)
                    .u64(state.shifted)
                    .u64(state.refused)
                    .u64(state.answers);
            }),
            Self::Error { id, code, closes, text, place } => written(ERROR, *id, |fields| {
                fields.u16(*code as u16).u8(u8::from(*closes)).u8(0).u32(0).text(text, TEXT);
                fields.u32(place.and_then(|place| place.packet).unwrap_or(NONE));
                fields.u32(place.map_or(NONE, |place| place.byte));
            }),
            Self::Limits { id, address, limits } => written(LIMITS, *id, |fields| {
                fields.raw(&mapped(*address).octets()).u32(u32::from(limits.is_some())).u32(0);
                write_limits(limits.unwrap_or_default(), fields);
            }),
        }
    }

    /// Number of the message that it answers; `None`: it answers none.
    pub const fn id(&self) -> Option<u64> {
        match self {
            Self::Welcome { id, .. }
            | Self::Cancelled { id, .. }
            | Self::Listening { id }
            | Self::State { id, .. }
            | Self::Limits { id, .. }
            | Self::Error { id, .. } => Some(*id),
            Self::Accepted { batch, .. } => Some(*batch),
            Self::Report { .. } | Self::Answer(_) => None,
        }
    }

    /// True if bytes have the type of one of these messages.
    pub fn is_known(bytes: &[u8]) -> bool {
        let header = read_header(&mut FieldReader::new(bytes), bytes.len());
        // A broken header counts as known, so that the client reports it instead of ignoring the message.
        header.is_none_or(|header| (WELCOME..=LIMITS).contains(&header.kind))
    }

    /// Parses a message; `None`: the bytes break the protocol.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = FieldReader::new(bytes);
        let MessageHeader { kind, id } = read_header(&mut fields, bytes.len())?;
        let fields = &mut fields;
        // Bytes after the last known field are from a later service.
        Some(match kind {
            WELCOME => Self::Welcome { id, facts: read_facts(fields)? },
            ACCEPTED => {
                let (accepted, refused, queued) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::Accepted { batch: id, accepted, refused, queued }
            }
            REPORT => Self::Report { reports: read_reports(fields)? },
            CANCELLED => Self::Cancelled { id, count: fields.u32()? },
            LISTENING => Self::Listening { id },
            ANSWER => Self::Answer(read_answer(fields)?),
            STATE => Self::State { id, state: read_state(fields)? },
            ERROR => read_error(id, fields)?,
            LIMITS => {
                let address = IpAddr::V6(Ipv6Addr::from(fields.array::<16>()?)).to_canonical();
                let is_permitted = fields.u32()? != 0;
                fields.u32()?;
                let limits = read_limits(fields)?;
                Self::Limits { id, address, limits: is_permitted.then_some(limits) }
            }
            _ => return None,
        })
    }
}

fn read_reports(fields: &mut FieldReader<'_>) -> Option<Vec<PacketReport>> {
    let count = fields.u32()?;
    fields.u32()?;
    let mut reports = Vec::new();
    for _ in 0..count {
        reports.push(PacketReport::read(fields)?);
    }
    for report in &mut reports {
        report.read_fault(fields)?;
    }
    Some(reports)
}

fn write_limits(limits: PacketLimits, fields: &mut FieldWriter) {
    fields.u64(limits.packets_per_s).u64(limits.bits_per_s).u64(limits.most).u32(limits.burst).u32(0);
}

fn read_limits(fields: &mut FieldReader<'_>) -> Option<PacketLimits> {
    let (packets_per_s, bits_per_s, most) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let burst = fields.u32()?;
    fields.u32()?;
    Some(PacketLimits { packets_per_s, bits_per_s, most, burst })
}

fn write_facts(facts: &ServiceFacts, fields: &mut FieldWriter) {
    fields
        .u16(facts.version)
        .u16(facts.mechanism)
        .u32(facts.interface)
        .u32(facts.mtu)
        .u32(facts.batch_packets);
    fields.u32(facts.quota_packets).u32(0).u64(facts.quota_bytes).u64(facts.lead_ns).u64(facts.tolerance_ns);
    fields
        .u64(facts.horizon_ns)
        .raw(&facts.mac)
        .u8(facts.priority)
        .u8(0)
        .text(&facts.interface_name, INTERFACE);
    fields.u32(facts.train_packets).u32(facts.frame_bytes).u64(facts.train_ns).u32(facts.targets).u32(0);
    write_limits(facts.limits, fields);
}

fn read_facts(fields: &mut FieldReader<'_>) -> Option<ServiceFacts> {
    let version = fields.u16()?;
    let mechanism = fields.u16()?;
    let interface = fields.u32()?;
    let mtu = fields.u32()?;
    let batch_packets = fields.u32()?;
    let quota_packets = fields.u32()?;
    fields.u32()?;
    let quota_bytes = fields.u64()?;
    let lead_ns = fields.u64()?;
    let tolerance_ns = fields.u64()?;
    let horizon_ns = fields.u64()?;
    let mac = fields.array()?;
    let priority = fields.u8()?;
    fields.u8()?;
    let interface_name = fields.text::<INTERFACE>()?;
    let train_packets = fields.u32()?;
    let frame_bytes = fields.u32()?;
    let train_ns = fields.u64()?;
    let targets = fields.u32()?;
    fields.u32()?;
    let limits = read_limits(fields)?;
    Some(ServiceFacts {
        version,
        mechanism,
        interface,
        interface_name,
        mac,
        mtu,
        batch_packets,
        quota_packets,
        quota_bytes,
        lead_ns,
        tolerance_ns,
        horizon_ns,
        priority,
        train_packets,
        train_ns,
        frame_bytes,
        targets,
        limits,
    })
}

fn write_answer(answer: &HeardAnswer, fields: &mut FieldWriter) {
    PacketStamp::write(Some(&answer.arrival), fields);
    let size = u16::try_from(answer.bytes.len()).unwrap_or(u16::MAX);
    fields.u32(answer.lost).u16(size).u16(u16::from(answer.lacks_checksum)).u32(answer.frame_size).u32(0);
    fields.raw(&answer.bytes[..usize::from(size)]);
}

fn read_answer(fields: &mut FieldReader<'_>) -> Option<HeardAnswer> {
    let arrival = PacketStamp::read(fields).ok()??;
    let lost = fields.u32()?;
    let size = fields.u16()?;
    let lacks_checksum = match fields.u16()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let frame_size = fields.u32()?;
    fields.u32()?;
    let bytes = fields.padded(usize::from(size))?.to_vec();
    Some(HeardAnswer { arrival, lost, lacks_checksum, frame_size, bytes })
}

fn read_state(fields: &mut FieldReader<'_>) -> Option<ServiceState> {
    Some(ServiceState {
        queued: fields.u32()?,
        clients: fields.u32()?,
        sent: fields.u64()?,
        late: fields.u64()?,
        shifted: fields.u64()?,
        refused: fields.u64()?,
        answers: fields.u64()?,
    })
}

fn read_error(id: u64, fields: &mut FieldReader<'_>) -> Option<ServiceMessage> {
    let code = ProtocolErrorCode::from_number(fields.u16()?)?;
    let closes = fields.u8()? != 0;
    // Reserved bytes, which a later service may use.
    fields.bytes(5)?;
    let text = fields.text::<TEXT>()?;
    let (packet, byte) = (fields.u32()?, fields.u32()?);
    let packet = Some(packet).filter(|packet| *packet != NONE);
    let place = (byte != NONE).then_some(ErrorPlace { packet, byte });
    Some(ServiceMessage::Error { id, code, closes, text, place })
}
