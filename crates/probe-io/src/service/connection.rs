//! One client, as all threads see it: its user, its counts, and the messages that it has not read yet.
//!
//! Invariant: a client that does not read loses no report; answers that it does not read are counted.

use super::report::{self, ClientCounts, PastClient};
use super::totals::ServiceTotals;
use crate::now;
use packetrig_probe::PacketRefusal;
use packetrig_probe::service::{ClientAllowance, ClientId, QueuedTrain, WorkAllowance, work};
use packetrig_release::message::{AnswerFilter, PacketOutcome, PacketReport, ReceivedAnswer, ServiceMessage};
use packetrig_sys::seqpacket::{PeerProcess, SeqpacketStream};
use packetrig_units::Nanos;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Answers beyond this number of unread messages are dropped and counted.
const MAX_UNREAD_FOR_ANSWERS: usize = 64;

/// Rights of the user of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientRights {
    /// Highest priority that the client may request.
    pub(super) priority: u8,
    /// Root or the user of the service: it may use every port.
    pub(super) is_trusted: bool,
}

/// The part of a client that several threads change.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    outbox: VecDeque<Vec<u8>>,
    pub(super) name: String,
    pub(super) priority: u8,
    pub(super) counts: ClientCounts,
    pub(super) filter: Option<AnswerFilter>,
    lost_answers: u32,
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) id: ClientId,
    pub(super) peer: PeerProcess,
    pub(super) rights: ClientRights,
    pub(super) stream: SeqpacketStream,
    state: Mutex<ClientState>,
    allowance: Mutex<ClientAllowance>,
    shared: SharedClientState,
}

/// The part of a client that it shares with other clients.
#[derive(Debug)]
pub(super) struct SharedClientState {
    /// The allowance of all clients of this user.
    pub(super) of_user: Arc<Mutex<WorkAllowance>>,
    /// The counts of all clients.
    pub(super) totals: Arc<ServiceTotals>,
}

impl ClientConnection {
    pub(super) fn new(
        id: ClientId,
        stream: SeqpacketStream,
        peer: PeerProcess,
        rights: ClientRights,
        shared: SharedClientState,
    ) -> Self {
        Self { id, peer, rights, stream, state: Mutex::default(), allowance: Mutex::default(), shared }
    }

    /// Takes the cost of work from its allowance and that of its user.
    pub(super) fn spend_units(&self, units: u64) {
        let now = now();
        // One lock after the other, never both at once, so no order of locks can be wrong.
        self.lock_allowance().spend_units(units, now);
        self.lock_user_allowance().spend_units(units, now);
    }

    fn return_units(&self, units: u64) {
        self.lock_allowance().return_units(units);
        self.lock_user_allowance().return_units(units);
    }

    fn lock_allowance(&self) -> MutexGuard<'_, ClientAllowance> {
        self.allowance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_user_allowance(&self) -> MutexGuard<'_, WorkAllowance> {
        self.shared.of_user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time for which nothing is read from it.
    pub(super) fn needed_pause(&self) -> Nanos {
        let now = now();
        let of_user = self.lock_user_allowance().needed_pause(now);
        self.lock_allowance().needed_pause(of_user, now)
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the part of it that is kept when it is gone.
    pub(super) fn to_past_client(&self) -> PastClient {
        let state = self.lock_state();
        PastClient {
            name: state.name.clone(),
            user: self.peer.user,
            process: self.peer.process,
            priority: state.priority,
            counts: state.counts.packets.clone(),
            release_error_ns: state.counts.release_error_ns(),
        }
    }

    /// Sends a message, or keeps it until the client has read others.
    pub(super) fn send_message(&self, message: &ServiceMessage) {
        self.lock_state().send_bytes(&self.stream, message.to_bytes());
    }

    /// Reports the outcome of packets.
    pub(super) fn report_packets(&self, reports: &[PacketReport]) {
        let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent).count();
        // A sent packet pays for a message, so a program that sends what it hands over is never slowed.
        self.return_units(work::SENT_PACKET_COST * sent as u64);
        self.spend_units(work::UNSENT_PACKET_COST * (reports.len() - sent) as u64);
        let mut state = self.lock_state();
        for report in reports {
            state.counts.add_report(report);
            self.shared.totals.add_report(report);
        }
        for part in reports.chunks(ServiceMessage::MAX_REPORTS) {
            let message = ServiceMessage::Report { reports: part.to_vec() };
            state.send_bytes(&self.stream, message.to_bytes());
        }
    }

    /// Reports that the packets of a train, or of a part of one, were not sent.
    pub(super) fn report_refused(&self, train: &QueuedTrain, why: PacketRefusal) {
        let reports: Vec<_> = train
            .packets
            .iter()
            .map(|packet| {
                let planned = packet.due.as_nanos();
                PacketReport::new_unsent(
                    train.batch,
                    packet.cookie,
                    train.train,
                    planned,
                    report::refusal_outcome(why),
                )
            })
            .collect();
        self.report_packets(&reports);
    }

    /// Gives an answer to the client if the filter passes it and the client reads its messages.
    pub(super) fn queue_received_answer(
        &self,
        from: IpAddr,
        protocol: u8,
        own_port: Option<u16>,
        answer: ReceivedAnswer,
    ) {
        let mut state = self.lock_state();
        let Some(filter) = state.filter else { return };
        let is_wanted = filter.protocol.is_none_or(|wanted| wanted == protocol)
            // Errors have no port of their own: they pass, whatever port is wanted.
            && filter.own_port.is_none_or(|wanted| own_port.is_none_or(|port| port == wanted))
            && filter.from.is_none_or(|wanted| wanted == from);
        if !is_wanted {
            return;
        }
        // Reports must never be lost, so answers give way first.
        if state.outbox.len() >= MAX_UNREAD_FOR_ANSWERS {
            state.lost_answers = state.lost_answers.saturating_add(1);
            self.shared.totals.lost_answers.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let most = filter.most_bytes.map_or(usize::MAX, |most| most as usize);
        let mut answer = answer;
        answer.bytes.truncate(most);
        state.counts.packets.answers += 1;
        self.shared.totals.answers.fetch_add(1, Ordering::Relaxed);
        // The count is cumulative, so an answer that is dropped later loses no information.
        answer.lost = state.lost_answers;
        state.send_bytes(&self.stream, ServiceMessage::Answer(answer).to_bytes());
    }

    /// Sends waiting messages, as far as there is room. Returns the number of messages that still wait.
    pub(super) fn flush_outbox(&self) -> usize {
        let mut state = self.lock_state();
        while let Some(message) = state.outbox.front() {
            match self.stream.send_message(message) {
                Ok(true) => drop(state.outbox.pop_front()),
                Ok(false) => break,
                // The client has closed the connection. The reading thread notices that.
                Err(_) => state.outbox.clear(),
            }
        }
        state.outbox.len()
    }
}

impl ClientState {
    fn send_bytes(&mut self, stream: &SeqpacketStream, message: Vec<u8>) {
        // A message must not overtake those that wait.
        // An error counts as sent: the client has gone.
        if !self.outbox.is_empty() || !stream.send_message(&message).unwrap_or(true) {
            self.outbox.push_back(message);
        }
    }
}
