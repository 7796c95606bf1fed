//! A model of one meter: its records, the ones it keeps, and its election.

use packetrig_flow::group::{ElectionOptions, GroupElection, GroupRole, GroupTerm, MeterCoverage};
use packetrig_units::MonoTime;
use std::collections::VecDeque;

/// The longest flow, in nanoseconds. A meter has seen all running flows from their beginning this long after its start.
pub(crate) const LONGEST_FLOW: u64 = 80_000_000;

/// A record may leave a table this much after its flow has ended.
const SKEW: u64 = 5_000_000;

/// A record as one meter has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptRecord {
    pub(crate) number: usize,
    /// Time at which it left this meter's table.
    pub(crate) left_ns: u64,
    /// True if the meter has seen the flow from its beginning.
    pub(crate) is_whole: bool,
    pub(crate) is_sent: bool,
    pub(crate) is_acknowledged: bool,
}

pub(crate) struct Meter {
    pub(crate) election: GroupElection,
    /// Names this start of the process.
    pub(crate) boot: u64,
    pub(crate) is_up: bool,
    pub(crate) is_paused: bool,
    /// Time since which it sees the traffic without a gap; zero: since before the first flow.
    pub(crate) sees_since_ns: u64,
    pub(crate) kept: VecDeque<KeptRecord>,
    /// Records that wait for a paused process.
    pub(crate) waiting: Vec<KeptRecord>,
    /// Time of the last requested wake-up; earlier requests are void.
    pub(crate) wake_ns: u64,
    pub(crate) changes: Vec<u64>,
    /// The latest term in an advertisement that came.
    pub(crate) heard_term: GroupTerm,
    /// While it wakes up: since when it stood still.
    pub(crate) stopped_since_ns: Option<u64>,
}

impl Meter {
    pub(crate) fn start(options: ElectionOptions, boot: u64, now_ns: u64) -> Self {
        Self {
            election: GroupElection::new(
                options,
                boot,
                coverage(now_ns, now_ns),
                MonoTime::from_nanos(now_ns),
            ),
            boot,
            is_up: true,
            is_paused: false,
            sees_since_ns: now_ns,
            kept: VecDeque::new(),
            waiting: Vec::new(),
            wake_ns: 0,
            changes: Vec::new(),
            heard_term: GroupTerm::default(),
            stopped_since_ns: None,
        }
    }

    pub(crate) const fn runs(&self) -> bool {
        self.is_up && !self.is_paused
    }

    pub(crate) const fn role(&self) -> GroupRole {
        self.election.role()
    }

    /// Sets the coverage of the election.
    pub(crate) fn update_coverage(&mut self, now_ns: u64) {
        self.election.set_coverage(coverage(self.sees_since_ns, now_ns));
    }

    /// Forgets the records that the active member has exported.
    pub(crate) fn trim(&mut self, margin_ns: u64) {
        if self.role().is_active() {
            return;
        }
        let Some(watermark_ns) = self.election.watermark() else { return };
        while self.kept.front().is_some_and(|record| record.left_ns + margin_ns < watermark_ns) {
            self.kept.pop_front();
        }
    }

    /// Forgets the records that the collector has, and advances the watermark to the first record that it may not have.
    pub(crate) fn advance(&mut self, table_ns: u64) {
        let GroupRole::Active { term } = self.role() else { return };
        while self.kept.front().is_some_and(|record| record.is_acknowledged) {
            self.kept.pop_front();
        }
        let first_open = self.kept.front().map_or(table_ns, |record| record.left_ns);
        self.election.set_watermark(term, first_open);
    }
}

fn coverage(seen_since_ns: u64, now_ns: u64) -> MeterCoverage {
    let complete_ns = if seen_since_ns == 0 { 0 } else { seen_since_ns + LONGEST_FLOW + SKEW };
    let complete_from_ns = (now_ns >= complete_ns).then_some(complete_ns);
    MeterCoverage { seen_since_ns, complete_from_ns }
}
