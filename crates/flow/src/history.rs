//! History of a flow, reported by the meters of a group. A collector uses it to find out which packets of the
//! flow a record includes.
//!
//! Meters that see copies of one link split a flow into records at different moments. Each meter counts from
//! another packet, because it was started later or lost packets. So a count alone gives no position. A count
//! *since a packet that the other meters know, too*, does.
//!
//! Such a packet is a [`Landmark`]. Meters choose landmarks without exchanging messages, by the content of
//! packets: in each direction and each period of time, the packet with the smallest content hash, the first packet
//! after a silence, and the last one before it. Each record names the latest landmarks and the totals since each
//! of them. If another meter has named the same landmark, it gives the position of the record's end among all
//! packets of the direction. See `docs/decisions/0037-landmarks.md`.

mod coding;

use crate::account::ENTERPRISE_NUMBER;
use crate::export::section::own;
use crate::foreign::OtherFields;

/// Maximum number of landmarks of a direction that a record names: the latest ones. It names several, because clocks
/// differ and meters do not always choose the same ones.
pub const MAX_RECORD_LANDMARKS: usize = 5;
/// Maximum number of origins from which the collector states the end of a stored record.
pub const MAX_STORED_PLACES: usize = 3;

/// Identifies the group, the meter and the interface that made a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordOriginMark {
    /// Number of the group: a hash of its name.
    pub group: u64,
    /// Number of the meter in the group.
    pub meter: u32,
    /// Index of the meter's interface: the same link has the same index at all meters.
    pub lane: u16,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountTotals {
    pub packets: u64,
    pub bytes: u64,
    pub frame_bytes: u64,
}

/// Reason why a packet was chosen as a landmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LandmarkKind {
    /// The content hash of the packet is the smallest in a period of the flow.
    #[default]
    Smallest,
    /// The packet came after a silence of its flow.
    First,
    /// The packet came before a silence of its flow.
    Last,
}

/// A packet that all meters of a group recognise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Landmark {
    /// Hash of the packet's content.
    pub content: u32,
    pub kind: LandmarkKind,
    /// Time of the packet, nanoseconds since 1970. 0: there is no landmark.
    pub at_ns: u64,
    /// Time to the nearest packet of the direction with the same content, in microseconds. For
    /// [`LandmarkKind::First`] and [`LandmarkKind::Last`], packets without a silence beside them do not count, so it
    /// may be the length of the silence.
    pub alone_us: u32,
    /// Totals since the landmark, without the landmark itself.
    pub since: CountTotals,
}

/// History of one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionHistory {
    /// Totals of the direction that the meter has seen without a gap, up to the end of the record.
    pub followed: CountTotals,
    /// Landmarks, the latest first.
    pub landmarks: [Landmark; MAX_RECORD_LANDMARKS],
}

/// Packets that a meter has counted without a gap, up to the end of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedPacketSpan {
    pub totals: CountTotals,
    /// Time at which the totals begin, by the meter's clock.
    pub since_ns: u64,
}

/// Position of a record's end, counted from where a meter began to follow its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPlace {
    pub meter: u32,
    /// Time since which the meter follows the flow. 0: the place is not used.
    pub since_ns: u64,
    pub end: CountTotals,
}

/// What the collector knows about one direction of a record when it stores the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPackets {
    /// The packets that are stored with this record or were stored before it.
    pub claim: CountedPacketSpan,
    /// Number of packets since the one that gave the record its position. Landmarks before it have no position.
    pub placed_packets: u64,
    /// Where the record ends. All these places are the same packet. Unused ones come last.
    pub places: [StoredPlace; MAX_STORED_PLACES],
}

/// History of a flow; see the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHistory {
    pub mark: RecordOriginMark,
    /// True if the source of the record is the endpoint that comes second in the order of endpoints.
    pub flipped: bool,
    /// True if the meter started while the flow was running, or lost packets of it, a short time ago: other meters may
    /// know none of its landmarks.
    pub is_strange: bool,
    /// Time since which the meter follows the flow, nanoseconds since 1970.
    pub since_ns: u64,
    /// Direction that the record calls forward.
    pub forward: DirectionHistory,
    pub reverse: DirectionHistory,
    /// For each direction, what was stored; `None` if the record had no position. Only the collector sets this, in the
    /// records that it stores.
    pub stored: [Option<StoredPackets>; 2],
}

impl RecordOriginMark {
    /// Returns the number of a group of this name (FNV-1a, 64 bits).
    pub fn group_number(name: &str) -> u64 {
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl CountTotals {
    /// Adds the totals. Sums wrap: a sum may have begun below zero, and no flow is large enough to overflow.
    pub(crate) const fn plus(self, more: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(more.packets),
            bytes: self.bytes.wrapping_add(more.bytes),
            frame_bytes: self.frame_bytes.wrapping_add(more.frame_bytes),
        }
    }

    /// Returns the difference, which may be below zero.
    pub(crate) const fn minus(self, less: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(less.packets),
            bytes: self.bytes.wrapping_sub(less.bytes),
            frame_bytes: self.frame_bytes.wrapping_sub(less.frame_bytes),
        }
    }

    /// Returns whether these totals have more packets than `other`.
    pub(crate) const fn is_beyond(self, other: Self) -> bool {
        // Sums wrap, so the sign of the difference decides, not a comparison.
        self.minus(other).packets.cast_signed() > 0
    }

    /// Returns by how much each count exceeds the count of `other`; 0 if it does not.
    pub(crate) const fn excess_over(self, other: Self) -> Self {
        const fn positive_or_zero(value: u64) -> u64 {
            if value.cast_signed() > 0 { value } else { 0 }
        }
        let Self { packets, bytes, frame_bytes } = self.minus(other);
        Self {
            packets: positive_or_zero(packets),
            bytes: positive_or_zero(bytes),
            frame_bytes: positive_or_zero(frame_bytes),
        }
    }

    /// Returns the totals with fewer packets.
    pub(crate) const fn min_by_packets(self, other: Self) -> Self {
        if other.is_beyond(self) { self } else { other }
    }

    /// Returns the totals with more packets.
    pub(crate) const fn max_by_packets(self, other: Self) -> Self {
        if other.is_beyond(self) { other } else { self }
    }
}

impl StoredPackets {
    pub(crate) fn places(&self) -> impl Iterator<Item = &StoredPlace> {
        self.places.iter().filter(|place| place.since_ns > 0)
    }
}

impl CountedPacketSpan {
    /// Returns the claim with more packets.
    pub(crate) fn max_by_totals(self, other: Self) -> Self {
        if other.totals.is_beyond(self.totals) { other } else { self }
    }
}

impl DirectionHistory {
    /// Adds the last packet before a silence as a landmark. Reduces `alone_us` of the other landmarks
    /// with the same content.
    pub(crate) fn add_landmark_before_silence(&mut self, last: Landmark) {
        let alike = self.landmarks.iter_mut().filter(|other| {
            other.at_ns > 0 && other.content == last.content && other.kind == LandmarkKind::Smallest
        });
        for other in alike.filter(|other| other.at_ns != last.at_ns) {
            let apart_us = u32::try_from(other.at_ns.abs_diff(last.at_ns) / 1000).unwrap_or(u32::MAX);
            other.alone_us = other.alone_us.min(apart_us);
        }
        self.landmarks[0] = last;
    }
}

impl FlowHistory {
    /// Returns the history of a direction, with the directions as in the record.
    pub const fn direction(&self, is_reverse: bool) -> &DirectionHistory {
        if is_reverse { &self.reverse } else { &self.forward }
    }

    /// Adds the history to the fields that have no column, so that it is stored with its record.
    pub(crate) fn add_to_other_fields(&self, fields: &mut OtherFields) {
        let Self { mark, .. } = self;
        for (id, value) in [
            (own::GROUP_ELEMENT, mark.group),
            (own::METER_ELEMENT, mark.meter.into()),
            (own::INTERFACE_INDEX_ELEMENT, mark.lane.into()),
        ] {
            fields.add_field(ENTERPRISE_NUMBER, id, &value.to_be_bytes());
        }
        fields.add_field(ENTERPRISE_NUMBER, own::HISTORY_ELEMENT, &self.encode_track());
    }

    /// Reads a history from stored fields, by the names of their elements: numbers, and bytes as `0x…`. `None` if the
    /// record is not of a group, or its history cannot be read.
    pub fn from_fields<'a>(
        number: impl Fn(&str) -> Option<u64>,
        bytes: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Self> {
        let mark = RecordOriginMark {
            group: number(own_name(own::GROUP_ELEMENT))?,
            meter: number(own_name(own::METER_ELEMENT))?.try_into().ok()?,
            lane: number(own_name(own::INTERFACE_INDEX_ELEMENT))?.try_into().ok()?,
        };
        let digits = bytes(own_name(own::HISTORY_ELEMENT))?.strip_prefix("0x")?;
        let places = (0..digits.len()).step_by(2);
        let track: Option<Vec<u8>> =
            places.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect();
        Self::decode_track(mark, &track?)
    }

    /// Sets a value from one of our own elements. Numbers that do not fit become 0, which is the number of no meter.
    pub(crate) fn set_element(&mut self, element: u16, value: u64) {
        match element {
            own::GROUP_ELEMENT => self.mark.group = value,
            own::METER_ELEMENT => self.mark.meter = u32::try_from(value).unwrap_or_default(),
            own::INTERFACE_INDEX_ELEMENT => self.mark.lane = u16::try_from(value).unwrap_or_default(),
            _ => {}
        }
    }

    /// Reads the output of [`encode_track`](Self::encode_track). Bytes that cannot be read leave an empty history.
    pub(crate) fn set_track(&mut self, track: &[u8]) {
        *self = Self::decode_track(self.mark, track)
            .unwrap_or_else(|| Self { mark: self.mark, ..Self::default() });
    }
}

/// Returns the name of one of our own elements.
fn own_name(id: u16) -> &'static str {
    own::ALL.iter().find(|(own, ..)| *own == id).map_or("", |(_, name, ..)| *name)
}
