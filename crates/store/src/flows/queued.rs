//! A sink behind a thread of its own: whoever writes never waits for a disk or a network.
//!
//! Invariant: at most so many records wait; what comes when they do is dropped and counted as lost.

use super::sink::carried;
use super::{Error, Kept, RecordSink, Source};
use packetrig_flow::{Carried, FlowRecord, Ledger};
use packetrig_units::MonoTime;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Orders that may wait; records are bounded by their number as well.
const ORDERS: usize = 4096;

enum Order {
    Records(Vec<FlowRecord>, Source),
    Ledger(Box<Ledger>, Source, u64),
    Tick(MonoTime),
    Flush,
}

#[derive(Debug, Default)]
struct Shared {
    kept: Kept,
    /// Records in the queue.
    queued: u64,
    news: Option<Error>,
}

/// See the module.
#[derive(Debug)]
pub struct QueuedSink {
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<(Kept, Result<(), Error>)>>,
    shared: Arc<Mutex<Shared>>,
    records_most: u64,
    offered: Carried,
    dropped: Carried,
    ended: Option<Kept>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Records(..) => "Records",
            Self::Ledger(..) => "Ledger",
            Self::Tick(_) => "Tick",
            Self::Flush => "Flush",
        })
    }
}

impl QueuedSink {
    /// Puts a sink behind a thread and a queue of so many records.
    pub fn new(sink: Box<dyn RecordSink>, records_most: u64) -> Result<Self, Error> {
        let (orders, received) = sync_channel(ORDERS);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("flow-sink".into()).spawn(move || work(sink, &received, &theirs));
        let thread = thread.map_err(Error::network("the thread of a sink"))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            shared,
            records_most,
            offered: Carried::default(),
            dropped: Carried::default(),
            ended: None,
        })
    }

    fn order(&self, order: Order) -> bool {
        let sent = self.orders.as_ref().map(|orders| orders.try_send(order));
        !matches!(sent, None | Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))))
    }

    fn news(&self) -> Result<(), Error> {
        lock(&self.shared).news.take().map_or(Ok(()), Err)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(
    mut sink: Box<dyn RecordSink>,
    orders: &Receiver<Order>,
    shared: &Mutex<Shared>,
) -> (Kept, Result<(), Error>) {
    for order in orders {
        let mut taken = 0;
        let done = match order {
            Order::Records(records, source) => {
                taken = records.len() as u64;
                sink.write(&records, source)
            }
            Order::Ledger(ledger, source, at_ns) => sink.ledger(&ledger, source, at_ns),
            Order::Tick(now) => sink.tick(now),
            Order::Flush => sink.flush(),
        };
        let mut shared = lock(shared);
        shared.queued -= taken;
        shared.kept = sink.kept();
        if let Err(error) = done {
            shared.news = Some(error);
        }
    }
    sink.close()
}

impl RecordSink for QueuedSink {
    fn write(&mut self, records: &[FlowRecord], source: Source) -> Result<(), Error> {
        let (carried, count) = (carried(records), records.len() as u64);
        self.offered.add(carried);
        let mut fits = false;
        if self.orders.is_some() {
            let mut shared = lock(&self.shared);
            fits = shared.queued + count <= self.records_most;
            shared.queued += if fits { count } else { 0 };
        }
        if fits && !self.order(Order::Records(records.to_vec(), source)) {
            fits = false;
            lock(&self.shared).queued -= count;
        }
        if !fits {
            self.dropped.add(carried);
        }
        self.news()
    }

    fn ledger(&mut self, ledger: &Ledger, source: Source, at_ns: u64) -> Result<(), Error> {
        // One that finds no room is made good by the next.
        self.order(Order::Ledger(Box::new(*ledger), source, at_ns));
        self.news()
    }

    fn tick(&mut self, now: MonoTime) -> Result<(), Error> {
        self.order(Order::Tick(now));
        self.news()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.order(Order::Flush);
        self.news()
    }

    fn close(&mut self) -> (Kept, Result<(), Error>) {
        self.orders = None;
        let ended = self.thread.take().map(JoinHandle::join);
        let done = match ended {
            Some(Ok((kept, done))) => {
                self.ended = Some(kept);
                done
            }
            Some(Err(_)) => {
                Err(Error::Refused { peer: "the thread of a sink".into(), said: "it panicked".into() })
            }
            None => Ok(()),
        };
        (self.kept(), done)
    }

    fn kept(&self) -> Kept {
        let behind = self.ended.unwrap_or_else(|| lock(&self.shared).kept);
        let mut kept = Kept { offered: self.offered, stored: behind.stored, lost: behind.lost, ..behind };
        kept.lost.add(self.dropped);
        let rest = |of: fn(&Carried) -> u64| of(&kept.offered) - of(&kept.stored) - of(&kept.lost);
        kept.waiting =
            Carried { records: rest(|c| c.records), packets: rest(|c| c.packets), bytes: rest(|c| c.bytes) };
        kept
    }
}

impl Drop for QueuedSink {
    fn drop(&mut self) {
        // Workers are joined, never abandoned.
        drop(self.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::sample::records;
    use std::sync::mpsc;

    /// A sink that stores what it is given as soon as it is let.
    struct Gate {
        open: Receiver<()>,
        kept: Kept,
    }

    impl RecordSink for Gate {
        fn write(&mut self, records: &[FlowRecord], _: Source) -> Result<(), Error> {
            self.open.recv().ok();
            self.kept.offer(records);
            self.kept.store(carried(records));
            Ok(())
        }
        fn tick(&mut self, _: MonoTime) -> Result<(), Error> {
            Ok(())
        }
        fn flush(&mut self) -> Result<(), Error> {
            Err(Error::Refused { peer: "gate".into(), said: "no".into() })
        }
        fn close(&mut self) -> (Kept, Result<(), Error>) {
            (self.kept, Ok(()))
        }
        fn kept(&self) -> Kept {
            self.kept
        }
    }

    #[test]
    fn a_slow_sink_costs_counted_records_and_never_the_writers_time() {
        let (gate, open) = mpsc::channel();
        let mut sink = QueuedSink::new(Box::new(Gate { open, kept: Kept::default() }), 25).unwrap();
        for _ in 0..10 {
            sink.write(&records(10), Source::default()).unwrap();
            assert!(sink.kept().balances());
        }
        assert_eq!((sink.kept().lost.records, sink.kept().waiting.records), (80, 20));
        drop(gate);
        let (kept, done) = sink.close();
        done.unwrap();
        assert_eq!((kept.stored.records, kept.lost.records, kept.waiting.records), (20, 80, 0));
        sink.write(&records(1), Source::default()).unwrap();
        assert_eq!(sink.kept().lost.records, 81);
    }

    #[test]
    fn news_of_the_thread_arrive() {
        let (_gate, open) = mpsc::channel();
        let mut sink = QueuedSink::new(Box::new(Gate { open, kept: Kept::default() }), 25).unwrap();
        // The thread may be quick enough to have refused before it is asked for news.
        let at_once = sink.flush();
        sink.close().1.unwrap();
        let news = at_once.and_then(|()| sink.news());
        assert!(news.unwrap_err().to_string().contains("gate: no"));
    }
}
