//! Where records are kept: each sink behind a thread of its own.
//!
//! Files and connections wait for a sink that is slow. Of what came over UDP, a slow sink loses its own records only.

use crate::commands::flows::recover_before;
use crate::error::Error;
use crate::output::remark;
use packetrig_flow::collect::{ExporterIdentity, MessageTransport};
use packetrig_flow::{FlowRecord, MeterLedger};
use packetrig_meter::collect::RecordOutlet;
use packetrig_store::flows::recover::RecoveredFiles;
use packetrig_store::flows::{
    self, KeptCounts, QueuePolicy, QueuedSink, RecordMaker, RecordSink, StoreTarget,
};
use packetrig_sys::clock;
use packetrig_units::MonoTime;
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Records that may wait for one sink.
const WAITING: u64 = 1 << 19;
/// A sink that fails says so once in so long.
const SILENCE_NS: u64 = 10_000_000_000;

/// What the user named.
pub(super) struct SinkKinds<'a> {
    pub(super) directory: Option<&'a Path>,
    pub(super) kafka: Option<&'a str>,
    pub(super) clickhouse: Option<&'a str>,
    pub(super) clickhouse_password_file: Option<&'a Path>,
}

struct NamedSink {
    name: String,
    recovered: Option<RecoveredFiles>,
    queued: QueuedSink,
    said_ns: Option<u64>,
}

impl NamedSink {
    fn open(target: StoreTarget) -> Result<Self, Error> {
        let name = target.to_string();
        let directory = if let StoreTarget::Directory(options) = &target {
            Some(options.directory.clone())
        } else {
            None
        };
        let queued = QueuedSink::new(target.open()?, WAITING)?;
        let recovered = directory.map(|directory| recover_before("collect", &directory)).transpose()?;
        Ok(Self { name, recovered: recovered.filter(|found| !found.is_empty()), queued, said_ns: None })
    }
}

/// What one sink did.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StoredCounts {
    pub(super) sink: String,
    #[serde(flatten)]
    pub(super) kept: KeptCounts,
    pub(super) failure: Option<String>,
    /// What an earlier collector left in the directory; its records are in no account of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovered: Option<RecoveredFiles>,
}

impl StoredCounts {
    /// Whether it could not store what it took; what found its queue full is no failure of its place.
    pub(super) const fn has_failed(&self) -> bool {
        self.failure.is_some() || self.kept.lost.records > self.kept.queue_dropped.records
    }
}

/// The accounts of all sinks, for other threads.
#[derive(Clone, Default)]
pub(super) struct SinkAccounts(Arc<Mutex<Vec<KeptCounts>>>);

impl SinkAccounts {
    pub(super) fn read(&self) -> Vec<KeptCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(super) struct CollectSinks {
    all: Vec<NamedSink>,
    accounts: SinkAccounts,
    ticked_ns: u64,
}

impl CollectSinks {
    pub(super) fn open(kinds: &SinkKinds<'_>) -> Result<Self, Error> {
        let scheme = |scheme: &str, rest: &str| {
            if rest.contains("://") { rest.to_owned() } else { format!("{scheme}://{rest}") }
        };
        let directory = kinds.directory.map(|path| StoreTarget::Directory(flows::ParquetOptions::new(path)));
        let mut targets: Vec<StoreTarget> = directory.into_iter().collect();
        let kafka = kinds.kafka.map(|text| scheme("kafka", text));
        let clickhouse = kinds.clickhouse.map(|text| scheme("clickhouse", text));
        if let Some(text) = kafka {
            targets.push(text.parse()?);
        }
        if let Some(text) = clickhouse {
            let mut target: StoreTarget = text.parse()?;
            if let Some(path) = kinds.clickhouse_password_file {
                target.set_password(read_password(path)?)?;
            }
            targets.push(target);
        }
        let mut sinks = Vec::new();
        for target in targets {
            sinks.push(NamedSink::open(target)?);
        }
        Ok(Self { all: sinks, accounts: SinkAccounts::default(), ticked_ns: 0 })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn accounts(&self) -> SinkAccounts {
        self.accounts.clone()
    }

    /// Stores what waits, and says what became of everything.
    pub(super) fn close(self) -> Vec<StoredCounts> {
        let close = |mut sink: NamedSink| {
            let (kept, done) = sink.queued.close();
            let failure = done.err().map(|error| Error::from(error).chain());
            StoredCounts { sink: sink.name, kept, failure, recovered: sink.recovered }
        };
        self.all.into_iter().map(close).collect()
    }

    fn each(&mut self, work: impl Fn(&mut QueuedSink) -> Result<(), flows::Error>) {
        for sink in &mut self.all {
            let Err(error) = work(&mut sink.queued) else { continue };
            let now_ns = clock::monotonic_ns();
            if sink.said_ns.is_none_or(|said_ns| now_ns.saturating_sub(said_ns) >= SILENCE_NS) {
                sink.said_ns = Some(now_ns);
                remark(format_args!("collect: {}: {}", sink.name, Error::from(error).chain()));
            }
        }
    }
}

/// The first line of a file.
fn read_password(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::ReadFile { name: path.display().to_string(), source })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn source(exporter: &ExporterIdentity) -> RecordMaker {
    let address = match exporter.source.address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    RecordMaker { exporter: address.octets(), domain: exporter.domain }
}

/// Whether its records may wait: a datagram that is not taken is lost.
const fn policy(exporter: &ExporterIdentity) -> QueuePolicy {
    match exporter.source.transport {
        MessageTransport::Udp => QueuePolicy::Drop,
        MessageTransport::Tcp | MessageTransport::Tls | MessageTransport::File => QueuePolicy::Wait,
    }
}

impl RecordOutlet for CollectSinks {
    fn records(&mut self, records: &[FlowRecord], exporter: &ExporterIdentity) {
        self.each(|sink| sink.write_by(records, source(exporter), policy(exporter)));
    }

    fn ledger(&mut self, ledger: &MeterLedger, exporter: &ExporterIdentity, at_ns: u64) {
        self.each(|sink| sink.ledger_by(ledger, source(exporter), at_ns, policy(exporter)));
    }

    fn tick(&mut self) {
        let now_ns = clock::monotonic_ns();
        if now_ns.saturating_sub(self.ticked_ns) >= 1_000_000_000 {
            self.ticked_ns = now_ns;
            self.each(|sink| sink.tick(MonoTime::from_nanos(now_ns)));
        }
        let kept = self.all.iter().map(|sink| sink.queued.kept()).collect();
        *self.accounts.0.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }
}
