//! The state of one client that all threads use: its user, its counts, and the messages that it has not read yet.
//!
//! Invariant: a client that does not read its messages loses no reports. Answers for it may be dropped,
//! and are counted then.

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
    /// True for root and for the user of the service, who may send from every port.
    pub(super) is_trusted: bool,
}

/// The state of a client that several threads change.
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

/// The state that a client shares with other clients.
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

    /// Charges the cost of work to the allowance of the client and to that of its user.
    pub(super) fn spend_units(&self, units: u64) {
        let now = now();
        // The locks are taken one after the other, never together, so no order of locks can cause a deadlock.
        self.lock_allowance().spend_units(units, now);
        self.lock_user_allowance().spend_units(units, now);
    }

    fn refund_units(&self, units: u64) {
        self.lock_allowance().refund_units(units);
        self.lock_user_allowance().refund_units(units);
    }

    fn lock_allowance(&self) -> MutexGuard<'_, ClientAllowance> {
        self.allowance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_user_allowance(&self) -> MutexGuard<'_, WorkAllowance> {
        self.shared.of_user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time for which nothing may be read from the client, because an allowance is used up;
    /// zero if none is.
    pub(super) fn needed_pause(&self) -> Nanos {
        let now = now();
        let of_user = self.lock_user_allowance().needed_pause(now);
        self.lock_allowance().needed_pause(of_user, now)
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the data of the client that is kept after it has disconnected.
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

    /// Sends a message, or queues it until the client has read earlier ones.
    pub(super) fn send_message(&self, message: &ServiceMessage) {
        self.lock_state().send_bytes(&self.stream, message.to_bytes());
    }

    /// Reports the outcome of packets to the client, and counts it.
    pub(super) fn report_packets(&self, reports: &[PacketReport]) {
        let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent).count();
        // Each sent packet refunds the cost of a message, so a program whose packets are sent is never slowed.
        self.refund_units(work::SENT_PACKET_REFUND * sent as u64);
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

    /// Queues an answer for the client if the filter passes it and the client reads its messages.
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
            // ICMP has no ports, so ICMP answers pass for any wanted port.
            && filter.own_port.is_none_or(|wanted| own_port.is_none_or(|port| port == wanted))
            && filter.from.is_none_or(|wanted| wanted == from);
        if !is_wanted {
            return;
        }
        // Reports must never be lost, so answers are dropped first.
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
        // Each answer contains the number of all answers dropped so far, so the next delivered answer
        // has the full number.
        answer.lost = state.lost_answers;
        state.send_bytes(&self.stream, ServiceMessage::Answer(answer).to_bytes());
    }

    /// Sends waiting messages until the socket is full. Returns the number of messages that still wait.
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
        // An error counts as sent, because the client has disconnected.
        if !self.outbox.is_empty() || !stream.send_message(&message).unwrap_or(true) {
            self.outbox.push_back(message);
        }
    }
}
