//! State of one direction of a flow of a group: the packets that are stored, and the records that wait for a position.

use super::clocks::MeterClocks;
use super::line::{Line, MAX_CLOCK_DIFFERENCE_NS, MAX_PACKET_JITTER_NS, PlacedEnd};
use super::times::{SharedTimeIntervals, TimeSpan};
use crate::history::{
    CountTotals, CountedPacketSpan, DirectionHistory, FlowHistory, Landmark, StoredPackets,
};

/// Maximum number of [`Line`]s of one direction; the oldest is forgotten first. A new line begins after a silence.
const MAX_LINES_PER_DIRECTION: usize = 8;
/// Maximum number of records that wait until their position is known.
const MAX_WAITING_RECORDS: usize = 2;

/// Shortest silence after which a meter begins a new flow.
const MIN_SILENCE_NS: u64 = 400_000_000;

/// What a record states about one direction of its flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SideReport {
    pub(super) meter: u32,
    /// See [`FlowHistory::since_ns`].
    pub(super) since_ns: u64,
    pub(super) is_strange: bool,
    pub(super) direction: DirectionHistory,
    /// Totals of the record itself.
    pub(super) own: CountTotals,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// The collector still knows all packets after this time that it has stored.
    pub(super) known_from_ns: u64,
    /// True if another meter of the group is alive that will report the same packets.
    pub(super) has_others: bool,
    /// Time at which the record arrived, by the collector's clock.
    pub(super) now_ns: u64,
}

/// Outcome of adding one record, and of placing earlier records that waited for a position.
#[derive(Clone, Debug, Default)]
pub(super) struct PlacedRecordOutcome {
    pub(super) placed: PlacedReport,
    /// Packets of the record if its position is not known, otherwise 0.
    pub(super) unplaced: u64,
    /// Packets of earlier records that were unplaced until now.
    pub(super) placed_later: u64,
    /// Earlier records that have a position only now, and new packets.
    pub(super) waited: Vec<(SideReport, PlacedReport)>,
}

/// Outcome of one record that has a position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacedReport {
    pub(super) new: CountTotals,
    /// Number of packets up to the record's end that are certainly stored now.
    known: u64,
    /// What is stored now; `None` if nothing was stored for the record.
    pub(super) stored: Option<StoredPackets>,
}

/// A record with a position that is not known yet.
#[derive(Clone, Copy, Debug)]
struct WaitingReport {
    report: SideReport,
    /// Packets of the record, and of earlier records that it includes.
    unplaced: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FlowDirectionState {
    lines: Vec<Line>,
    /// Times of the packets of forgotten lines. All packets of these times count as stored.
    forgotten: SharedTimeIntervals,
    waiting: Vec<WaitingReport>,
}

impl SideReport {
    /// Makes the part of the report that is the same for both directions.
    pub(super) fn from_history(history: &FlowHistory, [first_ns, last_ns]: [u64; 2], now_ns: u64) -> Self {
        Self {
            meter: history.mark.meter,
            since_ns: history.since_ns,
            is_strange: history.is_strange,
            first_ns,
            last_ns,
            now_ns,
            ..Self::default()
        }
    }

    pub(super) fn landmarks(&self) -> impl Iterator<Item = &Landmark> {
        self.direction.landmarks.iter().filter(|landmark| landmark.at_ns > 0)
    }

    /// Returns the times of the record's first and last packet, in common time.
    pub(super) fn common_times(&self, clocks: &MeterClocks) -> [u64; 2] {
        [self.first_ns, self.last_ns].map(|at_ns| clocks.to_common_time(self.meter, at_ns))
    }

    /// Returns the time of the record's last packet of this direction, by the meter's clock, or a later time. The other direction may
    /// have packets after it.
    fn last_packet_ns(&self) -> u64 {
        let mut last = self.landmarks().filter(|landmark| landmark.since == CountTotals::default());
        last.next().map_or(self.last_ns, |landmark| landmark.at_ns.min(self.last_ns))
    }

    /// Returns the time spans, in common time, that may contain the meter's packets since `since_ns` (by the meter's
    /// clock). Usually, both spans are the same. If the clock was set back since then, the first span has no end, and
    /// the second one is the record's own.
    pub(super) fn possible_packet_times(&self, since_ns: u64, clocks: &MeterClocks) -> [TimeSpan; 2] {
        let own = self.common_times(clocks);
        let last_ns = clocks.to_common_time(self.meter, self.last_packet_ns());
        let since_ns = clocks.to_common_time(self.meter, since_ns);
        if since_ns > own[1] {
            return [[since_ns, u64::MAX], own];
        }
        let first_ns = since_ns.min(own[0]);
        [[first_ns, last_ns.max(first_ns)]; 2]
    }

    /// Returns whether the meter saw the flow begin, and the record has all packets since then.
    pub(super) fn is_beginning(&self) -> bool {
        !self.is_strange && self.own.packets > 0 && self.own == self.direction.followed
    }

    /// Returns the packets of the record itself.
    const fn own_packet_span(&self) -> CountedPacketSpan {
        CountedPacketSpan { totals: self.own, since_ns: self.first_ns }
    }

    /// Returns the largest span that the record can cover. From the start of this span on, all stored
    /// packets are still known.
    fn largest_coverable_span(&self) -> CountedPacketSpan {
        let followed = CountedPacketSpan { totals: self.direction.followed, since_ns: self.since_ns };
        let since = self.landmarks();
        let landmarks =
            since.map(|landmark| CountedPacketSpan { totals: landmark.since, since_ns: landmark.at_ns });
        landmarks
            .chain([followed])
            .filter(|claim| claim.since_ns > self.known_from_ns)
            .fold(self.own_packet_span(), CountedPacketSpan::max_by_totals)
    }
}

impl FlowDirectionState {
    pub(super) const HEAP_BYTES: usize = size_of::<Line>() + Line::HEAP_BYTES;

    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a record. Returns which of its packets are new, and the waiting records that have a position now.
    pub(super) fn add_report(
        &mut self,
        report: &SideReport,
        clocks: &mut MeterClocks,
    ) -> PlacedRecordOutcome {
        let mut news = PlacedRecordOutcome::default();
        let mut found = self.find_line(report, clocks);
        if found.is_none() {
            self.place_waiting_without_other_meters(report.now_ns, clocks, &mut news);
            found = self.find_line(report, clocks);
        }
        let Some(placed) = self.place_at_found_line(report, found, clocks) else {
            news.unplaced = report.own.packets;
            self.store_waiting_report(report);
            return news;
        };
        news.placed = placed;
        // This record may have given waiting records a position.
        self.place_waiting_reports(clocks, &mut news, |_, _| true);
        news
    }

    /// Keeps a record until its position is known. If too many wait, the oldest is dropped.
    fn store_waiting_report(&mut self, report: &SideReport) {
        // The totals of a meter continue from record to record, so its new record includes its waiting one.
        let mut unplaced = report.own.packets;
        self.waiting.retain(|waiting| {
            let is_included = waiting.report.meter == report.meter;
            unplaced += if is_included { waiting.unplaced } else { 0 };
            !is_included
        });
        if self.waiting.len() == MAX_WAITING_RECORDS {
            self.waiting.remove(0);
        }
        self.waiting.push(WaitingReport { report: *report, unplaced });
    }

    /// Places waiting records if no other live meter will report the same packets.
    fn place_waiting_without_other_meters(
        &mut self,
        now_ns: u64,
        clocks: &mut MeterClocks,
        news: &mut PlacedRecordOutcome,
    ) {
        self.place_waiting_reports(clocks, news, |waiting, clocks| {
            clocks.has_other_live_meter(waiting.meter, waiting.first_ns, now_ns)
        });
    }

    fn place_waiting_reports(
        &mut self,
        clocks: &mut MeterClocks,
        news: &mut PlacedRecordOutcome,
        has_others: impl Fn(&SideReport, &MeterClocks) -> bool,
    ) {
        for waiting in std::mem::take(&mut self.waiting) {
            let has_others = has_others(&waiting.report, clocks);
            match self.place_report(&SideReport { has_others, ..waiting.report }, clocks) {
                Some(placed) => {
                    news.placed_later += placed.known.min(waiting.unplaced);
                    if placed.new.packets > 0 {
                        news.waited.push((waiting.report, placed));
                    }
                }
                None => self.waiting.push(waiting),
            }
        }
    }

    fn place_report(&mut self, report: &SideReport, clocks: &mut MeterClocks) -> Option<PlacedReport> {
        let found = self.find_line(report, clocks);
        self.place_at_found_line(report, found, clocks)
    }

    /// Places a report with the line on which it was found.
    fn place_at_found_line(
        &mut self,
        report: &SideReport,
        found: Option<(usize, PlacedEnd)>,
        clocks: &mut MeterClocks,
    ) -> Option<PlacedReport> {
        if report.direction.followed.packets == 0 && report.own.packets == 0 {
            return Some(PlacedReport::default());
        }
        let (found, end) = match found {
            Some((at, end)) => (Some(at), end),
            // The line of that time was forgotten. Its packets were stored, so the record counts as stored, too.
            None if self.forgotten.contains(report.common_times(clocks)[1]) => {
                return Some(PlacedReport::default());
            }
            None if self.may_begin_line(report, clocks) => (None, PlacedEnd::from_first_report(report)),
            None => return None,
        };
        let mut line = found
            .map_or_else(|| Line::from_origin(report.meter, report.since_ns), |at| self.lines.remove(at));
        // The record's own line is out of `lines` from here on: only other lines may dispute its claim.
        let widest = report.largest_coverable_span();
        let among = self.remove_lines_within(report, widest.since_ns, clocks);
        let claim = self.find_storable_span(report, widest, clocks);
        line.record_landmarks_and_origin(report, end, clocks);
        let placed = match claim {
            Some(claim) => {
                let new = line.mark_record_stored(report, end.position, claim, clocks).excess_over(among);
                let stored = Some(line.stored_packets(claim, end));
                Some(PlacedReport { new, known: claim.totals.packets, stored })
            }
            None if line.lacks_part_of_interval(end.position, report.own) => None,
            None => Some(PlacedReport { known: report.own.packets, ..PlacedReport::default() }),
        };
        // A line that was begun for a record which stays unplaced is dropped again.
        if found.is_some() || placed.is_some() {
            // Lines are in the order of their last use.
            self.lines.push(line);
            self.forget_oldest_line();
        }
        placed
    }

    /// Places a record that an earlier process of the collector stored. That process knew more than its records tell
    /// in any order, so its own positions count, and nothing is compared.
    pub(super) fn restore_report(
        &mut self,
        report: &SideReport,
        stored: &StoredPackets,
        clocks: &mut MeterClocks,
    ) {
        let mut line = self.remove_line_of_places(stored);
        let end = line.end_of_places(stored);
        self.remove_lines_within(report, stored.claim.since_ns, clocks);
        line.record_landmarks_and_origin(report, end, clocks);
        line.mark_record_stored(report, end.position, stored.claim, clocks);
        self.lines.push(line);
        self.forget_oldest_line();
    }

    /// Takes out the line that has a place of a stored record; an empty one if there is none. If several lines have one,
    /// they are joined: the earlier process knew the distance between them.
    fn remove_line_of_places(&mut self, stored: &StoredPackets) -> Line {
        let mut found: Option<Line> = None;
        for mut line in self.lines.extract_if(.., |line| line.has_place_of(stored)) {
            if let Some(mut other) = found.take() {
                let [end, other_end] =
                    [&mut line, &mut other].map(|line| line.end_of_places(stored).position);
                line.join_line(other, end.minus(other_end));
            }
            found = Some(line);
        }
        found.unwrap_or_default()
    }

    /// Removes the lines whose packets a record certainly includes, unless another line may contain some of the
    /// record's packets. Returns the totals of the removed lines: these packets are stored already.
    fn remove_lines_within(
        &mut self,
        report: &SideReport,
        since_ns: u64,
        clocks: &MeterClocks,
    ) -> CountTotals {
        let margin_ns =
            if clocks.is_clock_offset_known(report.meter) { MAX_PACKET_JITTER_NS } else { MIN_SILENCE_NS };
        let spans = report.possible_packet_times(since_ns, clocks);
        // Two different spans mean that the clock was set back. Then no line is certainly inside.
        let is_within = |line: &Line| spans[0] == spans[1] && line.times.is_within(spans[0], margin_ns);
        let others = self.lines.iter().filter(|line| !is_within(line)).map(|line| &line.times);
        let is_disputed = others
            .chain([&self.forgotten])
            .any(|times| spans.iter().any(|span| times.has_time_near(*span, margin_ns)));
        if is_disputed {
            return CountTotals::default();
        }
        let within = self.lines.extract_if(.., |line| is_within(line));
        within.fold(CountTotals::default(), |sum, line| sum.plus(line.stored_totals()))
    }

    /// Finds the [`Line`] that contains a landmark or the origin of the record, and the position on this line
    /// at which the record ends. If several lines contain one, the distance between these lines is known now,
    /// so they are joined.
    fn find_line(&mut self, report: &SideReport, clocks: &MeterClocks) -> Option<(usize, PlacedEnd)> {
        let mut found: Option<(usize, PlacedEnd)> = None;
        // The search begins at the line that was used last. If several lines match, that line stays, and the older ones
        // are joined to it.
        for at in (0..self.lines.len()).rev() {
            let Some(end) = self.lines[at].find_record_end(report, clocks) else { continue };
            found = Some(match found {
                None => (at, end),
                Some((later, later_end)) => {
                    let joined = self.lines.remove(at);
                    // Removing an earlier line moves the later one down by one.
                    self.lines[later - 1].join_line(joined, later_end.position.minus(end.position));
                    (later - 1, later_end)
                }
            });
        }
        found
    }

    /// Returns whether a record certainly has no packet in common with the known lines, so that it begins a new line.
    fn may_begin_line(&self, report: &SideReport, clocks: &MeterClocks) -> bool {
        let latest_ns = self.lines.iter().map(|line| line.times.latest_ns()).max().unwrap_or(0);
        let [first_ns, _] = report.common_times(clocks);
        let margin_ns = if clocks.is_clock_offset_known(report.meter) {
            MAX_PACKET_JITTER_NS
        } else {
            MAX_CLOCK_DIFFERENCE_NS
        };
        let is_later = first_ns > latest_ns.saturating_add(margin_ns);
        let is_behind = if report.is_strange {
            !report.has_others && (is_later || self.continues_own_line(report, latest_ns, clocks))
        } else {
            // Before the clock offset is known, the start of the flow decides: a flow that began this late cannot
            // be the known flow.
            let begins_late = report.since_ns.saturating_add(MIN_SILENCE_NS) > latest_ns;
            is_later || !clocks.is_clock_offset_known(report.meter) && begins_late
        };
        let is_first = self.lines.is_empty() && !(report.is_strange && report.has_others);
        is_first || is_behind || self.is_apart_from_lines(report, clocks)
    }

    /// Returns whether all packets that a record can cover lie long before or after each known line. The meter has seen
    /// the flow begin, so another meter's record of the same packets has a landmark in common with it. A collector that
    /// was killed may receive records of an earlier flow with the same key after those of a later one.
    fn is_apart_from_lines(&self, report: &SideReport, clocks: &MeterClocks) -> bool {
        let margin_ns =
            if clocks.is_clock_offset_known(report.meter) { MIN_SILENCE_NS } else { MAX_CLOCK_DIFFERENCE_NS };
        let since_ns = clocks.to_common_time(report.meter, report.largest_coverable_span().since_ns);
        let [_, last_ns] = report.common_times(clocks);
        // If a clock was set back while the meter followed the flow, its times do not show
        // which packets are separate.
        let is_steady = report.since_ns <= report.first_ns && since_ns <= last_ns;
        !report.is_strange
            && is_steady
            && !self.times().any(|times| times.has_time_near([since_ns, last_ns], margin_ns))
    }

    /// Returns the times of all lines, including forgotten lines.
    fn times(&self) -> impl Iterator<Item = &SharedTimeIntervals> {
        self.lines.iter().map(|line| &line.times).chain([&self.forgotten])
    }

    /// Forgets the oldest line if there are too many, but never the line that was just used: after a clock was set
    /// back, its times may be the oldest.
    fn forget_oldest_line(&mut self) {
        if self.lines.len() > MAX_LINES_PER_DIRECTION {
            let oldest =
                (0..MAX_LINES_PER_DIRECTION).min_by_key(|at| self.lines[*at].times.latest_ns()).unwrap_or(0);
            // No line knows the packets of that time any more, so they must not be stored again.
            self.forgotten.add_all(self.lines.remove(oldest).times);
        }
    }

    /// Returns whether the latest known packets are of the same meter and before this record. A meter
    /// reports no packet twice.
    fn continues_own_line(&self, report: &SideReport, latest_ns: u64, clocks: &MeterClocks) -> bool {
        let last_ns = self.lines.iter().filter_map(|line| line.last_reported_ns(report.meter)).max();
        last_ns.is_some_and(|last_ns| {
            last_ns < report.first_ns && latest_ns <= clocks.to_common_time(report.meter, last_ns)
        })
    }

    /// Returns the packets that may be stored for a record, because no other line can contain them; `None`
    /// if there are none.
    fn find_storable_span(
        &self,
        report: &SideReport,
        widest: CountedPacketSpan,
        clocks: &MeterClocks,
    ) -> Option<CountedPacketSpan> {
        let margin_ns =
            if clocks.is_clock_offset_known(report.meter) { MAX_PACKET_JITTER_NS } else { MIN_SILENCE_NS };
        let is_disputed = |since_ns: u64| {
            let spans = report.possible_packet_times(since_ns, clocks);
            self.times().any(|times| spans.iter().any(|span| times.has_time_near(*span, margin_ns)))
        };
        // The widest claim reaches back to earlier packets. Without it, the record still has packets of its own.
        [widest, report.own_packet_span()].into_iter().find(|claim| !is_disputed(claim.since_ns))
    }
}
