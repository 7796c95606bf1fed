//! One client: reads its messages, answers them, and keeps what it has not read yet.

use super::PIECE_NS;
use super::intake;
use super::report::{self, ClientCounts};
use super::shared::ServiceShared;
use crate::now;
use packetrig_probe::PacketRefusal;
use packetrig_probe::service::{ClientId, PacketEnds, PacketFlow, QueuedTrain};
use packetrig_release::message::{
    AnswerFilter, ClientMessage, HeardAnswer, LONGEST_MESSAGE, PacketReport, ProtocolErrorCode, ServiceFacts,
    ServiceMessage, ServiceState, VERSION,
};
use packetrig_sys::sched;
use packetrig_sys::seqpacket::{PeerProcess, ReceivedMessage, SeqpacketStream};
use packetrig_units::Nanos;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most packets of one batch.
const BATCH_PACKETS: u32 = 1_024;
/// Messages that a client has not read, beyond which nothing more is read from it.
const UNREAD: usize = 256;
/// Answers beyond this number of unread messages are dropped and counted.
const UNREAD_ANSWERS: usize = 64;
/// Flows by which answers are known, of each client; the oldest are forgotten.
const MOST_FLOWS: usize = 4_096;
/// A connection must begin with HELLO within this time.
const TO_BEGIN: Nanos = Nanos::from_secs(5);
/// How long messages that wait are still sent after the service has ended.
const TO_END: Nanos = Nanos::from_millis(500);

/// The flow of packets of a client, as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentFlow {
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    pub(super) flow: PacketFlow,
}

/// The part of a client that several threads change.
#[derive(Debug, Default)]
struct ClientState {
    outbox: VecDeque<Vec<u8>>,
    counts: ClientCounts,
    filter: Option<AnswerFilter>,
    flows: BTreeSet<SentFlow>,
    flows_in_order: VecDeque<SentFlow>,
    lost_answers: u32,
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) id: ClientId,
    pub(super) peer: PeerProcess,
    stream: SeqpacketStream,
    /// The highest that it may ask for.
    priority: u8,
    state: Mutex<ClientState>,
}

impl ClientConnection {
    pub(super) fn new(id: ClientId, stream: SeqpacketStream, peer: PeerProcess, priority: u8) -> Self {
        let state = ClientState { counts: ClientCounts::of(peer), ..ClientState::default() };
        Self { id, peer, stream, priority, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> ClientCounts {
        self.state().counts.clone()
    }

    /// Whether it wants answers.
    pub(super) fn is_listening(&self) -> bool {
        self.state().filter.is_some()
    }

    /// Sends a message, or keeps it until the client has read others.
    fn send(&self, message: &ServiceMessage) {
        self.state().send(&self.stream, message.write());
    }

    /// Tells what became of packets.
    pub(super) fn report(&self, reports: &[PacketReport]) {
        let mut state = self.state();
        for report in reports {
            state.counts.add(report);
        }
        for part in reports.chunks(ServiceMessage::MOST_REPORTS) {
            let message = ServiceMessage::Report { reports: part.to_vec() };
            state.send(&self.stream, message.write());
        }
    }

    /// Tells that the packets of a train, or of a part of one, were not sent.
    pub(super) fn report_refused(&self, train: &QueuedTrain, why: PacketRefusal) {
        let reports: Vec<_> = train
            .packets
            .iter()
            .map(|packet| {
                let planned = packet.due.as_nanos();
                PacketReport::unsent(train.batch, packet.cookie, train.train, planned, report::outcome(why))
            })
            .collect();
        self.report(&reports);
    }

    /// Notes by what answers to a packet are known.
    pub(super) fn note_flow(&self, ends: &PacketEnds) {
        let flow = SentFlow { source: ends.source, target: ends.target, flow: ends.flow };
        let mut state = self.state();
        if state.flows.insert(flow) {
            state.flows_in_order.push_back(flow);
            if state.flows_in_order.len() > MOST_FLOWS
                && let Some(oldest) = state.flows_in_order.pop_front()
            {
                state.flows.remove(&oldest);
            }
        }
    }

    /// Whether packets of this flow were the client's.
    pub(super) fn has_sent(&self, flow: &SentFlow) -> bool {
        self.state().flows.contains(flow)
    }

    /// Gives an answer to the client if it wants it and reads what it is sent.
    pub(super) fn offer_answer(
        &self,
        from: IpAddr,
        protocol: u8,
        own_port: Option<u16>,
        answer: &HeardAnswer,
    ) {
        let mut state = self.state();
        let Some(filter) = state.filter else { return };
        let is_wanted = filter.protocol.is_none_or(|wanted| wanted == protocol)
            && filter.own_port.is_none_or(|wanted| own_port.is_none_or(|port| port == wanted))
            && filter.from.is_none_or(|wanted| wanted == from);
        if !is_wanted {
            return;
        }
        if state.outbox.len() >= UNREAD_ANSWERS {
            state.lost_answers = state.lost_answers.saturating_add(1);
            return;
        }
        let most = filter.most_bytes.map_or(usize::MAX, |most| most as usize);
        let bytes = answer.bytes[..answer.bytes.len().min(most)].to_vec();
        state.counts.answers += 1;
        let answer = HeardAnswer { bytes, lost: state.lost_answers, ..answer.clone() };
        state.send(&self.stream, ServiceMessage::Answer(answer).write());
    }

    /// Sends what waits, as far as there is room. Returns how many messages still wait.
    fn flush(&self) -> usize {
        let mut state = self.state();
        while let Some(message) = state.outbox.front() {
            match self.stream.send(message) {
                Ok(true) => drop(state.outbox.pop_front()),
                Ok(false) => break,
                // The other end is gone: its closing is noticed when reading.
                Err(_) => state.outbox.clear(),
            }
        }
        state.outbox.len()
    }
}

impl ClientState {
    fn send(&mut self, stream: &SeqpacketStream, message: Vec<u8>) {
        // In order: a message must not overtake those that wait.
        if !self.outbox.is_empty() || !stream.send(&message).unwrap_or(true) {
            self.outbox.push_back(message);
        }
    }
}

/// Tells a program that it cannot be a client.
pub(super) fn refuse(stream: &SeqpacketStream, code: ProtocolErrorCode, text: &str) {
    let message = ServiceMessage::Error { id: 0, code, closes: true, text: text.to_owned() };
    // Whoever does not read it finds the connection closed.
    drop(stream.send(&message.write()));
}

/// Handles the messages of a client until it or the service ends.
pub(super) fn serve(client: &ClientConnection, shared: &ServiceShared) {
    // The outlet waits for the lock of the queue, which this thread holds for moments. If other programs kept it from the processor in
    // such a moment, packets would be late.
    drop(sched::request_precedence());
    let began = now();
    let mut session = ClientSession { client, shared, is_introduced: false };
    let mut buffer = vec![0; LONGEST_MESSAGE];
    while !shared.has_ended() {
        let unread = client.flush();
        let waited = if unread < UNREAD {
            client.stream.wait(unread > 0, PIECE_NS)
        } else {
            client.stream.wait_for_room(PIECE_NS)
        };
        let is_late = !session.is_introduced && now().since(began) > TO_BEGIN;
        if waited.is_err() || is_late || unread < UNREAD && !session.read(&mut buffer) {
            break;
        }
    }
    if shared.has_ended() {
        finish(client);
    }
}

/// Sends what waits after the service has ended, to a client that reads it.
fn finish(client: &ClientConnection) {
    let deadline = now() + TO_END;
    while client.flush() > 0 && now() < deadline && client.stream.wait_for_room(PIECE_NS).is_ok() {}
}

struct ClientSession<'a> {
    client: &'a ClientConnection,
    shared: &'a ServiceShared,
    is_introduced: bool,
}

impl ClientSession<'_> {
    /// Handles messages that wait, until there are none or the client does not read its answers. `false`: the connection ends.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        while self.client.flush() < UNREAD {
            match self.client.stream.receive(buffer) {
                Ok(ReceivedMessage::Nothing) => return true,
                Ok(ReceivedMessage::Closed) | Err(_) => return false,
                Ok(ReceivedMessage::Message(length)) => {
                    let message = buffer.get(..length).and_then(ClientMessage::read);
                    if !self.handle(message) {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn handle(&mut self, message: Option<ClientMessage>) -> bool {
        match (message, self.is_introduced) {
            (Some(ClientMessage::Hello { id, version, priority, name }), false) => {
                self.welcome(id, version, priority, name)
            }
            (Some(ClientMessage::Submit { batch, packets }), true) => {
                let answer = intake::take(self.client, self.shared, batch, packets);
                self.client.send(&answer);
                true
            }
            (Some(ClientMessage::Cancel { id, batch, train }), true) => {
                let cancelled = self.shared.lock().queue.cancel(self.client.id, batch, train);
                let count = cancelled.iter().map(|burst| crate::small_count(burst.part.packets.len())).sum();
                self.client.send(&ServiceMessage::Cancelled { id, count });
                for burst in &cancelled {
                    self.client.report_refused(&burst.part, PacketRefusal::Cancelled);
                }
                true
            }
            (Some(ClientMessage::Listen { id, filter }), true) => {
                self.client.state().filter = filter;
                self.client.send(&ServiceMessage::Listening { id });
                true
            }
            (Some(ClientMessage::Status { id }), true) => {
                let state = self.status();
                self.client.send(&ServiceMessage::State { id, state });
                true
            }
            (message, _) => {
                let id = message.map_or(0, |message| message.id());
                let text = "the message breaks the protocol, or is not expected now";
                self.fail(id, ProtocolErrorCode::BrokenMessage, text)
            }
        }
    }

    fn welcome(&mut self, id: u64, version: u16, priority: u8, name: String) -> bool {
        if version != VERSION {
            let text = format!(
                "version {version} of the protocol is not known; this service speaks version {VERSION}"
            );
            return self.fail(id, ProtocolErrorCode::UnknownVersion, &text);
        }
        let priority = priority.min(self.client.priority);
        let ServiceShared { interface, options, .. } = self.shared;
        let facts = ServiceFacts {
            version: VERSION,
            mechanism: report::mechanism_number(interface.mechanism),
            interface: interface.index,
            interface_name: interface.location.interface.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            batch_packets: BATCH_PACKETS,
            quota_packets: options.quota.packets,
            quota_bytes: options.quota.bytes,
            lead_ns: interface.lead.as_u64(),
            tolerance_ns: options.tolerance.as_u64(),
            horizon_ns: options.horizon.as_u64(),
            priority,
        };
        {
            let mut state = self.client.state();
            state.counts.name = name;
            state.counts.priority = priority;
        }
        self.shared.lock().queue.add_client(self.client.id, priority, options.quota);
        self.is_introduced = true;
        self.client.send(&ServiceMessage::Welcome { id, facts });
        true
    }

    fn status(&self) -> ServiceState {
        let clients = crate::small_count(self.shared.clients().len());
        let queued = self.shared.lock().queue.queued(self.client.id);
        let counts = self.client.counts();
        ServiceState {
            queued,
            clients,
            sent: counts.sent,
            late: counts.late,
            shifted: counts.shifted,
            refused: counts.refused.values().sum(),
            answers: counts.answers,
        }
    }

    /// Tells an error and ends the connection.
    fn fail(&self, id: u64, code: ProtocolErrorCode, text: &str) -> bool {
        self.client.send(&ServiceMessage::Error { id, code, closes: true, text: text.to_owned() });
        false
    }
}
