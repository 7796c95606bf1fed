//! What a meter has seen of one direction of a flow: its landmarks.

use crate::history::{self, CountTotals, DirectionHistory, Landmark, LandmarkKind};
use crate::packet::PacketInfo;

/// Landmarks of a direction that are kept: a record names them and its last packet.
pub(super) const LANDMARKS: usize = history::LANDMARKS - 1;

/// A landmark, before it is known what comes after it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenLandmark {
    pub(super) content: u32,
    /// [`FIRST`] and the microseconds of [`Landmark::alone_us`], to half an hour.
    alone_us: u32,
    at_ns: u64,
    /// What the meter had seen of the direction up to it.
    seen: CountTotals,
}

const FIRST: u32 = 1 << 31;

/// Nobody knows what other packets carry if there was but one, so it is expected to be alone for so long.
const SINGLE_US: u32 = 80_000;

/// A pause between packets that are alike is one from here on, and if it is so many times as long as those before it.
const PAUSE_US: u32 = 20_000;
const LONGER: u32 = 4;

/// A packet that carries the same as one of so many before it is like others.
const RECENT: usize = 4;

/// One direction; what each packet needs comes first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenDirection {
    /// The end of the part for which the latest landmark is chosen.
    pub(super) until_ns: u64,
    /// What the last packets carry, the latest first.
    pub(super) recent: [u32; RECENT],
    /// When the last packet came.
    pub(super) last_ns: u64,
    /// Packets that came shortly after each other carried the same.
    has_alike: bool,
    /// The latest first.
    pub(super) landmarks: [SeenLandmark; LANDMARKS],
    /// What was reported since the meter follows the flow. Sums wrap, see [`CountTotals::plus`].
    pub(super) reported: CountTotals,
}

impl SeenDirection {
    /// Whether a packet is rather the landmark of its part than the one that there is.
    pub(super) const fn is_smaller(&self, packet: &PacketInfo) -> bool {
        let latest = &self.landmarks[0];
        packet.content < latest.content && !latest.is_first()
    }

    /// A packet that is no landmark may carry the same as one. Of packets that are alike, one is told from the others by a much longer
    /// pause before it.
    pub(super) fn see_alike(&mut self, packet: &PacketInfo, part: impl FnOnce() -> CountTotals) {
        self.has_alike |= self.recent.contains(&packet.content);
        let pause_us = microseconds_between(self.last_ns, packet.at_ns);
        let least_us = (LONGER.saturating_mul(self.landmarks[0].alone_us & !FIRST)).max(PAUSE_US);
        if pause_us >= least_us && self.recent.contains(&packet.content) {
            let seen = self.reported.plus(part());
            let Self { landmarks: [latest, ..], .. } = self;
            *latest = SeenLandmark {
                content: packet.content,
                alone_us: pause_us | FIRST,
                at_ns: packet.at_ns,
                seen,
            };
            return;
        }
        let is_same = |landmark: &&mut SeenLandmark| {
            landmark.at_ns > 0 && landmark.content == packet.content && !landmark.is_first()
        };
        self.landmarks.iter_mut().filter(is_same).for_each(|landmark| landmark.comes_near(packet.at_ns));
    }

    pub(super) fn landmark(
        &mut self,
        packet: &PacketInfo,
        seen: CountTotals,
        is_first: bool,
    ) -> SeenLandmark {
        self.has_alike |= self.recent.contains(&packet.content);
        let first = if is_first { FIRST } else { 0 };
        let mut landmark =
            SeenLandmark { content: packet.content, alone_us: !FIRST | first, at_ns: packet.at_ns, seen };
        // The silence before it tells a packet from those that came after none.
        let is_same = |other: &&mut SeenLandmark| other.at_ns > 0 && other.content == packet.content;
        for other in self.landmarks.iter_mut().filter(is_same) {
            if is_first || !other.is_first() {
                other.comes_near(packet.at_ns);
            }
            if other.is_first() || !is_first {
                landmark.comes_near(other.at_ns);
            }
        }
        if !is_first && self.recent.contains(&packet.content) {
            // It is one of the last ones that carries the same: no nearer than the last of all.
            landmark.comes_near(self.last_ns);
        }
        landmark
    }

    /// Nothing is known of it but what its last packets carry.
    pub(super) fn emptied(&self) -> Self {
        Self { recent: self.recent, last_ns: self.last_ns, has_alike: self.has_alike, ..Self::default() }
    }

    /// The packet before a silence.
    pub(super) fn last(&self, at_ns: u64, silence_ns: u64) -> Landmark {
        let alone_us = u32::try_from(silence_ns / 1000).unwrap_or(u32::MAX);
        let kind = LandmarkKind::Last;
        Landmark { content: self.recent[0], kind, at_ns, alone_us, since: CountTotals::default() }
    }

    /// `since_ns`: nothing is known of what came before.
    pub(super) fn told(&self, since_ns: u64) -> DirectionHistory {
        let tell = |seen: SeenLandmark| match seen.at_ns {
            0 => Landmark::default(),
            at_ns => Landmark {
                content: seen.content,
                kind: if seen.is_first() { LandmarkKind::First } else { LandmarkKind::Smallest },
                at_ns,
                alone_us: seen.alone_us & !FIRST,
                since: self.reported.less(seen.seen),
            },
        };
        let mut landmarks = [Landmark::default(); history::LANDMARKS];
        for (to, mut seen) in landmarks[1..].iter_mut().zip(self.landmarks) {
            if since_ns > 0 && !seen.is_first() {
                if self.has_alike {
                    seen.comes_near(since_ns);
                }
                if self.reported.packets == 1 {
                    seen.alone_us = seen.alone_us.min(SINGLE_US);
                }
            }
            *to = tell(seen);
        }
        DirectionHistory { followed: self.reported, landmarks }
    }
}

impl SeenLandmark {
    pub(super) const fn is_first(&self) -> bool {
        self.alone_us & FIRST != 0
    }

    /// A packet that cannot be told from it but by its time.
    pub(super) fn comes_near(&mut self, at_ns: u64) {
        let apart_us = microseconds_between(self.at_ns, at_ns);
        self.alone_us = (self.alone_us & !FIRST).min(apart_us) | self.alone_us & FIRST;
    }
}

fn microseconds_between(one_ns: u64, other_ns: u64) -> u32 {
    u32::try_from(one_ns.abs_diff(other_ns) / 1000).unwrap_or(!FIRST).min(!FIRST)
}
