//! Messages of a client: its name, packets with their release times, and cancellations.

use super::{PROTOCOL_MAGIC, VERSION, build_message, read_header};
use crate::fields::{FieldPlace, FieldReader, FieldWriter};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

const HELLO_KIND: u16 = 1;
const SUBMIT_KIND: u16 = 2;
const CANCEL_KIND: u16 = 3;
const LISTEN_KIND: u16 = 4;
const STATUS_KIND: u16 = 5;
const TARGET_KIND: u16 = 6;

/// Length of the field for the name of a client, in bytes.
const CLIENT_NAME_BYTES: usize = 32;
/// Length of the fields of a packet in SUBMIT that precede the bytes of the packet.
pub(super) const PACKET_HEADER: usize = 32;

/// The clock of a release time, by its number in `clock_gettime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseClock {
    Realtime,
    Monotonic,
    Tai,
}

impl ReleaseClock {
    // The numbers of <linux/time.h>: a program in C can write the same `clockid_t` with which it reads the time.
    const ALL: [(u8, Self); 3] = [(0, Self::Realtime), (1, Self::Monotonic), (11, Self::Tai)];

    fn to_number(self) -> u8 {
        Self::ALL.iter().find(|(_, clock)| *clock == self).map_or(0, |(number, _)| *number)
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().find(|(of, _)| *of == number).map(|(_, clock)| *clock)
    }
}

/// Form of a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKind {
    /// An Ethernet frame without FCS.
    Frame,
    /// An IPv4 or IPv6 packet, for which the service finds the next hop.
    IpPacket,
}

/// A packet with its release time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketToRelease {
    /// Number that the client gives the packet; the report of the packet repeats it.
    pub cookie: u64,
    pub clock: ReleaseClock,
    /// Release time, nanoseconds of `clock`.
    pub release_at: u64,
    /// Maximum delay after `release_at`, in nanoseconds; 0: no limit.
    pub latest: u64,
    /// Consecutive packets with the same number other than 0 are one train.
    pub train: u32,
    pub kind: PacketKind,
    pub bytes: Vec<u8>,
}

impl PacketToRelease {
    /// Creates a single IP packet on CLOCK_MONOTONIC without a limit of its delay.
    pub const fn ip_packet(cookie: u64, release_at: u64, bytes: Vec<u8>) -> Self {
        let (clock, kind) = (ReleaseClock::Monotonic, PacketKind::IpPacket);
        Self { cookie, clock, release_at, latest: 0, train: 0, kind, bytes }
    }

    /// Length of the packet in a message, in bytes.
    pub const fn length_in_message(&self) -> usize {
        PACKET_HEADER + self.bytes.len().next_multiple_of(crate::fields::MESSAGE_ALIGNMENT)
    }
}

/// Selection of the answers that a client receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerFilter {
    /// IP protocol of the wanted answers; `None`: any.
    pub protocol: Option<u8>,
    /// UDP or TCP port of the client; `None`: any.
    pub own_port: Option<u16>,
    /// Source address of the wanted answers; `None`: any.
    pub from: Option<IpAddr>,
    /// Maximum number of bytes of each frame that are sent to the client; `None`: all.
    pub most_bytes: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    Hello {
        id: u64,
        version: u16,
        priority: u8,
        name: String,
    },
    Submit {
        batch: u64,
        packets: Vec<PacketToRelease>,
    },
    /// Cancels packets. `batch` 0: all batches. `train` 0: all trains of the batch.
    Cancel {
        id: u64,
        batch: u64,
        train: u32,
    },
    /// Selects the answers that the service sends. `filter` `None`: no answers any more.
    Listen {
        id: u64,
        filter: Option<AnswerFilter>,
    },
    Status {
        id: u64,
    },
    /// Asks for the limits of a target.
    Target {
        id: u64,
        address: IpAddr,
    },
}

/// Position at which a message of a client breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenMessage {
    /// Name of the field, as in `docs/book/release-protocol.md`.
    pub field: &'static str,
    /// First byte of the field in the message.
    pub byte: u32,
    /// The packet of SUBMIT to which the field belongs, from 0.
    pub packet: Option<u32>,
}

impl From<FieldPlace> for BrokenMessage {
    fn from(FieldPlace { field, byte, packet }: FieldPlace) -> Self {
        Self { field, byte: u32::try_from(byte).unwrap_or(u32::MAX), packet }
    }
}

impl fmt::Display for BrokenMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, byte, packet } = self;
        match packet {
            Some(packet) => {
                write!(f, "`{field}` of packet {packet} (byte {byte} of the message) is missing or wrong")
            }
            None => write!(f, "`{field}` (byte {byte} of the message) is missing or wrong"),
        }
    }
}

impl ClientMessage {
    /// Number of the request, which its answer repeats.
    pub const fn id(&self) -> u64 {
        match self {
            Self::Hello { id, .. }
            | Self::Cancel { id, .. }
            | Self::Listen { id, .. }
            | Self::Status { id }
            | Self::Target { id, .. } => *id,
            Self::Submit { batch, .. } => *batch,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello { id, version, priority, name } => build_message(HELLO_KIND, *id, |fields| {
                fields
                    .put_u32(PROTOCOL_MAGIC)
                    .put_u16(*version)
                    .put_u8(*priority)
                    .put_u8(0)
                    .put_text(name, CLIENT_NAME_BYTES)
                    .put_u64(0);
            }),
            Self::Submit { batch, packets } => build_message(SUBMIT_KIND, *batch, |fields| {
                fields.put_u32(u32::try_from(packets.len()).unwrap_or(u32::MAX)).put_u32(0);
                for packet in packets {
                    write_packet(packet, fields);
                }
            }),
            Self::Cancel { id, batch, train } => build_message(CANCEL_KIND, *id, |fields| {
                fields.put_u64(*batch).put_u32(*train).put_u32(0);
            }),
            Self::Listen { id, filter } => {
                build_message(LISTEN_KIND, *id, |fields| write_filter(filter.as_ref(), fields))
            }
            Self::Status { id } => build_message(STATUS_KIND, *id, |_| {}),
            Self::Target { id, address } => build_message(TARGET_KIND, *id, |fields| {
                fields.put_bytes(&map_to_ipv6(*address).octets());
            }),
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BrokenMessage> {
        let mut fields = FieldReader::new(bytes);
        Self::read_fields(&mut fields, bytes.len()).ok_or_else(|| fields.place().into())
    }

    fn read_fields(fields: &mut FieldReader<'_>, length: usize) -> Option<Self> {
        let header = read_header(fields, length)?;
        let id = header.id;
        let message = match header.kind {
            HELLO_KIND => read_hello(id, fields)?,
            SUBMIT_KIND => Self::Submit { batch: id, packets: read_packets(id, fields)? },
            CANCEL_KIND => {
                let batch = fields.name_field("batch").read_u64()?;
                let train = fields.name_field("train").read_u32()?;
                fields.name_field("reserved").skip_reserved(4)?;
                Self::Cancel { id, batch, train }
            }
            LISTEN_KIND => {
                // The fields of the filter are checked in both cases: LISTEN has one form, whether it
                // begins or ends answers.
                let ListenRequestFields { is_on, filter } = read_filter(fields)?;
                Self::Listen { id, filter: is_on.then_some(filter) }
            }
            STATUS_KIND => Self::Status { id },
            TARGET_KIND => {
                let address = Ipv6Addr::from(fields.name_field("address").read_array::<16>()?);
                // An address `::ffff:a.b.c.d` becomes IPv4, because limits and permits are for IPv4 addresses.
                Self::Target { id, address: IpAddr::V6(address).to_canonical() }
            }
            _ => {
                // The reader is past the header, so the error position is set back to the wrong field, `type`.
                fields.set_error_field("type", 0);
                return None;
            }
        };
        // The end of the message belongs to no packet of SUBMIT.
        fields.set_current_packet(None);
        fields.name_field("end of the message").is_empty().then_some(message)
    }
}

fn read_hello(id: u64, fields: &mut FieldReader<'_>) -> Option<ClientMessage> {
    if fields.name_field("magic").read_u32()? != PROTOCOL_MAGIC {
        return None;
    }
    let version = fields.name_field("version").read_u16()?;
    let priority = fields.name_field("priority").read_u8()?;
    fields.name_field("reserved").skip_reserved(1)?;
    let name = fields.name_field("name").read_text::<CLIENT_NAME_BYTES>()?;
    fields.name_field("reserved");
    // A later version may use the remaining bytes. Its HELLO is read, so that the service can refuse the version
    // by a specific error.
    if version == VERSION {
        fields.skip_reserved(8)?;
    } else {
        fields.read_u64()?;
    }
    Some(ClientMessage::Hello { id, version, priority, name })
}

fn write_packet(packet: &PacketToRelease, fields: &mut FieldWriter) {
    let kind = match packet.kind {
        PacketKind::Frame => 1,
        PacketKind::IpPacket => 2,
    };
    fields.put_u64(packet.cookie).put_u64(packet.release_at).put_u64(packet.latest).put_u32(packet.train);
    // If the packet is longer than a `u16` can express, the message is too long as well, and the service refuses it.
    fields.put_u16(u16::try_from(packet.bytes.len()).unwrap_or(u16::MAX));
    fields.put_u8(kind).put_u8(packet.clock.to_number()).put_bytes(&packet.bytes).pad_to_alignment();
}

fn read_packets(batch: u64, fields: &mut FieldReader<'_>) -> Option<Vec<PacketToRelease>> {
    // CANCEL uses 0 for all batches, so a batch with this number could not be cancelled alone. The number of the batch
    // is the `id` of the header, which was named last, so the error names `id`.
    if batch == 0 {
        return None;
    }
    let count = fields.name_field("count").read_u32()?;
    if count == 0 {
        return None;
    }
    fields.name_field("reserved").skip_reserved(4)?;
    let mut packets = Vec::new();
    // `count` is an unchecked claim of the client: memory grows only with packets that have arrived.
    for packet in 0..count {
        // The packet number is set before the first field of the packet is read, so that a batch that ends too early is
        // reported at the first missing packet.
        fields.set_current_packet(Some(packet));
        packets.push(read_packet(fields)?);
    }
    Some(packets)
}

fn read_packet(fields: &mut FieldReader<'_>) -> Option<PacketToRelease> {
    let cookie = fields.name_field("cookie").read_u64()?;
    let release_at = fields.name_field("release_at").read_u64()?;
    let latest = fields.name_field("latest").read_u64()?;
    let train = fields.name_field("train").read_u32()?;
    let size = fields.name_field("size").read_u16()?;
    let kind = match fields.name_field("kind").read_u8()? {
        1 => PacketKind::Frame,
        2 => PacketKind::IpPacket,
        _ => return None,
    };
    let clock = ReleaseClock::from_number(fields.name_field("clock").read_u8()?)?;
    let bytes = fields.name_field("bytes or padding").read_padded_bytes(usize::from(size))?.to_vec();
    Some(PacketToRelease { cookie, clock, release_at, latest, train, kind, bytes })
}

/// Converts an IPv4 address to `::ffff:a.b.c.d`.
pub(super) const fn map_to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn write_filter(filter: Option<&AnswerFilter>, fields: &mut FieldWriter) {
    let wanted = filter.copied().unwrap_or_default();
    // The unspecified address means no filter, like 0 in the other fields.
    let from = wanted.from.map_or(Ipv6Addr::UNSPECIFIED, map_to_ipv6);
    fields
        .put_u8(u8::from(filter.is_some()))
        .put_u8(wanted.protocol.unwrap_or(0))
        .put_u16(wanted.own_port.unwrap_or(0));
    fields.put_u32(wanted.most_bytes.unwrap_or(0)).put_bytes(&from.octets());
}

/// Fields of LISTEN: whether the client wants answers, and which ones.
struct ListenRequestFields {
    is_on: bool,
    filter: AnswerFilter,
}

fn read_filter(fields: &mut FieldReader<'_>) -> Option<ListenRequestFields> {
    let is_on = match fields.name_field("on").read_u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let protocol = Some(fields.name_field("protocol").read_u8()?).filter(|protocol| *protocol != 0);
    let own_port = Some(fields.name_field("own_port").read_u16()?).filter(|port| *port != 0);
    let most_bytes = Some(fields.name_field("most_bytes").read_u32()?).filter(|most| *most != 0);
    let from = Ipv6Addr::from(fields.name_field("from").read_array::<16>()?);
    // `to_canonical` first: `::ffff:0.0.0.0` is unspecified as an IPv4 address only.
    let from = Some(IpAddr::V6(from).to_canonical()).filter(|ip| !ip.is_unspecified());
    Some(ListenRequestFields { is_on, filter: AnswerFilter { protocol, own_port, from, most_bytes } })
}
