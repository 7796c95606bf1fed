//! Measures how much longer an advertisement was on its way than the fastest one.
//!
//! An advertisement states how old its packet count was when it was sent. If it waits on its way, the count looks
//! younger than it is, and the receiver seems to lack packets. When a link comes up again, advertisements wait for the
//! neighbour's address; the kernel of the sender then sends up to a second of them at once.
//!
//! The offset between the two clocks is not known, so the fastest advertisement of the last seconds is the reference.
//! For another advertisement, the difference of receiving and sending time is greater by the time that it waited.

use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;

/// Period after which the reference is replaced: in this time the clocks drift apart by less than 1 ms.
const REFERENCE_PERIOD: Nanos = Nanos::from_secs(10);
/// Time until the reference is certain enough. In a burst of advertisements that have waited, the first
/// ones have waited longest.
const WARM_UP: Nanos = Nanos::from_secs(2);
/// Silence after which the old reference is discarded.
const FORGET_AFTER: Nanos = Nanos::from_secs(60);
/// Maximum number of senders with a reference: senders choose their numbers.
const MAX_SENDERS: usize = 64;

/// Delays of the advertisements of each sender.
#[derive(Debug, Default)]
pub(super) struct TransitDelays(BTreeMap<u32, SenderTransit>);

/// Differences between receiving and sending times for one sender: the offset of the two clocks plus the delay.
#[derive(Clone, Copy, Debug)]
struct SenderTransit {
    heard_since: MonoTime,
    last_heard: MonoTime,
    period_began: MonoTime,
    /// The least difference of this period and of the one before.
    least: [i64; 2],
}

impl TransitDelays {
    /// Returns by how much an advertisement was slower than the fastest one of its sender; `None` if that is not known
    /// yet, or if there are too many senders. The sender's clock is a wall clock. If it is set back, delays look too
    /// long for up to 20 s. If it is set forward, the next advertisement becomes the reference, even a delayed one.
    pub(super) fn record_arrival_and_delay(
        &mut self,
        meter: u32,
        sent_ns: u64,
        received: MonoTime,
    ) -> Option<Nanos> {
        if self.0.len() >= MAX_SENDERS && !self.0.contains_key(&meter) {
            return None;
        }
        let difference = received.as_nanos().wrapping_sub(sent_ns).cast_signed();
        let begun = SenderTransit {
            heard_since: received,
            last_heard: received,
            period_began: received,
            least: [difference; 2],
        };
        let transit = self.0.entry(meter).or_insert(begun);
        if received.since(transit.last_heard) > FORGET_AFTER {
            *transit = begun;
        }
        transit.update_least_difference(difference, received);
        let [present, earlier] = transit.least;
        let excess = difference.abs_diff(present.min(earlier));
        (received.since(transit.heard_since) >= WARM_UP).then_some(Nanos::new(excess))
    }
}

impl SenderTransit {
    fn update_least_difference(&mut self, difference: i64, received: MonoTime) {
        self.last_heard = received;
        if received.since(self.period_began) >= REFERENCE_PERIOD {
            (self.period_began, self.least) = (received, [difference, self.least[0]]);
        }
        self.least[0] = self.least[0].min(difference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// The sender's clock is far from the receiver's.
    const SENDER_CLOCK: u64 = 1_800_000_000 * SECOND;

    /// Receives an advertisement that was sent at `sent_ms` and took `delay_ms`.
    fn receive(delays: &mut TransitDelays, sent_ms: u64, delay_ms: u64) -> Option<u64> {
        let sent_ns = SENDER_CLOCK + sent_ms * 1_000_000;
        let received = MonoTime::from_nanos((sent_ms + delay_ms) * 1_000_000);
        delays.record_arrival_and_delay(1, sent_ns, received).map(|excess| excess.as_u64() / 1_000_000)
    }

    #[test]
    fn advertisement_that_waited_shows_its_delay() {
        let mut delays = TransitDelays::default();
        for sent_ms in (0..2000).step_by(100) {
            assert_eq!(receive(&mut delays, sent_ms, 1), None, "the reference is not certain yet");
        }
        assert_eq!(receive(&mut delays, 2000, 1), Some(0));
        // The link was down: what waited for the neighbour's address arrives together.
        for sent_ms in (2100..3000).step_by(100) {
            assert_eq!(receive(&mut delays, sent_ms, 3000 - sent_ms), Some(2999 - sent_ms));
        }
        assert_eq!(receive(&mut delays, 30_000, 1), Some(0));
        assert_eq!(receive(&mut delays, 30_100, 71), Some(70));
    }

    #[test]
    fn burst_after_a_start_is_no_reference() {
        let mut delays = TransitDelays::default();
        for sent_ms in (0..1000).step_by(100) {
            assert_eq!(receive(&mut delays, sent_ms, 1000 - sent_ms), None);
        }
        assert_eq!(receive(&mut delays, 3000, 40), Some(0), "faster than all before");
        assert_eq!(receive(&mut delays, 3100, 240), Some(200));
    }

    #[test]
    fn set_clock_makes_delays_look_longer_for_two_periods() {
        let mut delays = TransitDelays::default();
        for n in 0..30 {
            receive(&mut delays, n * 100, 1);
        }
        // Set back by 500 ms: the same as that much delay.
        assert_eq!(receive(&mut delays, 3000, 501), Some(500));
        for n in 1..250 {
            receive(&mut delays, 3000 + n * 100, 501);
        }
        assert_eq!(receive(&mut delays, 30_000, 501), Some(0));
        // Set forward: at once the new reference.
        assert_eq!(receive(&mut delays, 30_100, 1), Some(0));
        assert_eq!(receive(&mut delays, 30_200, 61), Some(60));
    }

    #[test]
    fn long_silence_and_many_senders_are_bounded() {
        let mut delays = TransitDelays::default();
        for n in 0..30 {
            receive(&mut delays, n * 100, 1);
        }
        assert_eq!(receive(&mut delays, 100_000, 1), None);
        for meter in 0..100 {
            delays.record_arrival_and_delay(meter, SENDER_CLOCK, MonoTime::from_nanos(SECOND));
        }
        assert_eq!(delays.0.len(), MAX_SENDERS);
    }
}
