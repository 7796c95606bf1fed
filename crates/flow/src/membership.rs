//! A meter's report on its role in a group in which one meter exports for all.

use crate::export::section::own;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembership {
    /// Number of the group: a hash of its name.
    pub group: u64,
    pub meter: u32,
    /// The term in which the meter is active; 0 if it is a standby.
    pub term: u64,
    /// Time of the last change of role, nanoseconds since 1970.
    pub since_ns: u64,
    /// Time for which the meter had received nothing from the active meter before it became active; 0: no
    /// meter was active before.
    pub silent_ns: u64,
    /// The meter has exported the records that left its table from this time on, in nanoseconds since 1970.
    pub replay_from_ns: u64,
    /// Number of kept records that the meter exported when it became active.
    pub replayed: u64,
    /// Packets that the meter has seen on its copy of the link since it started.
    pub packets: u64,
}

impl GroupMembership {
    /// Sets the field of one of our own elements. Any other element is ignored.
    pub(crate) fn set_element(&mut self, element: u16, value: u64) {
        *match element {
            own::GROUP_ELEMENT => &mut self.group,
            own::METER_ELEMENT => return self.meter = u32::try_from(value).unwrap_or_default(),
            own::TERM_ELEMENT => &mut self.term,
            own::ROLE_SINCE_ELEMENT => &mut self.since_ns,
            own::SILENCE_TIME_ELEMENT => &mut self.silent_ns,
            own::REPLAY_FROM => &mut self.replay_from_ns,
            own::REPLAYED_RECORDS_ELEMENT => &mut self.replayed,
            own::COPY_PACKETS_ELEMENT => &mut self.packets,
            _ => return,
        } = value;
    }

    /// Returns the numbers after the group and the meter, in the order of the template.
    pub(crate) const fn template_values(&self) -> [u64; 6] {
        [self.term, self.since_ns, self.silent_ns, self.replay_from_ns, self.replayed, self.packets]
    }
}
