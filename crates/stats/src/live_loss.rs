//! Losses while a run is in progress.
//!
//! Sender and receivers are read one after the other, and frames need time to arrive. So frames that were
//! sent and have not arrived do not yet count as lost. A receiver notices a loss when a later frame arrives:
//! there is a gap in the sequence numbers. All displays of losses during a run use this module, so that they
//! agree with each other and, at the end, with the report.

use packetrig_units::Ratio;

/// Frames that were sent and have not arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveLoss {
    /// Missing frames that the receivers have noticed. A frame that arrives late is subtracted again.
    pub lost: u64,
    /// Frames after which no other frame has arrived yet: they are in flight, or lost.
    pub in_flight_or_lost: u64,
}

impl LiveLoss {
    /// Computes the losses from the number of expected frames, the number of arrived frames, and the number of frames
    /// in the gaps between arrived frames. Once no frame can be in flight, every frame that has not arrived is lost.
    pub fn new(expected: u64, arrived: u64, gaps: u64, may_be_in_flight: bool) -> Self {
        // The receivers may have counted frames that the sender has not reported yet.
        let missing = expected.saturating_sub(arrived);
        if may_be_in_flight {
            Self { lost: gaps, in_flight_or_lost: missing.saturating_sub(gaps) }
        } else {
            // The larger number is used: a gap is a proven loss, even if the difference of the counts
            // does not show it.
            Self { lost: missing.max(gaps), in_flight_or_lost: 0 }
        }
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            lost: self.lost.saturating_add(other.lost),
            in_flight_or_lost: self.in_flight_or_lost.saturating_add(other.in_flight_or_lost),
        }
    }

    /// Returns the share of lost frames among the lost and arrived frames.
    pub const fn loss_share(self, arrived: u64) -> Ratio {
        Ratio::new(self.lost, self.lost.saturating_add(arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_on_their_way_are_no_losses() {
        let moving = LiveLoss::new(28_900, 28_447, 0, true);
        assert_eq!((moving.lost, moving.in_flight_or_lost), (0, 453));
        assert!(moving.loss_share(28_447).percent().abs() < f64::EPSILON);
        let lossy = LiveLoss::new(1_000, 900, 60, true);
        assert_eq!((lossy.lost, lossy.in_flight_or_lost), (60, 40));
        // The sender was read before the receiver: gaps are losses all the same.
        assert_eq!(LiveLoss::new(900, 930, 60, true), LiveLoss { lost: 60, in_flight_or_lost: 0 });
    }

    #[test]
    fn missing_frames_are_lost_once_traffic_stops() {
        let ended = LiveLoss::new(1_000, 900, 60, false);
        assert_eq!(
            (ended.lost, ended.in_flight_or_lost, ended.loss_share(900)),
            (100, 0, Ratio::new(100, 1_000))
        );
        // Copies arrived as well.
        assert_eq!(LiveLoss::new(1_000, 1_500, 60, false).lost, 60);
    }
}
