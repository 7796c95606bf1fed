//! Losses of a killed collector, by the exporters' own counts.
//!
//! A meter of packetrig reports how many packets its records contain in total. The sequence numbers of other exporters over UDP continue,
//! so the first number that this collector receives shows how many records were sent in between. Records that are neither in the files of
//! the killed collector nor arrived here are missing.

use super::sinks::record_maker;
use crate::output::print_remark;
use packetrig_flow::collect::{ExportProtocol, ExporterIdentity, MessageTransport};
use packetrig_flow::{CarriedRecords, FlowRecord};
use packetrig_flow_io::collect::{CollectLedger, ExporterLedger, MissingData};
use packetrig_flow_store::progress::{
    ExporterProgress, KilledCollectorRecords, ProgressFile, ProgressNumber, StoredProgress,
};
use packetrig_flow_store::{RecordMaker, StoredCallback};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// If the list has more exporters than this, it may drop exporters that the collector has forgotten. Without a
/// limit, senders that invent exporters could make the list grow without end, and it is written every second.
const MAX_EXPORTERS: usize = 16_384;
/// Longest jump of a sequence number; a longer one means that the exporter has restarted.
const MAX_UNITS: u32 = 1 << 31;

/// Data of one exporter that killed collectors did not store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UnstoredByKilledCollectors {
    /// Address of the exporter; an IPv4 address is not written as a mapped IPv6 address.
    pub(super) exporter: String,
    pub(super) domain: u32,
    /// Records of this exporter that earlier collectors stored.
    pub(super) stored_records: u64,
    /// Amount in `unit`; absent if the exporter does not report it.
    pub(super) missing: Option<u64>,
    pub(super) unit: &'static str,
}

/// Tracks the stored amounts of each exporter in a directory.
pub(super) struct DirectoryProgress {
    file: Arc<Mutex<ProgressFile>>,
    /// Amounts that earlier collectors stored.
    before: StoredProgress,
    /// True if one of the earlier collectors was killed.
    has_killed: bool,
    /// The amounts of `before`, plus the amounts that the sink has accepted from this collector.
    now: StoredProgress,
    /// Exporters that the collector knew when the progress was last written.
    present: BTreeSet<RecordMaker>,
}

impl DirectoryProgress {
    /// Opens the progress of a directory whose files have been recovered already.
    pub(super) fn open_directory(directory: &Path) -> Result<Self, packetrig_flow_store::Error> {
        let killed = KilledCollectorRecords::find_in(directory)?;
        let before = killed.stored.clone();
        // The new file has the sums of the old ones before those are removed: a crash in between loses no account.
        let file = ProgressFile::create_in(directory, &killed)?;
        killed.remove_files()?;
        let has_killed = killed.has_killed_collector();
        let present = BTreeSet::new();
        Ok(Self { file: Arc::new(Mutex::new(file)), now: before.clone(), before, has_killed, present })
    }

    /// Counts records of an exporter that the sink has taken.
    pub(super) fn add_accepted_records(
        &mut self,
        maker: RecordMaker,
        taken: CarriedRecords,
        records: &[FlowRecord],
    ) {
        let has = self.now.entry(maker).or_default();
        has.records = has.records.saturating_add(taken.records);
        has.packets = has.packets.saturating_add(taken.packets);
        has.is_of_group |= records.iter().any(|record| record.history.is_some());
        if self.now.len() > MAX_EXPORTERS.max(2 * self.present.len()) {
            self.forget_absent_exporters(maker);
        }
    }

    /// Removes half of the exporters that the collector does not know any more, those with the fewest records first.
    /// `latest` stays.
    fn forget_absent_exporters(&mut self, latest: RecordMaker) {
        let absent = self.now.iter().filter(|(maker, _)| **maker != latest && !self.present.contains(maker));
        let mut absent: Vec<_> = absent.map(|(maker, has)| (has.records, *maker)).collect();
        absent.sort_unstable();
        for (_, maker) in &absent[..absent.len().div_ceil(2)] {
            self.now.remove(maker);
        }
    }

    /// Prepares the note for the progress file: all counts, if all records up to here are stored; otherwise
    /// only the first numbers of new exporters.
    pub(super) fn prepare_note(&mut self, exporters: &[ExporterLedger]) -> StoredCallback {
        let mut begun = StoredProgress::new();
        let sessions_by_maker = group_by_maker(exporters);
        self.present = sessions_by_maker.keys().copied().collect();
        for (maker, sessions) in sessions_by_maker {
            let Some(has) = self.now.get_mut(&maker) else { continue };
            let now = ExporterSums::from_sessions(&sessions);
            if let Some(sent) = now.sent_packets {
                if has.sent_packets.is_none() {
                    // This is the first ledger of this exporter: packets that it counts, and that neither
                    // earlier files nor this collector have, are lacking.
                    let stored = self.before.get(&maker).map_or(0, |before| before.packets);
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
        Box::new(move |is_all_stored| {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let noted = if is_all_stored {
                file.record_stored_progress(&progress)
            } else {
                file.record_starting_points(&begun)
            };
            if let Err(error) = noted {
                print_remark(format_args!("collect: warning: cannot write the progress file: {error}"));
            }
        })
    }

    /// Removes the progress file at an orderly end. If an earlier collector was killed, returns the amounts that earlier ones stored of
    /// each exporter; they are zero for exporters that only this one has received.
    pub(super) fn close_progress_file(self) -> Option<StoredProgress> {
        let file =
            // The sink has ended before, and with it all notes that held the file: this is its only owner.
            Arc::into_inner(self.file).map(|file| file.into_inner().unwrap_or_else(PoisonError::into_inner));
        if let Some(Err(error)) = file.map(ProgressFile::remove_file) {
            print_remark(format_args!("collect: warning: {error}"));
        }
        self.has_killed.then(|| {
            self.now
                .iter()
                .map(|(maker, now)| {
                    let before = self.before.get(maker).cloned().unwrap_or_default();
                    (*maker, ExporterProgress { is_of_group: now.is_of_group, ..before })
                })
                .collect()
        })
    }
}

/// Counts and sequence numbers of one exporter, over all its sessions.
#[derive(Debug, Default)]
struct ExporterSums {
    /// Packets that the exporter sent, by its last ledger.
    sent_packets: Option<u64>,
    /// Packets that arrived here until that ledger.
    received_packets: u64,
    number: Option<ProgressNumber>,
    first: Option<u32>,
}

fn group_by_maker(exporters: &[ExporterLedger]) -> BTreeMap<RecordMaker, Vec<&ExporterLedger>> {
    let mut makers = BTreeMap::<RecordMaker, Vec<&ExporterLedger>>::new();
    for one in exporters {
        makers.entry(record_maker(&one.exporter)).or_default().push(one);
    }
    makers
}

impl ExporterSums {
    fn from_sessions(own: &[&ExporterLedger]) -> Self {
        // A session that is still here has the newest ledger. Among ended sessions, the one with the largest count is
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
        // After a restart an exporter's numbers begin again, and relate to nothing before.
        let numbered =
            own.iter().find(|one| has_lasting_sequence_numbers(&one.exporter) && one.counts.restarts == 0);
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
fn has_lasting_sequence_numbers(exporter: &ExporterIdentity) -> bool {
    exporter.source.transport == MessageTransport::Udp
        && matches!(exporter.protocol, ExportProtocol::Ipfix | ExportProtocol::NetFlow5)
}

/// Losses of killed collectors, for each exporter that they received.
pub(super) fn losses_by_exporter(
    ledger: &CollectLedger,
    before: &StoredProgress,
) -> Vec<UnstoredByKilledCollectors> {
    let all = before.iter().filter(|(_, has)| !has.is_of_group);
    let sessions = group_by_maker(&ledger.exporters);
    let now =
        |maker| sessions.get(maker).map(|sessions| ExporterSums::from_sessions(sessions)).unwrap_or_default();
    let all = all.map(|(maker, has)| (has, exporter_loss(*maker, &now(maker), has)));
    // An exporter that only this collector has received, without loss, is no loss of the killed one.
    all.filter(|(has, loss)| {
        **has != ExporterProgress::default() || loss.missing.is_some_and(|missing| missing > 0)
    })
    .map(|(_, loss)| loss)
    .collect()
}

fn exporter_loss(
    maker: RecordMaker,
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

/// Missing packets by the meter's ledger; 0 if the meter has restarted, because its ledger then begins again.
fn missing_packets(sent: u64, now: &ExporterSums, before: &ExporterProgress) -> u64 {
    let has_restarted = before.sent_packets.is_some_and(|known| sent < known);
    let known = before.packets + before.lacking_packets;
    if has_restarted { 0 } else { sent.saturating_sub(known + now.received_packets) }
}

/// Missing records by sequence numbers; `None` if the numbers do not continue the earlier ones. The sequence numbers
/// of IPFIX count options records, too.
fn missing_records(now: &ExporterSums, before: &ExporterProgress) -> Option<u64> {
    let (now_number, then) = (now.number.as_ref()?, before.numbers.as_ref()?);
    let is_same = now_number.port == then.port && now_number.protocol == then.protocol;
    // Sequence numbers are modulo 2^32 (RFC 7011 3.1), so the difference wraps as well.
    let sent = now.first?.wrapping_sub(then.next);
    (is_same && sent < MAX_UNITS)
        .then(|| u64::from(sent).saturating_sub(before.records.saturating_sub(then.records)))
}

/// Sums of the losses, for the list of missing data.
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

/// Number of packets that the exporter has sent, by its own last ledger.
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

    const MAKER: RecordMaker =
        RecordMaker { exporter: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 198, 18, 0, 1], domain: 7 };

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
        drop(progress.prepare_note(&[session(MessageTransport::Udp, 2, 0, None)]));
        for domain in 0..100_000 {
            progress.add_accepted_records(RecordMaker { exporter: [9; 16], domain }, one, &[]);
        }
        assert!(progress.now.len() <= MAX_EXPORTERS + 1, "{}", progress.now.len());
        assert_eq!(progress.now[&MAKER].packets, 2, "one that the collector has is kept");
        let last = RecordMaker { exporter: [9; 16], domain: 99_999 };
        assert_eq!(progress.now[&last].records, 1);
        progress.close_progress_file();
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
