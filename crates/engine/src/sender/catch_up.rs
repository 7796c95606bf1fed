//! How a sender that was held up returns to its schedule.
//!
//! After a stall a sender may send at once what was due in the first [`BURST`] of it. Then it sends at the asked rate and a
//! quarter more until it is on time again. A stream with a time limit ends on time: what is not sent by then stays unsent.
//! Without this rule a stall would end in a burst at the speed of the link, and the device would be blamed for dropping it.
//!
//! The rule is kept by a *lag*: the sender behaves as if it were `lag` earlier, and the lag shrinks by a quarter of the
//! time that passes.

use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_units::{MonoTime, Nanos};

/// What a sender that was held up may send at once, in time of its schedule.
const BURST: Nanos = Nanos::from_millis(10);
/// While it catches up, this part of the time that passes is made good.
const QUARTER: u64 = 4;
/// Stalls that are kept apart; later ones extend the last.
const MOST_STALLS: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct CatchUp {
    /// How far behind the sender was at `since`.
    lag: Nanos,
    since: MonoTime,
    stalls: Vec<PortEvent>,
}

impl Default for CatchUp {
    fn default() -> Self {
        // A sender allocates nothing while it sends.
        Self { lag: Nanos::ZERO, since: MonoTime::default(), stalls: Vec::with_capacity(MOST_STALLS) }
    }
}

impl CatchUp {
    /// How far behind its schedule the sender has to stay.
    pub(crate) fn lag(&self, now: MonoTime) -> Nanos {
        // The lag shrinks by a quarter of the time that passes, so the sender's clock runs at 5/4: that is the rate
        // while it catches up.
        let made_good = Nanos::new(now.since(self.since).as_u64() / QUARTER);
        self.lag.saturating_sub(made_good)
    }

    /// Frames due up to this instant may leave.
    pub(crate) fn schedule_time(&self, now: MonoTime) -> MonoTime {
        now - self.lag(now)
    }

    /// When a frame that is due at `due` may leave, at the latest.
    pub(crate) fn release_time(&self, due: MonoTime, now: MonoTime) -> MonoTime {
        due + self.lag(now)
    }

    /// Takes note that the earliest frame that has not left was due at `due`.
    pub(crate) fn look(&mut self, due: MonoTime, now: MonoTime) {
        let behind = now.since(due);
        let lag = self.lag(now);
        if behind > lag + BURST {
            // All but BURST becomes lag: what was due in the first BURST leaves at once, the rest at 5/4 of the rate.
            // A stall during the catching up is one only if it adds more than BURST.
            self.note_stall(due, behind, now);
            self.lag = behind.saturating_sub(BURST);
            self.since = now;
        } else if lag == Nanos::ZERO && self.lag > Nanos::ZERO {
            self.lag = Nanos::ZERO;
            self.end_stall(now);
        }
    }

    /// When it was behind.
    pub(crate) fn stalls(&self) -> Vec<PortEvent> {
        self.stalls.clone()
    }

    fn note_stall(&mut self, due: MonoTime, behind: Nanos, now: MonoTime) {
        let is_full = self.stalls.len() == MOST_STALLS;
        if let Some(last) = self.stalls.last_mut()
            && let PortEventKind::SenderStalled { most_late } = last.what
        {
            if is_full {
                last.what = PortEventKind::SenderStalled { most_late: most_late.max(behind) };
                last.until = None;
                return;
            }
            // Another stall while it caught up: the times of the two are told apart.
            last.until.get_or_insert(now);
        }
        let what = PortEventKind::SenderStalled { most_late: behind };
        self.stalls.push(PortEvent { what, from: due, until: None, only_sending: true });
    }

    fn end_stall(&mut self, now: MonoTime) {
        if let Some(last) = self.stalls.last_mut() {
            last.until = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::default() + Nanos::from_millis(ms)
    }

    /// A sender of one frame each millisecond that sleeps from 100 to `wakes`: the frames it sends in each millisecond.
    fn sent_by_millisecond(wakes: u64, until: u64) -> Vec<u64> {
        let (mut catch_up, mut next) = (CatchUp::default(), 0);
        let step = |now: u64| {
            if (100..wakes).contains(&now) {
                return 0;
            }
            catch_up.look(at(next), at(now));
            let first = next;
            while at(next) <= catch_up.schedule_time(at(now)) {
                next += 1;
            }
            next - first
        };
        (0..until).map(step).collect()
    }

    #[test]
    fn a_short_delay_is_made_good_at_once() {
        let sent = sent_by_millisecond(109, 120);
        assert_eq!(sent[109], 10);
        assert_eq!(sent.iter().sum::<u64>(), 120);
    }

    #[test]
    fn after_a_stall_the_rate_is_a_quarter_more_until_the_sender_is_on_time() {
        let sent = sent_by_millisecond(300, 1200);
        assert_eq!(sent[300], 11, "the burst, and the frame due at its end");
        let in_400: u64 = sent[301..701].iter().sum();
        assert!((499..=501).contains(&in_400), "{in_400} in 400 ms");
        // 190 ms of lag take 760 ms.
        assert_eq!(sent.iter().sum::<u64>(), 1200);
        assert_eq!(sent[1100..].iter().max(), Some(&1));
    }

    #[test]
    fn a_stall_is_told_from_the_first_frame_it_held_up_until_the_sender_is_on_time() {
        let mut catch_up = CatchUp::default();
        catch_up.look(at(100), at(300));
        catch_up.look(at(1100), at(1100));
        let what = PortEventKind::SenderStalled { most_late: Nanos::from_millis(200) };
        let stall = PortEvent { what, from: at(100), until: Some(at(1100)), only_sending: true };
        assert_eq!(catch_up.stalls(), [stall]);
    }
}
