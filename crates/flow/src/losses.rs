//! Counts the records that were offered to an output and lost, by cause.
//!
//! Invariant: every counted loss has a cause, so the sum over the causes is the total loss.

use crate::ledger::CarriedRecords;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// Why an output has lost a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The queue was full: the records of a live source came faster than the output accepted them, and
    /// no thread could wait.
    QueueFull,
    /// The format of the output has no field for a value of the record.
    Unfit,
    /// The output accepted no record for too long, so the meter stopped waiting for it.
    GivenUp,
    /// The meter is a standby, and no meter of its group reported that it exported the record.
    Unreported,
    /// The output could not be reached.
    Unreachable,
    /// The kernel, the disk or a peer refused the record.
    Refused,
}

impl LossCause {
    pub const ALL: [Self; 6] =
        [Self::QueueFull, Self::Unfit, Self::GivenUp, Self::Unreported, Self::Unreachable, Self::Refused];

    /// Returns its name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Unfit => "unfit",
            Self::GivenUp => "given_up",
            Self::Unreported => "unreported",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
        }
    }

    /// Returns a description for users.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::QueueFull => "the output was too slow, and its queue was full",
            Self::Unfit => "the format of the output cannot express them",
            Self::GivenUp => "the output accepted no data for too long",
            Self::Unreported => {
                "this meter was a standby, and no other meter reported that it had exported them"
            }
            Self::Unreachable => "the output could not be reached",
            Self::Refused => "the output refused them",
        }
    }

    /// Returns whether the output itself failed. Otherwise it works, and only the result is incomplete.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::GivenUp | Self::Unreachable | Self::Refused)
    }
}

/// Lost records by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLosses([CarriedRecords; LossCause::ALL.len()]);

impl RecordLosses {
    pub fn add_loss(&mut self, cause: LossCause, carried: CarriedRecords) {
        self.0[cause as usize].add_records(carried);
    }

    pub fn add_losses(&mut self, other: &Self) {
        for (cause, carried) in other.losses_by_cause() {
            self.add_loss(cause, carried);
        }
    }

    /// Returns the causes of lost records, each with the records lost by it. A cause without losses is left out.
    pub fn losses_by_cause(&self) -> impl Iterator<Item = (LossCause, CarriedRecords)> {
        let all = LossCause::ALL.into_iter().zip(self.0);
        all.filter(|(_, carried)| *carried != CarriedRecords::default())
    }

    pub fn total_records(&self) -> CarriedRecords {
        let mut sum = CarriedRecords::default();
        self.losses_by_cause().for_each(|(_, carried)| sum.add_records(carried));
        sum
    }

    pub fn is_empty(&self) -> bool {
        self.total_records() == CarriedRecords::default()
    }

    /// Returns whether records were lost because the output itself failed.
    pub fn has_failure(&self) -> bool {
        self.losses_by_cause().any(|(cause, _)| cause.is_failure())
    }
}

impl Serialize for RecordLosses {
    /// Serializes a map from each cause to the records lost by it. A cause without losses is left out.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (cause, carried) in self.losses_by_cause() {
            map.serialize_entry(cause.name(), &carried)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_and_add_up() {
        let carried = |records| CarriedRecords { records, packets: 2 * records, bytes: 3 * records };
        let mut losses = RecordLosses::default();
        assert!(losses.is_empty());
        losses.add_loss(LossCause::QueueFull, carried(4));
        losses.add_loss(LossCause::Unfit, carried(1));
        assert!(!losses.has_failure());
        let mut all = losses;
        all.add_losses(&losses);
        all.add_loss(LossCause::Refused, carried(5));
        assert_eq!((all.total_records(), all.has_failure()), (carried(15), true));
        let names: Vec<_> =
            all.losses_by_cause().map(|(cause, carried)| (cause.name(), carried.records)).collect();
        assert_eq!(names, [("queue_full", 8), ("unfit", 2), ("refused", 5)]);
    }
}
