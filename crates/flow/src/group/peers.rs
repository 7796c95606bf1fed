//! The other members, as their advertisements describe them.
//!
//! Invariant: an advertisement counts once, and only if it is later than all earlier ones of the same boot.

use super::{Advertisement, ElectionOptions};
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of peers that are remembered. Further ones are refused, so that a malicious holder
/// of the key cannot fill the memory.
pub const MAX_PEERS: usize = 64;
/// Maximum number of earlier boots of one peer that are remembered.
const MAX_EARLIER_BOOTS: usize = 16;

/// Outcome of a received advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvertisementOutcome {
    Accepted,
    /// The advertisement was sent by this member itself.
    OwnEcho,
    /// Another process has this member's number: the group is not configured correctly.
    SameMeter,
    /// The advertisement is not later than one that was accepted, or is of an earlier boot.
    Repeated,
    TooManyPeers,
    /// The fields of the advertisement contradict each other.
    Invalid,
}

/// Another member: its latest advertisement and its earlier boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPeer {
    /// The latest advertisement of the member.
    pub advertisement: Advertisement,
    /// Time at which the advertisement was received.
    pub heard_at: MonoTime,
    earlier: VecDeque<EarlierBoot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EarlierBoot {
    boot: u64,
    /// Sequence number of the last accepted advertisement of this boot.
    sequence: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PeerTable(BTreeMap<u32, GroupPeer>);

impl PeerTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = &GroupPeer> {
        self.0.values()
    }

    pub(super) fn latest_advertisement(&self, meter: u32) -> Option<Advertisement> {
        self.0.get(&meter).map(|peer| peer.advertisement)
    }

    pub(super) fn on_advertisement(
        &mut self,
        advertisement: &Advertisement,
        options: &ElectionOptions,
        now: MonoTime,
    ) -> AdvertisementOutcome {
        let Some(peer) = self.0.get_mut(&advertisement.meter) else {
            if self.0.len() >= MAX_PEERS {
                return AdvertisementOutcome::TooManyPeers;
            }
            let peer = GroupPeer { advertisement: *advertisement, heard_at: now, earlier: VecDeque::new() };
            self.0.insert(advertisement.meter, peer);
            return AdvertisementOutcome::Accepted;
        };
        if peer.is_repeated_advertisement(advertisement, peer.is_alive(options, now)) {
            return AdvertisementOutcome::Repeated;
        }
        if peer.advertisement.boot != advertisement.boot {
            peer.record_boot_end();
        }
        peer.advertisement = *advertisement;
        peer.heard_at = now;
        AdvertisementOutcome::Accepted
    }
}

impl GroupPeer {
    pub(super) fn advertisement_lapse_time(&self, options: &ElectionOptions) -> MonoTime {
        self.heard_at + options.hold_time(self.advertisement.interval)
    }

    pub(super) fn is_alive(&self, options: &ElectionOptions, now: MonoTime) -> bool {
        !self.advertisement.role.is_leaving() && now < self.advertisement_lapse_time(options)
    }

    fn is_repeated_advertisement(&self, advertisement: &Advertisement, is_alive: bool) -> bool {
        if self.advertisement.boot == advertisement.boot {
            return advertisement.sequence <= self.advertisement.sequence;
        }
        let mut earlier = self.earlier.iter();
        let earlier = earlier.find(|earlier| earlier.boot == advertisement.boot);
        // After two starts in quick succession, the first advertisements may arrive in the wrong order. The
        // boot that continues to advertise is accepted again once the other boot is silent.
        earlier.is_some_and(|earlier| is_alive || advertisement.sequence <= earlier.sequence)
    }

    fn record_boot_end(&mut self) {
        let Advertisement { boot, sequence, .. } = self.advertisement;
        // Each boot is listed once: `is_repeated_advertisement` may have accepted an earlier one again.
        self.earlier.retain(|earlier| earlier.boot != boot);
        if self.earlier.len() == MAX_EARLIER_BOOTS {
            self.earlier.pop_front();
        }
        self.earlier.push_back(EarlierBoot { boot, sequence });
    }
}
