//! The thread that releases frames. It runs in the interface's namespace, with its own priority, processor and
//! timer slack, which end with the thread.
//!
//! Invariant: at most one train is being sent, and one more may wait for its turn. Dropping a [`ReleaseWorker`]
//! waits until its thread has ended.

use super::pace::ReleaseTimer;
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::warm::SendPathWarmer;
use super::{DepartedFrame, DueFrame, FrameReleaser, MAX_UNFINISHED_TRAINS, ReleaseOptions, ReleasePipeline};
use crate::Error;
use packetrig_probe::ReleaseMechanism;
use packetrig_probe::frame::ETHERNET;
use packetrig_sys::stamping::CardStamping;
use packetrig_units::Nanos;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Sends trains with one release mechanism. The thread that calls it is the same for all mechanisms.
pub(super) trait MechanismSender: Send {
    /// Sends a train. `gone` has one element for each of its frames.
    fn send_train(
        &mut self,
        train: &TrainCopy,
        pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error>;

    /// Minimum time between the call of `send_train` and the first departure.
    fn lead_time(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Bytes of the longest frame that the mechanism can send; `usize::MAX` if it has no limit of its own.
    fn longest_frame(&self) -> usize {
        usize::MAX
    }
}

/// Time to wake the thread and to hand the train over.
const WAKE_UP_TIME: Nanos = Nanos::from_millis(2);

/// A train for the thread, and the outcomes of its frames, which the thread fills in and returns.
#[derive(Default)]
struct TrainJob {
    train: TrainCopy,
    gone: Vec<DepartedFrame>,
}

pub(super) struct ReleaseWorker {
    mechanism: ReleaseMechanism,
    remarks: Vec<String>,
    /// Keeps the card's stamping switched on.
    card: Option<CardStamping>,
    lead: Nanos,
    longest_frame: usize,
    /// Unused jobs, which are kept to reuse their memory.
    idle: Vec<TrainJob>,
    jobs: Option<SyncSender<TrainJob>>,
    done: Receiver<(TrainJob, Result<(), Error>)>,
    thread: Option<JoinHandle<Result<(), packetrig_sys::Error>>>,
}

impl ReleaseWorker {
    pub(super) fn start_thread(
        place: &ReleaseInterface,
        mechanism: ReleaseMechanism,
        options: ReleaseOptions,
        mut line: impl MechanismSender + 'static,
    ) -> Result<Self, Error> {
        let lead = WAKE_UP_TIME + line.lead_time();
        let longest_frame = line.longest_frame().min(ETHERNET + place.link.mtu as usize);
        // At most `MAX_UNFINISHED_TRAINS` trains are begun, which fit into both channels, so neither side ever waits for
        // room. The thread returns each job, so that its memory is allocated only once.
        let (jobs, orders) = sync_channel::<TrainJob>(MAX_UNFINISHED_TRAINS);
        let (answers, done) = sync_channel(MAX_UNFINISHED_TRAINS);
        let (ready, is_ready) = sync_channel(1);
        let warm = if options.warm { SendPathWarmer::open_for_place(place) } else { None };
        let thread = place.netns.spawn_in_namespace(format!("release-{mechanism}"), move || {
            let mut pace = ReleaseTimer::prepare_thread(&options, warm)?;
            // The send fails only if `start_thread` has already returned an error; then the loop below ends
            // at once.
            let remarks = std::mem::take(&mut pace.remarks);
            drop(ready.send(remarks));
            for mut job in orders {
                let result = line.send_train(&job.train, &mut pace, &mut job.gone);
                if answers.send((job, result)).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        let mut worker = Self {
            mechanism,
            remarks: Vec::new(),
            card: None,
            lead,
            longest_frame,
            idle: Vec::new(),
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        };
        match is_ready.recv() {
            Ok(remarks) => worker.remarks = remarks,
            // The thread has ended during its preparation. Its result says why.
            Err(_) => return Err(worker.join_thread()),
        }
        // Live frames get no stamp of the card, so `live` does not switch its stamping on.
        if options.stamps && place.stamps.tx_hardware && mechanism != ReleaseMechanism::Live {
            match CardStamping::enable_on(&place.netns, &place.link.name) {
                Ok(card) => worker.card = Some(card),
                Err(error) => worker.remarks.push(format!(
                    "no hardware timestamps of sent probes; kernel timestamps are used: {error}"
                )),
            }
        }
        Ok(worker)
    }

    /// Joins the thread and returns why it ended.
    fn join_thread(&mut self) -> Error {
        // The thread ends when its channel closes, so the sending half is dropped before the join.
        self.jobs = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error.into(),
            _ => Error::Gone,
        }
    }
}

impl ReleasePipeline for ReleaseWorker {
    fn mechanism(&self) -> ReleaseMechanism {
        self.mechanism
    }

    fn begin_train(&mut self, train: &[DueFrame<'_>]) -> Result<(), Error> {
        let mut job = self.idle.pop().unwrap_or_default();
        job.train.copy_train(train);
        job.gone.clear();
        job.gone.resize_with(train.len(), DepartedFrame::default);
        let is_given = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if is_given { Ok(()) } else { Err(self.join_thread()) }
    }

    fn finish_train(&mut self, gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        let Ok((mut job, result)) = self.done.recv() else { return Err(self.join_thread()) };
        // The departures are returned after an error, too: the frames that left before the error have their
        // stamps.
        gone.append(&mut job.gone);
        self.idle.push(job);
        result
    }

    fn lead_time(&self) -> Nanos {
        self.lead
    }

    fn longest_frame(&self) -> usize {
        self.longest_frame
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

impl FrameReleaser for ReleaseWorker {
    fn mechanism(&self) -> ReleaseMechanism {
        self.mechanism
    }

    fn release_train(&mut self, train: &[DueFrame<'_>], gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        // Mechanisms read the first departure time, which an empty train does not have.
        if train.is_empty() {
            return Ok(());
        }
        self.begin_train(train)?;
        self.finish_train(gone)
    }

    fn lead_time(&self) -> Nanos {
        self.lead
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

impl Drop for ReleaseWorker {
    fn drop(&mut self) {
        // Closing the channel ends the thread; otherwise the join below would wait for ever.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Errors of a train were returned by `release_train`; errors of the preparation by `start_thread`.
            drop(thread.join());
        }
    }
}
