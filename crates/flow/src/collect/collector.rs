//! The collector of many exporters: passes each message to the session it belongs to.
//!
//! The memory that senders cause is accounted to their exporter, at its cost to the allocator. It is bounded for an address, for
//! exporters on trial together, and for all. A bound that is exceeded has these effects:
//!
//! * An address exceeds its share: its largest exporter gives up memory. Files have no such bound.
//! * Exporters on trial exceed their common share: the collector forgets the one that has been silent longest.
//! * All exporters together exceed the memory: the largest exporter of the largest address gives up memory.
//!
//! So a large exporter gives up memory before a small one. An exporter first gives up data that waits for its
//! template, then templates, the oldest first, then the counters and samplers of sFlow. It gives up its other
//! memory only by being forgotten.
//!
//! Invariant: after every message [`FlowCollector::memory_bytes`] is at most [`CollectorOptions::memory`]. The counts
//! of a forgotten session are kept in the sum.

use super::MalformedMessage;
use super::allowed::ExporterList;
use super::counts::SessionCounts;
use super::exporter::{
    ExporterIdentity, MessageHead, MessageSource, MessageTransport, SequenceNumbers, read_head,
};
use super::memory::{block_bytes, map_memory_bytes};
use super::options::ReportedLosses;
use super::received::{ReceivedMessage, SessionOptions};
use super::session::ExportSession;
use super::sflow::InterfaceCounters;
use super::table::{ExporterStanding, ExporterTable, KnownExporter, entry_memory};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Bounds of a collector.
#[derive(Clone, Debug)]
pub struct CollectorOptions {
    /// Maximum number of exporters that are known at one time.
    pub exporters: usize,
    /// Maximum number of exporters of one address: with several ports, observation domains or protocols, one sender
    /// counts as several exporters.
    pub exporters_per_address: usize,
    /// Memory that all exporters may hold together, in bytes.
    pub memory: usize,
    /// An established exporter that was silent for this long may be forgotten when another needs its place.
    pub silence: Nanos,
    /// Time for which a new exporter over UDP is on trial.
    pub trial: Nanos,
    /// Addresses whose messages are read. An exporter that the list names by its own address needs no trial, if there
    /// is a place for it.
    pub allowed: ExporterList,
    pub session: SessionOptions,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self {
            exporters: 1024,
            exporters_per_address: 64,
            memory: 256 << 20,
            silence: Nanos::from_secs(60),
            trial: Nanos::from_secs(10),
            allowed: ExporterList::default(),
            session: SessionOptions::default(),
        }
    }
}

impl CollectorOptions {
    /// Maximum number of exporters at one time: fewer than the option says if their entries alone would take more than
    /// a quarter of the memory.
    pub fn exporter_limit(&self) -> usize {
        // The limit is at least one: `reserved_trial_places` is at least one too, and `end_exporter_trial_if_room`
        // subtracts it from this.
        self.exporters.min(self.memory / (4 * entry_memory())).max(1)
    }

    /// Number of places that are kept for exporters on trial.
    fn reserved_trial_places(&self) -> usize {
        (self.exporter_limit() / 4).max(1)
    }

    /// Memory that sessions may hold: the whole memory less the table and the ended exporters.
    fn session_memory_limit(&self) -> usize {
        self.memory
            .saturating_sub(self.exporter_limit() * entry_memory() + self.ended_exporter_memory_limit())
    }

    const fn ended_exporter_memory_limit(&self) -> usize {
        self.memory / 8
    }

    /// Memory that sessions of one address may hold.
    pub const fn address_memory_limit(&self) -> usize {
        self.memory / 8
    }
}

/// Messages that were not read, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedMessages {
    /// The message has no valid header of a protocol that the collector can read.
    pub unknown_protocol: u64,
    /// The sender's address is not on the list of exporters.
    pub not_allowed: u64,
    /// The address already has as many exporters as it may have.
    pub address_full: u64,
}

/// Exporters that were forgotten to make room for new ones, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenExporters {
    /// The exporter was on trial, and all places were taken.
    pub on_trial: u64,
    /// The memory was used up: the exporter was on trial, or had nothing else to give up.
    pub for_memory: u64,
    /// The exporter was established, and had been silent for long.
    pub silent: u64,
}

/// Counts and reported losses of an exporter that was forgotten.
#[derive(Clone, Debug, Default)]
struct EndedExporter {
    counts: SessionCounts,
    reported: Option<ReportedLosses>,
}

#[derive(Clone, Debug, Default)]
pub struct FlowCollector {
    options: CollectorOptions,
    table: ExporterTable,
    /// Exporters that sent data and are gone, without their ports: an exporter that comes back uses another port.
    ended: BTreeMap<ExporterIdentity, EndedExporter>,
    /// Memory of the names in `ended`.
    ended_names: usize,
    /// Sum over the gone exporters that are not in `ended`.
    gone: SessionCounts,
    refused: RefusedMessages,
    forgotten: ForgottenExporters,
}

impl RefusedMessages {
    pub const fn total_messages(&self) -> u64 {
        self.unknown_protocol + self.not_allowed + self.address_full
    }
}

impl FlowCollector {
    /// A collector that has received nothing.
    pub fn new(options: CollectorOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Reads one whole message that came from `source` at `now_ns`. The time must be of a clock that is never set, because
    /// ages are measured by it. A message that is refused for its address is counted, but is no error.
    pub fn receive_message(
        &mut self,
        source: MessageSource,
        message: &[u8],
        now_ns: u64,
        out: &mut impl FnMut(&ExporterIdentity, ReceivedMessage),
    ) -> Result<(), MalformedMessage> {
        // The user names every file, so the list of addresses does not apply to files.
        if source.transport != MessageTransport::File && !self.options.allowed.allows_address(source.address)
        {
            self.refused.not_allowed += 1;
            return Ok(());
        }
        // The address must be allowed and the protocol known before anything is stored for a message.
        let MessageHead { protocol, domain, agent } =
            read_head(message).inspect_err(|_| self.refused.unknown_protocol += 1)?;
        // An agent that sends its data itself is identified by the sender's address alone.
        let agent = agent.filter(|agent| *agent != source.address.to_canonical());
        let exporter = ExporterIdentity { source, protocol, domain, agent };
        if self.table.get(&exporter).is_none() && !self.admit_exporter(exporter, now_ns) {
            self.refused.address_full += 1;
            return Ok(());
        }
        self.table.record_exporter_message(&exporter, now_ns);
        let Some(known) = self.table.get_mut(&exporter) else { return Ok(()) };
        let read = known.session.decode_message(message, now_ns, &mut |received| out(&exporter, received));
        let is_known_for = now_ns.saturating_sub(known.first_ns);
        // A forger can send templates and garbage from any address at little cost. To become established it must send
        // records that can be decoded, and keep it up for the whole trial. A connection proves its address.
        let trial_ns =
            if source.transport == MessageTransport::Udp { self.options.trial.as_u64() } else { 0 };
        if known.standing == ExporterStanding::OnTrial
            && is_known_for >= trial_ns
            && has_delivered(known.session.counts())
        {
            self.end_exporter_trial_if_room(&exporter, now_ns);
        }
        // The memory is bounded after a malformed message as well: its templates and sets up to the fault were kept.
        self.limit_exporter_memory(&exporter);
        read
    }

    /// Gives a new exporter a place, if necessary by forgetting another one. Returns whether it has got one.
    fn admit_exporter(&mut self, exporter: ExporterIdentity, now_ns: u64) -> bool {
        let MessageSource { address, transport, .. } = exporter.source;
        let is_file = transport == MessageTransport::File;
        while !is_file
            && self.table.address_use(address).exporters >= self.options.exporters_per_address.max(1)
        {
            let on_trial = self.table.longest_silent_exporter_at(address, ExporterStanding::OnTrial).copied();
            let silent =
                self.table.longest_silent_exporter_at(address, ExporterStanding::Established).copied();
            let silent = silent.filter(|silent| self.is_silent(silent, now_ns));
            // An exporter on trial is forgotten first. An established one keeps its place until it has been silent for long.
            if let Some(oldest) = on_trial {
                self.forgotten.on_trial += 1;
                self.forget_exporter(&oldest);
            } else if let Some(silent) = silent {
                self.forgotten.silent += 1;
                self.forget_exporter(&silent);
            } else {
                return false;
            }
        }
        self.table.insert_exporter(exporter, self.new_session(exporter), ExporterStanding::OnTrial, now_ns);
        if is_file || self.options.allowed.lists_host(address) {
            self.end_exporter_trial_if_room(&exporter, now_ns);
        }
        // Established exporters never take the places that are reserved for the trial, and the newcomer has the
        // latest turn. So the exporter that is forgotten here is not the newcomer.
        while self.table.len() > self.options.exporter_limit()
            && let Some(oldest) = self.table.longest_silent_exporter(ExporterStanding::OnTrial).copied()
        {
            self.forgotten.on_trial += 1;
            self.forget_exporter(&oldest);
        }
        self.table.get(&exporter).is_some()
    }

    /// Creates the session of an exporter. Templates of a connection or file are valid until it ends.
    fn new_session(&self, exporter: ExporterIdentity) -> ExportSession {
        let options = self.options.session;
        let template_life =
            options.template_life.filter(|_| exporter.source.transport == MessageTransport::Udp);
        ExportSession::new(exporter.protocol, SessionOptions { template_life, ..options })
    }

    fn is_silent(&self, exporter: &ExporterIdentity, now_ns: u64) -> bool {
        let silence_ns = self.options.silence.as_u64();
        self.table.get(exporter).is_some_and(|known| now_ns.saturating_sub(known.heard_ns) >= silence_ns)
    }

    /// Ends an exporter's trial, if there is a place among the established exporters, or one of them was silent for long.
    fn end_exporter_trial_if_room(&mut self, exporter: &ExporterIdentity, now_ns: u64) {
        let most = self.options.exporter_limit() - self.options.reserved_trial_places();
        if self.table.count_exporters_by_standing(ExporterStanding::Established) >= most {
            let silent = self.table.longest_silent_exporter(ExporterStanding::Established).copied();
            let Some(silent) = silent.filter(|silent| self.is_silent(silent, now_ns)) else { return };
            self.forgotten.silent += 1;
            self.forget_exporter(&silent);
        }
        self.table.mark_exporter_established(exporter);
    }

    /// Frees memory until the bounds in the module documentation hold again, after a message of `exporter`.
    fn limit_exporter_memory(&mut self, exporter: &ExporterIdentity) {
        // The bounds are applied from the narrow one to the whole: an address that exceeds its share pays for
        // it before any other address does.
        self.table.update_exporter_memory(exporter);
        let MessageSource { address, transport, .. } = exporter.source;
        let share = if transport == MessageTransport::File {
            usize::MAX
        } else {
            self.options.address_memory_limit()
        };
        while self.table.address_use(address).memory > share
            && self.free_memory_of_address(address, self.table.address_use(address).memory - share)
        {}
        let most = self.options.session_memory_limit();
        // Half of the memory is out of reach of exporters on trial, because anybody can forge such exporters.
        while self.table.exporter_memory_by_standing(ExporterStanding::OnTrial) > most / 2
            && let Some(oldest) = self.table.longest_silent_exporter(ExporterStanding::OnTrial).copied()
        {
            self.forgotten.for_memory += 1;
            self.forget_exporter(&oldest);
        }
        while self.table.held_exporter_memory() > most
            && let Some(largest) = self.table.largest_address()
            && self.free_memory_of_address(largest, self.table.held_exporter_memory() - most)
        {}
    }

    /// Frees `excess` bytes of the largest exporter of an address, or as many as possible; forgets that
    /// exporter if it can free nothing. Returns whether there was one.
    fn free_memory_of_address(&mut self, address: IpAddr, excess: usize) -> bool {
        let Some(largest) = self.table.largest_exporter_at(address) else { return false };
        let Some(known) = self.table.get_mut(&largest) else { return false };
        let before = known.session.memory_bytes();
        known.session.free_memory_down_to(before.saturating_sub(excess));
        // A session that frees nothing holds only its fixed state. It must be forgotten, or
        // `limit_exporter_memory` would loop for ever.
        if known.session.memory_bytes() < before {
            self.table.update_exporter_memory(&largest);
        } else {
            self.forgotten.for_memory += 1;
            self.forget_exporter(&largest);
        }
        true
    }

    /// Memory that senders make the collector hold now, as it costs the allocator.
    pub fn memory_bytes(&self) -> usize {
        self.table.held_exporter_memory() + self.table.len() * entry_memory() + self.ended_exporter_memory()
    }

    fn ended_exporter_memory(&self) -> usize {
        // Live views hold these names too, and copy them once more for each reader.
        3 * (map_memory_bytes::<ExporterIdentity, EndedExporter>(self.ended.len()) + self.ended_names)
    }

    fn forget_exporter(&mut self, exporter: &ExporterIdentity) {
        let Some(mut known) = self.table.remove_exporter(exporter) else { return };
        // The session ends before its counts are added to the total: waiting bytes become undecoded bytes.
        known.session.end_session();
        // Senders choose their ports: with them, one address could fill the list by coming again and again.
        let portless = ExporterIdentity { source: MessageSource { port: 0, ..exporter.source }, ..*exporter };
        let is_listed = self.ended.contains_key(&portless);
        if !is_listed && !self.may_list_ended_exporter(&known) {
            // This exporter gets no line of its own, but its counts stay in the total.
            self.gone.add_counts(known.session.counts());
            return;
        }
        let ended = self.ended.entry(portless).or_default();
        let before = names_memory(&ended.counts);
        ended.counts.add_counts(known.session.counts());
        self.ended_names = self.ended_names + names_memory(&ended.counts) - before;
        if let Some(reported) = known.session.reported_losses() {
            if reported.ledger.is_some() {
                // The ledger covers the packets of former sessions.
                ended.counts.newer_packets = known.session.counts().newer_packets;
            }
            ended.reported.get_or_insert_default().update_from_later(reported);
        }
    }

    /// Returns whether an exporter gets a line of its own in live views. An exporter on trial that delivered nothing
    /// gets none: its address may be forged. The number of lines is limited, because senders choose it.
    fn may_list_ended_exporter(&self, known: &KnownExporter) -> bool {
        let is_known =
            known.standing == ExporterStanding::Established || has_delivered(known.session.counts());
        // Nodes of the map may be less than half full, and everything counts three times, see `ended_exporter_memory`.
        let one = size_of::<EndedExporter>() * 8 + 3 * names_memory(known.session.counts());
        let has_room = self.ended.len() < self.options.exporter_limit();
        is_known
            && has_room
            && self.ended_exporter_memory() + one < self.options.ended_exporter_memory_limit()
    }

    /// Forgets the exporters of a connection or file that has ended: a new connection from there begins new sessions.
    pub fn close_source(&mut self, source: MessageSource) {
        for exporter in self.table.exporters_of_source(source) {
            self.forget_exporter(&exporter);
        }
    }

    /// Forgets templates and waiting data that are too old, in all sessions.
    pub fn expire_old_state(&mut self, now_ns: u64) {
        // Copied, because `update_exporter_memory` changes the maps of the table.
        let all: Vec<ExporterIdentity> = self.table.keys().copied().collect();
        for exporter in all {
            if let Some(known) = self.table.get_mut(&exporter)
                && known.session.expire_old_state(now_ns)
            {
                self.table.update_exporter_memory(&exporter);
            }
        }
    }

    /// The exporters that are known now: their counts, and the losses that they reported.
    pub fn exporters(
        &self,
    ) -> impl Iterator<Item = (&ExporterIdentity, &SessionCounts, Option<&ReportedLosses>)> {
        let all = self.table.iter();
        all.map(|(exporter, known)| (exporter, known.session.counts(), known.session.reported_losses()))
    }

    /// The counters of its interfaces that an agent of sFlow has sent; empty for other exporters.
    pub fn interface_counters(&self, exporter: &ExporterIdentity) -> Vec<InterfaceCounters> {
        let known = self.table.get(exporter);
        known.map(|known| known.session.sflow.interfaces()).unwrap_or_default()
    }

    /// The sequence numbers of an exporter that is known now.
    pub fn sequence_numbers(&self, exporter: &ExporterIdentity) -> Option<SequenceNumbers> {
        self.table.get(exporter)?.session.sequence.sequence_numbers()
    }

    /// The exporters that have ended: their counts, and the losses that they reported. Their ports are 0.
    pub fn ended_exporters(
        &self,
    ) -> impl Iterator<Item = (&ExporterIdentity, &SessionCounts, Option<&ReportedLosses>)> {
        self.ended.iter().map(|(exporter, ended)| (exporter, &ended.counts, ended.reported.as_ref()))
    }

    /// Messages that were not read, by cause.
    pub const fn refused_messages(&self) -> RefusedMessages {
        self.refused
    }

    /// Exporters that were forgotten to make room for other exporters, by cause.
    pub const fn forgotten_exporters(&self) -> ForgottenExporters {
        self.forgotten
    }

    /// The sum over all exporters, including those that are gone.
    pub fn total_counts(&self) -> SessionCounts {
        let mut sum = self.gone.clone();
        for (_, counts, _) in self.exporters().chain(self.ended_exporters()) {
            sum.add_counts(counts);
        }
        sum
    }
}

fn has_delivered(counts: &SessionCounts) -> bool {
    counts.records + counts.events + counts.options_records > 0
}

fn names_memory(counts: &SessionCounts) -> usize {
    let blocks: usize = counts.skipped.iter().map(|name| block_bytes(name.len())).sum();
    blocks + map_memory_bytes::<String, ()>(counts.skipped.len())
}
