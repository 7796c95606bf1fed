//! The trait of all sinks for flow records, and their counters.

use super::Error;
use packetrig_flow::{CarriedRecords, FlowRecord, MeterLedger};
use packetrig_units::{MonoTime, RemovedFiles};
use serde::{Deserialize, Serialize};

/// The exporter of a record, or this machine's own meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordExporter {
    /// Address of the exporter; IPv4 is mapped into IPv6. All zeros mean the meter of this machine.
    pub exporter: [u8; 16],
    pub domain: u32,
}

/// Counts of the records that were offered to a sink: offered = stored + lost + waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkRecordCounts {
    pub offered: CarriedRecords,
    /// Records that are stored for good, or that alert rules have checked.
    pub stored: CarriedRecords,
    /// Records that the sink will not try to store any more, for any reason.
    pub lost: CarriedRecords,
    /// The part of `lost` that was dropped because the sink's queue was full.
    pub queue_dropped: CarriedRecords,
    /// Records that are not stored yet: in memory or in unfinished files.
    pub waiting: CarriedRecords,
    /// Failed attempts to store records; usually a later attempt succeeds.
    pub failures: u64,
    /// Bytes of finished files; zero for sinks that write no files.
    pub file_bytes: u64,
    /// Old files that were removed because of the retention limits; their records stay counted as stored.
    pub removed: RemovedFiles,
}

/// A target that stores flow records, or watches them for alerts.
///
/// After an error the sink stays usable: records that it could not store wait or are counted as lost, and it tries
/// again at a later [`RecordSink::on_tick`].
pub trait RecordSink: Send {
    /// Accepts records of one exporter, to store them now or later.
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error>;

    /// Accepts the ledger of a meter at the time `at_ns` (nanoseconds since 1970). Sinks that store
    /// no ledgers ignore it.
    fn write_ledger(
        &mut self,
        ledger: &MeterLedger,
        source: RecordExporter,
        at_ns: u64,
    ) -> Result<(), Error> {
        let _ = (ledger, source, at_ns);
        Ok(())
    }

    /// Performs due work, such as writing waiting records. The caller calls this about every second.
    fn on_tick(&mut self, now: MonoTime) -> Result<(), Error>;

    /// Stores waiting records, as far as possible. A sink on another thread only queues this call, or drops it if its
    /// queue is full.
    fn flush_records(&mut self) -> Result<(), Error>;

    /// Stores waiting records, counts records that cannot be stored as lost, and returns the final counts.
    /// The sink accepts nothing afterwards.
    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>);

    /// The counts of the records so far.
    fn kept_counts(&self) -> SinkRecordCounts;
}

impl SinkRecordCounts {
    pub(crate) fn count_offered(&mut self, records: &[FlowRecord]) {
        let carried = sum_carried(records);
        self.offered.add_records(carried);
        self.waiting.add_records(carried);
    }

    pub(crate) fn count_stored_records(&mut self, carried: CarriedRecords) {
        self.stored.add_records(carried);
        self.waiting = self.offered.subtract_partial_counts(self.waiting, carried);
    }

    pub(crate) fn count_lost(&mut self, carried: CarriedRecords) {
        self.lost.add_records(carried);
        self.waiting = self.offered.subtract_partial_counts(self.waiting, carried);
    }

    /// Returns whether each record is counted exactly once: as stored, lost or waiting. Sums of packets and bytes that
    /// have reached `u64::MAX` are saturated, and not judged.
    pub fn is_balanced(&self) -> bool {
        let mut sum = self.stored;
        sum.add_records(self.lost);
        sum.add_records(self.waiting);
        let Self { offered, .. } = self;
        sum.records == offered.records
            && equals_offered_count(sum.packets, offered.packets)
            && equals_offered_count(sum.bytes, offered.bytes)
    }
}

/// Sums up records: their number, packets and bytes.
pub(crate) fn sum_carried<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> CarriedRecords {
    let mut sum = CarriedRecords::default();
    for record in records {
        sum.add_records(CarriedRecords { records: 1, packets: record.packets(), bytes: record.bytes() });
    }
    sum
}

fn equals_offered_count(sum: u64, offered: u64) -> bool {
    offered == u64::MAX || sum == offered
}
