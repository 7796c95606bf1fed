//! One client: reads its messages, answers them, and keeps what it has not read yet.

use super::PIECE_NS;
use super::intake;
use super::report::{self, ClientCounts, PastClient};
use super::shared::ServiceShared;
use crate::now;
use packetrig_probe::PacketRefusal;
use packetrig_probe::service::{ClientId, QueuedTrain};
use packetrig_release::message::{
    AnswerFilter, ClientMessage, HEADER, HeardAnswer, LONGEST_MESSAGE, PacketReport, ProtocolErrorCode,
    ServiceFacts, ServiceMessage, ServiceState, VERSION,
};
use packetrig_sys::clock;
use packetrig_sys::sched;
use packetrig_sys::seqpacket::{PeerProcess, ReceivedMessage, SeqpacketStream};
use packetrig_units::Nanos;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most packets of one batch.
const BATCH_PACKETS: u32 = 1_024;
/// Messages that a client has not read, beyond which nothing more is read from it.
const UNREAD: usize = 256;
/// Answers beyond this number of unread messages are dropped and counted.
const UNREAD_ANSWERS: usize = 64;
/// A connection must begin with HELLO within this time.
const HELLO_WITHIN: Nanos = Nanos::from_secs(5);
/// How long messages that wait are still sent when a connection ends.
const FLUSHED_WITHIN: Nanos = Nanos::from_millis(500);
/// Messages that are read in one go. After them the thread sleeps for a moment: a client that floods the service must not use up a
/// processor.
const MESSAGES_AT_ONCE: usize = 32;
const BREATH_NS: u64 = 500_000;
/// How long a client waits until answers are heard.
const HEARD_WITHIN: Nanos = Nanos::from_secs(2);

/// What the service thinks of the user of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientRights {
    /// The highest priority that it may ask for.
    pub(super) priority: u8,
    /// Root or the user of the service: it may use every port.
    pub(super) is_trusted: bool,
}

/// The part of a client that several threads change.
#[derive(Debug, Default)]
struct ClientState {
    outbox: VecDeque<Vec<u8>>,
    name: String,
    priority: u8,
    counts: ClientCounts,
    filter: Option<AnswerFilter>,
    lost_answers: u32,
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) id: ClientId,
    pub(super) peer: PeerProcess,
    pub(super) rights: ClientRights,
    stream: SeqpacketStream,
    state: Mutex<ClientState>,
}

impl ClientConnection {
    pub(super) fn new(
        id: ClientId,
        stream: SeqpacketStream,
        peer: PeerProcess,
        rights: ClientRights,
    ) -> Self {
        Self { id, peer, rights, stream, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept of it when it is gone.
    pub(super) fn past(&self) -> PastClient {
        let state = self.state();
        PastClient {
            name: state.name.clone(),
            user: self.peer.user,
            process: self.peer.process,
            priority: state.priority,
            counts: state.counts.packets.clone(),
            release_error_ns: state.counts.release_error_ns(),
        }
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

    /// Gives an answer to the client if it wants it and reads what it is sent.
    pub(super) fn offer_answer(
        &self,
        from: IpAddr,
        protocol: u8,
        own_port: Option<u16>,
        answer: HeardAnswer,
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
        let mut answer = answer;
        answer.bytes.truncate(most);
        state.counts.packets.answers += 1;
        answer.lost = state.lost_answers;
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

/// Handles the messages of a client until it or the service ends.
pub(super) fn serve(client: &ClientConnection, shared: &ServiceShared) {
    if client.rights.is_trusted {
        // The outlet waits for the lock of the queue, which this thread holds for moments. If other programs kept it from the processor
        // in such a moment, packets would be late.
        drop(sched::request_precedence());
    }
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
        let is_late = !session.is_introduced && now().since(began) > HELLO_WITHIN;
        if waited.is_err() || is_late || unread < UNREAD && !session.read(&mut buffer) {
            break;
        }
    }
    // The client may still read what it was told last.
    let deadline = now() + FLUSHED_WITHIN;
    while client.flush() > 0 && now() < deadline && client.stream.wait_for_room(PIECE_NS).is_ok() {}
}

struct ClientSession<'a> {
    client: &'a ClientConnection,
    shared: &'a ServiceShared,
    is_introduced: bool,
}

impl ClientSession<'_> {
    /// Handles some of the messages that wait. `false`: the connection ends.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        for _ in 0..MESSAGES_AT_ONCE {
            match self.client.stream.receive(buffer) {
                Ok(ReceivedMessage::Nothing) => return true,
                Ok(ReceivedMessage::Closed) | Err(_) => return false,
                Ok(ReceivedMessage::Message(length)) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    if !self.handle(ClientMessage::read(bytes), bytes) {
                        return false;
                    }
                }
            }
            if self.client.flush() >= UNREAD || self.shared.has_ended() {
                return true;
            }
        }
        clock::sleep_until_ns(clock::monotonic_ns() + BREATH_NS);
        true
    }

    fn handle(&mut self, message: Option<ClientMessage>, bytes: &[u8]) -> bool {
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
                self.cancel(id, batch, train);
                true
            }
            (Some(ClientMessage::Listen { id, filter }), true) => {
                self.listen(id, filter);
                true
            }
            (Some(ClientMessage::Status { id }), true) => {
                let state = self.status();
                self.client.send(&ServiceMessage::State { id, state });
                true
            }
            (_, is_introduced) => {
                let id = bytes.get(8..HEADER).and_then(|id| id.try_into().ok()).map_or(0, u64::from_ne_bytes);
                let text = if is_introduced {
                    "the message breaks the protocol, or HELLO came twice"
                } else {
                    "the first message must be a HELLO that follows the protocol"
                };
                self.fail(id, ProtocolErrorCode::BrokenMessage, text)
            }
        }
    }

    fn cancel(&self, id: u64, batch: u64, train: u32) {
        let cancelled = self.shared.lock().queue.cancel(self.client.id, batch, train);
        let count = cancelled.iter().map(|train| crate::small_count(train.packets.len())).sum();
        self.client.send(&ServiceMessage::Cancelled { id, count });
        for train in &cancelled {
            self.client.report_refused(train, PacketRefusal::Cancelled);
        }
    }

    /// Acknowledges when answers are heard, so that the client misses none.
    fn listen(&self, id: u64, filter: Option<AnswerFilter>) {
        let is_off = filter.is_none();
        self.client.state().filter = filter;
        let deadline = now() + HEARD_WITHIN;
        let is_heard = || self.shared.hears_answers.load(Ordering::Acquire);
        while !is_off && !is_heard() && now() < deadline && !self.shared.has_ended() {
            clock::sleep_until_ns(clock::monotonic_ns() + BREATH_NS);
        }
        if is_off || is_heard() {
            self.client.send(&ServiceMessage::Listening { id });
        } else {
            self.client.state().filter = None;
            let text = "the service cannot listen at the interface; is it up, and does it have an address?"
                .to_owned();
            let code = ProtocolErrorCode::CannotListen;
            self.client.send(&ServiceMessage::Error { id, code, closes: false, text });
        }
    }

    fn welcome(&mut self, id: u64, version: u16, priority: u8, name: String) -> bool {
        if version != VERSION {
            let text = format!(
                "version {version} of the protocol is not known; this service speaks version {VERSION}"
            );
            return self.fail(id, ProtocolErrorCode::UnknownVersion, &text);
        }
        let priority = priority.min(self.client.rights.priority);
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
            lead_ns: interface.handed_over_before().as_u64(),
            tolerance_ns: options.tolerance.as_u64(),
            horizon_ns: options.horizon.as_u64(),
            priority,
        };
        {
            let mut state = self.client.state();
            state.name = name;
            state.priority = priority;
        }
        self.shared.lock().queue.add_client(self.client.id, priority, options.quota);
        self.is_introduced = true;
        self.client.send(&ServiceMessage::Welcome { id, facts });
        true
    }

    fn status(&self) -> ServiceState {
        let clients = crate::small_count(self.shared.client_count());
        let queued = self.shared.lock().queue.queued(self.client.id);
        let state = self.client.state();
        let packets = &state.counts.packets;
        ServiceState {
            queued,
            clients,
            sent: packets.sent,
            late: packets.late,
            shifted: packets.shifted,
            refused: packets.refused.values().sum(),
            answers: packets.answers,
        }
    }

    /// Tells an error and ends the connection.
    fn fail(&self, id: u64, code: ProtocolErrorCode, text: &str) -> bool {
        self.client.send(&ServiceMessage::Error { id, code, closes: true, text: text.to_owned() });
        false
    }
}
