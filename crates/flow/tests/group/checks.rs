//! Checks of a finished run.

use crate::group::Group;
use crate::world::MS;
use packetrig_flow::group::GroupTerm;

/// Time after the last fault until one meter is active: a late advertisement, a detection, the skew, and for a preempting meter
/// the time until it is ready.
pub(crate) const SETTLE_MS: u64 = 200;
/// The last records of a run may still be on their way.
const DRAIN_MS: u64 = 150;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Records of which the collector has no whole copy.
    pub(crate) lost: Vec<usize>,
    /// Copies that the collector did not need.
    pub(crate) duplicates: usize,
    pub(crate) shared_terms: Vec<GroupTerm>,
    /// Terms that are not later than one that their meter knew of.
    pub(crate) reversed_terms: Vec<GroupTerm>,
    pub(crate) sent_after_a_stop: usize,
    /// True if exactly one meter was active all the time since the faults healed and the group settled.
    pub(crate) is_settled: bool,
    pub(crate) changes_after_healing: usize,
    /// Changes after the first election.
    pub(crate) changes_after_start: usize,
}

impl Group {
    pub(crate) fn outcome(mut self) -> Outcome {
        let until_ns = (self.world.end - DRAIN_MS) * MS;
        let records = self.collected.iter().enumerate();
        let lost = records.filter(|(number, whole)| Self::record_ns(*number) < until_ns && **whole == 0);
        self.outcome.lost = lost.map(|(number, _)| number).collect();
        self.outcome.duplicates = self
            .collected
            .iter()
            .map(|whole| usize::try_from(*whole).expect("small").saturating_sub(1))
            .sum();
        let changes = || self.meters.iter().flat_map(|meter| &meter.changes);
        let after = |ms: u64| changes().filter(|at| **at >= ms * MS).count();
        self.outcome.changes_after_start = after(100);
        self.outcome.changes_after_healing = after(self.world.healed_at + SETTLE_MS);
        self.outcome.is_settled = !self.was_unsettled && self.outcome.changes_after_healing == 0;
        self.outcome
    }

    /// Looks at the group after an event.
    pub(crate) fn check_now(&mut self) {
        let active = self.meters.iter().filter(|meter| meter.runs() && meter.role().is_active()).count();
        if self.now_ns > (self.world.healed_at + SETTLE_MS) * MS && active != 1 {
            self.was_unsettled = true;
        }
    }

    /// Looks at the terms after meter `index` has taken over.
    pub(crate) fn check_term(&mut self, index: usize, term: GroupTerm) {
        let others = self.meters.iter().enumerate().filter(|(other, meter)| *other != index && meter.is_up);
        if others.into_iter().any(|(_, meter)| meter.role().term() == Some(term)) {
            self.outcome.shared_terms.push(term);
        }
        if self.meters[index].heard_term >= term {
            self.outcome.reversed_terms.push(term);
        }
    }
}
