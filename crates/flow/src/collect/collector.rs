//! The collector of many exporters: passes each message to the session it belongs to.
//!
//! All state that the messages of an exporter create counts as memory of that exporter, including the overhead of
//! the allocator. The memory is limited for each address, for all exporters on trial together, and in total. (An
//! exporter is on trial until it has delivered records that could be decoded; over UDP, also for a minimum time.) If
//! a limit is exceeded:
//!
//! * An address exceeds its limit: its exporter with the most memory gives up some. Files have no such limit.
//! * Exporters on trial exceed their common limit: the collector forgets the one that has been silent longest.
//! * All exporters together exceed the total limit: of the address with the most memory, the exporter with the most
//!   memory gives up some.
//!
//! So a large exporter gives up memory before a small one. An exporter first gives up data that waits for its template,
//! then templates, the oldest first, then the interface counters and samplers of sFlow. The rest of its memory is freed
//! only when the collector forgets the exporter.
//!
//! Invariant: after every message [`FlowCollector::memory_bytes`] is at most [`CollectorOptions::memory`]. The counts
//! of a forgotten session remain in [`FlowCollector::total_counts`].

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
use super::table::{ExporterTable, ExporterTrialState, KnownExporter, entry_memory};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Limits and timeouts of a collector, and the options of its sessions.
#[derive(Clone, Debug)]
pub struct CollectorOptions {
    /// Maximum number of exporters that the collector keeps at one time.
    pub exporters: usize,
    /// Maximum number of exporters of one address (for IPv6: of one /64). With several ports, observation domains or
    /// protocols, one sender counts as several exporters.
    pub exporters_per_address: usize,
    /// Memory that all exporters may hold together, in bytes.
    pub memory: usize,
    /// An established exporter that was silent for this long may be forgotten to make room for another one.
    pub silence: Nanos,
    /// Minimum time for which a new exporter over UDP is on trial.
    pub trial: Nanos,
    /// Addresses whose messages are read. An exporter that the list names by its own address needs no trial, if there
    /// is room among the established exporters.
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
    /// Returns the maximum number of exporters at one time, at least 1: fewer than `exporters` if the table entries of
    /// that many exporters would take more than a quarter of the memory.
    pub fn exporter_limit(&self) -> usize {
        // The limit is at least one: `reserved_trial_places` is at least one too, and `end_exporter_trial_if_room`
        // subtracts that number from the limit.
        self.exporters.min(self.memory / (4 * entry_memory())).max(1)
    }

    /// Number of exporters on trial for which the table always has room.
    fn reserved_trial_places(&self) -> usize {
        (self.exporter_limit() / 4).max(1)
    }

    /// Memory that all sessions together may hold, in bytes: the whole memory less the table and the ended exporters.
    fn session_memory_limit(&self) -> usize {
        self.memory
            .saturating_sub(self.exporter_limit() * entry_memory() + self.ended_exporter_memory_limit())
    }

    const fn ended_exporter_memory_limit(&self) -> usize {
        self.memory / 8
    }

    /// Memory that the sessions of one address together may hold, in bytes: an eighth of the whole.
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
    /// The exporter was on trial, and the maximum number of exporters was reached.
    pub on_trial: u64,
    /// The memory was used up: the exporter was on trial, or had no other memory to give up.
    pub for_memory: u64,
    /// The exporter was established but had been silent for [`CollectorOptions::silence`], and another
    /// one needed its place.
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
    /// Counts of forgotten exporters that had sent data. Their ports are 0 here: an exporter that comes
    /// back uses another port.
    ended: BTreeMap<ExporterIdentity, EndedExporter>,
    /// Memory of the field names in the counts of `ended`, in bytes.
    ended_names: usize,
    /// Sum of the counts of all forgotten exporters that are not in `ended`.
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
    /// Creates a collector without exporters.
    pub fn new(options: CollectorOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Decodes one whole message from `source` and passes its content to `out`. `now_ns` is the time of arrival on a
    /// clock that is never set, because ages are measured with it. A message that is refused because of its address is
    /// counted, but is no error.
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
        // A forger can send templates and garbage from any address at little cost. To become established, an exporter
        // must have sent records that can be decoded, and must still send after the trial time. A connection proves the
        // sender's address, so it needs no trial time.
        let trial_ns =
            if source.transport == MessageTransport::Udp { self.options.trial.as_u64() } else { 0 };
        if known.standing == ExporterTrialState::OnTrial
            && is_known_for >= trial_ns
            && has_sent_decodable_data(known.session.counts())
        {
            self.end_exporter_trial_if_room(&exporter, now_ns);
        }
        // The memory is limited after a malformed message as well: its templates and sets up to the fault were stored.
        self.limit_exporter_memory(&exporter);
        read
    }

    /// Adds a new exporter to the table, if necessary by forgetting another one. Returns false if there is
    /// no room for it.
    fn admit_exporter(&mut self, exporter: ExporterIdentity, now_ns: u64) -> bool {
        let MessageSource { address, transport, .. } = exporter.source;
        let is_file = transport == MessageTransport::File;
        while !is_file
            && self.table.address_use(address).exporters >= self.options.exporters_per_address.max(1)
        {
            let on_trial =
                self.table.longest_silent_exporter_at(address, ExporterTrialState::OnTrial).copied();
            let silent =
                self.table.longest_silent_exporter_at(address, ExporterTrialState::Established).copied();
            let silent = silent.filter(|silent| self.is_silent(silent, now_ns));
            // An exporter on trial is forgotten first. An established one is forgotten only if it has
            // been silent for long.
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
        self.table.insert_exporter(exporter, self.new_session(exporter), ExporterTrialState::OnTrial, now_ns);
        if is_file || self.options.allowed.lists_host(address) {
            self.end_exporter_trial_if_room(&exporter, now_ns);
        }
        // At least one place is reserved for exporters on trial. So a full table has another one on trial, and that one has
        // been silent longer than the new exporter, which is not forgotten here.
        while self.table.len() > self.options.exporter_limit()
            && let Some(oldest) = self.table.longest_silent_exporter(ExporterTrialState::OnTrial).copied()
        {
            self.forgotten.on_trial += 1;
            self.forget_exporter(&oldest);
        }
        self.table.get(&exporter).is_some()
    }

    /// Creates the session of an exporter. Templates of a connection or file do not expire; they are
    /// valid until it ends.
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

    /// Ends an exporter's trial if there is room among the established exporters, or if one of them was silent for long
    /// and can be forgotten. Otherwise the exporter stays on trial.
    fn end_exporter_trial_if_room(&mut self, exporter: &ExporterIdentity, now_ns: u64) {
        let most = self.options.exporter_limit() - self.options.reserved_trial_places();
        if self.table.count_exporters_by_standing(ExporterTrialState::Established) >= most {
            let silent = self.table.longest_silent_exporter(ExporterTrialState::Established).copied();
            let Some(silent) = silent.filter(|silent| self.is_silent(silent, now_ns)) else { return };
            self.forgotten.silent += 1;
            self.forget_exporter(&silent);
        }
        self.table.mark_exporter_established(exporter);
    }

    /// Frees memory until all limits in the module documentation are kept again, after a message of `exporter`.
    fn limit_exporter_memory(&mut self, exporter: &ExporterIdentity) {
        // The limit of the address is applied before the limit of the whole: an address that exceeds its own limit
        // gives up memory before any other address does.
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
        // Exporters on trial together get at most half of the memory, because anybody can forge such exporters.
        while self.table.exporter_memory_by_standing(ExporterTrialState::OnTrial) > most / 2
            && let Some(oldest) = self.table.longest_silent_exporter(ExporterTrialState::OnTrial).copied()
        {
            self.forgotten.for_memory += 1;
            self.forget_exporter(&oldest);
        }
        while self.table.held_exporter_memory() > most
            && let Some(largest) = self.table.largest_address()
            && self.free_memory_of_address(largest, self.table.held_exporter_memory() - most)
        {}
    }

    /// Frees `excess` bytes, or as many as possible, of the exporter of an address that holds the most memory. Forgets
    /// that exporter if it can free nothing. Returns false if the address has no exporter.
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

    /// Returns the memory that the collector holds because of its senders, in bytes, including the
    /// overhead of the allocator.
    pub fn memory_bytes(&self) -> usize {
        self.table.held_exporter_memory() + self.table.len() * entry_memory() + self.ended_exporter_memory()
    }

    fn ended_exporter_memory(&self) -> usize {
        // Three times, because live views hold these names too, and copy them once more for each reader.
        3 * (map_memory_bytes::<ExporterIdentity, EndedExporter>(self.ended.len()) + self.ended_names)
    }

    fn forget_exporter(&mut self, exporter: &ExporterIdentity) {
        let Some(mut known) = self.table.remove_exporter(exporter) else { return };
        // The session ends before its counts are added to the total, so that its waiting bytes
        // are counted as undecoded.
        known.session.end_session();
        // The list has no ports: senders choose them, so one address could fill the list by coming again and
        // again from other ports.
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
                // The ledger covers the packets of earlier sessions, so only those of the last session can be newer.
                ended.counts.newer_packets = known.session.counts().newer_packets;
            }
            ended.reported.get_or_insert_default().update_from_later(reported);
        }
    }

    /// Returns whether an exporter gets a line of its own in live views. An exporter on trial that delivered
    /// nothing gets none: its address may be forged. The number of lines is limited, because senders can make up
    /// any number of exporters.
    fn may_list_ended_exporter(&self, known: &KnownExporter) -> bool {
        let is_known = known.standing == ExporterTrialState::Established
            || has_sent_decodable_data(known.session.counts());
        // Nodes of the map may be less than half full, and everything counts three times, see `ended_exporter_memory`.
        let one = size_of::<EndedExporter>() * 8 + 3 * names_memory(known.session.counts());
        let has_room = self.ended.len() < self.options.exporter_limit();
        is_known
            && has_room
            && self.ended_exporter_memory() + one < self.options.ended_exporter_memory_limit()
    }

    /// Forgets the exporters of a connection or file that has ended: a new connection from the same
    /// source begins new sessions.
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

    /// Returns the current exporters with their counts and the losses that they reported.
    pub fn exporters(
        &self,
    ) -> impl Iterator<Item = (&ExporterIdentity, &SessionCounts, Option<&ReportedLosses>)> {
        let all = self.table.iter();
        all.map(|(exporter, known)| (exporter, known.session.counts(), known.session.reported_losses()))
    }

    /// Returns the interface counters that an sFlow agent has sent; empty for other exporters.
    pub fn interface_counters(&self, exporter: &ExporterIdentity) -> Vec<InterfaceCounters> {
        let known = self.table.get(exporter);
        known.map(|known| known.session.sflow.interfaces()).unwrap_or_default()
    }

    /// Returns the first and the next sequence number of a current exporter; `None` if the collector does not know the
    /// exporter, or has read no message of it.
    pub fn sequence_numbers(&self, exporter: &ExporterIdentity) -> Option<SequenceNumbers> {
        self.table.get(exporter)?.session.sequence.sequence_numbers()
    }

    /// Returns the forgotten exporters that had sent data, with their counts and the losses that they reported. Their
    /// ports are 0, and their number is limited.
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

    /// Returns the sum of the counts of all exporters, including forgotten ones.
    pub fn total_counts(&self) -> SessionCounts {
        let mut sum = self.gone.clone();
        for (_, counts, _) in self.exporters().chain(self.ended_exporters()) {
            sum.add_counts(counts);
        }
        sum
    }
}

fn has_sent_decodable_data(counts: &SessionCounts) -> bool {
    counts.records + counts.events + counts.options_records > 0
}

fn names_memory(counts: &SessionCounts) -> usize {
    let blocks: usize = counts.skipped.iter().map(|name| block_bytes(name.len())).sum();
    blocks + map_memory_bytes::<String, ()>(counts.skipped.len())
}
