//! A sink on a separate thread, behind a bounded queue.
//!
//! Records of a source that can wait (a file, a TCP connection) wait for room in the queue. Records of a source that
//! cannot wait (UDP) never wait for a disk or a network: if the queue is full, they are dropped.
//!
//! Invariant: the number of waiting records is bounded, and dropped records are in [`SinkRecordCounts::queue_dropped`] and
//! [`SinkRecordCounts::lost`].

use super::sink::sum_carried;
use super::{Error, RecordExporter, RecordSink, SinkRecordCounts};
use packetrig_flow::{CarriedRecords, FlowRecord, MeterLedger};
use packetrig_units::MonoTime;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Maximum number of commands that wait in the queue; the number of waiting records is bounded, too.
const MAX_QUEUED_COMMANDS: usize = 4096;

/// Called on the sink's thread, with the counts of the sink at that time. Records that the queue dropped
/// are not in them.
pub type StoredCallback = Box<dyn FnOnce(&SinkRecordCounts) + Send>;

enum SinkCommand {
    Records(Vec<FlowRecord>, RecordExporter),
    Ledger(Box<MeterLedger>, RecordExporter, u64),
    Tick(MonoTime, Option<StoredCallback>),
    Flush,
}

/// Handling of records when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePolicy {
    /// Wait for room: the source can be held back.
    Wait,
    /// Drop and count them: the source continues to send anyway.
    Drop,
}

#[derive(Debug, Default)]
struct QueueState {
    kept: SinkRecordCounts,
    /// Records in the queue.
    queued: u64,
    /// The last error of the sink that was not returned yet.
    news: Option<Error>,
    /// True if the thread has ended and takes no more commands.
    has_ended: bool,
}

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    /// Signalled when the thread has taken records, or has ended.
    has_moved: Condvar,
}

impl SharedQueue {
    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for `count` records, and waits for it if the policy says so. Returns whether there was room.
    fn reserve_room(&self, count: u64, most: u64, policy: QueuePolicy) -> bool {
        let mut state = self.lock_state();
        while policy == QueuePolicy::Wait && !state.has_room(count, most) && !state.has_ended {
            state = self.has_moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_reserved = state.has_room(count, most) && !state.has_ended;
        state.queued += if is_reserved { count } else { 0 };
        is_reserved
    }
}

impl QueueState {
    const fn has_room(&self, count: u64, most: u64) -> bool {
        // An empty queue accepts any number: otherwise a batch larger than the bound would wait for ever.
        self.queued == 0 || self.queued + count <= most
    }
}

#[derive(Debug)]
pub struct QueuedSink {
    orders: Option<SyncSender<SinkCommand>>,
    thread: Option<JoinHandle<(SinkRecordCounts, Result<(), Error>)>>,
    shared: Arc<SharedQueue>,
    records_most: u64,
    offered: CarriedRecords,
    dropped: CarriedRecords,
    ended: Option<SinkRecordCounts>,
}

impl std::fmt::Debug for SinkCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Records(..) => "Records",
            Self::Ledger(..) => "Ledger",
            Self::Tick(..) => "Tick",
            Self::Flush => "Flush",
        })
    }
}

impl QueuedSink {
    /// Starts a thread for a sink, behind a queue of at most `records_most` records.
    pub fn new(sink: Box<dyn RecordSink>, records_most: u64) -> Result<Self, Error> {
        let (orders, received) = sync_channel(MAX_QUEUED_COMMANDS);
        let shared = Arc::<SharedQueue>::default();
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("flow-sink".into()).spawn(move || run_sink(sink, &received, &theirs));
        let thread = thread.map_err(Error::network("cannot start the thread of a sink for flow records"))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            shared,
            records_most,
            offered: CarriedRecords::default(),
            dropped: CarriedRecords::default(),
            ended: None,
        })
    }

    /// Puts records of one exporter into the queue. If the queue is full, the policy decides whether this call waits or
    /// drops the records. Returns the last error of the sink, which may concern earlier records.
    pub fn write_records_by(
        &mut self,
        records: &[FlowRecord],
        source: RecordExporter,
        policy: QueuePolicy,
    ) -> Result<(), Error> {
        let carried = sum_carried(records);
        let count = records.len() as u64;
        self.offered.add_records(carried);
        // Room is reserved first and the command is sent afterwards, without the lock, because the thread needs the
        // lock to make room.
        let has_room = self.orders.is_some() && self.shared.reserve_room(count, self.records_most, policy);
        if !has_room {
            self.dropped.add_records(carried);
        } else if !self.send_command(SinkCommand::Records(records.to_vec(), source), policy) {
            // The queue of commands was full, or the thread has ended: the reserved room is released.
            self.shared.lock_state().queued -= count;
            self.dropped.add_records(carried);
        }
        self.take_error()
    }

    /// Puts a ledger into the queue. If the queue is full, the policy decides whether this call waits or drops the
    /// ledger. Ledgers are cumulative, so the next one has all counts.
    pub fn write_ledger_by(
        &mut self,
        ledger: &MeterLedger,
        source: RecordExporter,
        at_ns: u64,
        policy: QueuePolicy,
    ) -> Result<(), Error> {
        self.send_command(SinkCommand::Ledger(Box::new(*ledger), source, at_ns), policy);
        self.take_error()
    }

    /// Makes the sink perform its due work, and then calls `note` on the sink's thread. If the queue
    /// is full, neither happens.
    pub fn run_due_work_then_call(&mut self, now: MonoTime, note: StoredCallback) -> Result<(), Error> {
        self.send_command(SinkCommand::Tick(now, Some(note)), QueuePolicy::Drop);
        self.take_error()
    }

    fn send_command(&self, order: SinkCommand, policy: QueuePolicy) -> bool {
        let Some(orders) = &self.orders else { return false };
        match policy {
            QueuePolicy::Wait => orders.send(order).is_ok(),
            QueuePolicy::Drop => orders.try_send(order).is_ok(),
        }
    }

    fn take_error(&self) -> Result<(), Error> {
        self.shared.lock_state().news.take().map_or(Ok(()), Err)
    }
}

/// Wakes waiting writers when the thread ends, even by a panic.
struct WakeWritersOnDrop<'a>(&'a SharedQueue);

impl Drop for WakeWritersOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock_state().has_ended = true;
        self.0.has_moved.notify_all();
    }
}

fn run_sink(
    mut sink: Box<dyn RecordSink>,
    orders: &Receiver<SinkCommand>,
    shared: &SharedQueue,
) -> (SinkRecordCounts, Result<(), Error>) {
    // The guard is also dropped when the sink panics: writers that wait for room would otherwise wait without end.
    let _end = WakeWritersOnDrop(shared);
    for order in orders {
        let mut taken = 0;
        let done = match order {
            SinkCommand::Records(records, source) => {
                taken = records.len() as u64;
                sink.write_records(&records, source)
            }
            SinkCommand::Ledger(ledger, source, at_ns) => sink.write_ledger(&ledger, source, at_ns),
            SinkCommand::Tick(now, note) => {
                let done = sink.on_tick(now);
                if let Some(note) = note {
                    note(&sink.kept_counts());
                }
                done
            }
            SinkCommand::Flush => sink.flush_records(),
        };
        // Records leave the count only after the sink has taken them, because until then they take memory here.
        let mut state = shared.lock_state();
        state.queued -= taken;
        state.kept = sink.kept_counts();
        // Only the newest error is kept: a caller gets one error for each call.
        if let Err(error) = done {
            state.news = Some(error);
        }
        drop(state);
        shared.has_moved.notify_all();
    }
    sink.close_sink()
}

impl RecordSink for QueuedSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error> {
        self.write_records_by(records, source, QueuePolicy::Drop)
    }

    fn write_ledger(
        &mut self,
        ledger: &MeterLedger,
        source: RecordExporter,
        at_ns: u64,
    ) -> Result<(), Error> {
        self.write_ledger_by(ledger, source, at_ns, QueuePolicy::Drop)
    }

    fn on_tick(&mut self, now: MonoTime) -> Result<(), Error> {
        // A tick that finds no room may be dropped, because the next one comes within about a second.
        self.send_command(SinkCommand::Tick(now, None), QueuePolicy::Drop);
        self.take_error()
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        self.send_command(SinkCommand::Flush, QueuePolicy::Drop);
        self.take_error()
    }

    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
        // Closing the channel ends the thread, after everything that is still in the queue.
        self.orders = None;
        let ended = self.thread.take().map(JoinHandle::join);
        let done = match ended {
            Some(Ok((kept, done))) => {
                self.ended = Some(kept);
                done
            }
            Some(Err(_)) => {
                // Records that the thread had taken or still had in its queue are lost.
                let stored = self.shared.lock_state().kept.stored;
                let lost = self.offered.subtract_partial_counts(
                    self.offered.subtract_partial_counts(self.offered, stored),
                    self.dropped,
                );
                self.ended = Some(SinkRecordCounts { stored, lost, ..SinkRecordCounts::default() });
                Err(Error::Refused {
                    peer: "the thread of a sink for flow records".into(),
                    said: "the thread panicked; this is a bug in packetrig".into(),
                })
            }
            None => Ok(()),
        };
        (self.kept_counts(), done)
    }

    fn kept_counts(&self) -> SinkRecordCounts {
        // This object counts offered and dropped records. The sink counts stored and lost records on its thread. All
        // remaining records are waiting.
        let behind = self.ended.unwrap_or_else(|| self.shared.lock_state().kept);
        let mut kept = SinkRecordCounts { offered: self.offered, queue_dropped: self.dropped, ..behind };
        kept.lost.add_records(self.dropped);
        let offered = kept.offered;
        kept.waiting =
            offered.subtract_partial_counts(offered.subtract_partial_counts(offered, kept.stored), kept.lost);
        kept
    }
}

impl Drop for QueuedSink {
    fn drop(&mut self) {
        // Workers are joined, never abandoned.
        drop(self.close_sink());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::records;
    use std::sync::mpsc;

    /// A sink that stores what it is given as soon as it is let.
    struct GatedSink {
        open: Receiver<()>,
        kept: SinkRecordCounts,
    }

    impl RecordSink for GatedSink {
        fn write_records(&mut self, records: &[FlowRecord], _: RecordExporter) -> Result<(), Error> {
            self.open.recv().ok();
            self.kept.count_offered(records);
            self.kept.count_stored_records(sum_carried(records));
            Ok(())
        }
        fn on_tick(&mut self, _: MonoTime) -> Result<(), Error> {
            Ok(())
        }
        fn flush_records(&mut self) -> Result<(), Error> {
            Err(Error::Refused { peer: "gate".into(), said: "no".into() })
        }
        fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
            (self.kept, Ok(()))
        }
        fn kept_counts(&self) -> SinkRecordCounts {
            self.kept
        }
    }

    #[test]
    fn slow_sink_drops_are_counted_without_blocking_writer() {
        let (gate, open) = mpsc::channel();
        let mut sink =
            QueuedSink::new(Box::new(GatedSink { open, kept: SinkRecordCounts::default() }), 25).unwrap();
        for _ in 0..10 {
            sink.write_records(&records(10), RecordExporter::default()).unwrap();
            assert!(sink.kept_counts().is_balanced());
        }
        assert_eq!((sink.kept_counts().lost.records, sink.kept_counts().waiting.records), (80, 20));
        drop(gate);
        let (kept, done) = sink.close_sink();
        done.unwrap();
        assert_eq!((kept.stored.records, kept.lost.records, kept.waiting.records), (20, 80, 0));
        assert_eq!(kept.queue_dropped, kept.lost);
        sink.write_records(&records(1), RecordExporter::default()).unwrap();
        assert_eq!(sink.kept_counts().lost.records, 81);
    }

    #[test]
    fn waiting_source_loses_nothing_to_slow_sink() {
        let (gate, open) = mpsc::channel();
        let mut sink =
            QueuedSink::new(Box::new(GatedSink { open, kept: SinkRecordCounts::default() }), 25).unwrap();
        let opener = thread::spawn(move || (0..11).try_for_each(|_| gate.send(())));
        for _ in 0..10 {
            sink.write_records_by(&records(10), RecordExporter::default(), QueuePolicy::Wait).unwrap();
        }
        // The batch alone is more than the queue holds: it waits until the queue is empty.
        sink.write_records_by(&records(30), RecordExporter::default(), QueuePolicy::Wait).unwrap();
        let (kept, done) = sink.close_sink();
        done.unwrap();
        opener.join().unwrap().unwrap();
        assert_eq!((kept.stored.records, kept.lost.records), (130, 0));
    }

    /// A sink that is wrong.
    struct BrokenSink;

    impl RecordSink for BrokenSink {
        fn write_records(&mut self, _: &[FlowRecord], _: RecordExporter) -> Result<(), Error> {
            panic!("as wanted");
        }
        fn on_tick(&mut self, _: MonoTime) -> Result<(), Error> {
            Ok(())
        }
        fn flush_records(&mut self) -> Result<(), Error> {
            Ok(())
        }
        fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
            (SinkRecordCounts::default(), Ok(()))
        }
        fn kept_counts(&self) -> SinkRecordCounts {
            SinkRecordCounts::default()
        }
    }

    #[test]
    fn nobody_waits_for_a_sink_that_has_ended() {
        let mut sink = QueuedSink::new(Box::new(BrokenSink), 25).unwrap();
        for _ in 0..10 {
            sink.write_records_by(&records(10), RecordExporter::default(), QueuePolicy::Wait).unwrap();
        }
        let (kept, done) = sink.close_sink();
        assert!(done.is_err() && kept.is_balanced(), "{kept:?}");
        assert_eq!((kept.stored.records, kept.lost.records), (0, 100));
    }

    #[test]
    fn sink_note_is_called_after_earlier_records() {
        let (gate, open) = mpsc::channel();
        let mut sink =
            QueuedSink::new(Box::new(GatedSink { open, kept: SinkRecordCounts::default() }), 25).unwrap();
        let (called, calls) = mpsc::channel();
        sink.write_records(&records(10), RecordExporter::default()).unwrap();
        sink.run_due_work_then_call(
            MonoTime::from_nanos(1),
            Box::new(move |kept| called.send(kept.stored.records).unwrap()),
        )
        .unwrap();
        assert!(calls.try_recv().is_err(), "the sink has not taken them yet");
        gate.send(()).unwrap();
        assert_eq!(calls.recv().unwrap(), 10);
        sink.close_sink().1.unwrap();
    }

    #[test]
    fn news_of_the_thread_arrive() {
        let (_gate, open) = mpsc::channel();
        let mut sink =
            QueuedSink::new(Box::new(GatedSink { open, kept: SinkRecordCounts::default() }), 25).unwrap();
        // The thread may be quick enough to have refused before it is asked for news.
        let at_once = sink.flush_records();
        sink.close_sink().1.unwrap();
        let news = at_once.and_then(|()| sink.take_error());
        assert!(news.unwrap_err().to_string().contains("gate: no"));
    }
}
