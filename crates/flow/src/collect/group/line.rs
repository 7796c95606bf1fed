//! Positions of packets among all packets of one direction of a flow.

use super::clocks::MeterClocks;
use super::side::SideReport;
use super::times::SharedTimeIntervals;
use crate::history::{
    CountTotals, CountedPacketSpan, Landmark, LandmarkKind, MAX_STORED_PLACES, StoredPackets, StoredPlace,
};

/// Maximum number of landmarks with a known position that a line keeps: the latest ones, and some older ones, which are
/// farther apart the older they are.
const MAX_LANDMARKS: usize = 10;
/// Number of the latest landmarks, none of which is dropped.
const LATEST_LANDMARKS_KEPT: usize = 5;
/// Age from which the oldest landmark is dropped before any other one. Meters send packets of at most the
/// last 90 s again.
const LANDMARK_AGE_NS: u64 = 180_000_000_000;
/// Maximum number of origins that a line keeps. An origin is the packet from which a meter has followed the direction.
const MAX_ORIGINS: usize = 3;
/// Maximum number of separate intervals. If there are more, the gap between the first two counts as stored.
const MAX_INTERVALS: usize = 4;

/// Largest offset that is assumed between the clocks of two meters before it is measured. If no packet of equal content
/// is within twice this time, a packet is recognised although the offset is not known.
pub(super) const MAX_CLOCK_DIFFERENCE_NS: u64 = 1_500_000_000;
/// Largest difference of one packet's times at two meters whose clocks are synchronised as usual.
pub(super) const MAX_PACKET_JITTER_NS: u64 = 20_000_000;
/// Upper limit of [`Landmark::alone_us`] if two meters chose the landmark for different reasons: only one of them knows
/// of the silence beside it.
const MAX_ALONE_OF_OTHER_KIND_US: u32 = 80_000;
/// If the clock offset is not known, a packet is recognised by its time only if [`Landmark::alone_us`]
/// is at least this.
const MIN_ALONE_WITHOUT_CLOCK_OFFSET_US: u32 = 40_000;
/// Packets closer together than this cannot be distinguished by their times, even if the clock offset is known.
const INDISTINGUISHABLE_PACKETS_US: u32 = 2_000;

/// Returns whether a packet is recognised by its content, whatever the clocks say, because no packet of equal
/// content is within `alone_us`.
pub(super) const fn is_known_by_content(alone_us: u32) -> bool {
    alone_us as u64 * 1000 >= 2 * MAX_CLOCK_DIFFERENCE_NS
}

/// Interval from one position to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositionInterval {
    pub(super) from: CountTotals,
    pub(super) to: CountTotals,
}

/// A landmark with a known position, which is the totals up to and including the landmark's packet.
#[derive(Clone, Copy, Debug)]
struct KnownLandmark {
    content: u32,
    kind: LandmarkKind,
    at_ns: u64,
    alone_us: u32,
    meter: u32,
    position: CountTotals,
}

/// The packet from which a meter has followed the direction, and its position.
#[derive(Clone, Copy, Debug)]
struct KnownOrigin {
    meter: u32,
    since_ns: u64,
    position: CountTotals,
    /// The position is valid for reports from this time on, and for packets after the first `behind` packets that the
    /// meter counted. Before them, the meter lost packets without noticing.
    from_ns: u64,
    behind: CountTotals,
    /// True if the flow began with this packet.
    is_beginning: bool,
    /// Time of the last packet that the meter reported, by its own clock.
    last_ns: u64,
}

/// Position of a record's end, found with a packet at a known position.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedEnd {
    pub(super) position: CountTotals,
    /// Totals that the record's meter saw since that packet.
    since: CountTotals,
}

/// Packets of one direction with known distances from each other. Only the differences between positions matter, so a
/// position may be below zero.
///
/// Invariant: no position is greater than the true one. A meter may have lost packets between two landmarks, so it may
/// report too few packets between the two, but never too many.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// Stored intervals, disjoint and in order.
    stored: Vec<PositionInterval>,
    /// Times of the stored packets, in common time.
    pub(super) times: SharedTimeIntervals,
    landmarks: Vec<KnownLandmark>,
    origins: Vec<KnownOrigin>,
    /// Where the positions of this line and of lines that were joined to it begin: at most [`MAX_STORED_PLACES`]. Stored
    /// records name them, so that a restarted collector has the same lines.
    starts: Vec<LineStart>,
}

/// The origin whose count gave a line its positions, and its position.
#[derive(Clone, Copy, Debug)]
struct LineStart {
    meter: u32,
    since_ns: u64,
    position: CountTotals,
}

/// Evidence that two meters saw the same packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LandmarkMatch {
    /// No other packet near this one has the same content.
    Content,
    /// The same, but the times of the two differ, although the offset of the clocks is known. Either a clock was set, or a
    /// meter that was started in between does not know of another packet with this content.
    ContentAtOtherTime,
    /// Other packets have the same content, but came at other times.
    Time,
}

impl Line {
    pub(super) const HEAP_BYTES: usize = MAX_LANDMARKS * size_of::<KnownLandmark>()
        + MAX_ORIGINS * size_of::<KnownOrigin>()
        + size_of::<LineStart>()
        + size_of::<PositionInterval>();

    /// Creates a line whose position 0 is where a meter began to follow the flow.
    pub(super) fn from_origin(meter: u32, since_ns: u64) -> Self {
        let start = LineStart { meter, since_ns, position: CountTotals::default() };
        Self { starts: vec![start], ..Self::default() }
    }

    /// Describes what was stored with a record that ends at a position on this line.
    pub(super) fn stored_packets(&self, claim: CountedPacketSpan, end: PlacedEnd) -> StoredPackets {
        let mut places = [StoredPlace::default(); MAX_STORED_PLACES];
        for (place, LineStart { meter, since_ns, position }) in places.iter_mut().zip(&self.starts) {
            *place = StoredPlace { meter: *meter, since_ns: *since_ns, end: end.position.minus(*position) };
        }
        StoredPackets { claim, placed_packets: end.since.packets, places }
    }

    /// Returns whether a place of a stored record is counted from a start of this line.
    pub(super) fn has_place_of(&self, stored: &StoredPackets) -> bool {
        self.find_end_of_places(stored).is_some()
    }

    fn find_end_of_places(&self, stored: &StoredPackets) -> Option<CountTotals> {
        self.starts.iter().find_map(|start| {
            let place = stored.places().find(|place| start.is_same_origin(place.meter, place.since_ns))?;
            Some(start.position.plus(place.end))
        })
    }

    /// Returns where a stored record ends on this line, and takes over the starts of its places.
    pub(super) fn end_of_places(&mut self, stored: &StoredPackets) -> PlacedEnd {
        let first = stored.places().next().map_or_else(CountTotals::default, |place| place.end);
        let position = self.find_end_of_places(stored).unwrap_or(first);
        for place in stored.places() {
            let StoredPlace { meter, since_ns, end } = *place;
            self.add_start(LineStart { meter, since_ns, position: position.minus(end) });
        }
        let since = CountTotals { packets: stored.placed_packets, ..CountTotals::default() };
        PlacedEnd { position, since }
    }

    fn add_start(&mut self, start: LineStart) {
        let is_known = self.starts.iter().any(|known| known.is_same_origin(start.meter, start.since_ns));
        if !is_known && self.starts.len() < MAX_STORED_PLACES {
            self.starts.push(start);
        }
    }

    /// Finds the position on this line at which a record ends; `None` if the record names no packet
    /// that the line knows.
    pub(super) fn find_record_end(&self, report: &SideReport, clocks: &MeterClocks) -> Option<PlacedEnd> {
        let mut sure = self.find_origin(report).map(|origin| origin.end_after(report.direction.followed));
        let [mut by_time, mut at_other_time] = [None; 2];
        for (known, seen) in self.landmarks_with_equal_content(report) {
            let best = match known.match_landmark(report.meter, seen, clocks) {
                Some(LandmarkMatch::Content) => &mut sure,
                Some(LandmarkMatch::Time) => &mut by_time,
                Some(LandmarkMatch::ContentAtOtherTime) => &mut at_other_time,
                None => continue,
            };
            let end = PlacedEnd { position: known.position.plus(seen.since), since: seen.since };
            // Each position is a lower bound (see `Line`), so the greatest of several is the best one.
            *best = Some(best.map_or(end, |best: PlacedEnd| best.max_by_position(end)));
        }
        // A match by time may be another packet, so it counts only if there is no match by content and no origin.
        sure.or(by_time).or(at_other_time).or_else(|| self.find_end_from_flow_beginning(report, clocks))
    }

    /// Finds the end of a record that includes all packets since its flow began, if another meter has followed the flow
    /// from the same packet on. Without this, such records might have no packet in common: a record names only its
    /// latest landmarks, and those of a meter that ended early may all be older.
    fn find_end_from_flow_beginning(&self, report: &SideReport, clocks: &MeterClocks) -> Option<PlacedEnd> {
        let since_ns = clocks.to_common_time(report.meter, report.since_ns);
        let mut origins = self.origins.iter().filter(|origin| origin.is_beginning);
        let same = origins.find(|origin| {
            clocks.to_common_time(origin.meter, origin.since_ns).abs_diff(since_ns) <= MAX_PACKET_JITTER_NS
        });
        same.filter(|_| report.is_beginning()).map(|origin| origin.end_after(report.direction.followed))
    }

    fn find_origin(&self, report: &SideReport) -> Option<&KnownOrigin> {
        let of_report = self.origins.iter().filter(|origin| origin.belongs_to_report(report));
        // A later origin is of no use for an earlier report: before `from_ns`, its meter lost packets without noticing.
        of_report.max_by_key(|origin| (origin.from_ns <= report.last_ns, origin.from_ns))
    }

    /// Returns the pairs of a known landmark and a landmark of the report that have the same content hash.
    fn landmarks_with_equal_content<'a>(
        &'a self,
        report: &'a SideReport,
    ) -> impl Iterator<Item = (&'a KnownLandmark, &'a Landmark)> {
        self.landmarks.iter().flat_map(|known| {
            let equal = report.landmarks().filter(|seen| seen.content == known.content);
            equal.map(move |seen| (known, seen))
        })
    }

    /// Marks the packets of a record as stored, and returns the totals of those that were not stored before. The record
    /// ends at position `end` and covers `claim`.
    pub(super) fn mark_record_stored(
        &mut self,
        report: &SideReport,
        end: CountTotals,
        claim: CountedPacketSpan,
        clocks: &MeterClocks,
    ) -> CountTotals {
        let new = self.mark_interval_stored(PositionInterval { from: end.minus(claim.totals), to: end });
        // The claim decides, because a record without packets may claim earlier packets. Their times are needed: a line
        // without times would be forgotten first.
        if claim.totals.packets > 0 {
            for [from_ns, to_ns] in report.possible_packet_times(claim.since_ns, clocks) {
                // An end of `u64::MAX` means that the clock was set back. Then only the times up to the line's
                // latest one are certain.
                let to_ns = if to_ns == u64::MAX { from_ns.max(self.times.latest_ns()) } else { to_ns };
                self.times.add_span([from_ns, to_ns]);
            }
        }
        new
    }

    /// Returns the totals of the stored intervals.
    pub(super) fn stored_totals(&self) -> CountTotals {
        self.stored.iter().fold(CountTotals::default(), |sum, span| sum.plus(span.to.minus(span.from)))
    }

    /// Returns whether some packet of an interval is not stored yet. The interval ends at `report_end` and
    /// has the totals `claim`.
    pub(super) fn lacks_part_of_interval(&self, report_end: CountTotals, claim: CountTotals) -> bool {
        self.clone()
            .mark_interval_stored(PositionInterval { from: report_end.minus(claim), to: report_end })
            .packets
            > 0
    }

    fn mark_interval_stored(&mut self, span: PositionInterval) -> CountTotals {
        let (mut new, mut from, mut joined) = (CountTotals::default(), span.from, span);
        let mut apart = Vec::with_capacity(MAX_INTERVALS);
        for old in std::mem::take(&mut self.stored) {
            if span.from.is_beyond(old.to) || old.from.is_beyond(span.to) {
                apart.push(old);
                continue;
            }
            new = new.plus(old.from.excess_over(from));
            from = from.max_by_packets(old.to);
            joined = PositionInterval {
                from: joined.from.min_by_packets(old.from),
                to: joined.to.max_by_packets(old.to),
            };
        }
        new = new.plus(span.to.excess_over(from));
        // The intervals stay in order, because the loop above counts the gaps from left to right.
        let at = apart.iter().position(|old| old.from.is_beyond(joined.from)).unwrap_or(apart.len());
        apart.insert(at, joined);
        if apart.len() > MAX_INTERVALS {
            // Packets of the gap that arrive later are not stored then, but no packet is ever stored twice.
            let first = apart.remove(0);
            apart[0].from = first.from;
        }
        self.stored = apart;
        new
    }

    /// Adds the landmarks that a record names, and the origin of its meter. Landmarks before the packet that gave the
    /// record its position are left out: if the meter lost packets in between, their positions would be too great.
    pub(super) fn record_landmarks_and_origin(
        &mut self,
        report: &SideReport,
        end: PlacedEnd,
        clocks: &mut MeterClocks,
    ) {
        for seen in report.landmarks().filter(|seen| !seen.since.is_beyond(end.since)) {
            self.record_landmark(report.meter, seen, end.position.minus(seen.since), clocks);
        }
        let position = end.position.minus(report.direction.followed);
        for origin in self.origins.iter_mut().filter(|origin| origin.belongs_to_report(report)) {
            origin.last_ns = origin.last_ns.max(report.last_ns);
        }
        // A position beyond the known one shows that the meter has lost packets since; its later reports
        // count from this origin.
        if self.find_origin(report).is_none_or(|origin| position.is_beyond(origin.position)) {
            if self.origins.len() == MAX_ORIGINS {
                self.origins.remove(0);
            }
            let SideReport { meter, since_ns, last_ns, .. } = *report;
            let behind = report.direction.followed.minus(end.since);
            let is_beginning = behind.packets == 0 && report.is_beginning();
            let origin =
                KnownOrigin { meter, since_ns, position, from_ns: last_ns, behind, is_beginning, last_ns };
            self.origins.push(origin);
        }
    }

    fn record_landmark(
        &mut self,
        meter: u32,
        seen: &Landmark,
        position: CountTotals,
        clocks: &mut MeterClocks,
    ) {
        let mut is_known = false;
        for known in &mut self.landmarks {
            match known.match_landmark(meter, seen, clocks) {
                // At another position, it is another packet.
                Some(LandmarkMatch::ContentAtOtherTime) if known.position != position => continue,
                Some(LandmarkMatch::Content | LandmarkMatch::ContentAtOtherTime) => {
                    clocks.add_clock_offset_sample((meter, seen.at_ns), (known.meter, known.at_ns));
                }
                Some(LandmarkMatch::Time) => {}
                None => continue,
            }
            // Positions are lower bounds (see `Line`), so the greater one is nearer to the truth.
            known.position = known.position.max_by_packets(position);
            is_known = true;
        }
        if !is_known {
            let at = self.landmarks.iter().position(|known| known.position.is_beyond(position));
            self.landmarks.insert(
                at.unwrap_or(self.landmarks.len()),
                KnownLandmark::from_landmark(seen, meter, position),
            );
            self.forget_landmarks();
        }
    }

    /// Drops landmarks while there are too many. Meters may send their last 90 s again one after the other, so
    /// landmarks of all this time are kept.
    fn forget_landmarks(&mut self) {
        while self.landmarks.len() > MAX_LANDMARKS {
            // Landmarks are in the order of their positions, so the first one is the oldest.
            let (first, last) = (self.landmarks[0], self.landmarks[self.landmarks.len() - 1]);
            let is_first_useless = last.at_ns > first.at_ns.saturating_add(LANDMARK_AGE_NS);
            let older = 1..self.landmarks.len() - LATEST_LANDMARKS_KEPT;
            let densest = older.min_by_key(|at| self.spacing_at(*at, last.position));
            self.landmarks.remove(densest.filter(|_| !is_first_useless).unwrap_or(0));
        }
    }

    /// Returns the number of packets between the neighbours of a landmark, in thousandths of the number of packets
    /// between the landmark and the last position.
    fn spacing_at(&self, at: usize, last: CountTotals) -> u128 {
        let [before, here, after] = [at - 1, at, at + 1].map(|at| self.landmarks[at].position);
        u128::from(after.minus(before).packets) * 1000 / u128::from(last.minus(here).packets).max(1)
    }

    /// Adds the content of another line. Its positions are smaller than those of this line by `distance`.
    pub(super) fn join_line(&mut self, other: Self, distance: CountTotals) {
        for PositionInterval { from, to } in other.stored {
            self.mark_interval_stored(PositionInterval { from: from.plus(distance), to: to.plus(distance) });
        }
        let landmarks = other.landmarks.into_iter();
        self.landmarks.extend(
            landmarks.map(|known| KnownLandmark { position: known.position.plus(distance), ..known }),
        );
        // Positions may be below zero, so they are compared as signed numbers.
        self.landmarks.sort_by_key(|known| known.position.packets.cast_signed());
        self.forget_landmarks();
        let origins = other.origins.into_iter();
        self.origins
            .extend(origins.map(|origin| KnownOrigin { position: origin.position.plus(distance), ..origin }));
        self.origins.sort_by_key(|origin| origin.last_ns);
        self.origins.drain(..self.origins.len().saturating_sub(MAX_ORIGINS));
        self.times.add_all(other.times);
        for start in other.starts {
            self.add_start(LineStart { position: start.position.plus(distance), ..start });
        }
    }

    /// Returns the time of the last packet that a meter reported on this line, by the meter's own clock; `None` if the
    /// line has no origin of the meter.
    pub(super) fn last_reported_ns(&self, meter: u32) -> Option<u64> {
        self.origins.iter().filter(|origin| origin.meter == meter).map(|origin| origin.last_ns).max()
    }
}

impl LineStart {
    const fn is_same_origin(&self, meter: u32, since_ns: u64) -> bool {
        self.meter == meter && self.since_ns == since_ns
    }
}

impl PlacedEnd {
    fn max_by_position(self, other: Self) -> Self {
        if other.position.is_beyond(self.position) { other } else { self }
    }

    /// Returns the end of a record that begins a line. Position 0 is where its meter began to count.
    pub(super) const fn from_first_report(report: &SideReport) -> Self {
        Self { position: report.direction.followed, since: report.direction.followed }
    }
}

impl KnownOrigin {
    const fn end_after(&self, followed: CountTotals) -> PlacedEnd {
        PlacedEnd { position: self.position.plus(followed), since: followed.minus(self.behind) }
    }

    const fn belongs_to_report(&self, report: &SideReport) -> bool {
        self.meter == report.meter && self.since_ns == report.since_ns
    }
}

impl KnownLandmark {
    const fn from_landmark(seen: &Landmark, meter: u32, position: CountTotals) -> Self {
        let Landmark { content, kind, at_ns, alone_us, .. } = *seen;
        Self { content, kind, at_ns, alone_us, meter, position }
    }

    fn match_landmark(&self, meter: u32, seen: &Landmark, clocks: &MeterClocks) -> Option<LandmarkMatch> {
        let known = self;
        if known.content != seen.content {
            return None;
        }
        let apart_ns =
            clocks.to_common_time(self.meter, known.at_ns).abs_diff(clocks.to_common_time(meter, seen.at_ns));
        // The silence before or after a packet distinguishes it from all packets without such a silence.
        let alone_us = match (known.kind, seen.kind) {
            (one, other) if one == other => known.alone_us.min(seen.alone_us),
            (_, LandmarkKind::Smallest) => seen.alone_us.min(MAX_ALONE_OF_OTHER_KIND_US),
            (LandmarkKind::Smallest, _) => known.alone_us.min(MAX_ALONE_OF_OTHER_KIND_US),
            _ => return None,
        };
        let alone_ns = u64::from(alone_us) * 1000;
        let has_clocks = meter == self.meter
            || clocks.is_clock_offset_known(meter) && clocks.is_clock_offset_known(self.meter);
        if is_known_by_content(alone_us) {
            let matched = if has_clocks && apart_ns > MAX_PACKET_JITTER_NS {
                LandmarkMatch::ContentAtOtherTime
            } else {
                LandmarkMatch::Content
            };
            return (apart_ns < MAX_CLOCK_DIFFERENCE_NS).then_some(matched);
        }
        // Clocks without a known offset are assumed to be as close to each other as clocks usually are.
        let least_us =
            if has_clocks { INDISTINGUISHABLE_PACKETS_US } else { MIN_ALONE_WITHOUT_CLOCK_OFFSET_US };
        let is_near = alone_us >= least_us && apart_ns <= (alone_ns / 4).min(MAX_PACKET_JITTER_NS);
        is_near.then_some(LandmarkMatch::Time)
    }
}
