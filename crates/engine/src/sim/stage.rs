//! Runs senders and receivers in virtual time, from event to event.

use super::{SimLink, VirtualClock};
use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{NextStep, StreamControl, StreamRx, StreamTx};
use packetrig_units::{MonoTime, Nanos};

/// Time after which a sender that waits for its ring is polled again.
const RING_POLL_INTERVAL: Nanos = Nanos::from_micros(1);

/// All components of a simulation: clock, links, senders and receivers.
pub struct SimulationStage<'a> {
    /// Clock that all parts share.
    pub clock: VirtualClock,
    /// Links between the parts; each ends at one of the receivers.
    pub links: Vec<SimLink>,
    pub senders: Vec<&'a mut dyn StreamTx>,
    pub receivers: Vec<&'a mut dyn StreamRx>,
}

impl std::fmt::Debug for SimulationStage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulationStage")
            .field("clock", &self.clock)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// Result of one round of steps.
struct StageRound {
    busy: bool,
    senders_done: bool,
    next: Option<MonoTime>,
}

impl SimulationStage<'_> {
    /// Applies a control to all receivers and senders, receivers first.
    pub fn apply_control(&mut self, control: StreamControl) {
        // Receivers first, as in the rig: no frame may arrive before its receiver has the start.
        self.receivers.iter_mut().for_each(|receiver| receiver.apply_control(control));
        self.senders.iter_mut().for_each(|sender| sender.apply_control(control));
    }

    /// Runs until `until`, or until nothing is left to happen. Returns true if all senders are done and no frame is in
    /// flight.
    pub fn run_until(&mut self, until: MonoTime) -> Result<bool, Error> {
        loop {
            let now = self.clock.now();
            let before = self.moved_frames();
            let round = self.run_stage_round(now)?;
            // Time stands still while frames move: a frame that one step sends can be received at the same instant.
            if self.moved_frames() != before {
                continue;
            }
            let look_again = round.busy.then(|| now + RING_POLL_INTERVAL);
            match round.next.into_iter().chain(look_again).min() {
                None => return Ok(round.senders_done),
                Some(next) if next > until => {
                    self.clock.advance_to(until);
                    return Ok(false);
                }
                // Time advances by at least a nanosecond: a past event that no step takes must not
                // stop the loop's time.
                Some(next) => self.clock.advance_to(next.max(now + Nanos::new(1))),
            }
        }
    }

    /// Returns the number of frames moved so far, in and out.
    fn moved_frames(&self) -> u64 {
        self.links
            .iter()
            .map(|link| link.lock_link())
            .map(|link| link.truth().entered + link.truth().delivered)
            .sum()
    }

    fn run_stage_round(&mut self, now: MonoTime) -> Result<StageRound, Error> {
        let mut round = StageRound { busy: false, senders_done: true, next: None };
        for sender in &mut self.senders {
            let step = sender.send_due(now)?;
            round.senders_done &= step == NextStep::Done;
            match step {
                NextStep::Busy => round.busy = true,
                NextStep::IdleUntil(at) => round.next = Some(round.next.map_or(at, |next| next.min(at))),
                NextStep::Done => {}
            }
        }
        for receiver in &mut self.receivers {
            // The links determine when to look again.
            round.busy |= receiver.receive_arrivals(now)? == NextStep::Busy;
        }
        // An event that is due now has not been handled in this round: the loop looks again soon.
        let events = self.links.iter().filter_map(|link| link.lock_link().next_event(now));
        let events = events.map(|at| if at > now { at } else { now + RING_POLL_INTERVAL });
        round.next = events.chain(round.next).min();
        Ok(round)
    }
}
