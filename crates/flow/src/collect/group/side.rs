//! Known intervals of one direction of a flow of a group.

use super::clocks::MeterClocks;
use super::line::{JITTER_NS, Line, PlacedEnd};
use crate::history::{CountTotals, DirectionHistory, Landmark};

/// Lines that are kept of one direction, the latest. A new one begins after a silence.
const LINES: usize = 3;
/// Records that wait until their position is known.
const WAITING: usize = 2;

/// Largest difference of one packet's times at two meters if the offset of their clocks is unknown.
const APART_NS: u64 = 1_500_000_000;
/// Shortest silence before a flow that begins after a silence.
const SILENCE_NS: u64 = 400_000_000;

/// Statement of a record about one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct SideReport {
    pub(super) meter: u32,
    /// See [`FlowHistory`](crate::FlowHistory).
    pub(super) since_ns: u64,
    pub(super) is_strange: bool,
    pub(super) direction: DirectionHistory,
    /// Totals of the record itself.
    pub(super) own: CountTotals,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Everything that was stored for packets after this time is still known.
    pub(super) known_from_ns: u64,
    /// True if the record is among the stored ones.
    pub(super) was_stored: bool,
    /// True if another meter of the group is alive that will report the same packets.
    pub(super) has_others: bool,
}

/// Packets up to the end of a record that its meter has counted without a gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordClaim {
    pub(super) totals: CountTotals,
    /// Time at which they begin, by the meter's clock.
    pub(super) since_ns: u64,
}

/// Outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SideNews {
    /// New totals, of the record and of those that had waited for it.
    pub(super) new: CountTotals,
    /// True if the position of the record itself is not known.
    pub(super) is_unplaced: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct KnownSide {
    lines: Vec<Line>,
    /// Lines up to this time were forgotten. Packets of that time count as stored.
    forgotten_until_ns: u64,
    waiting: Vec<SideReport>,
}

impl SideReport {
    pub(super) fn landmarks(&self) -> impl Iterator<Item = &Landmark> {
        self.direction.landmarks.iter().filter(|landmark| landmark.at_ns > 0)
    }

    /// Returns the times of its first and last packet, in common time.
    pub(super) fn common_times(&self, clocks: &MeterClocks) -> [u64; 2] {
        [self.first_ns, self.last_ns].map(|at_ns| clocks.to_common_time(self.meter, at_ns))
    }

    /// Returns the packets of the record itself.
    const fn own_claim(&self) -> RecordClaim {
        RecordClaim { totals: self.own, since_ns: self.first_ns }
    }

    /// Returns the most that the record can vouch for. From the time at which that begins, everything stored is still known.
    fn largest_claim(&self) -> RecordClaim {
        let known = |claim: &RecordClaim| claim.since_ns > self.known_from_ns;
        let followed = RecordClaim { totals: self.direction.followed, since_ns: self.since_ns };
        let since = self.landmarks();
        let landmarks =
            since.map(|landmark| RecordClaim { totals: landmark.since, since_ns: landmark.at_ns });
        landmarks.chain([followed]).filter(known).fold(self.own_claim(), RecordClaim::max_by_totals)
    }
}

impl RecordClaim {
    fn max_by_totals(self, other: Self) -> Self {
        if other.totals.is_beyond(self.totals) { other } else { self }
    }
}

impl KnownSide {
    pub(super) const HEAP_BYTES: usize = size_of::<Line>() + Line::HEAP_BYTES;

    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a record and returns its new part.
    pub(super) fn add_report(&mut self, report: &SideReport, clocks: &mut MeterClocks) -> SideNews {
        let mut new = CountTotals::default();
        if !report.has_others && self.find_line(report, clocks).is_none() {
            // No other meter will report something that places the waiting records.
            new = self.place_waiting(false, clocks);
        }
        let Some(placed) = self.place_report(report, clocks) else {
            self.waiting.retain(|waiting| waiting.meter != report.meter);
            if self.waiting.len() == WAITING {
                self.waiting.remove(0);
            }
            self.waiting.push(*report);
            return SideNews { new, is_unplaced: true };
        };
        // This record may have given the waiting ones a position.
        SideNews { new: new.plus(placed).plus(self.place_waiting(true, clocks)), is_unplaced: false }
    }

    fn place_waiting(&mut self, has_others: bool, clocks: &mut MeterClocks) -> CountTotals {
        let mut new = CountTotals::default();
        for waiting in std::mem::take(&mut self.waiting) {
            match self.place_report(&SideReport { has_others, ..waiting }, clocks) {
                Some(more) => new = new.plus(more),
                None => self.waiting.push(waiting),
            }
        }
        new
    }

    fn place_report(&mut self, report: &SideReport, clocks: &mut MeterClocks) -> Option<CountTotals> {
        if report.direction.followed.packets == 0 && report.own.packets == 0 {
            return Some(CountTotals::default());
        }
        let (at, end) = match self.find_line(report, clocks) {
            Some(found) => found,
            None if report.common_times(clocks)[1] <= self.forgotten_until_ns => {
                return Some(CountTotals::default());
            }
            None => (self.begin_line(report, clocks)?, PlacedEnd::from_first_report(report)),
        };
        let claim = self.undisputed_claim(at, report, clocks);
        let line = &mut self.lines[at];
        line.note_packets(report, end, clocks);
        let new = match claim {
            Some(claim) => Some(line.store_record(report, end.position, claim, clocks)),
            None if line.lacks_interval(end.position, report.own) => None,
            None => Some(CountTotals::default()),
        };
        self.forget_oldest_line();
        new
    }

    /// Finds the line on which a record has a position. If it has positions on several lines, they are the same line and are
    /// joined.
    fn find_line(&mut self, report: &SideReport, clocks: &MeterClocks) -> Option<(usize, PlacedEnd)> {
        let ends = |lines: &[Line]| lines.iter().rposition(|line| line.end_of(report, clocks).is_some());
        let mut at = ends(&self.lines)?;
        let end = self.lines[at].end_of(report, clocks)?;
        while let Some(other) = ends(&self.lines[..at]) {
            let other_end = self.lines[other].end_of(report, clocks)?;
            let joined = self.lines.remove(other);
            // Removing an earlier line moves this one down by one.
            at -= 1;
            self.lines[at].join_line(joined, end.position.less(other_end.position));
        }
        Some((at, end))
    }

    /// Begins a line with a record that has nothing in common with the known lines, if that is certain.
    fn begin_line(&mut self, report: &SideReport, clocks: &MeterClocks) -> Option<usize> {
        let latest_ns = self.lines.iter().map(|line| line.last_ns).max().unwrap_or(0);
        let [first_ns, _] = report.common_times(clocks);
        let margin_ns = if clocks.knows_clock(report.meter) { JITTER_NS } else { APART_NS };
        let is_later = first_ns > latest_ns.saturating_add(margin_ns);
        let is_behind = if report.is_strange {
            !report.has_others && (is_later || self.follows_its_own(report, latest_ns, clocks))
        } else {
            // No offset is known at first. A flow that began this late cannot be the one that is known.
            let begins_late = || report.since_ns.saturating_add(SILENCE_NS) > latest_ns;
            is_later || !clocks.knows_clock(report.meter) && begins_late()
        };
        let is_first = self.lines.is_empty() && !(report.is_strange && report.has_others);
        if !is_first && !is_behind && !report.was_stored && !self.is_before_all(report, clocks) {
            return None;
        }
        self.lines.push(Line::default());
        Some(self.lines.len() - 1)
    }

    /// Returns whether a record is the whole of its flow, long before everything that is known. A collector that was killed may
    /// receive an earlier life of a flow after a later one.
    fn is_before_all(&self, report: &SideReport, clocks: &MeterClocks) -> bool {
        let earliest_ns = self.lines.iter().map(|line| line.first_ns).min().unwrap_or(0);
        let margin_ns = if clocks.knows_clock(report.meter) { SILENCE_NS } else { APART_NS };
        let is_whole = !report.is_strange && report.direction.followed == report.own;
        is_whole
            && self.forgotten_until_ns == 0
            && report.common_times(clocks)[1].saturating_add(margin_ns) < earliest_ns
    }

    /// Forgets the oldest line if there are too many.
    fn forget_oldest_line(&mut self) {
        if self.lines.len() > LINES {
            let oldest = (0..self.lines.len()).min_by_key(|at| self.lines[*at].last_ns).unwrap_or(0);
            // No line knows the packets of that time any more, so they must not be stored again.
            self.forgotten_until_ns = self.forgotten_until_ns.max(self.lines.remove(oldest).last_ns);
        }
    }

    /// Returns whether the latest known packets are of the same meter, which reports no packet twice.
    fn follows_its_own(&self, report: &SideReport, latest_ns: u64, clocks: &MeterClocks) -> bool {
        let last_ns = self.lines.iter().filter_map(|line| line.last_of(report.meter)).max();
        last_ns.is_some_and(|last_ns| {
            last_ns < report.first_ns && latest_ns <= clocks.to_common_time(report.meter, last_ns)
        })
    }

    /// Returns the part of a record that may be stored on a line: the part that no other line may have. `None`: nothing.
    fn undisputed_claim(&self, at: usize, report: &SideReport, clocks: &MeterClocks) -> Option<RecordClaim> {
        let margin_ns = if clocks.knows_clock(report.meter) { JITTER_NS } else { SILENCE_NS };
        let last_ns = clocks.to_common_time(report.meter, report.last_ns).saturating_add(margin_ns);
        let is_disputed = |since_ns: u64| {
            let since_ns = clocks.to_common_time(report.meter, since_ns);
            if self.forgotten_until_ns > 0 && since_ns <= self.forgotten_until_ns + margin_ns {
                return true;
            }
            let others = self.lines.iter().enumerate().filter(|(other, _)| *other != at);
            others
                .map(|(_, line)| line)
                .any(|line| since_ns <= line.last_ns + margin_ns && line.first_ns <= last_ns)
        };
        let claim = report.largest_claim();
        if !is_disputed(claim.since_ns) {
            return Some(claim);
        }
        (report.was_stored || !is_disputed(report.first_ns)).then_some(report.own_claim())
    }
}
