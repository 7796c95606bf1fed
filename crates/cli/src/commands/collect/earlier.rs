//! Computes what a killed collector lost, according to the exporters' own counts.
//!
//! A packetrig meter reports how many packets its records contain in total. Other exporters over UDP (IPFIX, NetFlow 5)
//! number their records. The first number that this collector receives shows how many records were sent before it.
//! Data that the killed collector did not store and that this collector did not receive is missing.

use super::sinks::record_maker;
use crate::output::print_remark;
use packetrig_flow::collect::{ExportProtocol, ExporterIdentity, MessageTransport};
use packetrig_flow::{CarriedRecords, FlowRecord};
use packetrig_flow_io::collect::{CollectLedger, ExporterLedger, MissingData};
use packetrig_flow_store::progress::{
    ExporterProgress, KilledCollectorRecords, ProgressFile, ProgressNumber, StoredProgress,
};
use packetrig_flow_store::{RecordExporter, StoredCallback};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of exporters above which the progress file may leave out exporters that the collector no longer knows. The
/// limit protects the file, which is written often, against senders that invent exporters.
const MAX_EXPORTERS: usize = 16_384;
/// If a sequence number jumps by this much or more, it does not continue the earlier numbers.
const MAX_UNITS: u32 = 1 << 31;

/// Data of one exporter that killed collectors did not store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UnstoredByKilledCollectors {
    /// Address of the exporter; an IPv4 address is not written as a mapped IPv6 address.
    pub(super) exporter: String,
    pub(super) domain: u32,
    /// Records of this exporter that earlier collectors stored.
    pub(super) stored_records: u64,
    /// Missing amount in `unit`; absent if it cannot be computed from the exporter's counts.
    pub(super) missing: Option<u64>,
    pub(super) unit: &'static str,
}

/// Keeps the progress file of a directory: how many records and packets of each exporter the directory has.
pub(super) struct DirectoryProgress {
    file: Arc<Mutex<ProgressFile>>,
    /// Records of earlier collectors that were killed.
    before: KilledCollectorRecords,
    /// The amounts of `before`, plus the amounts that the sink has accepted from this collector.
    now: StoredProgress,
    /// Exporters that the collector knew when the progress was last written.
    present: BTreeSet<RecordExporter>,
}

impl DirectoryProgress {
    /// Reads the progress files of earlier collectors, writes their sums to a new file and removes them. The flow
    /// records in the directory must have been recovered before.
    pub(super) fn open_directory(directory: &Path) -> Result<Self, packetrig_flow_store::Error> {
        let before = KilledCollectorRecords::find_in(directory)?;
        // The new file has the sums before the old files are removed: a crash between the two steps loses nothing.
        let file = ProgressFile::create_in(directory, &before)?;
        before.remove_files()?;
        let present = BTreeSet::new();
        Ok(Self { file: Arc::new(Mutex::new(file)), now: before.stored.clone(), before, present })
    }

    /// Adds records of an exporter that the sink's queue has accepted.
    pub(super) fn add_accepted_records(
        &mut self,
        maker: RecordExporter,
        taken: CarriedRecords,
        records: &[FlowRecord],
    ) {
        let has = self.now.entry(maker).or_default();
        has.records = has.records.saturating_add(taken.records);
        has.packets = has.packets.saturating_add(taken.packets);
        has.is_of_group |= records.iter().any(|record| record.history.is_some());
        if self.now.len() > MAX_EXPORTERS.max(2 * self.present.len()) {
            self.remove_unknown_exporters(maker);
        }
    }

    /// Removes half of the exporters that the collector does not know any more, those with the fewest records first.
    /// `latest` stays.
    fn remove_unknown_exporters(&mut self, latest: RecordExporter) {
        let absent = self.now.iter().filter(|(maker, _)| **maker != latest && !self.present.contains(maker));
        let mut absent: Vec<_> = absent.map(|(maker, has)| (has.records, *maker)).collect();
        absent.sort_unstable();
        for (_, maker) in &absent[..absent.len().div_ceil(2)] {
            self.now.remove(maker);
        }
    }

    /// Returns a callback that writes to the progress file: all counts, if none of the records accepted so far waits in
    /// the sink any more; otherwise only the first sequence numbers of new exporters.
    pub(super) fn prepare_progress_callback(&mut self, exporters: &[ExporterLedger]) -> StoredCallback {
        let mut begun = StoredProgress::new();
        let sessions_by_maker = group_by_maker(exporters);
        self.present = sessions_by_maker.keys().copied().collect();
        for (maker, sessions) in sessions_by_maker {
            let Some(has) = self.now.get_mut(&maker) else { continue };
            let now = ExporterSums::from_sessions(&sessions);
            if let Some(sent) = now.sent_packets {
                if has.sent_packets.is_none() {
                    // This is the first ledger of this exporter. Packets that the ledger counts, and that were neither
                    // stored earlier nor received here, were lost before: no later collector must count them as lost.
                    let stored = self.before.stored.get(&maker).map_or(0, |before| before.packets);
                    has.lacking_packets = sent.saturating_sub(stored + now.received_packets);
                }
                has.sent_packets = Some(sent);
            }
            let number = |next, records| Some(ProgressNumber { next, records, ..now.number.clone()? });
            let first = now.first.and_then(|first| number(first, 0));
            begun.insert(maker, ExporterProgress { numbers: first, ..has.clone() });
            if let Some(last) = &now.number {
                has.numbers = number(last.next, has.records);
            }
        }
        // The sums are copied now and written later: only the sink knows whether all records up to here are stored.
        let (file, progress) = (Arc::clone(&self.file), self.now.clone());
        let mut given_up = self.before.given_up;
        Box::new(move |kept| {
            given_up.add_records(kept.lost);
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let noted = if kept.waiting.records == 0 {
                file.record_stored_progress(&progress, given_up)
            } else {
                file.record_starting_points(&begun)
            };
            if let Err(error) = noted {
                print_remark(format_args!("collect: warning: cannot write the progress file: {error}"));
            }
        })
    }

    /// Removes the progress file at an orderly end. Returns the records of earlier collectors. If one of them was
    /// killed, exporters that only this collector has received are added with zero records.
    pub(super) fn close_progress_file(self) -> KilledCollectorRecords {
        let file =
            // The sink has ended, and its callbacks, which also owned the file, are dropped: this is the last owner.
            Arc::into_inner(self.file).map(|file| file.into_inner().unwrap_or_else(PoisonError::into_inner));
        if let Some(Err(error)) = file.map(ProgressFile::remove_file) {
            print_remark(format_args!("collect: warning: {error}"));
        }
        let mut before = self.before;
        if before.has_killed_collector() {
            for (maker, now) in self.now {
                before.stored.entry(maker).or_default().is_of_group = now.is_of_group;
            }
        }
        before
    }
}

/// Counts and sequence numbers of one exporter, over all its sessions.
#[derive(Debug, Default)]
struct ExporterSums {
    /// Packets that the exporter sent, according to its last ledger.
    sent_packets: Option<u64>,
    /// Packets in the records that arrived here before the exporter's last ledger.
    received_packets: u64,
    number: Option<ProgressNumber>,
    first: Option<u32>,
}

fn group_by_maker(exporters: &[ExporterLedger]) -> BTreeMap<RecordExporter, Vec<&ExporterLedger>> {
    let mut makers = BTreeMap::<RecordExporter, Vec<&ExporterLedger>>::new();
    for one in exporters {
        makers.entry(record_maker(&one.exporter)).or_default().push(one);
    }
    makers
}

impl ExporterSums {
    fn from_sessions(own: &[&ExporterLedger]) -> Self {
        // A session that has not ended has the newest ledger. If all have ended, the ledger with the largest count is
        // the latest.
        let latest = own
            .iter()
            .filter(|one| reported_sent_packets(one).is_some())
            .max_by_key(|one| (one.is_here, reported_sent_packets(one)));
        // Packets of a session that ended before the latest ledger are in that ledger.
        let newer: u64 = own
            .iter()
            .filter(|one| one.is_here || latest.is_none_or(|latest| !latest.is_here))
            .map(|one| one.counts.newer_packets)
            .fold(0, u64::saturating_add);
        let received: u64 = own.iter().map(|one| one.counts.packets).fold(0, u64::saturating_add);
        // After a restart, an exporter's numbers begin again and cannot be compared with the earlier ones.
        let numbered = own
            .iter()
            .find(|one| has_restart_proof_sequence_numbers(&one.exporter) && one.counts.restarts == 0);
        let numbers = numbered.and_then(|one| Some((one.exporter, one.numbers?)));
        Self {
            sent_packets: latest.and_then(|one| reported_sent_packets(one)),
            received_packets: received.saturating_sub(newer),
            number: numbers.map(|(exporter, numbers)| ProgressNumber {
                port: exporter.source.port,
                protocol: exporter.protocol.name().to_owned(),
                next: numbers.next,
                records: 0,
            }),
            first: numbers.map(|(_, numbers)| numbers.first),
        }
    }
}

/// Returns true if the exporter's sequence numbers count records and continue when a collector restarts.
fn has_restart_proof_sequence_numbers(exporter: &ExporterIdentity) -> bool {
    exporter.source.transport == MessageTransport::Udp
        && matches!(exporter.protocol, ExportProtocol::Ipfix | ExportProtocol::NetFlow5)
}

/// Lists what killed collectors did not store, for each exporter. Exporters of meter groups are left out.
pub(super) fn losses_by_exporter(
    ledger: &CollectLedger,
    before: &StoredProgress,
) -> Vec<UnstoredByKilledCollectors> {
    let all = before.iter().filter(|(_, has)| !has.is_of_group);
    let sessions = group_by_maker(&ledger.exporters);
    let now =
        |maker| sessions.get(maker).map(|sessions| ExporterSums::from_sessions(sessions)).unwrap_or_default();
    let all = all.map(|(maker, has)| (has, exporter_loss(*maker, &now(maker), has)));
    // An exporter that only this collector has received is listed only if records of it are missing.
    all.filter(|(has, loss)| {
        **has != ExporterProgress::default() || loss.missing.is_some_and(|missing| missing > 0)
    })
    .map(|(_, loss)| loss)
    .collect()
}

fn exporter_loss(
    maker: RecordExporter,
    now: &ExporterSums,
    before: &ExporterProgress,
) -> UnstoredByKilledCollectors {
    let by_ledger = now.sent_packets.map(|sent| missing_packets(sent, now, before));
    let (missing, unit) = match by_ledger {
        Some(missing) => (Some(missing), "packets"),
        None => (missing_records(now, before), "records"),
    };
    let address = std::net::Ipv6Addr::from(maker.exporter).to_canonical();
    UnstoredByKilledCollectors {
        exporter: address.to_string(),
        domain: maker.domain,
        stored_records: before.records,
        missing,
        unit,
    }
}

/// Missing packets according to the meter's ledger; 0 if the meter has restarted, because its ledger then begins again.
fn missing_packets(sent: u64, now: &ExporterSums, before: &ExporterProgress) -> u64 {
    let has_restarted = before.sent_packets.is_some_and(|known| sent < known);
    let known = before.packets + before.lacking_packets;
    if has_restarted { 0 } else { sent.saturating_sub(known + now.received_packets) }
}

/// Missing records according to sequence numbers; `None` if the numbers do not continue the earlier ones. For IPFIX the
/// result includes options records, because the sequence numbers count them, too.
fn missing_records(now: &ExporterSums, before: &ExporterProgress) -> Option<u64> {
    let (now_number, then) = (now.number.as_ref()?, before.numbers.as_ref()?);
    let is_same = now_number.port == then.port && now_number.protocol == then.protocol;
    // Sequence numbers are modulo 2^32 (RFC 7011 3.1), so the difference wraps as well.
    let sent = now.first?.wrapping_sub(then.next);
    (is_same && sent < MAX_UNITS)
        .then(|| u64::from(sent).saturating_sub(before.records.saturating_sub(then.records)))
}

/// Sums the missing packets and the missing records of all exporters. Sums of zero are left out.
pub(super) fn missing_data_sums(losses: &[UnstoredByKilledCollectors]) -> impl Iterator<Item = MissingData> {
    let all = [
        ("packets in records that a killed collector did not store", missing_data_sum(losses, "packets")),
        ("records that a killed collector did not store", missing_data_sum(losses, "records")),
    ];
    all.into_iter().filter(|(_, amount)| *amount > 0).map(|(what, amount)| MissingData { what, amount })
}

fn missing_data_sum(losses: &[UnstoredByKilledCollectors], unit: &str) -> u64 {
    losses.iter().filter(|one| one.unit == unit).filter_map(|one| one.missing).sum()
}

/// Number of packets that the exporter has sent, according to its last ledger; `None` if it has sent none.
fn reported_sent_packets(one: &ExporterLedger) -> Option<u64> {
    Some(one.reported?.ledger?.export.sent.packets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::collect::{
        ForgottenExporters, MessageSource, RefusedMessages, ReportedLosses, SequenceNumbers, SessionCounts,
    };
    use packetrig_flow::{ExportCounts, MeterLedger};
    use packetrig_flow_io::collect::HandedOverRecords;
    use packetrig_flow_store::SinkRecordCounts;

    const MAKER: RecordExporter =
        RecordExporter { exporter: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 198, 18, 0, 1], domain: 7 };

    /// An exporter that has brought so many packets, the last of them after its last ledger.
    fn session(transport: MessageTransport, packets: u64, newer: u64, sent: Option<u64>) -> ExporterLedger {
        let address = "198.18.0.1".parse().unwrap();
        let source = MessageSource { address, port: 5, transport };
        let export = |packets| ExportCounts {
            sent: CarriedRecords { records: 1, packets, bytes: 1 },
            ..ExportCounts::default()
        };
        let ledger = sent.map(|packets| MeterLedger { export: export(packets), ..MeterLedger::default() });
        let counts = SessionCounts { packets, newer_packets: newer, ..SessionCounts::default() };
        ExporterLedger {
            exporter: ExporterIdentity { source, protocol: ExportProtocol::Ipfix, domain: 7, agent: None },
            is_here: true,
            counts,
            reported: ledger
                .map(|ledger| ReportedLosses { ledger: Some(ledger), ..ReportedLosses::default() }),
            numbers: Some(SequenceNumbers { first: 1000, next: 1010 }),
            interfaces: Vec::new(),
        }
    }

    fn missing_of(session: &ExporterLedger, before: &ExporterProgress) -> Option<u64> {
        exporter_loss(MAKER, &ExporterSums::from_sessions(&[session]), before).missing
    }

    #[test]
    fn progress_of_invented_exporters_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let mut progress = DirectoryProgress::open_directory(directory.path()).unwrap();
        let one = CarriedRecords { records: 1, packets: 2, bytes: 0 };
        progress.add_accepted_records(MAKER, one, &[]);
        drop(progress.prepare_progress_callback(&[session(MessageTransport::Udp, 2, 0, None)]));
        for domain in 0..100_000 {
            progress.add_accepted_records(RecordExporter { exporter: [9; 16], domain }, one, &[]);
        }
        assert!(progress.now.len() <= MAX_EXPORTERS + 1, "{}", progress.now.len());
        assert_eq!(progress.now[&MAKER].packets, 2, "one that the collector has is kept");
        let last = RecordExporter { exporter: [9; 16], domain: 99_999 };
        assert_eq!(progress.now[&last].records, 1);
        progress.close_progress_file();
    }

    #[test]
    fn records_that_a_killed_collector_gave_up_are_known_to_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let lost = CarriedRecords { records: 3, packets: 6, bytes: 0 };
        for killed in 1..3 {
            let mut progress = DirectoryProgress::open_directory(directory.path()).unwrap();
            progress.add_accepted_records(MAKER, lost, &[]);
            let note = progress.prepare_progress_callback(&[session(MessageTransport::Udp, 6, 0, None)]);
            note(&SinkRecordCounts { offered: lost, lost, ..SinkRecordCounts::default() });
            // Without its end, the process was killed.
            drop(progress);
            let before = KilledCollectorRecords::find_in(directory.path()).unwrap();
            assert_eq!((before.given_up.records, before.stored[&MAKER].records), (3 * killed, 3 * killed));
        }
    }

    #[test]
    fn tcp_sent_count_yields_missing_packets() {
        let before = ExporterProgress { packets: 300, lacking_packets: 50, ..ExporterProgress::default() };
        // 1000 were sent: 50 before anybody listened, 300 were stored, 520 came now and 20 more since the ledger.
        let now = session(MessageTransport::Tcp, 540, 20, Some(1000));
        assert_eq!(missing_of(&now, &before), Some(130));
        let restarted = ExporterProgress { sent_packets: Some(1001), ..before.clone() };
        assert_eq!(missing_of(&now, &restarted), Some(0));
        let silent = session(MessageTransport::Tcp, 540, 540, None);
        assert_eq!(missing_of(&silent, &before), None, "numbers of a connection begin anew");
    }

    #[test]
    fn udp_sequence_numbers_yield_missing_records() {
        let number = |port| ProgressNumber { port, protocol: "ipfix".into(), next: 900, records: 400 };
        let before =
            |port| ExporterProgress { records: 430, numbers: Some(number(port)), ..Default::default() };
        let now = session(MessageTransport::Udp, 10, 10, None);
        assert_eq!(missing_of(&now, &before(5)), Some(70), "30 of the 100 are in files");
        assert_eq!(missing_of(&now, &before(6)), None, "it is another process");
    }

    #[test]
    fn exporter_losses_omit_groups_and_complete_exporters() {
        let ledger = |exporters| CollectLedger {
            elapsed_ns: 1,
            intake: vec![],
            exporters,
            total: SessionCounts::default(),
            refused: RefusedMessages::default(),
            forgotten: ForgottenExporters::default(),
            memory: 0,
            handed: HandedOverRecords::default(),
            groups: vec![],
            relays: vec![],
        };
        let all = |packets, sent, is_of_group| {
            let before = ExporterProgress { is_of_group, ..ExporterProgress::default() };
            let session = session(MessageTransport::Tcp, packets, 0, Some(sent));
            losses_by_exporter(&ledger(vec![session]), &StoredProgress::from([(MAKER, before)])).len()
        };
        assert_eq!([all(10, 10, false), all(10, 12, false), all(10, 12, true)], [0, 1, 0]);
    }
}
