//! The sending thread: it takes due trains from the queue, charges them to the limits of their targets,
//! schedules them, and reports their outcome.
//!
//! ```text
//!  queue -> charge -> calendar -> committed frames, in the order of time -> mechanism, in slices -> report
//! ```
//! A slice (the frames of about 2 ms) is handed over while the mechanism still sends the slice before, so that
//! a dense stream has no pauses.
//!
//! Invariant: each train that is taken from the queue is reported exactly once, unless its client has disconnected.

use super::flows::PacketSender;
use super::report::{self, ReportedPacket};
use super::shared::{NextSendingWork, ServiceShared};
use crate::release::{DepartedFrame, DueFrame, MAX_UNFINISHED_TRAINS, ReleasePipeline};
use crate::{Error, frame_length, now};
use packetrig_probe::service::{
    ClientId, DueTrain, ProbingClient, QueuedTrain, ReleaseCalendar, TargetShares,
};
use packetrig_probe::{PacketRefusal, ReleaseMechanism};
use packetrig_release::message::{PacketOutcome, PacketReport};
use packetrig_sys::sched;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// Time to prepare a slice for the mechanism.
pub(super) const SLICE_PREPARE_TIME: Nanos = Nanos::from_millis(1);
/// Frames that are due within this time are given to the mechanism together, as one slice. Trains are scheduled
/// this much earlier than slices are handed over, so a train that is submitted in time is in its slice.
pub(super) const SLICE_DURATION: Nanos = Nanos::from_millis(2);
/// Maximum number of packets that are taken from the queue, or given to the mechanism, at once.
const MAX_AT_ONCE: usize = 400;
/// Time of continuous failure of the mechanism after which the service ends.
const MAX_FAILURE_TIME: Nanos = Nanos::from_secs(10);
/// Real-time priority of the sending thread, below that of the release mechanism. The sending thread never spins.
const RELEASE_THREAD_PRIORITY: i32 = 40;

/// A frame whose departure time is reserved in the calendar.
struct ScheduledFrame {
    client: ClientId,
    packet: ReportedPacket,
    bytes: Vec<u8>,
}

/// Frames that were handed to the mechanism, each with its departure time.
type SliceFrames = Vec<(MonoTime, ScheduledFrame)>;

pub(super) struct ServiceReleaseThread<'a> {
    release: Box<dyn ReleasePipeline>,
    shared: &'a ServiceShared,
    shares: TargetShares,
    calendar: ReleaseCalendar,
    /// Frames with a reserved departure time, sorted by that time and by the order of the reservations.
    committed: BTreeMap<(MonoTime, u64), ScheduledFrame>,
    last_number: u64,
    begun: VecDeque<SliceFrames>,
    failing_since: Option<MonoTime>,
}

impl<'a> ServiceReleaseThread<'a> {
    pub(super) fn new(release: Box<dyn ReleasePipeline>, shared: &'a ServiceShared) -> Self {
        // A ring sends each train back to back.
        let is_ring = release.mechanism() == ReleaseMechanism::Ring;
        Self {
            release,
            shared,
            shares: TargetShares::default(),
            calendar: if is_ring { ReleaseCalendar::for_whole_trains() } else { ReleaseCalendar::new() },
            committed: BTreeMap::new(),
            last_number: 0,
            begun: VecDeque::new(),
            failing_since: None,
        }
    }

    /// Sends until the service is to end, then reports the packets that still wait.
    pub(super) fn run_sending_thread(mut self) {
        // Without real-time priority, the thread may get the processor late on a busy machine. Late packets
        // are flagged in any case.
        drop(sched::request_fifo_scheduling(RELEASE_THREAD_PRIORITY));
        let lead = self.shared.interface.lead;
        loop {
            match self.shared.wait_for_due_trains(
                lead + SLICE_DURATION,
                SLICE_DURATION,
                MAX_AT_ONCE,
                self.next_work_time(),
            ) {
                NextSendingWork::Work(work) => {
                    work.gone.iter().for_each(|client| self.forget_client(*client));
                    self.schedule_trains(work.trains);
                }
                NextSendingWork::Nothing => {}
                NextSendingWork::Ended => break,
            }
            self.release_next_slice();
            if self.begun.front().is_some_and(|frames| last_departure(frames) <= now()) {
                self.finish_oldest_slice();
            }
        }
        // The mechanism cannot return frames, so it sends the frames that it has.
        while !self.begun.is_empty() {
            self.finish_oldest_slice();
        }
        let committed = std::mem::take(&mut self.committed);
        self.report_outcomes(committed.into_values().map(|frame| {
            let report = frame.packet.unsent_report(PacketOutcome::Ended);
            (frame, report)
        }));
        let waiting = self.shared.take_waiting_trains();
        self.shared.report_unsent_trains(&waiting, PacketRefusal::Ended);
    }

    /// Returns the next time at which a slice must be handed over or the oldest slice has left; `None` if
    /// there are no slices.
    fn next_work_time(&self) -> Option<MonoTime> {
        // If the mechanism is full, nothing can be handed over until a slice has left.
        let first = self.committed.first_key_value().filter(|_| self.begun.len() < MAX_UNFINISHED_TRAINS);
        let slice = first.map(|((at, _), _)| *at - self.shared.interface.lead);
        let end = self.begun.front().map(|frames| last_departure(frames));
        slice.into_iter().chain(end).min()
    }

    fn forget_client(&mut self, client: ClientId) {
        self.shares.remove_client(client);
        // The departure times of the client's frames stay reserved, because other trains were scheduled around them.
        self.committed.retain(|_, frame| frame.client != client);
    }

    fn schedule_trains(&mut self, mut trains: Vec<DueTrain>) {
        let now = now();
        self.calendar.forget_past_times(now);
        // The trains are sorted by rank: if two trains want the same time, the one that comes first in this
        // order gets it.
        trains.sort_by_key(|due| due.rank);
        for DueTrain { train, .. } in trains {
            if let Err(why) = self.schedule_train(&train, now) {
                self.shared.report_unsent_trains(std::slice::from_ref(&train), why);
            }
        }
    }

    /// Charges a train to the limits of its target and reserves its departure time.
    fn schedule_train(&mut self, train: &QueuedTrain, now: MonoTime) -> Result<(), PacketRefusal> {
        // The packet may have waited for long. Meanwhile the target may have been closed, or the permission
        // may have expired.
        if !self.shared.paths.is_permitted(train.target.ip(), train.user) {
            return Err(PacketRefusal::NotPermitted);
        }
        self.check_answers(train, now)?;
        let due: Vec<_> = train.packets.iter().map(|packet| packet.due).collect();
        // Overdue packets leave now, so they are charged now: at their own time, they would use limits of the
        // past.
        let earliest = train.earliest_due_time().max(now);
        let overdue = earliest.since(train.earliest_due_time());
        if train.latest.is_some_and(|latest| overdue > latest) {
            return Err(PacketRefusal::Late);
        }
        let lengths: Vec<_> = train.packets.iter().map(|packet| frame_length(&packet.frame)).collect();
        let client = ProbingClient { id: train.client, user: train.user };
        // The departure time is only searched first, not reserved, so that a refused train uses neither the
        // limits of its target nor the time of other trains.
        let time =
            self.calendar.find_free_departure(&due, earliest, train.latest).ok_or(PacketRefusal::Clash)?;
        let taken = self.shares.deduct_train(client, train.target, &lengths, earliest);
        taken.map_err(|_| PacketRefusal::OverLimit)?;
        let later = time.delay();
        self.calendar.reserve_departure_time(time);
        for packet in &train.packets {
            let reported = ReportedPacket {
                batch: train.batch,
                cookie: packet.cookie,
                train: train.train,
                planned: packet.due,
                // Only the delay that the calendar added counts; if the packet was overdue, the client itself
                // caused that delay.
                shifted: Nanos::new(later.as_u64().saturating_sub(overdue.as_u64())),
            };
            // The flow is recorded first: an answer may arrive before the mechanism reports the departure,
            // and no other user may send the same packet meanwhile.
            let sender = PacketSender { client: train.client, user: train.user };
            self.shared.flows.record_packet(sender, &packet.ends, packet.due + later);
            let frame =
                ScheduledFrame { client: train.client, packet: reported, bytes: packet.frame.clone() };
            self.last_number += 1;
            self.committed.insert((packet.due + later, self.last_number), frame);
        }
        Ok(())
    }

    /// Refuses a train if no listener would receive the answers, or if answers could be mistaken for
    /// answers to another user's packets.
    fn check_answers(&self, train: &QueuedTrain, now: MonoTime) -> Result<(), PacketRefusal> {
        if !train.packets.iter().all(|packet| self.shared.receives_answers_to(packet.ends.source)) {
            return Err(PacketRefusal::NoRoute);
        }
        if train
            .packets
            .iter()
            .all(|packet| self.shared.flows.can_attribute_answers(train.user, &packet.ends, now))
        {
            Ok(())
        } else {
            Err(PacketRefusal::WrongSource)
        }
    }

    /// Hands the next slice to the mechanism, if its time has come and the mechanism accepts another one.
    fn release_next_slice(&mut self) {
        let soon = now() + self.shared.interface.lead;
        let Some(((first, _), _)) = self.committed.first_key_value() else { return };
        if *first > soon || self.begun.len() >= MAX_UNFINISHED_TRAINS {
            return;
        }
        let frames = self.take_next_slice(soon + SLICE_DURATION);
        let dues: Vec<_> =
            frames.iter().map(|(at, frame)| DueFrame { at: *at, frame: &frame.bytes }).collect();
        let begun = self.release.begin_train(&dues);
        if begun.is_ok() {
            self.begun.push_back(frames);
        } else {
            self.check_mechanism_result(begun);
            // Frames without an outcome count as not sent.
            self.report_departed_frames(frames, &[]);
        }
    }

    /// Takes the frames that leave until `until`, at most [`MAX_AT_ONCE`]; for a ring, the frames of one train.
    fn take_next_slice(&mut self, until: MonoTime) -> SliceFrames {
        let is_ring = self.release.mechanism() == ReleaseMechanism::Ring;
        let mut frames: SliceFrames = Vec::new();
        while let Some(next) = self.committed.first_entry() {
            let (at, _) = *next.key();
            // A ring sends all frames that it gets back to back, so each slice is a single train.
            let is_same = frames.last().is_none_or(|(_, last)| last.is_of_same_train(next.get()));
            let belongs = if is_ring { is_same } else { at <= until && frames.len() < MAX_AT_ONCE };
            if !belongs {
                break;
            }
            frames.push((at, next.remove()));
        }
        frames
    }

    /// Waits until the oldest slice has left, and reports the outcome of its frames.
    fn finish_oldest_slice(&mut self) {
        let Some(frames) = self.begun.pop_front() else { return };
        let mut gone = Vec::with_capacity(frames.len());
        let finished = self.release.finish_train(&mut gone);
        self.check_mechanism_result(finished);
        self.report_departed_frames(frames, &gone);
    }

    /// Ends the service if the mechanism has failed continuously for `MAX_FAILURE_TIME`.
    fn check_mechanism_result(&mut self, result: Result<(), Error>) {
        let Err(error) = result else {
            self.failing_since = None;
            return;
        };
        let now = now();
        // A single failure may be an interface that is down for a moment.
        if now.since(*self.failing_since.get_or_insert(now)) >= MAX_FAILURE_TIME {
            self.shared.fail_service(error);
        }
    }

    /// Reports to clients the outcome of their frames. Frames beyond `gone` were not sent.
    fn report_departed_frames(&self, frames: SliceFrames, gone: &[DepartedFrame]) {
        let tolerance = self.shared.options.tolerance;
        let unsent = DepartedFrame::new_unsent();
        let all = frames.into_iter().zip(gone.iter().chain(std::iter::repeat(&unsent)));
        self.report_outcomes(all.map(|((_, frame), gone)| {
            let report_frames = report::departure_report(frame.packet, gone, tolerance);
            (frame, report_frames)
        }));
    }

    fn report_outcomes(&self, frames: impl Iterator<Item = (ScheduledFrame, PacketReport)>) {
        let now = now();
        let mut reports: BTreeMap<ClientId, Vec<PacketReport>> = BTreeMap::new();
        // Each client gets one call, so that its reports share messages.
        for (frame, report) in frames {
            reports.entry(frame.client).or_default().push(report);
        }
        for (client, reports) in reports {
            self.shared.lock_state().queue.count_sent_frames(client, reports.len() as u64, now);
            if let Some(client) = self.shared.find_client(client) {
                client.report_packets(&reports);
            }
        }
    }
}

impl ScheduledFrame {
    fn is_of_same_train(&self, other: &Self) -> bool {
        self.packet.train != 0 && self.train_key() == other.train_key()
    }

    const fn train_key(&self) -> (ClientId, u64, u32) {
        (self.client, self.packet.batch, self.packet.train)
    }
}

/// Departure time of the last of these frames.
fn last_departure(frames: &[(MonoTime, ScheduledFrame)]) -> MonoTime {
    frames.last().map(|(at, _)| *at).unwrap_or_default()
}
