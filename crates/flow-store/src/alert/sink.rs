//! The sink that watches records for alerts. It stores no records, but counts them as stored.

use super::judge::{AlertEvent, AlertRuleState};
use super::outlet::{AlertDelivery, AlertDestination};
use super::rules::AlertRules;
use super::windows::ClosedWindow;
use crate::columns::ExporterRow;
use crate::scan::RowChunk;
use crate::top::{TOP_COLUMNS, TopScan};
use crate::{Error, RecordExporter, RecordSink, SinkRecordCounts};
use packetrig_flow::FlowRecord;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of groups in the open windows of all rules. Each rule may use an equal part of it. If a rule exceeds
/// its part, its earliest window is judged early.
const MAX_OPEN_GROUPS: usize = 1 << 18;
/// The number of groups is checked after this many records. It is small, because one record may add a
/// group to many windows.
const RECORDS_PER_CHECK: usize = 32;
/// How far in the future a live record may end, because the clocks of exporters differ. A record that ends
/// later does not count.
const MAX_CLOCK_DIFFERENCE: Nanos = Nanos::from_secs(60);

/// The rules, and where their events are delivered.
#[derive(Clone, Debug)]
pub struct AlertOptions {
    pub rules: AlertRules,
    pub places: Vec<AlertDestination>,
    /// True if the records come from running meters or exporters: the clock decides when a window is judged. False for
    /// records of files: windows are judged when all records are read, or earlier if they have too many groups.
    pub is_live: bool,
    /// Formats an event as a line.
    pub format_event: fn(&AlertEvent) -> String,
    /// The sink publishes its counts here, for other threads.
    pub counts: AlertCountsReader,
}

/// Counts of one rule since the sink was opened. If the rule distinguishes directions, each direction of a record
/// counts as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AlertCounts {
    pub alert: String,
    pub raised: u64,
    pub active: u64,
    /// Records that do not count in all of their windows: a window was judged before the record came, or the
    /// record is too long.
    pub late_records: u64,
    /// Records that are not counted, because they end too far in the future.
    pub future_records: u64,
    /// Alerts that were not raised because too many were active. A group without an alert counts once for each window
    /// in which it crosses the threshold.
    pub left_out: u64,
}

/// Shares the counts of all rules with other threads.
#[derive(Clone, Debug, Default)]
pub struct AlertCountsReader(Arc<Mutex<Vec<AlertCounts>>>);

impl AlertCountsReader {
    pub fn read_counts(&self) -> Vec<AlertCounts> {
        // The counts are replaced in one step, so they are complete even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish_counts(&self, counts: Vec<AlertCounts>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

#[derive(Debug)]
pub struct AlertSink {
    options: AlertOptions,
    rules: Vec<AlertRuleState>,
    outlets: Vec<AlertDelivery>,
    /// The columns that the rules read.
    columns: Vec<&'static str>,
    kept: SinkRecordCounts,
}

impl AlertSink {
    pub fn new(options: AlertOptions) -> Result<Self, Error> {
        let from_ns = if options.is_live { clock::wall_clock_ns() } else { 0 };
        let mut rules: Vec<_> =
            options.rules.rules.iter().map(|rule| AlertRuleState::new(Arc::clone(rule), from_ns)).collect();
        if options.is_live {
            let latest_ns = from_ns + MAX_CLOCK_DIFFERENCE.as_u64();
            for rule in &mut rules {
                rule.windows.set_latest_record_time(latest_ns);
            }
        }
        let outlets = options
            .places
            .iter()
            .cloned()
            .map(AlertDelivery::open_alert_destination)
            .collect::<Result<_, _>>()?;
        let needed = rules.iter().flat_map(|watched| {
            let scan = TopScan::new(&watched.rule.grouping, &watched.rule.filter);
            scan.selection().needed_columns().into_iter().chain(watched.rule.grouping.needed_columns())
        });
        let columns: BTreeSet<_> = needed.chain(TOP_COLUMNS).collect();
        let sink = Self {
            rules,
            outlets,
            columns: columns.into_iter().collect(),
            kept: SinkRecordCounts::default(),
            options,
        };
        sink.publish_counts();
        Ok(sink)
    }

    /// Judges the windows that `close` returns for each rule, and queues their events for all destinations.
    fn judge_windows(&mut self, close: impl Fn(&mut AlertRuleState) -> Vec<ClosedWindow>) {
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

    fn count_records(&mut self, records: &[FlowRecord], source: RecordExporter) {
        let rows: Vec<_> =
            records.iter().map(|record| ExporterRow { record: record.clone(), source }).collect();
        let chunk = RowChunk::from_rows(&rows, &self.columns);
        for AlertRuleState { rule, windows, .. } in &mut self.rules {
            let scan = TopScan::new(&rule.grouping, &rule.filter);
            let rows = scan.selection().select_rows(&chunk);
            scan.count_chunk(&chunk, &rows, &mut |key: &[u8], has| windows.add_record(key, &has));
        }
    }

    /// Judges the earliest windows of the rules that have too many groups, which frees the memory of these groups.
    fn judge_early_windows(&mut self) {
        let bound = MAX_OPEN_GROUPS / self.rules.len().max(1);
        while self.rules.iter().any(|rule| rule.windows.open_groups() > bound) {
            self.judge_windows(|rule| {
                if rule.windows.open_groups() > bound { rule.windows.close_earliest() } else { Vec::new() }
            });
        }
    }

    /// Delivers the waiting events to all destinations, even if one of them fails. Counts the failures and
    /// returns the first one.
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
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error> {
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
                rule.windows.set_latest_record_time(now_ns + MAX_CLOCK_DIFFERENCE.as_u64());
                rule.windows.close_until(until_ns)
            });
        }
        self.deliver_events(Some(now))
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
        if self.options.is_live {
            // No more records come, so `delay` does not apply. The current window is incomplete and is not judged.
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

    fn kept_counts(&self) -> SinkRecordCounts {
        self.kept
    }
}

#[cfg(test)]
mod tests;
