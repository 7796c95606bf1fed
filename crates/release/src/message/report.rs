//! Reports about packets: outcomes, stamps and faults.

use crate::fields::{FieldReader, FieldWriter};

/// Lengths in bytes of an entry of REPORT and of its fault. The faults follow after the last entry.
// Four u64, one u32, two u16, and five stamps of 24 bytes.
pub(super) const REPORT_ENTRY_BYTES: usize = 160;
pub(super) const REPORT_FAULT_BYTES: usize = 8;
/// In a message, this value in place of a packet number or a byte position means that there is none.
// A packet takes at least 32 bytes of SUBMIT, which has 65 536: a batch has fewer than 2048 packets.
const NONE: u16 = u16::MAX;

/// The clock of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StampClockName {
    /// CLOCK_MONOTONIC of this machine.
    Monotonic,
    /// The clock of a network device, `/dev/ptpN`.
    Device(u16),
}

/// Component that read the clock for a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StampReader {
    /// The sending program, which reads the clock before and after a call.
    Program,
    /// A BPF program in the kernel.
    Bpf,
    Kernel,
    Hardware,
}

/// An interval that contains the true time, in nanoseconds of `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketStamp {
    pub clock: StampClockName,
    pub reader: StampReader,
    pub lo: u64,
    pub hi: u64,
}

impl PacketStamp {
    // 0 is left out: it is the reader of a missing stamp.
    const READERS: [(u8, StampReader); 4] = [
        (1, StampReader::Program),
        (2, StampReader::Bpf),
        (3, StampReader::Kernel),
        (4, StampReader::Hardware),
    ];

    pub(super) fn write_packet_stamp(stamp: Option<&Self>, fields: &mut FieldWriter) {
        let Some(stamp) = stamp else {
            // Clock 0 means that there is no stamp.
            fields.put_bytes(&[0; 24]);
            return;
        };
        let (clock, device) = match stamp.clock {
            StampClockName::Monotonic => (1, 0),
            StampClockName::Device(device) => (2, device),
        };
        let reader = Self::READERS.iter().find(|(_, reader)| *reader == stamp.reader);
        fields
            .put_u64(stamp.lo)
            .put_u64(stamp.hi)
            .put_u8(clock)
            .put_u8(reader.map_or(0, |(number, _)| *number))
            .put_u16(device)
            .put_u32(0);
    }

    pub(super) fn read_stamp(fields: &mut FieldReader<'_>) -> Result<Option<Self>, TruncatedStamp> {
        // All 24 bytes are read even if the stamp is missing, because the next field follows them.
        Ok(StampFields::read_stamp_fields(fields).ok_or(TruncatedStamp)?.to_stamp())
    }
}

/// A message that ends within a stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct TruncatedStamp;

struct StampFields {
    lo: u64,
    hi: u64,
    clock: u8,
    reader: u8,
    device: u16,
}

impl StampFields {
    fn read_stamp_fields(fields: &mut FieldReader<'_>) -> Option<Self> {
        let (lo, hi) = (fields.read_u64()?, fields.read_u64()?);
        let (clock, reader, device) = (fields.read_u8()?, fields.read_u8()?, fields.read_u16()?);
        // Reserved bytes of the service are skipped without a check: a later service may use them.
        fields.read_u32()?;
        Some(Self { lo, hi, clock, reader, device })
    }

    /// Returns the stamp; `None` if the service has none, or if a later service names a clock or a reader
    /// that this client does not know.
    fn to_stamp(&self) -> Option<PacketStamp> {
        let clock = match self.clock {
            1 => StampClockName::Monotonic,
            2 => StampClockName::Device(self.device),
            _ => return None,
        };
        let (_, reader) = PacketStamp::READERS.iter().find(|(number, _)| *number == self.reader)?;
        Some(PacketStamp { clock, reader: *reader, lo: self.lo, hi: self.hi })
    }
}

// One list has numbers, names and documentation, so that no outcome lacks one of them.
macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $word:literal;)+) => {
        /// Outcome of a packet: sent, or the reason why not.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PacketOutcome {
            $($(#[doc = $doc])+ $name = $number,)+
            /// The packet was not sent, for a reason of a later service that this client does not know.
            Unknown = u16::MAX,
        }

        impl PacketOutcome {
            /// The outcomes of this version.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

outcomes! {
    /// The kernel accepted the packet, and the packet left.
    Sent = 0, "sent";
    /// The packet would have left later than its client allows.
    Late = 1, "late";
    /// The client's quota in the queue is used up.
    QueueFull = 2, "queue_full";
    /// The target may not be probed.
    NotPermitted = 3, "not_permitted";
    /// A limit of the target is used up, or the client has too many targets.
    OverLimit = 4, "over_limit";
    /// The bytes are not an IPv4 or IPv6 packet of an allowed kind, or the packet breaks the rules of its train.
    Malformed = 5, "malformed";
    /// The source address or next hop is wrong for the interface, or the source port belongs to another client or user.
    WrongSource = 6, "wrong_source";
    /// The packet is longer than the MTU.
    TooLong = 7, "too_long";
    /// Another packet was due at the same time, and a shift of this one would make it later than its client allows.
    Clash = 8, "clash";
    /// The client cancelled the packet.
    Cancelled = 9, "cancelled";
    /// This interface has no route, or the next hop does not answer.
    NoRoute = 10, "no_route";
    /// The release time is further ahead than the service accepts (`horizon_ns`).
    TooFarAhead = 11, "too_far_ahead";
    /// The kernel dropped the packet.
    Dropped = 12, "dropped";
    /// The service ended before the packet was due.
    Ended = 13, "ended";
    /// The release mechanism or the interface failed, so the kernel did not take the packet.
    Failed = 14, "failed";
    /// Another packet of the same train was refused.
    TrainRefused = 15, "train_refused";
}

impl PacketOutcome {
    fn from_number(number: u16) -> Self {
        Self::ALL.iter().copied().find(|outcome| *outcome as u16 == number).unwrap_or(Self::Unknown)
    }
}

/// Bits that mark doubts about a packet, such as a late release; `docs/book/release-protocol.md` explains each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReportFlags(pub u16);

impl ReportFlags {
    pub const LATE: Self = Self(1);
    pub const EARLY: Self = Self(2);
    pub const STOLEN: Self = Self(4);
    pub const STAMP_MISSING: Self = Self(8);
    pub const STAMPS_DISAGREE: Self = Self(16);
    pub const SHIFTED: Self = Self(32);

    pub const fn has_flag(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub const fn set_flag(&mut self, flag: Self) {
        self.0 |= flag.0;
    }
}

/// Fault of a packet in a submitted batch: the packet and its wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketFault {
    /// Number of the packet in the batch, from 0.
    pub packet: u16,
    /// First byte of the wrong field, counted from the packet in SUBMIT: 0 is `cookie`, 32 the first of its bytes.
    /// `None`: no single field is wrong.
    pub byte: Option<u16>,
}

impl PacketFault {
    pub(super) fn write_packet_fault(fault: Option<Self>, fields: &mut FieldWriter) {
        let packet = fault.map_or(NONE, |fault| fault.packet);
        fields.put_u16(packet).put_u16(fault.and_then(|fault| fault.byte).unwrap_or(NONE)).put_u32(0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketReport {
    pub batch: u64,
    pub cookie: u64,
    /// Planned release, nanoseconds of CLOCK_MONOTONIC.
    pub planned: u64,
    /// Delay of the release because of a clash with another packet, in nanoseconds.
    pub shifted: u64,
    pub train: u32,
    pub outcome: PacketOutcome,
    /// Fault that the service found when the packet was submitted.
    pub fault: Option<PacketFault>,
    pub flags: ReportFlags,
    pub handed_over: Option<PacketStamp>,
    pub released: Option<PacketStamp>,
    pub queue: Option<PacketStamp>,
    pub driver: Option<PacketStamp>,
    pub wire: Option<PacketStamp>,
}

impl PacketReport {
    /// Creates the report of a packet that was not sent.
    pub const fn new_unsent(
        batch: u64,
        cookie: u64,
        train: u32,
        planned: u64,
        outcome: PacketOutcome,
    ) -> Self {
        Self {
            batch,
            cookie,
            planned,
            shifted: 0,
            train,
            outcome,
            fault: None,
            flags: ReportFlags(0),
            handed_over: None,
            released: None,
            queue: None,
            driver: None,
            wire: None,
        }
    }

    /// Returns the time of departure: the last stamp on CLOCK_MONOTONIC, if there is one. The stamp of the queue does
    /// not count, because the packet may wait in the queue.
    pub fn departed_at(&self) -> Option<PacketStamp> {
        // The stages are checked from the last to the first. A stamp of a device clock cannot be compared
        // with `planned`, and is skipped.
        let all = [self.wire, self.driver, self.released, self.handed_over];
        all.into_iter().flatten().find(|stamp| stamp.clock == StampClockName::Monotonic)
    }

    /// Reads the fault, which follows all entries.
    pub(super) fn read_fault(&mut self, fields: &mut FieldReader<'_>) -> Option<()> {
        let (packet, byte) = (fields.read_u16()?, fields.read_u16()?);
        fields.read_u32()?;
        let fault = PacketFault { packet, byte: Some(byte).filter(|byte| *byte != NONE) };
        // The fault exists if it names a packet. Without a byte position, no single field is wrong.
        self.fault = Some(fault).filter(|fault| fault.packet != NONE);
        Some(())
    }

    pub(super) fn write_packet_report(&self, fields: &mut FieldWriter) {
        fields.put_u64(self.batch).put_u64(self.cookie).put_u64(self.planned).put_u64(self.shifted);
        fields.put_u32(self.train).put_u16(self.outcome as u16).put_u16(self.flags.0);
        for stamp in [&self.handed_over, &self.released, &self.queue, &self.driver, &self.wire] {
            PacketStamp::write_packet_stamp(stamp.as_ref(), fields);
        }
    }

    pub(super) fn read_entry(fields: &mut FieldReader<'_>) -> Option<Self> {
        Some(Self {
            batch: fields.read_u64()?,
            cookie: fields.read_u64()?,
            planned: fields.read_u64()?,
            shifted: fields.read_u64()?,
            train: fields.read_u32()?,
            outcome: PacketOutcome::from_number(fields.read_u16()?),
            // The faults follow after all entries. `read_fault` sets this field.
            fault: None,
            // Bits that this crate does not know stay in the number: callers test single flags.
            flags: ReportFlags(fields.read_u16()?),
            handed_over: PacketStamp::read_stamp(fields).ok()?,
            released: PacketStamp::read_stamp(fields).ok()?,
            queue: PacketStamp::read_stamp(fields).ok()?,
            driver: PacketStamp::read_stamp(fields).ok()?,
            wire: PacketStamp::read_stamp(fields).ok()?,
        })
    }
}
