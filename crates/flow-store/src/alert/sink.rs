//! The sink that watches records for alerts. It stores no records, but counts them as stored.

use super::judge::{AlertEvent, WatchedRule};
use super::outlet::{AlertDestination, AlertOutlet};
use super::rules::AlertRules;
use super::windows::ClosedWindow;
use crate::columns::ExporterRow;
use crate::scan::RowChunk;
use crate::top::{TOP_COLUMNS, TopScan};
use crate::{Error, KeptCounts, RecordMaker, RecordSink};
use packetrig_flow::FlowRecord;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of groups in open windows, shared equally by the rules. If a rule has more after a batch of records,
/// its earliest window is judged early.
const MAX_OPEN_GROUPS: usize = 1 << 18;
/// Records after which the number of groups is checked: each of them may belong to many windows.
const RECORDS_PER_CHECK: usize = 32;
/// How far the end of a live record may lie in the future: clocks of exporters differ. Records beyond do not count.
const MAX_CLOCK_DIFFERENCE: Nanos = Nanos::from_secs(60);

/// The rules, and the places that get their events.
#[derive(Clone, Debug)]
pub struct AlertOptions {
    pub rules: AlertRules,
    pub places: Vec<AlertDestination>,
    /// True if records arrive as flows end: windows are judged by the clock. Records of files are judged when all are
    /// read, or earlier if they have too many groups.
    pub is_live: bool,
    /// Formats an event as a line.
    pub format_event: fn(&AlertEvent) -> String,
    /// The sink publishes its counts here, for other threads.
    pub counts: AlertCountsReader,
}

/// Counts of one rule since the sink was opened. If the rule distinguishes directions, each direction of a record
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AlertCounts {
    pub alert: String,
    pub raised: u64,
    pub active: u64,
    /// Records with a part that is not counted, because it came after its window was judged.
    pub late_records: u64,
    /// Records that are not counted, because they end too far in the future.
    pub future_records: u64,
    /// Alerts that were not raised, because too many were active; a group counts in each window.
    pub left_out: u64,
}

/// The counts of all rules, for other threads.
#[derive(Clone, Debug, Default)]
pub struct AlertCountsReader(Arc<Mutex<Vec<AlertCounts>>>);

impl AlertCountsReader {
    pub fn read_counts(&self) -> Vec<AlertCounts> {
        // The counts are replaced as a whole: a thread that panicked with the lock cannot have left half of them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish_counts(&self, counts: Vec<AlertCounts>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

#[derive(Debug)]
pub struct AlertSink {
    options: AlertOptions,
    rules: Vec<WatchedRule>,
    outlets: Vec<AlertOutlet>,
    /// The columns that the rules read.
    columns: Vec<&'static str>,
    kept: KeptCounts,
}

impl AlertSink {
    pub fn new(options: AlertOptions) -> Result<Self, Error> {
        let from_ns = if options.is_live { clock::wall_clock_ns() } else { 0 };
        let mut rules: Vec<_> =
            options.rules.rules.iter().map(|rule| WatchedRule::new(Arc::clone(rule), from_ns)).collect();
        if options.is_live {
            let latest_ns = from_ns + MAX_CLOCK_DIFFERENCE.as_u64();
            for rule in &mut rules {
                rule.windows.limit_record_times(latest_ns);
            }
        }
        let outlets =
            options.places.iter().cloned().map(AlertOutlet::open_place).collect::<Result<_, _>>()?;
        let needed = rules.iter().flat_map(|watched| {
            let scan = TopScan::new(&watched.rule.grouping, &watched.rule.filter);
            scan.selection().needed_columns().into_iter().chain(watched.rule.grouping.needed_columns())
        });
        let columns: BTreeSet<_> = needed.chain(TOP_COLUMNS).collect();
        let sink = Self {
            rules,
            outlets,
            columns: columns.into_iter().collect(),
            kept: KeptCounts::default(),
            options,
        };
        sink.publish_counts();
        Ok(sink)
    }

    /// Judges the windows that `close` returns for each rule, and hands their events to all places.
    fn judge_windows(&mut self, close: impl Fn(&mut WatchedRule) -> Vec<ClosedWindow>) {
        let mut events = Vec::new();
        for rule in &mut self.rules {
            for window in close(rule) {
                rule.judge_window(&window, &mut events);
            }
        }
        for event in &events {
            let line = (self.options.format_event)(event);
            self.outlets.iter_mut().for_each(|outlet| outlet.add_line(&line));
        }
        self.publish_counts();
    }

    fn count_records(&mut self, records: &[FlowRecord], source: RecordMaker) {
        let rows: Vec<_> =
            records.iter().map(|record| ExporterRow { record: record.clone(), source }).collect();
        let chunk = RowChunk::from_rows(&rows, &self.columns);
        for WatchedRule { rule, windows, .. } in &mut self.rules {
            let scan = TopScan::new(&rule.grouping, &rule.filter);
            let rows = scan.selection().select_rows(&chunk);
            scan.count_chunk(&chunk, &rows, &mut |key: &[u8], has| windows.add_record(key, &has));
        }
    }

    /// Judges the earliest windows of rules that have more groups than there is memory for.
    fn judge_early_windows(&mut self) {
        let bound = MAX_OPEN_GROUPS / self.rules.len().max(1);
        while self.rules.iter().any(|rule| rule.windows.open_groups() > bound) {
            self.judge_windows(|rule| {
                if rule.windows.open_groups() > bound { rule.windows.close_earliest() } else { Vec::new() }
            });
        }
    }

    /// Delivers the events to all places, even if one of them fails. Counts the failures and returns the first one.
    fn deliver_events(&mut self, now: Option<MonoTime>) -> Result<(), Error> {
        let mut done = Ok(());
        for outlet in &mut self.outlets {
            let delivered = outlet.deliver_events(now);
            self.kept.failures += u64::from(delivered.is_err());
            done = done.and(delivered);
        }
        done
    }

    fn publish_counts(&self) {
        let counts = self.rules.iter().map(|watched| AlertCounts {
            alert: watched.rule.name.clone(),
            raised: watched.raised,
            active: watched.active_alert_count() as u64,
            late_records: watched.windows.late_records,
            future_records: watched.windows.future_records,
            left_out: watched.left_out,
        });
        self.options.counts.publish_counts(counts.collect());
    }

    fn undelivered_event_count(&self) -> u64 {
        self.outlets.iter().map(|outlet| outlet.waiting_event_count() + outlet.lost).sum()
    }
}

impl RecordSink for AlertSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordMaker) -> Result<(), Error> {
        self.kept.count_offered(records);
        self.kept.count_stored_records(crate::sink::sum_carried(records));
        for portion in records.chunks(RECORDS_PER_CHECK) {
            self.count_records(portion, source);
            self.judge_early_windows();
        }
        Ok(())
    }

    fn on_tick(&mut self, now: MonoTime) -> Result<(), Error> {
        if self.options.is_live {
            let now_ns = clock::wall_clock_ns();
            let until_ns = now_ns.saturating_sub(self.options.rules.delay.as_u64());
            self.judge_windows(|rule| {
                rule.windows.limit_record_times(now_ns + MAX_CLOCK_DIFFERENCE.as_u64());
                rule.windows.close_until(until_ns)
            });
        }
        self.deliver_events(Some(now))
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn close_sink(&mut self) -> (KeptCounts, Result<(), Error>) {
        if self.options.is_live {
            // No more records come, so there is no delay. The current window is not over, and is not judged.
            let now_ns = clock::wall_clock_ns();
            self.judge_windows(|rule| rule.windows.close_until(now_ns));
        } else {
            self.judge_windows(|rule| rule.windows.close_all());
        }
        let done = self.deliver_events(None);
        let undelivered = self.undelivered_event_count();
        let done = done.and(match undelivered {
            0 => Ok(()),
            count => Err(Error::UndeliveredAlerts { count }),
        });
        (self.kept, done)
    }

    fn kept_counts(&self) -> KeptCounts {
        self.kept
    }
}

#[cfg(test)]
mod tests;
