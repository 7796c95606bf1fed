//! The other members, as their advertisements describe them.
//!
//! Invariant: of one boot of a peer only later advertisements count, and of a boot that it has ended none.

use super::Advertisement;
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, VecDeque};

/// Most peers that are remembered. Further ones are refused, so that a wrong key holder cannot fill the memory.
pub const MOST_PEERS: usize = 64;
/// Boots of one peer that are remembered as ended.
const ENDED_BOOTS: usize = 16;

/// What became of an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeardOutcome {
    Accepted,
    /// Sent by this member itself.
    OwnEcho,
    /// Another process has this member's number: the group is not configured correctly.
    SameMeter,
    /// Not later than one that was accepted, or of a boot that has ended.
    Repeated,
    TooManyPeers,
    /// Its fields contradict each other.
    Invalid,
}

/// Another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPeer {
    /// The latest.
    pub advertisement: Advertisement,
    /// When that was heard.
    pub heard_at: MonoTime,
    ended_boots: VecDeque<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PeerTable(BTreeMap<u32, GroupPeer>);

impl PeerTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = &GroupPeer> {
        self.0.values()
    }

    pub(super) fn latest(&self, meter: u32) -> Option<Advertisement> {
        self.0.get(&meter).map(|peer| peer.advertisement)
    }

    pub(super) fn hear(&mut self, advertisement: &Advertisement, now: MonoTime) -> HeardOutcome {
        let Some(peer) = self.0.get_mut(&advertisement.meter) else {
            if self.0.len() >= MOST_PEERS {
                return HeardOutcome::TooManyPeers;
            }
            let peer = GroupPeer {
                advertisement: *advertisement,
                heard_at: now,
                ended_boots: VecDeque::with_capacity(ENDED_BOOTS),
            };
            self.0.insert(advertisement.meter, peer);
            return HeardOutcome::Accepted;
        };
        if peer.has_heard(advertisement) {
            return HeardOutcome::Repeated;
        }
        if peer.advertisement.boot != advertisement.boot {
            peer.end_boot();
        }
        peer.advertisement = *advertisement;
        peer.heard_at = now;
        HeardOutcome::Accepted
    }
}

impl GroupPeer {
    fn has_heard(&self, advertisement: &Advertisement) -> bool {
        if self.advertisement.boot == advertisement.boot {
            advertisement.sequence <= self.advertisement.sequence
        } else {
            self.ended_boots.contains(&advertisement.boot)
        }
    }

    fn end_boot(&mut self) {
        if self.ended_boots.len() == ENDED_BOOTS {
            self.ended_boots.pop_front();
        }
        self.ended_boots.push_back(self.advertisement.boot);
    }
}
