//! What the meters of a group say of a flow so that a collector can tell which packets of it a record has.
//!
//! Meters that see copies of one link cut a flow into records at different moments, and each counts from another packet: it was
//! started later, or it lost some. So a count alone says nothing. A count *since a packet that the other meters know, too*, does.
//!
//! Such a packet is a [`Landmark`]. Meters choose them without talking to each other, by what packets carry: of each direction, in
//! each part of its time, the packet with the smallest number, and the first and the last one before and after a silence. Each record
//! names the latest landmarks and what came since, so one that another meter has named as well says where among all packets
//! of the direction the record ends. See `docs/decisions/0037-landmarks.md`.

mod coding;

use crate::account::ENTERPRISE;
use crate::export::section::own;
use crate::foreign::OtherFields;

/// Landmarks of a direction that a record names, the latest. Clocks differ, so meters do not always choose the same one.
pub const LANDMARKS: usize = 5;

/// Which meter of which group made a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupMark {
    /// Number of the group: a hash of its name.
    pub group: u64,
    /// Number of the meter in the group.
    pub meter: u32,
    /// Which of the meter's interfaces, in their order: the same link has the same number at all meters.
    pub lane: u16,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountTotals {
    pub packets: u64,
    pub bytes: u64,
    pub frame_bytes: u64,
}

/// By what a packet was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LandmarkKind {
    /// Its number is the smallest in a part of the flow's time.
    #[default]
    Smallest,
    /// It came after a silence of its flow.
    First,
    /// It came before a silence of its flow.
    Last,
}

/// A packet that all meters of a group recognise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Landmark {
    /// What it carries, as a number.
    pub content: u32,
    pub kind: LandmarkKind,
    /// When it came, nanoseconds since 1970. 0: there is no landmark.
    pub at_ns: u64,
    /// No other packet of its direction that carries the same came closer to it, in microseconds; of the first and the last ones, no
    /// other such.
    pub alone_us: u32,
    /// What came since, without it.
    pub since: CountTotals,
}

/// What a meter says of one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionHistory {
    /// All that the meter has seen of it without a gap, up to the end of the record.
    pub followed: CountTotals,
    /// The latest first.
    pub landmarks: [Landmark; LANDMARKS],
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHistory {
    pub mark: GroupMark,
    /// Whether the source of the record is the end that comes second in the order of ends.
    pub flipped: bool,
    /// The meter came while the flow was going on, or lost packets of it, a short time ago: other meters may know none of its landmarks.
    pub is_strange: bool,
    /// Since when it follows the flow, nanoseconds since 1970.
    pub since_ns: u64,
    /// As the record has them.
    pub forward: DirectionHistory,
    pub reverse: DirectionHistory,
}

impl GroupMark {
    /// The number of a group of this name (FNV-1a, 64 bits).
    pub fn number(name: &str) -> u64 {
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl CountTotals {
    /// Sums wrap: a sum may have begun below zero, and nobody can send so much that it matters.
    pub(crate) const fn plus(self, more: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(more.packets),
            bytes: self.bytes.wrapping_add(more.bytes),
            frame_bytes: self.frame_bytes.wrapping_add(more.frame_bytes),
        }
    }

    /// The difference, which may be below zero.
    pub(crate) const fn less(self, less: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(less.packets),
            bytes: self.bytes.wrapping_sub(less.bytes),
            frame_bytes: self.frame_bytes.wrapping_sub(less.frame_bytes),
        }
    }

    /// Whether it has more packets than another.
    pub(crate) const fn is_beyond(self, other: Self) -> bool {
        self.less(other).packets.cast_signed() > 0
    }

    /// What is more here than there, of each count.
    pub(crate) const fn beyond(self, other: Self) -> Self {
        const fn more(value: u64) -> u64 {
            if value.cast_signed() > 0 { value } else { 0 }
        }
        let Self { packets, bytes, frame_bytes } = self.less(other);
        Self { packets: more(packets), bytes: more(bytes), frame_bytes: more(frame_bytes) }
    }

    /// The one with fewer packets.
    pub(crate) const fn least(self, other: Self) -> Self {
        if other.is_beyond(self) { self } else { other }
    }

    /// The one with more packets.
    pub(crate) const fn most(self, other: Self) -> Self {
        if other.is_beyond(self) { other } else { self }
    }
}

impl DirectionHistory {
    /// Adds the packet before a silence. Landmarks that carry the same are not alone.
    pub(crate) fn add_last(&mut self, last: Landmark) {
        let is_same = |other: &&mut Landmark| {
            other.at_ns > 0 && other.content == last.content && other.kind == LandmarkKind::Smallest
        };
        for other in self.landmarks.iter_mut().filter(is_same).filter(|other| other.at_ns != last.at_ns) {
            let apart_us = u32::try_from(other.at_ns.abs_diff(last.at_ns) / 1000).unwrap_or(u32::MAX);
            other.alone_us = other.alone_us.min(apart_us);
        }
        self.landmarks[0] = last;
    }
}

impl FlowHistory {
    /// What a direction had, by the order of the record.
    pub const fn direction(&self, is_reverse: bool) -> &DirectionHistory {
        if is_reverse { &self.reverse } else { &self.forward }
    }

    /// Adds it to the fields that have no column, so that it is stored with its record.
    pub(crate) fn add_to(&self, fields: &mut OtherFields) {
        let Self { mark, .. } = self;
        for (id, value) in
            [(own::GROUP, mark.group), (own::METER, mark.meter.into()), (own::LANE, mark.lane.into())]
        {
            fields.add(ENTERPRISE, id, &value.to_be_bytes());
        }
        fields.add(ENTERPRISE, own::TRACK, &self.encode());
    }

    /// Reads it from stored fields, by the names of their elements: numbers, and bytes as `0x…`. `None`: they are not of a group.
    pub fn of_fields<'a>(
        number: impl Fn(&str) -> Option<u64>,
        bytes: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Self> {
        let named = |id: u16| own::ALL.iter().find(|(own, ..)| *own == id).map_or("", |(_, name, ..)| *name);
        let mark = GroupMark {
            group: number(named(own::GROUP))?,
            meter: number(named(own::METER))?.try_into().ok()?,
            lane: number(named(own::LANE))?.try_into().ok()?,
        };
        let digits = bytes(named(own::TRACK))?.strip_prefix("0x")?;
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let track: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        Self::decode(mark, &track?)
    }

    /// Sets what an element of ours tells. Numbers that do not fit are of nobody's meter.
    pub(crate) fn set(&mut self, element: u16, value: u64) {
        match element {
            own::GROUP => self.mark.group = value,
            own::METER => self.mark.meter = u32::try_from(value).unwrap_or_default(),
            own::LANE => self.mark.lane = u16::try_from(value).unwrap_or_default(),
            _ => {}
        }
    }

    /// Takes what [`encode`](Self::encode) wrote. What cannot be read says nothing.
    pub(crate) fn set_track(&mut self, track: &[u8]) {
        *self = Self::decode(self.mark, track).unwrap_or_else(|| Self { mark: self.mark, ..Self::default() });
    }
}
