//! The table of exporters: the known exporters, which of them make room for new ones, and how much memory they hold.
//!
//! Any host can send a datagram from any address, so a new exporter is *on trial*. Exporters on trial share the
//! remaining places, and a newcomer replaces the one that has been silent longest. An exporter becomes *established*
//! once its messages could be decoded for a while, if it is on the list of exporters, or once it has delivered a record
//! over a connection. It keeps its place until it has been silent for [`silence`](super::CollectorOptions::silence).
//! Some places are never given to established exporters, so a newcomer always finds one.
//!
//! Every change takes time that grows only with the logarithm of the number of exporters.
//!
//! The IPv6 addresses of a /64 count as one address.
//!
//! Invariant: `memory` has the sum of the memory of all sessions for each standing, `of_address` the
//! sum for each address.

use super::exporter::{ExporterIdentity, sender_network};
use super::memory::{block_bytes, map_memory_bytes};
use super::session::ExportSession;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Whether an exporter has proved that it exists; see the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExporterTrialState {
    OnTrial,
    Established,
}

#[derive(Clone, Debug)]
pub(super) struct KnownExporter {
    pub(super) session: Box<ExportSession>,
    pub(super) first_ns: u64,
    pub(super) heard_ns: u64,
    pub(super) standing: ExporterTrialState,
    /// Memory that the session holds, in bytes.
    memory: usize,
    /// Position of the exporter in the order of last messages.
    turn: u64,
}

/// Number of exporters of one address, and the memory of their sessions in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressUsage {
    pub(super) exporters: usize,
    pub(super) memory: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ExporterTable {
    known: BTreeMap<ExporterIdentity, KnownExporter>,
    order: BTreeMap<(ExporterTrialState, u64), ExporterIdentity>,
    by_address: BTreeMap<(IpAddr, ExporterTrialState, u64), ExporterIdentity>,
    of_address: BTreeMap<IpAddr, AddressUsage>,
    /// Exporters by address and memory. `address_sizes` has the addresses by memory.
    sizes: BTreeSet<(IpAddr, usize, ExporterIdentity)>,
    address_sizes: BTreeSet<(usize, IpAddr)>,
    counts: [usize; 2],
    memory: [usize; 2],
    turn: u64,
}

/// Memory of an exporter whose session holds nothing, in bytes: its entries in all maps, the value itself, and two
/// copies of its counts in live views.
pub(super) const fn entry_memory() -> usize {
    let maps = map_memory_bytes::<ExporterIdentity, KnownExporter>(5)
        + map_memory_bytes::<(ExporterTrialState, u64), ExporterIdentity>(5)
        + map_memory_bytes::<(IpAddr, ExporterTrialState, u64), ExporterIdentity>(5)
        + map_memory_bytes::<IpAddr, AddressUsage>(5)
        + map_memory_bytes::<(IpAddr, usize, ExporterIdentity), ()>(5)
        + map_memory_bytes::<(usize, IpAddr), ()>(5);
    // A leaf of the maps above has five entries at least, and the levels above the leaves are less than half of them.
    let shown = size_of::<super::SessionCounts>()
        + size_of::<super::ReportedLosses>()
        + size_of::<ExporterIdentity>();
    maps * 3 / 2 / 5 + block_bytes(size_of::<ExportSession>()) + 2 * (shown + 64)
}

impl ExporterTable {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) const fn count_exporters_by_standing(&self, standing: ExporterTrialState) -> usize {
        self.counts[standing as usize]
    }

    /// Returns the memory that the sessions of all exporters with this standing hold, in bytes.
    pub(super) const fn exporter_memory_by_standing(&self, standing: ExporterTrialState) -> usize {
        self.memory[standing as usize]
    }

    pub(super) fn address_use(&self, address: IpAddr) -> AddressUsage {
        self.of_address.get(&sender_network(address)).copied().unwrap_or_default()
    }

    pub(super) fn get_mut(&mut self, exporter: &ExporterIdentity) -> Option<&mut KnownExporter> {
        self.known.get_mut(exporter)
    }

    pub(super) fn get(&self, exporter: &ExporterIdentity) -> Option<&KnownExporter> {
        self.known.get(exporter)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ExporterIdentity, &KnownExporter)> {
        self.known.iter()
    }

    /// Returns the memory that all sessions hold, in bytes.
    pub(super) const fn held_exporter_memory(&self) -> usize {
        self.memory[0] + self.memory[1]
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ExporterIdentity> {
        self.known.keys()
    }

    /// Returns the exporters of one connection or file.
    pub(super) fn exporters_of_source(&self, source: super::MessageSource) -> Vec<ExporterIdentity> {
        let from =
            ExporterIdentity { source, protocol: super::ExportProtocol::Ipfix, domain: 0, agent: None };
        // Identities are ordered by their source first, and `from` is the smallest identity of this source.
        let later = self.known.range(from..).map(|(exporter, _)| *exporter);
        later.take_while(|exporter| exporter.source == source).collect()
    }

    pub(super) fn insert_exporter(
        &mut self,
        exporter: ExporterIdentity,
        session: ExportSession,
        standing: ExporterTrialState,
        now_ns: u64,
    ) {
        // Turns are unique, so `order` never holds two exporters under one key.
        self.turn += 1;
        let known = KnownExporter {
            session: Box::new(session),
            first_ns: now_ns,
            heard_ns: now_ns,
            standing,
            memory: 0,
            turn: self.turn,
        };
        self.insert_eviction_turn(&exporter, standing, self.turn);
        self.counts[standing as usize] += 1;
        let address = sender_network(exporter.source.address);
        self.sizes.insert((address, 0, exporter));
        let of = self.of_address.entry(address).or_default();
        of.exporters += 1;
        self.address_sizes.insert((of.memory, address));
        self.known.insert(exporter, known);
        // The entry begins with no memory, but the new session may hold some.
        self.update_exporter_memory(&exporter);
    }

    pub(super) fn remove_exporter(&mut self, exporter: &ExporterIdentity) -> Option<KnownExporter> {
        let known = self.known.remove(exporter)?;
        self.remove_eviction_turn(exporter, known.standing, known.turn);
        self.counts[known.standing as usize] -= 1;
        self.memory[known.standing as usize] -= known.memory;
        let address = sender_network(exporter.source.address);
        self.sizes.remove(&(address, known.memory, *exporter));
        self.resize_address_memory(address, known.memory, 0);
        if let Some(of) = self.of_address.get_mut(&address) {
            of.exporters -= 1;
            if of.exporters == 0 {
                self.address_sizes.remove(&(of.memory, address));
                self.of_address.remove(&address);
            }
        }
        Some(known)
    }

    /// Records that the exporter sent a message at `now_ns`. It becomes the last exporter of its
    /// standing to be forgotten.
    pub(super) fn record_exporter_message(&mut self, exporter: &ExporterIdentity, now_ns: u64) {
        let Some(known) = self.known.get_mut(exporter) else { return };
        known.heard_ns = now_ns;
        // This exporter sent the last message as well: most exporters send several messages in a row.
        if known.turn == self.turn {
            return;
        }
        let standing = known.standing;
        let before = known.turn;
        self.turn += 1;
        known.turn = self.turn;
        self.remove_eviction_turn(exporter, standing, before);
        self.insert_eviction_turn(exporter, standing, self.turn);
    }

    /// Ends an exporter's trial: it counts among the established exporters from now on.
    pub(super) fn mark_exporter_established(&mut self, exporter: &ExporterIdentity) {
        let Some(known) = self.known.get_mut(exporter) else { return };
        if known.standing == ExporterTrialState::Established {
            return;
        }
        known.standing = ExporterTrialState::Established;
        // The turn stays: a change of standing is no message.
        let turn = known.turn;
        let memory = known.memory;
        self.remove_eviction_turn(exporter, ExporterTrialState::OnTrial, turn);
        self.insert_eviction_turn(exporter, ExporterTrialState::Established, turn);
        self.counts[ExporterTrialState::OnTrial as usize] -= 1;
        self.counts[ExporterTrialState::Established as usize] += 1;
        self.memory[ExporterTrialState::OnTrial as usize] -= memory;
        self.memory[ExporterTrialState::Established as usize] += memory;
    }

    /// Updates the memory that counts for an exporter. Needed after every change of its session.
    pub(super) fn update_exporter_memory(&mut self, exporter: &ExporterIdentity) {
        let Some(known) = self.known.get_mut(exporter) else { return };
        let now = known.session.memory_bytes();
        let before = std::mem::replace(&mut known.memory, now);
        if now == before {
            return;
        }
        let sum = &mut self.memory[known.standing as usize];
        *sum = *sum + now - before;
        let address = sender_network(exporter.source.address);
        self.sizes.remove(&(address, before, *exporter));
        self.sizes.insert((address, now, *exporter));
        self.resize_address_memory(address, before, now);
    }

    fn resize_address_memory(&mut self, address: IpAddr, before: usize, now: usize) {
        let Some(of) = self.of_address.get_mut(&address) else { return };
        self.address_sizes.remove(&(of.memory, address));
        of.memory = of.memory + now - before;
        self.address_sizes.insert((of.memory, address));
    }

    /// Returns the address whose sessions together hold the most memory.
    pub(super) fn largest_address(&self) -> Option<IpAddr> {
        self.address_sizes.last().map(|(_, address)| *address)
    }

    /// Returns the exporter of an address (for IPv6: of its /64) that holds the most memory.
    pub(super) fn largest_exporter_at(&self, address: IpAddr) -> Option<ExporterIdentity> {
        let address = sender_network(address);
        // No exporter of the address has more than the upper bound, so the last entry of the range is the largest one.
        let range = self.sizes.range(
            (address, 0, ExporterIdentity::SMALLEST_IDENTITY)
                ..=(address, usize::MAX, ExporterIdentity::SMALLEST_IDENTITY),
        );
        range.last().map(|(_, _, exporter)| *exporter)
    }

    /// Returns the exporter with this standing that has been silent longest.
    pub(super) fn longest_silent_exporter(&self, standing: ExporterTrialState) -> Option<&ExporterIdentity> {
        self.order.range((standing, 0)..=(standing, u64::MAX)).next().map(|(_, exporter)| exporter)
    }

    /// Of the exporters at this address (for IPv6: in its /64) with this standing, returns the one that
    /// has been silent longest.
    pub(super) fn longest_silent_exporter_at(
        &self,
        address: IpAddr,
        standing: ExporterTrialState,
    ) -> Option<&ExporterIdentity> {
        let address = sender_network(address);
        let range = (address, standing, 0)..=(address, standing, u64::MAX);
        self.by_address.range(range).next().map(|(_, exporter)| exporter)
    }

    fn insert_eviction_turn(&mut self, exporter: &ExporterIdentity, standing: ExporterTrialState, turn: u64) {
        self.order.insert((standing, turn), *exporter);
        self.by_address.insert((sender_network(exporter.source.address), standing, turn), *exporter);
    }

    fn remove_eviction_turn(&mut self, exporter: &ExporterIdentity, standing: ExporterTrialState, turn: u64) {
        self.order.remove(&(standing, turn));
        self.by_address.remove(&(sender_network(exporter.source.address), standing, turn));
    }
}
