//! Runs senders and receivers in virtual time, from event to event.

use super::{SimLink, VirtualClock};
use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{NextStep, StreamControl, StreamRx, StreamTx};
use packetrig_units::{MonoTime, Nanos};

/// Time after which senders and receivers are polled again if one of them still has work to do.
const RING_POLL_INTERVAL: Nanos = Nanos::from_micros(1);

/// All components of a simulation: clock, links, senders and receivers.
pub struct SimulationStage<'a> {
    /// Clock that all senders and receivers share.
    pub clock: VirtualClock,
    /// Links between senders and receivers; each link ends at one receiver.
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

/// Result of one step of every sender and receiver.
struct SimulationRoundResult {
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

    /// Runs until `until`, or until no further event is scheduled. Returns true if all senders are done and all frames
    /// have left the links.
    pub fn run_until(&mut self, until: MonoTime) -> Result<bool, Error> {
        loop {
            let now = self.clock.now();
            let before = self.count_moved_frames();
            let round = self.run_stage_round(now)?;
            // Time stands still while frames move: a frame that one step sends can be received at the same instant.
            if self.count_moved_frames() != before {
                continue;
            }
            let look_again = round.busy.then(|| now + RING_POLL_INTERVAL);
            match round.next.into_iter().chain(look_again).min() {
                None => return Ok(round.senders_done),
                Some(next) if next > until => {
                    self.clock.advance_to(until);
                    return Ok(false);
                }
                // Time advances by at least a nanosecond: otherwise a past event that no step handles
                // would make this loop endless.
                Some(next) => self.clock.advance_to(next.max(now + Nanos::new(1))),
            }
        }
    }

    /// Returns how many frames have entered links so far, plus how many have left links.
    fn count_moved_frames(&self) -> u64 {
        self.links
            .iter()
            .map(|link| link.lock_link())
            .map(|link| link.truth().entered + link.truth().delivered)
            .sum()
    }

    fn run_stage_round(&mut self, now: MonoTime) -> Result<SimulationRoundResult, Error> {
        let mut round = SimulationRoundResult { busy: false, senders_done: true, next: None };
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
            // The time of the next step comes from the links, not from the receivers.
            round.busy |= receiver.receive_arrivals(now)? == NextStep::Busy;
        }
        // An event that is due now was not handled in this round, so the next round follows after a microsecond.
        let events = self.links.iter().filter_map(|link| link.lock_link().next_event(now));
        let events = events.map(|at| if at > now { at } else { now + RING_POLL_INTERVAL });
        round.next = events.chain(round.next).min();
        Ok(round)
    }
}
