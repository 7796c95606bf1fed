//! What outputs of flow records have lost, and the exit code that follows: the same for a meter and a collector.

use crate::exit::CommandExit;
use packetrig_flow::{CarriedRecords, LossCause, RecordLosses};
use packetrig_store::flows::KeptCounts;

/// What a sink has lost, by cause.
pub(crate) fn losses_of(kept: &KeptCounts) -> RecordLosses {
    let CarriedRecords { records, packets, bytes } = kept.queue_dropped;
    let refused = CarriedRecords {
        records: kept.lost.records - records,
        packets: kept.lost.packets - packets,
        bytes: kept.lost.bytes - bytes,
    };
    let mut losses = RecordLosses::default();
    losses.add(LossCause::QueueFull, kept.queue_dropped);
    losses.add(LossCause::Refused, refused);
    losses
}

/// How a command ends whose outputs have lost this. If an output failed, that is the disk's, the kernel's or a peer's doing. If it
/// works, and records came faster than it took them or did not fit its format, the result is incomplete.
pub(crate) fn exit_of(losses: &RecordLosses) -> CommandExit {
    if losses.has_failure() {
        CommandExit::World
    } else if losses.is_empty() {
        CommandExit::Ok
    } else {
        CommandExit::Inconclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_never_a_success() {
        let one = CarriedRecords { records: 1, packets: 0, bytes: 0 };
        assert_eq!(exit_of(&RecordLosses::default()), CommandExit::Ok);
        for cause in LossCause::ALL {
            let mut losses = RecordLosses::default();
            losses.add(cause, one);
            let expected = if cause.is_failure() { CommandExit::World } else { CommandExit::Inconclusive };
            assert_eq!(exit_of(&losses), expected, "{cause:?}");
        }
        let kept = KeptCounts { lost: one, queue_dropped: one, ..KeptCounts::default() };
        assert_eq!(exit_of(&losses_of(&kept)), CommandExit::Inconclusive);
        let kept = KeptCounts { queue_dropped: CarriedRecords::default(), ..kept };
        assert_eq!(exit_of(&losses_of(&kept)), CommandExit::World);
    }
}
