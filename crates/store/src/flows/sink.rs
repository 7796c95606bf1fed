//! What every place for flow records offers.

use super::Error;
use packetrig_flow::{CarriedRecords, FlowRecord, MeterLedger};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Who made a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordMaker {
    /// Address of the exporter, IPv4 mapped; all zero is the meter of this machine.
    pub exporter: [u8; 16],
    pub domain: u32,
}

/// What became of the records a sink was offered: `offered` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCounts {
    /// Offered to the sink.
    pub offered: CarriedRecords,
    /// Where they should be.
    pub stored: CarriedRecords,
    /// Given up, for whatever cause.
    pub lost: CarriedRecords,
    /// Of these, what came when the sink's queue was full.
    pub queue_dropped: CarriedRecords,
    /// In memory, not stored yet.
    pub waiting: CarriedRecords,
    /// Attempts to store that failed; most are made good by the next.
    pub failures: u64,
    /// Bytes of the files that were written; none where records go elsewhere.
    pub file_bytes: u64,
}

/// A place for flow records.
///
/// An error is news, not an end: the sink stays usable, what it could not store waits or is counted as lost, and it tries again
/// at the next [`RecordSink::tick`] that is late enough.
pub trait RecordSink: Send {
    /// Takes records of one source.
    fn write(&mut self, records: &[FlowRecord], source: RecordMaker) -> Result<(), Error>;

    /// Takes the state of a meter's ledger, `at_ns` nanoseconds since 1970. Sinks without a place for it leave it.
    fn ledger(&mut self, ledger: &MeterLedger, source: RecordMaker, at_ns: u64) -> Result<(), Error> {
        let _ = (ledger, source, at_ns);
        Ok(())
    }

    /// Does what is due by now. To be called about every second.
    fn tick(&mut self, now: MonoTime) -> Result<(), Error>;

    /// Stores what waits, as far as it can.
    fn flush(&mut self) -> Result<(), Error>;

    /// Stores what waits, gives up what cannot be stored, and says what was stored. Nothing is taken after it.
    fn close(&mut self) -> (KeptCounts, Result<(), Error>);

    /// What became of the records so far.
    fn kept(&self) -> KeptCounts;
}

impl KeptCounts {
    pub(crate) fn offer(&mut self, records: &[FlowRecord]) {
        let carried = carried(records);
        self.offered.add(carried);
        self.waiting.add(carried);
    }

    pub(crate) fn store(&mut self, carried: CarriedRecords) {
        self.stored.add(carried);
        take(&mut self.waiting, carried);
    }

    pub(crate) fn lose(&mut self, carried: CarriedRecords) {
        self.lost.add(carried);
        take(&mut self.waiting, carried);
    }

    /// Whether every record is in one account.
    pub fn balances(&self) -> bool {
        let mut sum = self.stored;
        sum.add(self.lost);
        sum.add(self.waiting);
        sum == self.offered
    }
}

fn take(from: &mut CarriedRecords, carried: CarriedRecords) {
    from.records -= carried.records;
    from.packets -= carried.packets;
    from.bytes -= carried.bytes;
}

/// What records stand for.
pub(crate) fn carried<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> CarriedRecords {
    let mut sum = CarriedRecords::default();
    for record in records {
        sum.add(CarriedRecords { records: 1, packets: record.packets(), bytes: record.bytes() });
    }
    sum
}
