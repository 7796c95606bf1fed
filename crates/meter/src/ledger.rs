//! The meter's books: every account in one place, at any time and at the end.
//!
//! Workers leave their counts on their desks, outputs tell theirs when asked, the kernel is asked about interfaces. While
//! a meter works, what is in a queue is what was offered and is in no other account; at the end the outputs say
//! themselves what they still have, and everything has to add up.
//!
//! Invariant: nothing is counted here; a count that nobody knows is absent.

mod exposition;

pub use exposition::exposition;

use crate::export::{self, ExportWatch};
use crate::outbox::{OfferedCounts, OutputChannels};
use crate::patience::{OutputQueue, SharedPatience};
use crate::source::{InterfaceCounts, ReadCounts};
use crate::worker::{WorkerCounts, WorkerMeeting};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::{
    CaptureCounts, CarriedRecords, CountImbalance, ExportCounts, IgnoredReason, MeterLedger, PacketCounts,
};
use packetrig_sys::clock;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Batches that wait for a sink at most: 65 536 records.
pub const QUEUE: usize = 256;

/// Tells what a sink has stored (sent), lost (refused) and still has.
pub type SinkAccount = Box<dyn Fn() -> ExportCounts + Send + Sync>;

/// A sink and its books.
struct LedgerSink {
    name: String,
    /// Given away when the meter starts.
    queue: Option<Sender<crate::WorkerBatch>>,
    account: Option<SinkAccount>,
}

/// The export: its queue, which is given away when the meter starts, and its own accounts.
struct LedgerExport {
    queue: Option<(export::WorkerQueue, bool)>,
    watch: ExportWatch,
}

/// Where packets come from.
#[derive(Debug, Default)]
pub(crate) enum PacketOrigin {
    #[default]
    Nothing,
    Files(Arc<ReadCounts>),
    Interfaces(Mutex<Vec<InterfaceCounts>>),
}

#[derive(Default)]
pub struct MeterBooks {
    /// When the workers were ready.
    start_ns: AtomicU64,
    patience: SharedPatience,
    export: Mutex<Option<LedgerExport>>,
    sinks: Mutex<Vec<LedgerSink>>,
    desks: Mutex<Vec<Arc<WorkerMeeting>>>,
    captured: Mutex<Arc<PacketOrigin>>,
}

impl std::fmt::Debug for MeterBooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Books").finish_non_exhaustive()
    }
}

/// One output's part of the ledger.
#[derive(Clone, Debug, Serialize)]
pub struct OutputReport {
    pub to: String,
    #[serde(flatten)]
    pub counts: ExportCounts,
}

/// Everything, at one time.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerReport {
    pub elapsed_ns: u64,
    /// The ledger; its last part is the sum of all outputs.
    pub ledger: MeterLedger,
    pub outputs: Vec<OutputReport>,
    /// What does not add up; empty before the end.
    pub imbalances: Vec<String>,
    /// What there is to say of the source.
    pub remarks: Vec<String>,
    /// Whether files were not read to their end because the meter was told to end before.
    pub stopped: bool,
}

impl MeterBooks {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { start_ns: clock::monotonic_ns().into(), ..Self::default() })
    }

    /// Whether those who find a queue full wait.
    pub fn patience(&self) -> &SharedPatience {
        &self.patience
    }

    /// Adds a sink of records; what comes back is its end of the queue.
    pub fn add_sink(&self, name: String) -> Receiver<crate::WorkerBatch> {
        let (batches, taken) = bounded(QUEUE);
        lock(&self.sinks).push(LedgerSink { name, queue: Some(batches), account: None });
        taken
    }

    /// Says how the sink added last is asked for its counts.
    pub fn set_account(&self, account: SinkAccount) {
        if let Some(sink) = lock(&self.sinks).last_mut() {
            sink.account = Some(account);
        }
    }

    /// Says where records, or else events, are exported to.
    pub fn set_export(&self, queue: export::WorkerQueue, wants_events: bool, watch: ExportWatch) {
        *lock(&self.export) = Some(LedgerExport { queue: Some((queue, wants_events)), watch });
    }

    /// The outputs' queues, which are given away once: they close when the last worker drops its own.
    pub fn take_channels(&self) -> OutputChannels {
        OutputChannels {
            export: lock(&self.export).as_mut().and_then(|export| export.queue.take()),
            sinks: lock(&self.sinks)
                .iter_mut()
                .filter_map(|sink| Some(OutputQueue::new(sink.queue.take()?, &self.patience)))
                .collect(),
            patience: self.patience.clone(),
        }
    }

    pub(crate) fn begin(&self, desks: Vec<Arc<WorkerMeeting>>, captured: PacketOrigin) {
        self.start_ns.store(clock::monotonic_ns(), Ordering::Release);
        *lock(&self.desks) = desks;
        *lock(&self.captured) = Arc::new(captured);
    }

    /// Packets per second and the like are made of two of these.
    pub fn ledger(&self) -> MeterLedger {
        self.at(false).0
    }

    /// Everything as of now. `is_over`: all threads have ended, and it must add up.
    pub fn report(&self, is_over: bool) -> LedgerReport {
        let (ledger, outputs, notes) = self.at(is_over);
        let captured = Arc::clone(&lock(&self.captured));
        let read = if let PacketOrigin::Files(read) = &*captured { Some(read) } else { None };
        let mut found = Vec::new();
        if is_over {
            found.extend(ledger.imbalances());
            found.extend(own_rules(&notes));
        }
        LedgerReport {
            elapsed_ns: clock::monotonic_ns().saturating_sub(self.start_ns.load(Ordering::Acquire)),
            ledger,
            outputs,
            imbalances: found.iter().map(ToString::to_string).collect(),
            remarks: read.map(|read| read.remarks()).unwrap_or_default(),
            stopped: read.is_some_and(|read| read.is_stopped()),
        }
    }

    fn at(&self, is_over: bool) -> (MeterLedger, Vec<OutputReport>, Vec<WorkerCounts>) {
        let notes: Vec<WorkerCounts> = lock(&self.desks).iter().map(|desk| desk.notes()).collect();
        let mut packets = PacketCounts::default();
        for notes in &notes {
            packets.add(&notes.counts);
        }
        let watched = lock(&self.export).as_ref().map(|export| export.watch.targets());
        let exports = watched.into_iter().flatten().map(|(to, counts)| OutputReport { to, counts });
        let sinks = lock(&self.sinks);
        let sinks = sinks.iter().enumerate().map(|(n, sink)| report_of(n, sink, &notes, is_over));
        let outputs: Vec<_> = exports.chain(sinks).collect();
        let mut export = ExportCounts::default();
        for output in &outputs {
            add(&mut export, &output.counts);
        }
        (MeterLedger { capture: self.capture(&notes), packets, export }, outputs, notes)
    }

    fn capture(&self, notes: &[WorkerCounts]) -> CaptureCounts {
        let sum = |of: fn(&WorkerCounts) -> u64| notes.iter().map(of).sum::<u64>();
        let (delivered, ring_dropped) = (sum(|n| n.delivered), sum(|n| n.ring_dropped));
        let captured = Arc::clone(&lock(&self.captured));
        let (arrived, driver_dropped) = match &*captured {
            PacketOrigin::Nothing => (None, None),
            PacketOrigin::Files(read) => (Some(read.packets().saturating_sub(sum(|n| n.left))), None),
            PacketOrigin::Interfaces(interfaces) => {
                let read: Option<Vec<_>> = lock(interfaces).iter_mut().map(InterfaceCounts::read).collect();
                let total = |of: fn(&(u64, u64)) -> u64| read.as_ref().map(|all| all.iter().map(of).sum());
                (total(|counts| counts.0), total(|counts| counts.1))
            }
        };
        CaptureCounts { arrived, driver_dropped, ring_dropped, delivered }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report_of(number: usize, sink: &LedgerSink, notes: &[WorkerCounts], is_over: bool) -> OutputReport {
    let mut sum = OfferedCounts::default();
    for offered in notes.iter().filter_map(|notes| notes.offered.get(number)) {
        sum.offered.add(offered.offered);
        sum.dropped.add(offered.dropped);
    }
    let mut counts = sink.account.as_ref().map(|account| account()).unwrap_or_default();
    counts.offered = sum.offered;
    counts.queue_dropped.add(sum.dropped);
    if !is_over {
        counts.waiting = rest(&counts);
    }
    OutputReport { to: sink.name.clone(), counts }
}

/// What was offered and is in no other account.
fn rest(counts: &ExportCounts) -> CarriedRecords {
    let left = |of: fn(&CarriedRecords) -> u64| {
        let gone = of(&counts.queue_dropped) + of(&counts.sent) + of(&counts.refused);
        of(&counts.offered).saturating_sub(gone)
    };
    CarriedRecords { records: left(|c| c.records), packets: left(|c| c.packets), bytes: left(|c| c.bytes) }
}

fn add(sum: &mut ExportCounts, counts: &ExportCounts) {
    sum.offered.add(counts.offered);
    sum.queue_dropped.add(counts.queue_dropped);
    sum.sent.add(counts.sent);
    sum.refused.add(counts.refused);
    sum.waiting.add(counts.waiting);
    sum.messages += counts.messages;
    sum.message_bytes += counts.message_bytes;
    sum.own_records += counts.own_records;
}

/// What holds at the end beside the rules of the ledger itself.
fn own_rules(notes: &[WorkerCounts]) -> Vec<CountImbalance> {
    let rings: Option<u64> = notes.iter().map(|notes| notes.put_in).sum();
    let delivered: u64 = notes.iter().map(|notes| notes.delivered).sum();
    let live: u64 = notes.iter().map(|notes| notes.counts.live).sum();
    let rules = [
        ("rings put in = capture delivered", rings.unwrap_or(delivered), delivered),
        ("live at the end = 0", live, 0),
    ];
    let broken = rules.into_iter().filter(|(_, left, right)| left != right);
    broken.map(|(rule, left, right)| CountImbalance { rule, left, right }).collect()
}

/// An account for people: what it counts, and a word on what it means if it is not zero.
#[derive(Clone, Copy, Debug)]
pub struct LedgerLine {
    /// Where in the meter.
    pub place: &'static str,
    pub what: &'static str,
    /// How many packets; `None` if nobody knows.
    pub packets: Option<u64>,
    /// Whether they are lost to the records.
    pub is_loss: bool,
    /// Of how many packets these are a part: those that came to this place, each output's on its own.
    pub of: u64,
}

/// The ledger as lines, from the wire to the collector.
pub fn lines(ledger: &MeterLedger) -> Vec<LedgerLine> {
    let MeterLedger { capture, packets, export } = ledger;
    // Drivers differ in whether what they dropped has arrived.
    let counted = capture.delivered + capture.ring_dropped + capture.driver_dropped.unwrap_or(0);
    let arrived = capture.arrived.unwrap_or(counted).max(counted);
    let line = |place, what, packets, is_loss| {
        let of = if place == "export" { export.offered.packets } else { arrived };
        LedgerLine { place, what, packets, is_loss, of }
    };
    let mut lines = vec![
        line("capture", "arrived", capture.arrived, false),
        line("capture", "dropped by the driver", capture.driver_dropped, true),
        line("capture", "dropped, ring full", Some(capture.ring_dropped), true),
        line("capture", "delivered", Some(capture.delivered), false),
    ];
    for cause in IgnoredReason::ALL {
        let count = packets.ignored[cause as usize];
        if count > 0 {
            lines.push(line("parse", ignored(cause), Some(count), false));
        }
    }
    lines.extend([
        line("table", "metered", Some(packets.metered), false),
        line("table", "untracked, table full", Some(packets.untracked), true),
        line("table", "in flows not ended yet", Some(packets.live), false),
        line("table", "in records", Some(packets.recorded), false),
    ]);
    if export.offered.records > 0 {
        lines.extend([
            line("export", "offered", Some(export.offered.packets), false),
            line("export", "dropped, queue full", Some(export.queue_dropped.packets), true),
            line("export", "refused by the transport", Some(export.refused.packets), true),
            line("export", "waiting", Some(export.waiting.packets), false),
            line("export", "sent", Some(export.sent.packets), false),
        ]);
    }
    lines
}

const fn ignored(cause: IgnoredReason) -> &'static str {
    match cause {
        IgnoredReason::Arp => "ignored: ARP",
        IgnoredReason::NotIp => "ignored: not IP",
        IgnoredReason::ShortLink => "ignored: link header cut",
        IgnoredReason::ShortIp => "ignored: IP header cut",
        IgnoredReason::BadIp => "ignored: IP header impossible",
        IgnoredReason::TooDeep => "ignored: nested too deep",
        IgnoredReason::Sampled => "passed over by sampling",
        IgnoredReason::Elsewhere => "of another meter's share",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_loss_is_more_than_what_it_is_a_part_of() {
        let carried = |packets| CarriedRecords { records: 1, packets, bytes: 1 };
        // Two outputs that refuse everything, and a driver that counts what it dropped as not arrived.
        let export = ExportCounts { offered: carried(200), refused: carried(200), ..Default::default() };
        let capture =
            CaptureCounts { arrived: Some(100), driver_dropped: Some(300), ring_dropped: 0, delivered: 100 };
        let ledger = MeterLedger { capture, export, ..MeterLedger::default() };
        let losses: Vec<LedgerLine> = lines(&ledger).into_iter().filter(|line| line.is_loss).collect();
        assert!(
            losses.iter().all(|line| line.packets.is_none_or(|packets| packets <= line.of)),
            "{losses:?}"
        );
        assert!(losses.iter().any(|line| line.packets == Some(200) && line.of == 200), "{losses:?}");
    }

    #[test]
    fn a_sink_that_has_not_said_anything_has_everything_waiting() {
        let books = MeterBooks::new();
        let taken = books.add_sink("file".into());
        let desk = Arc::<WorkerMeeting>::default();
        books.begin(vec![Arc::clone(&desk)], PacketOrigin::Nothing);
        assert_eq!(books.ledger(), MeterLedger::default());
        drop(taken);
        let report = books.report(true);
        assert!(report.imbalances.is_empty(), "{report:?}");
        assert_eq!(report.ledger.capture.arrived, None);
    }
}
