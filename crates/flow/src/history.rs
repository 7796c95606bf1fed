//! What a flow had since it began, as the meters of a group report it beside what is new.
//!
//! Meters that see copies of one link cut a flow into parts at different moments: each has its own clock and was started at its own
//! time. What a flow had since a beginning that all of them saw does not depend on these cuts. So a reader of several meters'
//! records can tell what of a record it has already.
//!
//! A beginning is a packet after a silence. Of a silence that is just as long as a timeout, one meter may think that it is one and
//! another that it is not. So there are two beginnings, after silences that differ by more than clocks do: whatever a meter takes
//! for a beginning, the others have it as one of the two.
//!
//! A meter that was started while a flow was going on does not know how much it had. It is known again from the moments at which all
//! meters cut the flow's parts: if it was quiet then, they had seen the same of it. Every later record names the last such moment,
//! because the record that was made then may be one that a standby has left.

use crate::account::ENTERPRISE;
use crate::export::section::own;
use crate::foreign::OtherFields;

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

/// What a flow had since a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSince {
    /// When that packet came, nanoseconds since 1970.
    pub at_ns: u64,
    pub forward: CountTotals,
    pub reverse: CountTotals,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHistory {
    pub mark: GroupMark,
    /// Whether the source of the record is the end that comes second in the order of ends.
    pub flipped: bool,
    /// Whether the meter surely saw the flow's beginning: it had been there for longer than flows are silent.
    pub is_whole: bool,
    /// Since the first packet after a silence that no meter takes for a pause.
    pub began: FlowSince,
    /// Since the first packet after a silence of the timeout.
    pub resumed: FlowSince,
    /// Since the last moment at which a part was cut while the flow was quiet: at that moment every meter had seen the same packets
    /// of it. At time 0: there was none since the flow began.
    pub cut: FlowSince,
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

    /// The one with fewer packets.
    pub(crate) const fn least(self, other: Self) -> Self {
        if self.less(other).packets.cast_signed() < 0 { self } else { other }
    }

    /// What is more here than there; nothing if here are fewer packets.
    pub(crate) const fn beyond(self, known: Self) -> Self {
        let Self { packets, bytes, frame_bytes } = self.less(known);
        if packets.cast_signed() <= 0 {
            return Self { packets: 0, bytes: 0, frame_bytes: 0 };
        }
        Self { packets, bytes, frame_bytes }
    }
}

impl FlowHistory {
    /// The elements of ours that tell it, with their values; of booleans 1 is true and 2 is false, as in IPFIX.
    fn values(&self) -> [(u16, u64); 26] {
        let boolean = |is_true| if is_true { 1 } else { 2 };
        let Self { mark, began, resumed, cut, .. } = self;
        [
            (own::GROUP, mark.group),
            (own::METER, mark.meter.into()),
            (own::LANE, mark.lane.into()),
            (own::FLIPPED, boolean(self.flipped)),
            (own::BEGAN, began.at_ns),
            (own::RESUMED, resumed.at_ns),
            (own::BEGAN_PACKETS, began.forward.packets),
            (own::BEGAN_BYTES, began.forward.bytes),
            (own::BEGAN_FRAME_BYTES, began.forward.frame_bytes),
            (own::RESUMED_PACKETS, resumed.forward.packets),
            (own::RESUMED_BYTES, resumed.forward.bytes),
            (own::RESUMED_FRAME_BYTES, resumed.forward.frame_bytes),
            (own::BEGAN_PACKETS_BACK, began.reverse.packets),
            (own::BEGAN_BYTES_BACK, began.reverse.bytes),
            (own::BEGAN_FRAME_BYTES_BACK, began.reverse.frame_bytes),
            (own::RESUMED_PACKETS_BACK, resumed.reverse.packets),
            (own::RESUMED_BYTES_BACK, resumed.reverse.bytes),
            (own::RESUMED_FRAME_BYTES_BACK, resumed.reverse.frame_bytes),
            (own::WHOLE, boolean(self.is_whole)),
            (own::CUT, cut.at_ns),
            (own::CUT_PACKETS, cut.forward.packets),
            (own::CUT_BYTES, cut.forward.bytes),
            (own::CUT_FRAME_BYTES, cut.forward.frame_bytes),
            (own::CUT_PACKETS_BACK, cut.reverse.packets),
            (own::CUT_BYTES_BACK, cut.reverse.bytes),
            (own::CUT_FRAME_BYTES_BACK, cut.reverse.frame_bytes),
        ]
    }

    /// Adds it to the fields that have no column, so that it is stored with its record.
    pub(crate) fn add_to(&self, fields: &mut OtherFields) {
        for (id, value) in self.values() {
            fields.add(ENTERPRISE, id, &value.to_be_bytes());
        }
    }

    /// Reads it from stored fields, by the names of their elements. `None`: they are not of a group.
    pub fn of_fields(mut number: impl FnMut(&str) -> Option<u64>) -> Option<Self> {
        let mut history = Self::default();
        for (id, name, ..) in own::ALL.iter().filter(|(id, ..)| (own::GROUP..=own::CUT).contains(id)) {
            history.set(*id, number(name)?);
        }
        // Records of before these elements existed have a time only if they end at it: nothing came since.
        let since_cut = own::CUT_PACKETS..=own::CUT_FRAME_BYTES_BACK;
        for (id, name, ..) in own::ALL.iter().filter(|(id, ..)| since_cut.contains(id)) {
            history.set(*id, number(name).unwrap_or(0));
        }
        Some(history)
    }

    /// Sets what an element of ours tells. Numbers that do not fit are of nobody's meter.
    pub(crate) fn set(&mut self, element: u16, value: u64) {
        let place = match element {
            own::GROUP => &mut self.mark.group,
            own::METER => return self.mark.meter = u32::try_from(value).unwrap_or_default(),
            own::LANE => return self.mark.lane = u16::try_from(value).unwrap_or_default(),
            // A boolean of IPFIX: 1 is true, 2 is false.
            own::FLIPPED => return self.flipped = value == 1,
            own::WHOLE => return self.is_whole = value == 1,
            own::CUT => &mut self.cut.at_ns,
            own::BEGAN => &mut self.began.at_ns,
            own::RESUMED => &mut self.resumed.at_ns,
            own::BEGAN_PACKETS => &mut self.began.forward.packets,
            own::BEGAN_BYTES => &mut self.began.forward.bytes,
            own::BEGAN_FRAME_BYTES => &mut self.began.forward.frame_bytes,
            own::RESUMED_PACKETS => &mut self.resumed.forward.packets,
            own::RESUMED_BYTES => &mut self.resumed.forward.bytes,
            own::RESUMED_FRAME_BYTES => &mut self.resumed.forward.frame_bytes,
            own::BEGAN_PACKETS_BACK => &mut self.began.reverse.packets,
            own::BEGAN_BYTES_BACK => &mut self.began.reverse.bytes,
            own::BEGAN_FRAME_BYTES_BACK => &mut self.began.reverse.frame_bytes,
            own::RESUMED_PACKETS_BACK => &mut self.resumed.reverse.packets,
            own::RESUMED_BYTES_BACK => &mut self.resumed.reverse.bytes,
            own::RESUMED_FRAME_BYTES_BACK => &mut self.resumed.reverse.frame_bytes,
            own::CUT_PACKETS => &mut self.cut.forward.packets,
            own::CUT_BYTES => &mut self.cut.forward.bytes,
            own::CUT_FRAME_BYTES => &mut self.cut.forward.frame_bytes,
            own::CUT_PACKETS_BACK => &mut self.cut.reverse.packets,
            own::CUT_BYTES_BACK => &mut self.cut.reverse.bytes,
            own::CUT_FRAME_BYTES_BACK => &mut self.cut.reverse.frame_bytes,
            _ => return,
        };
        *place = value;
    }
}
