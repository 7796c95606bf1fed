//! Losses that the rig itself may have caused: losses while one of its ports had a fault, and as many losses
//! as its ports report as their own drops.
//!
//! All times are counted from the start of the run. If an outage begins before an event and continues
//! after it, the outage is split: frames that were lost before the event are judged as usual. The later
//! losses stay in doubt to the end of the outage, because the event may have caused all of them.

use super::lookup::StreamReceiver;
use super::losses::longest_delay_or_assumed;
use packetrig_plan::criteria::CarrierLossCause;
use packetrig_stats::outage::StreamOutage;
use packetrig_stats::port_event::{EventCause, PortEvent, PortEventKind};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// An event of a port. Its times are counted from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEventReport {
    #[serde(flatten)]
    pub what: PortEventKind,
    pub cause: EventCause,
    /// Earliest possible time at which the event began.
    pub from: Nanos,
    /// Latest possible end of the event; absent if it lasted until the end of the run.
    pub until: Option<Nanos>,
    /// True if the event affects only frames that the port sends.
    #[serde(default)]
    pub only_sending: bool,
}

impl PortEventReport {
    /// Converts an event. `carrier_loss` is the assumed cause of a lost carrier. An interface that was
    /// switched down on this machine also has no carrier, but that is an event of another kind.
    pub(super) fn from_event(event: &PortEvent, start: MonoTime, carrier_loss: CarrierLossCause) -> Self {
        let cause = match (event.what, carrier_loss) {
            // Only the user can know that the device under test drops the carrier on purpose, for example in a reset.
            (PortEventKind::CarrierLost, CarrierLossCause::Device) => EventCause::Device,
            _ => event.what.cause(),
        };
        Self {
            what: event.what,
            cause,
            from: event.from.since(start),
            until: event.until.map(|until| until.since(start)),
            only_sending: event.only_sending,
        }
    }

    /// True if losses during the event are in doubt. A sender that is less late than tolerated does no harm.
    pub(super) fn makes_frames_doubtful(&self, tolerated: Nanos) -> bool {
        match self.what {
            PortEventKind::SenderStalled { most_late } => most_late > tolerated,
            _ => !self.cause.is_measured(),
        }
    }

    /// Description of the event, with its assumed cause.
    pub fn description(&self) -> String {
        match (self.what, self.cause) {
            (PortEventKind::CarrierLost, EventCause::Device) => {
                "the device switched the carrier off, as expected".to_owned()
            }
            (what, _) => what.to_string(),
        }
    }

    /// Moves the begin of the event to an earlier time by `before`, and its end to a later time by `after`.
    pub(super) fn extend_by(self, before: Nanos, after: Nanos) -> Self {
        Self { from: self.from.saturating_sub(before), until: self.until.map(|until| until + after), ..self }
    }
}

/// The time of an outage, counted from the start of the run, and its lost frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutageSpan {
    pub(super) begin: Nanos,
    /// End of the outage; absent if no frame arrived after it.
    pub(super) end: Option<Nanos>,
    /// Number of the first lost frame.
    pub(super) first: u64,
    pub(super) frames: u64,
    /// True if all frames from the first to the last are lost.
    pub(super) is_one_gap: bool,
}

impl OutageSpan {
    /// Time in which the lost frames may have been lost.
    pub(super) fn from_outage(outage: &StreamOutage, receiver: StreamReceiver<'_>) -> Self {
        let StreamReceiver { node, row } = receiver;
        // If frames are reordered, a lost frame need not have been sent between its neighbours in the order of arrival.
        let is_in_order = row.counts.sequence.reordered == 0;
        // If frames were reordered, a lost frame may have been sent earlier or later, by up to the longest
        // measured delay.
        let apart = if is_in_order { Nanos::ZERO } else { longest_delay_or_assumed(row) };
        let begin = outage.begin.map_or(Nanos::ZERO, |begin| begin.since(node.started));
        Self {
            begin: begin.saturating_sub(apart),
            end: outage.end.map(|end| end.since(node.started) + apart),
            first: outage.first,
            frames: outage.frames,
            is_one_gap: outage.gaps == 1,
        }
    }

    fn overlaps_event(&self, event: &PortEventReport) -> bool {
        self.overlaps_times(event.from, event.until)
    }

    /// True if the outage overlaps these times.
    pub(super) fn overlaps_times(&self, from: Nanos, until: Option<Nanos>) -> bool {
        // Without an end, the outage or the event may have lasted until the end of the run.
        self.end.is_none_or(|end| from < end) && until.is_none_or(|until| until > self.begin)
    }

    /// Returns the largest number of lost frames of this outage that the events may have caused.
    /// `expected_number_before` returns the number of the first frame that need not have arrived before a given time:
    /// missing frames with lower numbers were certainly lost before that time.
    pub(super) fn frames_in_doubt(
        &self,
        events: &[PortEventReport],
        expected_number_before: &dyn Fn(Nanos) -> u64,
    ) -> u64 {
        let overlapping = events.iter().filter(|event| self.overlaps_event(event));
        // The earliest event decides, because losses stay in doubt from the first event to the end of the outage.
        let Some(from) = overlapping.map(|event| event.from).min() else { return 0 };
        // In an outage of several joined gaps, the numbers of the lost frames are unknown.
        if from <= self.begin || !self.is_one_gap {
            return self.frames;
        }
        // The lost numbers are consecutive: frames that were due before the event were lost before it.
        self.frames - expected_number_before(from).saturating_sub(self.first).min(self.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(from: u64, until: Option<u64>) -> PortEventReport {
        PortEventReport {
            what: PortEventKind::SwitchedDown,
            cause: EventCause::Rig,
            from: Nanos::from_millis(from),
            until: until.map(Nanos::from_millis),
            only_sending: false,
        }
    }

    fn outage(begin: u64, end: Option<u64>, frames: u64) -> OutageSpan {
        let ms = Nanos::from_millis;
        OutageSpan { begin: ms(begin), end: end.map(ms), first: begin, frames, is_one_gap: true }
    }

    #[test]
    fn loss_is_certain_only_before_event() {
        // A frame each millisecond.
        let expected_number_before = |time: Nanos| time.as_u64() / 1_000_000;
        let doubtful = |outage: OutageSpan, events: &[PortEventReport]| {
            outage.frames_in_doubt(events, &expected_number_before)
        };
        let of_100 = outage(1000, Some(1100), 100);
        assert_eq!(doubtful(of_100, &[]), 0);
        assert_eq!(doubtful(of_100, &[event(500, Some(900))]), 0);
        assert_eq!(doubtful(of_100, &[event(1100, Some(1200))]), 0);
        assert_eq!(doubtful(of_100, &[event(900, Some(1001))]), 100, "it may have caused all of it");
        assert_eq!(doubtful(of_100, &[event(1050, Some(1060))]), 50);
        // At the end of a stream.
        assert_eq!(doubtful(outage(1000, None, 1000), &[event(1500, None)]), 500);
        let joined = OutageSpan { is_one_gap: false, ..of_100 };
        assert_eq!(doubtful(joined, &[event(1050, Some(1060))]), 100);
    }

    #[test]
    fn carrier_loss_blames_device_only_if_expected() {
        let cause = |what, carrier_loss| {
            let event = PortEvent { what, from: MonoTime::default(), until: None, only_sending: false };
            let report = PortEventReport::from_event(&event, MonoTime::default(), carrier_loss);
            (report.cause, report.makes_frames_doubtful(Nanos::ZERO))
        };
        let (lost, down) = (PortEventKind::CarrierLost, PortEventKind::SwitchedDown);
        assert_eq!(cause(lost, CarrierLossCause::Unknown), (EventCause::Unknown, true));
        assert_eq!(cause(lost, CarrierLossCause::Device), (EventCause::Device, false));
        assert_eq!(cause(down, CarrierLossCause::Device), (EventCause::Rig, true));
    }

    proptest! {
        #[test]
        fn another_event_never_makes_a_loss_more_certain(
            begin in 0u64..100, length in 1u64..100, frames in 1u64..1000,
            events in prop::collection::vec((0u64..200, prop::option::of(0u64..200)), 0..5),
        ) {
            let outage = outage(begin, Some(begin + length), frames);
            let events: Vec<_> = events.into_iter().map(|(from, length)| event(from, length.map(|l| from + l))).collect();
            let mut before = 0;
            for count in 0..=events.len() {
                let now = outage.frames_in_doubt(&events[..count], &|time| time.as_u64() / 1_000_000);
                prop_assert!(before <= now && now <= frames);
                before = now;
            }
        }
    }
}
