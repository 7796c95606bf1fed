//! The thread that sends: it takes what is due, charges the limits of the targets, resolves clashes, and reports.
//!
//! It begins the next train while the mechanism still sends the last one, so that a dense stream has no pauses.
//!
//! Invariant: each burst that was taken from the queue is reported exactly once.

use super::report::{self, ReportedPacket};
use super::shared::{ServiceShared, TakenWork};
use crate::release::{DepartedFrame, DueFrame, MOST_BEGUN, ReleasePipeline};
use crate::{Error, now};
use packetrig_probe::service::{
    BurstPlacement, BurstSpan, ClientId, FRAME_TIME, QueuedBurst, TargetShares, place,
};
use packetrig_probe::{PacketRefusal, ReleaseMechanism};
use packetrig_release::message::PacketReport;
use packetrig_sys::sched;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// Time to prepare what the mechanism is given.
pub(super) const PREPARING: Nanos = Nanos::from_millis(1);
/// What is due within this time of the first burst is given to the mechanism with it.
const WINDOW: Nanos = Nanos::from_millis(2);
/// Most packets that are given together, unless one burst has more.
const MOST: usize = 400;
/// Errors of the mechanism in a row that end the service.
const MOST_FAILURES: u32 = 10;
/// Real-time priority of the thread, below that of the release mechanism. It never spins.
const PRIORITY: i32 = 40;

pub(super) struct ServiceOutlet<'a> {
    release: Box<dyn ReleasePipeline>,
    shared: &'a ServiceShared,
    shares: TargetShares,
    /// Bursts that the mechanism has, by the trains that were begun.
    begun: VecDeque<Vec<PlacedBurst>>,
    /// When the outlet has sent all that it was given.
    free_from: MonoTime,
    failures: u32,
}

/// A burst with the time that it got.
struct PlacedBurst {
    burst: QueuedBurst,
    later: Nanos,
    /// How much of that is due to a clash, not to a late hand-over.
    shifted: Nanos,
}

impl PlacedBurst {
    /// When its last frame leaves.
    fn ends(&self) -> MonoTime {
        self.burst.part.packets.last().map(|packet| packet.due).unwrap_or_default() + self.later
    }
}

impl<'a> ServiceOutlet<'a> {
    pub(super) fn new(release: Box<dyn ReleasePipeline>, shared: &'a ServiceShared) -> Self {
        let (shares, begun, free_from) = (TargetShares::default(), VecDeque::new(), MonoTime::default());
        Self { release, shared, shares, begun, free_from, failures: 0 }
    }

    /// Sends until the service ends; then reports what still waits.
    pub(super) fn run(mut self) {
        // Without it the thread may get the processor late on a busy machine; lateness is flagged as ever.
        drop(sched::request_fifo(PRIORITY));
        let lead = self.shared.interface.lead;
        loop {
            // Until the oldest train has left there is time to begin the next one.
            let until = self.begun.front().and_then(|train| train.last()).map(PlacedBurst::ends);
            match self.shared.take_work(lead, WINDOW, MOST, until) {
                TakenWork::Work(work) => {
                    work.gone.iter().for_each(|client| self.forget(*client));
                    self.send_window(work.bursts);
                }
                TakenWork::Nothing => self.finish_oldest(),
                TakenWork::Ended => break,
            }
        }
        while !self.begun.is_empty() {
            self.finish_oldest();
        }
        let waiting = self.shared.take_all();
        self.shared.report_unsent(&waiting, PacketRefusal::Ended);
    }

    fn forget(&mut self, client: ClientId) {
        self.shares.remove_client(client);
        self.shares.forget_idle(now());
    }

    fn send_window(&mut self, bursts: Vec<QueuedBurst>) {
        let now = now();
        let bursts: Vec<_> = bursts.into_iter().filter_map(|burst| self.charge(burst, now)).collect();
        let placed = self.place(bursts, now);
        // A ring sends all that it is given back to back, so it must not get two bursts at once.
        if self.release.mechanism() == ReleaseMechanism::Ring {
            placed.into_iter().for_each(|burst| self.begin(vec![burst]));
        } else if !placed.is_empty() {
            self.begin(placed);
        }
    }

    /// Takes a train that begins from the limits of its target. Gives the burst back if it may be sent.
    fn charge(&mut self, burst: QueuedBurst, now: MonoTime) -> Option<QueuedBurst> {
        let Some(train) = &burst.train_begins else { return Some(burst) };
        // What is overdue leaves now: charged at its own time, it would come out of limits that have passed.
        let train: Vec<_> = train.iter().map(|(due, length)| ((*due).max(now), *length)).collect();
        match self.shares.take(burst.part.client, burst.part.target, &train, now) {
            Ok(()) => Some(burst),
            Err(_) => {
                self.refuse(&burst, PacketRefusal::OverLimit);
                None
            }
        }
    }

    /// Reports a burst and the rest of its train as not sent.
    fn refuse(&self, burst: &QueuedBurst, why: PacketRefusal) {
        let rest = self.shared.lock().queue.cancel_rest(burst);
        self.shared.report_unsent(std::slice::from_ref(burst), why);
        self.shared.report_unsent(&rest, PacketRefusal::TrainRefused);
    }

    /// Gives each burst its time; in the order of these times.
    fn place(&mut self, bursts: Vec<QueuedBurst>, now: MonoTime) -> Vec<PlacedBurst> {
        let spans: Vec<BurstSpan> = {
            let mut state = self.shared.lock();
            bursts.iter().map(|burst| state.queue.span(burst, now)).collect()
        };
        let placements = place(&spans, self.free_from.max(now));
        let mut placed = Vec::with_capacity(bursts.len());
        for (burst, placement) in bursts.into_iter().zip(placements) {
            let overdue = now.since(burst.due());
            match placement {
                BurstPlacement::Later(later) => {
                    let shifted = Nanos::new(later.as_u64().saturating_sub(overdue.as_u64()));
                    placed.push(PlacedBurst { burst, later, shifted });
                }
                BurstPlacement::Clash => {
                    let is_overdue = burst.part.latest.is_some_and(|latest| overdue > latest);
                    self.refuse(&burst, if is_overdue { PacketRefusal::Late } else { PacketRefusal::Clash });
                }
            }
        }
        placed.sort_by_key(|placed| placed.burst.due() + placed.later);
        placed
    }

    /// Gives bursts to the mechanism, which may still send others.
    fn begin(&mut self, placed: Vec<PlacedBurst>) {
        if self.begun.len() == MOST_BEGUN {
            self.finish_oldest();
        }
        let frames: Vec<DueFrame<'_>> = placed
            .iter()
            .flat_map(|placed| {
                let packets = placed.burst.part.packets.iter();
                packets.map(|packet| DueFrame { at: packet.due + placed.later, frame: &packet.frame })
            })
            .collect();
        match self.release.begin(&frames) {
            Ok(()) => {
                self.free_from = placed.last().map_or(self.free_from, |last| last.ends() + FRAME_TIME);
                self.begun.push_back(placed);
            }
            Err(error) => {
                self.note(Err(error));
                self.report(&placed, &[]);
            }
        }
    }

    /// Waits until the oldest train has left, and reports it.
    fn finish_oldest(&mut self) {
        let Some(placed) = self.begun.pop_front() else { return };
        let mut gone = Vec::new();
        let result = self.release.finish(&mut gone);
        self.note(result);
        self.report(&placed, &gone);
    }

    /// Ends the service if the mechanism fails again and again.
    fn note(&mut self, result: Result<(), Error>) {
        match result {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures += 1;
                if self.failures >= MOST_FAILURES {
                    self.shared.fail(error);
                }
            }
        }
    }

    /// Tells clients what became of their packets. Those beyond `gone` were not sent.
    fn report(&self, placed: &[PlacedBurst], gone: &[DepartedFrame]) {
        let unsent = DepartedFrame::unsent();
        let tolerance = self.shared.options.tolerance;
        let mut reports: BTreeMap<ClientId, Vec<PacketReport>> = BTreeMap::new();
        let packets = placed
            .iter()
            .flat_map(|placed| placed.burst.part.packets.iter().map(move |packet| (placed, packet)));
        for ((placed, packet), gone) in packets.zip(gone.iter().chain(std::iter::repeat(&unsent))) {
            let part = &placed.burst.part;
            let about = ReportedPacket {
                batch: part.batch,
                cookie: packet.cookie,
                train: part.train,
                planned: packet.due,
                shifted: placed.shifted,
            };
            reports.entry(part.client).or_default().push(report::departed(about, gone, tolerance));
        }
        let now = now();
        for (client, reports) in reports {
            self.shared.lock().queue.note_sent(client, reports.len() as u64, now);
            if let Some(client) = self.shared.client(client) {
                client.report(&reports);
            }
        }
    }
}
