//! A port with random faults, repeatable by a seed: full rings, calls without effect, links that go down
//! and come back, failures.
//!
//! It wraps either half of any port. It delays frames and fails calls; it never loses, invents or changes a
//! frame: [`crate::sim`] does that.
//!
//! Invariant: the counters of the wrapped port are passed on unchanged.

use crate::Error;
use crate::port::{FrameRx, FrameTx, RingProgress, RxFrame};
use crate::sim::SeededDice;
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_units::{Nanos, remainder_as_usize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChaosLevel {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Calls per million that find the ring full, or nothing to receive.
    pub full: u32,
    /// Calls per million that do only a part of the requested work.
    pub partial: u32,
    /// Flushes per million that begin a storm, in which flushes send nothing, as after EAGAIN.
    pub storm: u32,
    /// Number of flushes that a storm lasts.
    pub storm_length: u32,
    /// Number of flushes or receives between two link failures. Each failure lasts `flap_length` calls.
    pub flap_every: Option<u64>,
    /// Number of calls for which the link stays down; see `flap_every`.
    pub flap_length: u64,
    /// Number of the flush or receive that fails, counted from 0.
    pub fail_at: Option<u64>,
}

#[derive(Debug)]
pub struct ChaosWorker<P> {
    port: P,
    level: ChaosLevel,
    dice: SeededDice,
    calls: u64,
    storm_left: u32,
}

impl<P> ChaosWorker<P> {
    /// Wraps `port`. With the default level nothing fails.
    pub const fn new(port: P, level: ChaosLevel) -> Self {
        Self { port, level, dice: SeededDice::new(level.seed), calls: 0, storm_left: 0 }
    }

    fn draw_fault(&mut self, per_million: u32) -> bool {
        self.dice.draw_number_below(1_000_000) < u64::from(per_million)
    }

    /// Counts a flush or receive; returns whether the link is down during it. Fails if its number is `fail_at`.
    fn count_call_and_check_link(&mut self) -> Result<bool, Error> {
        let call = self.calls;
        self.calls += 1;
        if self.level.fail_at == Some(call) {
            return Err(Error::Injected { call });
        }
        let Some(every) = self.level.flap_every else { return Ok(false) };
        // Up for `every` calls, then down for `flap_length`, over and over.
        Ok(call % (every + self.level.flap_length).max(1) >= every)
    }

    fn draw_amount_up_to(&mut self, want: usize) -> usize {
        if self.draw_fault(self.level.full) {
            return 0;
        }
        if want > 1 && self.draw_fault(self.level.partial) {
            return remainder_as_usize(self.dice.draw_number_below(want as u64), want);
        }
        want
    }
}

impl<T: FrameTx> FrameTx for ChaosWorker<T> {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        let want = self.draw_amount_up_to(want);
        self.port.fill_slots(want, fill)
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        let down = self.count_call_and_check_link()?;
        if self.storm_left == 0 && self.draw_fault(self.level.storm) {
            self.storm_left = self.level.storm_length;
        }
        if self.storm_left > 0 {
            self.storm_left -= 1;
            return Ok(());
        }
        // While the link is down, the frames stay pending in the ring, and a later flush sends them.
        if down { Ok(()) } else { self.port.flush_frames() }
    }

    fn pending_frames(&self) -> usize {
        self.port.pending_frames()
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        self.port.read_tx_counters()
    }
}

impl<R: FrameRx> FrameRx for ChaosWorker<R> {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        if self.count_call_and_check_link()? {
            return Ok(0);
        }
        let most = self.draw_amount_up_to(most);
        self.port.receive_frames(most, sink)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        self.port.wait_for_frames(within)
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        self.port.read_rx_counters()
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        self.port.ring_progress()
    }

    fn clock_bound(&self) -> Nanos {
        self.port.clock_bound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{LinkSpec, SimLink, SimTx, VirtualClock};
    use packetrig_units::MonoTime;

    fn port(level: ChaosLevel) -> (ChaosWorker<SimTx<VirtualClock>>, SimLink) {
        let link = SimLink::new(LinkSpec::default());
        let tx = SimTx::new(vec![link.clone()], VirtualClock::new(MonoTime::default()));
        (ChaosWorker::new(tx, level), link)
    }

    fn fill(port: &mut impl FrameTx, want: usize) -> usize {
        port.fill_slots(want, &mut |slot| {
            slot[..60].fill(1);
            Some(60)
        })
    }

    #[test]
    fn without_a_mood_it_is_the_port() {
        let (mut port, link) = port(ChaosLevel::default());
        assert_eq!((fill(&mut port, 64), port.pending_frames()), (64, 64));
        port.flush_frames().unwrap();
        assert_eq!((port.pending_frames(), link.truth().entered), (0, 64));
    }

    #[test]
    fn full_chaos_ring_takes_none_partial_takes_fewer() {
        let (mut full, _) = port(ChaosLevel { full: 1_000_000, ..ChaosLevel::default() });
        assert_eq!(fill(&mut full, 64), 0);
        let (mut partial, _) = port(ChaosLevel { partial: 1_000_000, ..ChaosLevel::default() });
        assert!(fill(&mut partial, 64) < 64);
    }

    #[test]
    fn storms_and_flaps_pass_and_lose_nothing() {
        let (mut stormy, link) =
            port(ChaosLevel { storm: 1_000_000, storm_length: 3, ..ChaosLevel::default() });
        fill(&mut stormy, 5);
        stormy.flush_frames().unwrap();
        assert_eq!((stormy.pending_frames(), link.truth().entered), (5, 0));
        let (mut flapping, link) =
            port(ChaosLevel { flap_every: Some(1), flap_length: 2, ..ChaosLevel::default() });
        let pending: Vec<usize> = (0..6)
            .map(|_| {
                fill(&mut flapping, 1);
                flapping.flush_frames().unwrap();
                flapping.pending_frames()
            })
            .collect();
        assert_eq!((pending, link.truth().entered), (vec![0, 1, 2, 0, 1, 2], 4));
    }

    #[test]
    fn it_fails_when_told_to() {
        let (mut port, _) = port(ChaosLevel { fail_at: Some(1), ..ChaosLevel::default() });
        assert!(port.flush_frames().is_ok());
        assert!(matches!(port.flush_frames(), Err(Error::Injected { call: 1 })));
        assert!(port.flush_frames().is_ok());
    }
}
