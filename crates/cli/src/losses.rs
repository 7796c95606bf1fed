//! Losses of flow records at outputs, and the exit code for them. A meter and a collector use the same rules.

use crate::exit::CommandExit;
use packetrig_flow::{CarriedRecords, LossCause, RecordLosses};
use packetrig_flow_store::SinkRecordCounts;

/// Splits the records that a store or file lost by cause: its queue was full, or it refused the records.
pub(crate) fn split_sink_losses_by_cause(kept: &SinkRecordCounts) -> RecordLosses {
    let CarriedRecords { records, packets, bytes } = kept.queue_dropped;
    // `kept.lost` includes the records that the queue dropped. They are subtracted, so that each record
    // counts under one cause.
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

/// Returns the exit code of a command whose outputs have these losses. If an output failed, the code is that for the
/// disk, the kernel or a peer. After any other loss, such as a full queue, the result is incomplete: INCONCLUSIVE.
pub(crate) fn choose_exit_for_losses(losses: &RecordLosses) -> CommandExit {
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
        assert_eq!(choose_exit_for_losses(&RecordLosses::default()), CommandExit::Ok);
        for cause in LossCause::ALL {
            let mut losses = RecordLosses::default();
            losses.add_loss(cause, one);
            let expected = if cause.is_failure() { CommandExit::World } else { CommandExit::Inconclusive };
            assert_eq!(choose_exit_for_losses(&losses), expected, "{cause:?}");
        }
        let kept = SinkRecordCounts { lost: one, queue_dropped: one, ..SinkRecordCounts::default() };
        assert_eq!(choose_exit_for_losses(&split_sink_losses_by_cause(&kept)), CommandExit::Inconclusive);
        let kept = SinkRecordCounts { queue_dropped: CarriedRecords::default(), ..kept };
        assert_eq!(choose_exit_for_losses(&split_sink_losses_by_cause(&kept)), CommandExit::World);
    }
}
