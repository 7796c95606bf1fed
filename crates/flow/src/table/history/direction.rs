//! Landmarks of one direction of a flow, as one meter saw them.

use crate::history::{self, CountTotals, DirectionHistory, Landmark, LandmarkKind};
use crate::packet::PacketInfo;
use packetrig_units::clamp_to_u32;

/// Number of landmarks of a direction that are kept: a record names them and the last packet of the direction.
pub(super) const MAX_KEPT_LANDMARKS: usize = history::MAX_RECORD_LANDMARKS - 1;

/// A landmark, before the totals after it are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedLandmark {
    pub(super) content: u32,
    /// The bit [`FIRST`], and [`Landmark::alone_us`] in the other bits, which hold up to 35 minutes.
    alone_us: u32,
    at_ns: u64,
    /// Totals of the direction up to the landmark, at this meter.
    seen: CountTotals,
}

const FIRST: u32 = 1 << 31;

/// Limit of [`Landmark::alone_us`] for the only packet of a direction: the content of other packets is unknown.
const LONE_PACKET_TIME_US: u32 = 80_000;

/// A pause between similar packets marks a landmark if it is at least this long, and at least
/// `DISTINGUISHING_PAUSE_FACTOR` times as long as the earlier pauses.
const DISTINGUISHING_PAUSE_US: u32 = 20_000;
const DISTINGUISHING_PAUSE_FACTOR: u32 = 4;

/// A packet is similar to others if one of this many earlier packets has the same content.
const MAX_RECENT_PACKETS: usize = 4;

/// What the meter has seen of one direction; the fields that each packet needs come first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedDirection {
    /// The end of the part for which the latest landmark is chosen.
    pub(super) until_ns: u64,
    /// Content of the last packets, the latest first.
    pub(super) recent: [u32; MAX_RECENT_PACKETS],
    /// Time of the last packet.
    pub(super) last_ns: u64,
    /// True if packets shortly after each other carried the same content.
    has_alike: bool,
    /// Landmarks, the latest first.
    pub(super) landmarks: [ObservedLandmark; MAX_KEPT_LANDMARKS],
    /// Totals reported since the meter began to follow the flow. Sums wrap, see [`CountTotals::plus`].
    pub(super) reported: CountTotals,
}

impl ObservedDirection {
    /// Returns whether the content hash of a packet is smaller than that of the current landmark, so that meters
    /// which see the same packets choose the same one. The first packet after a silence is never replaced.
    pub(super) const fn has_smaller_content(&self, packet: &PacketInfo) -> bool {
        let latest = &self.landmarks[0];
        packet.content < latest.content && !latest.is_first_packet()
    }

    /// Records a packet that is no landmark but may carry the same content as one. Among packets that are alike, a much
    /// longer pause before a packet distinguishes it.
    pub(super) fn record_similar_packet(&mut self, packet: &PacketInfo, part: impl FnOnce() -> CountTotals) {
        self.has_alike |= self.recent.contains(&packet.content);
        let pause_us = microseconds_between(self.last_ns, packet.at_ns);
        let least_us = (DISTINGUISHING_PAUSE_FACTOR.saturating_mul(self.landmarks[0].alone_us & !FIRST))
            .max(DISTINGUISHING_PAUSE_US);
        if pause_us >= least_us && self.recent.contains(&packet.content) {
            let seen = self.reported.plus(part());
            let Self { landmarks: [latest, ..], .. } = self;
            *latest = ObservedLandmark {
                content: packet.content,
                alone_us: pause_us | FIRST,
                at_ns: packet.at_ns,
                seen,
            };
            return;
        }
        let alike = self.landmarks_with_same_content(packet).filter(|landmark| !landmark.is_first_packet());
        alike.for_each(|landmark| landmark.limit_alone_time(packet.at_ns));
    }

    /// Returns the landmarks with the content of this packet.
    fn landmarks_with_same_content(
        &mut self,
        packet: &PacketInfo,
    ) -> impl Iterator<Item = &mut ObservedLandmark> {
        let content = packet.content;
        self.landmarks.iter_mut().filter(move |landmark| landmark.at_ns > 0 && landmark.content == content)
    }

    pub(super) fn new_landmark(
        &mut self,
        packet: &PacketInfo,
        seen: CountTotals,
        is_first: bool,
    ) -> ObservedLandmark {
        self.has_alike |= self.recent.contains(&packet.content);
        let first = if is_first { FIRST } else { 0 };
        let mut landmark =
            ObservedLandmark { content: packet.content, alone_us: !FIRST | first, at_ns: packet.at_ns, seen };
        // The silence before a packet distinguishes it from packets without one.
        for other in self.landmarks_with_same_content(packet) {
            if is_first || !other.is_first_packet() {
                other.limit_alone_time(packet.at_ns);
            }
            if other.is_first_packet() || !is_first {
                landmark.limit_alone_time(other.at_ns);
            }
        }
        if !is_first && self.recent.contains(&packet.content) {
            // One of the last packets has the same content, so the nearest such packet is at most as far
            // as the last one.
            landmark.limit_alone_time(self.last_ns);
        }
        landmark
    }

    /// Returns the state after a loss: only the content of the last packets is kept.
    pub(super) fn after_loss(&self) -> Self {
        Self { recent: self.recent, last_ns: self.last_ns, has_alike: self.has_alike, ..Self::default() }
    }

    /// Returns the landmark for the packet before a silence.
    pub(super) fn last_landmark(&self, at_ns: u64, silence_ns: u64) -> Landmark {
        let alone_us = clamp_to_u32(silence_ns / 1000);
        let kind = LandmarkKind::Last;
        Landmark { content: self.recent[0], kind, at_ns, alone_us, since: CountTotals::default() }
    }

    /// Returns the history of the direction. The meter has not seen packets before `since_ns`; 0 means that
    /// it has seen all.
    pub(super) fn to_history(self, since_ns: u64) -> DirectionHistory {
        let tell = |seen: ObservedLandmark| match seen.at_ns {
            0 => Landmark::default(),
            at_ns => Landmark {
                content: seen.content,
                kind: if seen.is_first_packet() { LandmarkKind::First } else { LandmarkKind::Smallest },
                at_ns,
                alone_us: seen.alone_us & !FIRST,
                since: self.reported.minus(seen.seen),
            },
        };
        let mut landmarks = [Landmark::default(); history::MAX_RECORD_LANDMARKS];
        // The first place is for the packet before a silence, see `DirectionHistory::add_landmark_before_silence`.
        for (to, mut seen) in landmarks[1..].iter_mut().zip(self.landmarks) {
            if since_ns > 0 && !seen.is_first_packet() {
                // A packet from before `since_ns`, which the meter has not seen, may carry the same content.
                if self.has_alike {
                    seen.limit_alone_time(since_ns);
                }
                if self.reported.packets == 1 {
                    seen.alone_us = seen.alone_us.min(LONE_PACKET_TIME_US);
                }
            }
            *to = tell(seen);
        }
        DirectionHistory { followed: self.reported, landmarks }
    }
}

impl ObservedLandmark {
    pub(super) const fn is_first_packet(&self) -> bool {
        self.alone_us & FIRST != 0
    }

    /// Limits [`Landmark::alone_us`] because of a packet at `at_ns` with the same content.
    pub(super) fn limit_alone_time(&mut self, at_ns: u64) {
        let apart_us = microseconds_between(self.at_ns, at_ns);
        self.alone_us = (self.alone_us & !FIRST).min(apart_us) | self.alone_us & FIRST;
    }
}

fn microseconds_between(one_ns: u64, other_ns: u64) -> u32 {
    u32::try_from(one_ns.abs_diff(other_ns) / 1000).unwrap_or(!FIRST).min(!FIRST)
}
