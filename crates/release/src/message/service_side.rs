//! Messages of the service: its properties, acknowledgements, reports and answers.

use super::client_side::map_to_ipv6;
use super::report::{PacketFault, PacketReport, PacketStamp, REPORT_ENTRY_BYTES, REPORT_FAULT_BYTES};
use super::{HEADER, MAX_MESSAGE_BYTES, MessageHeader, build_message, read_header};
use crate::fields::{FieldReader, FieldWriter};
use std::net::{IpAddr, Ipv6Addr};

const WELCOME_KIND: u16 = 129;
const ACCEPTED_KIND: u16 = 130;
const REPORT_KIND: u16 = 131;
const CANCELLED_KIND: u16 = 132;
const LISTENING_KIND: u16 = 133;
const ANSWER_KIND: u16 = 134;
const ERROR_KIND: u16 = 135;
const STATE_KIND: u16 = 136;
const LIMITS_KIND: u16 = 137;

/// Length of the field for the name of an interface, in bytes.
const INTERFACE_NAME_BYTES: usize = 16;
/// Length of the field for the text of an error, in bytes.
const ERROR_TEXT_BYTES: usize = 200;
/// In a message, this value in place of a packet number or a byte position means that there is none.
const NONE: u32 = u32::MAX;

/// Limits of a target. All clients together share them; only `most` is for each user separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketLimits {
    pub packets_per_s: u64,
    /// Bits per second; frames count without FCS.
    pub bits_per_s: u64,
    /// Total number of packets of one user, while the service runs.
    pub most: u64,
    /// Maximum number of packets in one burst or in one train.
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
    /// Maximum number of packets of one batch.
    pub batch_packets: u32,
    /// Maximum number of packets and bytes of this client in the queue.
    pub quota_packets: u32,
    pub quota_bytes: u64,
    /// Submit packets at least this long before their release. Later ones leave as soon as possible, flagged late.
    pub lead_ns: u64,
    /// A packet that leaves later than this after its release time is flagged as late.
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
    /// Lower bound of the limits of all permitted targets; TARGET returns the limits of one target.
    pub limits: PacketLimits,
}

/// A frame that answers a packet of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedAnswer {
    pub arrival: PacketStamp,
    /// Total number of answers that were lost so far because the client did not read them in time.
    pub lost: u32,
    /// True if the sender is on this machine and left the checksum to a network card, so the frame has none.
    pub lacks_checksum: bool,
    /// Bytes of the whole frame.
    pub frame_size: u32,
    /// The frame from its Ethernet header on, up to the length that the client wants.
    pub bytes: Vec<u8>,
}

/// Counts of one client, and the number of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStatus {
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
    /// A reason of a later service, which this client does not know.
    Unknown = 0,
    BrokenMessage = 1,
    UnknownVersion = 2,
    NotAllowed = 3,
    TooManyClients = 4,
    CannotListen = 5,
}

impl ProtocolErrorCode {
    fn from_number(number: u16) -> Self {
        let all = [
            Self::BrokenMessage,
            Self::UnknownVersion,
            Self::NotAllowed,
            Self::TooManyClients,
            Self::CannotListen,
        ];
        all.into_iter().find(|code| *code as u16 == number).unwrap_or(Self::Unknown)
    }
}

/// Position of an error in the message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPosition {
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
    Answer(ReceivedAnswer),
    State {
        id: u64,
        state: ClientStatus,
    },
    Error {
        id: u64,
        code: ProtocolErrorCode,
        closes: bool,
        text: String,
        place: Option<ErrorPosition>,
    },
    /// `limits` `None`: the target may not be probed.
    Limits {
        id: u64,
        address: IpAddr,
        limits: Option<PacketLimits>,
    },
}

impl ServiceMessage {
    /// Maximum number of reports in one message.
    // The 8 bytes are the count and a reserved field. A fault follows for each entry.
    pub const MAX_REPORTS: usize =
        (MAX_MESSAGE_BYTES - HEADER - 8) / (REPORT_ENTRY_BYTES + REPORT_FAULT_BYTES);

    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Welcome { id, facts } => {
                build_message(WELCOME_KIND, *id, |fields| write_facts(facts, fields))
            }
            Self::Accepted { batch, accepted, refused, queued } => {
                build_message(ACCEPTED_KIND, *batch, |fields| {
                    fields.put_u32(*accepted).put_u32(*refused).put_u32(*queued).put_u32(0);
                })
            }
            Self::Report { reports } => build_message(REPORT_KIND, 0, |fields| {
                fields.put_u32(u32::try_from(reports.len()).unwrap_or(u32::MAX)).put_u32(0);
                for report in reports {
                    report.write_packet_report(fields);
                }
                // Faults follow all entries, because new versions add fields only at the end of a message.
                for report in reports {
                    PacketFault::write_packet_fault(report.fault, fields);
                }
            }),
            Self::Cancelled { id, count } => build_message(CANCELLED_KIND, *id, |fields| {
                fields.put_u32(*count).put_u32(0);
            }),
            Self::Listening { id } => build_message(LISTENING_KIND, *id, |fields| {
                fields.put_u64(0);
            }),
            Self::Answer(answer) => build_message(ANSWER_KIND, 0, |fields| write_answer(answer, fields)),
            Self::State { id, state } => build_message(STATE_KIND, *id, |fields| {
                fields.put_u32(state.queued).put_u32(state.clients);
                fields
                    .put_u64(state.sent)
                    .put_u64(state.late)
                    .put_u64(state.shifted)
                    .put_u64(state.refused)
                    .put_u64(state.answers);
            }),
            Self::Error { id, code, closes, text, place } => build_message(ERROR_KIND, *id, |fields| {
                fields
                    .put_u16(*code as u16)
                    .put_u8(u8::from(*closes))
                    .put_u8(0)
                    .put_u32(0)
                    .put_text(text, ERROR_TEXT_BYTES);
                fields.put_u32(place.and_then(|place| place.packet).unwrap_or(NONE));
                fields.put_u32(place.map_or(NONE, |place| place.byte));
            }),
            Self::Limits { id, address, limits } => build_message(LIMITS_KIND, *id, |fields| {
                fields
                    .put_bytes(&map_to_ipv6(*address).octets())
                    .put_u32(u32::from(limits.is_some()))
                    .put_u32(0);
                write_limits(limits.unwrap_or_default(), fields);
            }),
        }
    }

    /// Number of the request that this message answers; `None` if it is not an answer.
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

    /// True if the bytes have the type of one of these messages, or a broken header.
    pub fn has_known_type(bytes: &[u8]) -> bool {
        let header = read_header(&mut FieldReader::new(bytes), bytes.len());
        // A broken header counts as known, so that the client reports it instead of ignoring the message.
        // The types of this version have consecutive numbers.
        header.is_none_or(|header| (WELCOME_KIND..=LIMITS_KIND).contains(&header.kind))
    }

    /// Parses a message; `None`: the bytes break the protocol, or their type is of a later service.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = FieldReader::new(bytes);
        let MessageHeader { kind, id } = read_header(&mut fields, bytes.len())?;
        let fields = &mut fields;
        // Bytes after the last known field are from a later service.
        Some(match kind {
            WELCOME_KIND => Self::Welcome { id, facts: read_facts(fields)? },
            ACCEPTED_KIND => {
                let (accepted, refused, queued) =
                    (fields.read_u32()?, fields.read_u32()?, fields.read_u32()?);
                Self::Accepted { batch: id, accepted, refused, queued }
            }
            REPORT_KIND => Self::Report { reports: read_reports(fields)? },
            CANCELLED_KIND => Self::Cancelled { id, count: fields.read_u32()? },
            LISTENING_KIND => Self::Listening { id },
            ANSWER_KIND => Self::Answer(read_answer(fields)?),
            STATE_KIND => Self::State { id, state: read_state(fields)? },
            ERROR_KIND => read_error(id, fields)?,
            LIMITS_KIND => {
                let address = IpAddr::V6(Ipv6Addr::from(fields.read_array::<16>()?)).to_canonical();
                let is_permitted = fields.read_u32()? != 0;
                fields.read_u32()?;
                // The limits are always in the message; they are zeros if the target may not be probed.
                let limits = read_packet_limits(fields)?;
                Self::Limits { id, address, limits: is_permitted.then_some(limits) }
            }
            _ => return None,
        })
    }
}

fn read_reports(fields: &mut FieldReader<'_>) -> Option<Vec<PacketReport>> {
    let count = fields.read_u32()?;
    fields.read_u32()?;
    // No capacity is reserved: the count is unchecked, so memory grows only with entries in the message.
    let mut reports = Vec::new();
    for _ in 0..count {
        reports.push(PacketReport::read_entry(fields)?);
    }
    for report in &mut reports {
        report.read_fault(fields)?;
    }
    Some(reports)
}

fn write_limits(limits: PacketLimits, fields: &mut FieldWriter) {
    fields
        .put_u64(limits.packets_per_s)
        .put_u64(limits.bits_per_s)
        .put_u64(limits.most)
        .put_u32(limits.burst)
        .put_u32(0);
}

fn read_packet_limits(fields: &mut FieldReader<'_>) -> Option<PacketLimits> {
    let (packets_per_s, bits_per_s, most) = (fields.read_u64()?, fields.read_u64()?, fields.read_u64()?);
    let burst = fields.read_u32()?;
    fields.read_u32()?;
    Some(PacketLimits { packets_per_s, bits_per_s, most, burst })
}

fn write_facts(facts: &ServiceFacts, fields: &mut FieldWriter) {
    fields
        .put_u16(facts.version)
        .put_u16(facts.mechanism)
        .put_u32(facts.interface)
        .put_u32(facts.mtu)
        .put_u32(facts.batch_packets);
    fields
        .put_u32(facts.quota_packets)
        .put_u32(0)
        .put_u64(facts.quota_bytes)
        .put_u64(facts.lead_ns)
        .put_u64(facts.tolerance_ns);
    fields
        .put_u64(facts.horizon_ns)
        .put_bytes(&facts.mac)
        .put_u8(facts.priority)
        .put_u8(0)
        .put_text(&facts.interface_name, INTERFACE_NAME_BYTES);
    fields
        .put_u32(facts.train_packets)
        .put_u32(facts.frame_bytes)
        .put_u64(facts.train_ns)
        .put_u32(facts.targets)
        .put_u32(0);
    write_limits(facts.limits, fields);
}

fn read_facts(fields: &mut FieldReader<'_>) -> Option<ServiceFacts> {
    let version = fields.read_u16()?;
    let mechanism = fields.read_u16()?;
    let interface = fields.read_u32()?;
    let mtu = fields.read_u32()?;
    let batch_packets = fields.read_u32()?;
    let quota_packets = fields.read_u32()?;
    fields.read_u32()?;
    let quota_bytes = fields.read_u64()?;
    let lead_ns = fields.read_u64()?;
    let tolerance_ns = fields.read_u64()?;
    let horizon_ns = fields.read_u64()?;
    let mac = fields.read_array()?;
    let priority = fields.read_u8()?;
    fields.read_u8()?;
    let interface_name = fields.read_text::<INTERFACE_NAME_BYTES>()?;
    let train_packets = fields.read_u32()?;
    let frame_bytes = fields.read_u32()?;
    let train_ns = fields.read_u64()?;
    let targets = fields.read_u32()?;
    fields.read_u32()?;
    let limits = read_packet_limits(fields)?;
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

fn write_answer(answer: &ReceivedAnswer, fields: &mut FieldWriter) {
    PacketStamp::write_packet_stamp(Some(&answer.arrival), fields);
    // A frame that is too long for the size field is cut; `frame_size` has the length of the whole frame.
    let size = u16::try_from(answer.bytes.len()).unwrap_or(u16::MAX);
    fields
        .put_u32(answer.lost)
        .put_u16(size)
        .put_u16(u16::from(answer.lacks_checksum))
        .put_u32(answer.frame_size)
        .put_u32(0);
    fields.put_bytes(&answer.bytes[..usize::from(size)]);
}

fn read_answer(fields: &mut FieldReader<'_>) -> Option<ReceivedAnswer> {
    // An answer without the time of its arrival gives no round-trip time, so it counts as broken.
    let arrival = PacketStamp::read_stamp(fields).ok()??;
    let lost = fields.read_u32()?;
    let size = fields.read_u16()?;
    // Other flags belong to a later service.
    let lacks_checksum = fields.read_u16()? & 1 != 0;
    let frame_size = fields.read_u32()?;
    fields.read_u32()?;
    let bytes = fields.read_padded_bytes(usize::from(size))?.to_vec();
    Some(ReceivedAnswer { arrival, lost, lacks_checksum, frame_size, bytes })
}

fn read_state(fields: &mut FieldReader<'_>) -> Option<ClientStatus> {
    Some(ClientStatus {
        queued: fields.read_u32()?,
        clients: fields.read_u32()?,
        sent: fields.read_u64()?,
        late: fields.read_u64()?,
        shifted: fields.read_u64()?,
        refused: fields.read_u64()?,
        answers: fields.read_u64()?,
    })
}

fn read_error(id: u64, fields: &mut FieldReader<'_>) -> Option<ServiceMessage> {
    let code = ProtocolErrorCode::from_number(fields.read_u16()?);
    let closes = fields.read_u8()? != 0;
    // Reserved bytes, which a later service may use.
    fields.read_bytes(5)?;
    let text = fields.read_text::<ERROR_TEXT_BYTES>()?;
    let (packet, byte) = (fields.read_u32()?, fields.read_u32()?);
    let packet = Some(packet).filter(|packet| *packet != NONE);
    let place = (byte != NONE).then_some(ErrorPosition { packet, byte });
    Some(ServiceMessage::Error { id, code, closes, text, place })
}
