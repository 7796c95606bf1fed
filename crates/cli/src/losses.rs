//! Losses of outputs of flow records, and the exit code that follows: the same for a meter and a collector.

use crate::exit::CommandExit;
use packetrig_flow::{CarriedRecords, LossCause, RecordLosses};
use packetrig_flow_store::KeptCounts;

/// Losses of a sink, by cause.
pub(crate) fn split_sink_losses_by_cause(kept: &KeptCounts) -> RecordLosses {
    let CarriedRecords { records, packets, bytes } = kept.queue_dropped;
    // `kept.lost` includes the records that the queue dropped.
    // The records dropped by the queue are subtracted, so that each record counts under one cause.
    let refused = CarriedRecords {
        records: kept.lost.records - records,
        packets: kept.lost.packets - packets,
        bytes: kept.lost.bytes - bytes,
    };
    let mut losses = RecordLosses::default();
    losses.add_loss(LossCause::QueueFull, kept.queue_dropped);
    losses.add_loss(LossCause::Refused, refused);
    losses
}

/// Exit code of a command whose outputs have these losses. If an output failed, the disk, the kernel or a peer is to
/// blame. With any other loss the result is incomplete: for example, a queue was full, or records did not fit a format.
pub(crate) fn exit_for_losses(losses: &RecordLosses) -> CommandExit {
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
    fn losses_never_exit_with_success() {
        let one = CarriedRecords { records: 1, packets: 0, bytes: 0 };
        assert_eq!(exit_for_losses(&RecordLosses::default()), CommandExit::Ok);
        for cause in LossCause::ALL {
            let mut losses = RecordLosses::default();
            losses.add_loss(cause, one);
            let expected = if cause.is_failure() { CommandExit::World } else { CommandExit::Inconclusive };
            assert_eq!(exit_for_losses(&losses), expected, "{cause:?}");
        }
        let kept = KeptCounts { lost: one, queue_dropped: one, ..KeptCounts::default() };
        assert_eq!(exit_for_losses(&split_sink_losses_by_cause(&kept)), CommandExit::Inconclusive);
        let kept = KeptCounts { queue_dropped: CarriedRecords::default(), ..kept };
        assert_eq!(exit_for_losses(&split_sink_losses_by_cause(&kept)), CommandExit::World);
    }
}
