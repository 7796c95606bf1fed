//! The stream level: what a run asks of a port.

use packetrig_plan::timeline::Timeline;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::{ReceiveResult, SendResult};
use packetrig_units::MonoTime;
use packetrig_wire::{Template, tag::TagKey};
use std::sync::Arc;

/// A stream as the data plane knows it. Sender and receivers share it.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Its index in the plan and its number in the test tag.
    pub number: u16,
    /// Its frames.
    pub template: Arc<Template>,
    /// Its schedule.
    pub timeline: Timeline,
    /// Whether latency is wanted.
    pub latency: bool,
}

/// What a transmit half is asked to do.
#[derive(Clone, Debug)]
pub struct TxJob {
    /// Key of the run's tags.
    pub key: TagKey,
    /// Streams to send, all from this port.
    pub streams: Vec<Arc<StreamSpec>>,
}

/// What a receive half is asked to account.
#[derive(Clone, Debug)]
pub struct RxJob {
    /// Key of the run's tags.
    pub key: TagKey,
    /// Streams expected here.
    pub streams: Vec<Arc<StreamSpec>>,
}

/// A change while streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Frame 0 of the schedule is due at this instant (plus the stream's delay).
    StartAt(MonoTime),
    /// Send nothing more; what is unsent stays unsent.
    Stop,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again at once.
    Busy,
    /// Nothing to do before this instant.
    IdleUntil(MonoTime),
    /// Everything is sent and handed over.
    Done,
}

/// Sends streams. One worker thread owns it and calls [`StreamTx::step`].
pub trait StreamTx: Send {
    /// Takes the job; may allocate. Nothing is sent yet.
    fn arm(&mut self, job: TxJob) -> Result<(), crate::Error>;
    /// Starts or stops.
    fn control(&mut self, control: Control);
    /// Does what is due at `now`, a bounded amount of work.
    fn step(&mut self, now: MonoTime) -> Result<Step, crate::Error>;
    /// Counts per stream, in job order.
    fn counts(&self) -> &[StreamTxCounts];
    /// Counters of the port.
    fn port_counters(&mut self) -> Result<TxCounters, crate::Error>;
    /// The final word, in job order.
    fn finish(&mut self) -> Result<Vec<SendResult>, crate::Error>;
}

/// Accounts streams. One worker thread owns it and calls [`StreamRx::step`].
pub trait StreamRx: Send {
    /// Takes the job; may allocate. Receives from now on.
    fn arm(&mut self, job: RxJob) -> Result<(), crate::Error>;
    /// Takes in what has arrived, a bounded amount of work.
    fn step(&mut self, now: MonoTime) -> Result<Step, crate::Error>;
    /// Counts per stream, in job order.
    fn counts(&self) -> Vec<StreamRxCounts>;
    /// Counters of the port.
    fn port_counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// The final word, in job order. `sent` is what each stream's sender sent in all: the rest is lost.
    fn finish(&mut self, sent: &[u64]) -> Result<Vec<ReceiveResult>, crate::Error>;
}
