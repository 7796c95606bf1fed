//! Serves one client: reads its messages and answers them.

use super::STOP_CHECK_INTERVAL_NS;
use super::connection::ClientConnection;
use super::intake;
use super::report;
use super::shared::ServiceShared;
use crate::now;
use packetrig_probe::service::{MAX_TARGETS_OF_CLIENT, work};
use packetrig_probe::{PacketRefusal, TargetLimits};
use packetrig_release::message::{
    AnswerFilter, ClientMessage, ClientStatus, ErrorPosition, HEADER, MAX_MESSAGE_BYTES, PacketLimits,
    ProtocolErrorCode, ServiceFacts, ServiceMessage, VERSION,
};
use packetrig_sys::clock;
use packetrig_sys::sched;
use packetrig_sys::seqpacket::ReceivedMessage;
use packetrig_units::Nanos;

/// Maximum number of packets of one batch.
const MAX_BATCH_PACKETS: u32 = 1_024;
/// If a client has this many unread messages, the service reads nothing more from it.
const MAX_UNREAD_MESSAGES: usize = 256;
/// A connection must begin with HELLO within this time.
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time for which waiting messages are still sent when a connection ends.
const FLUSH_TIMEOUT: Nanos = Nanos::from_millis(500);
/// Maximum number of messages that are read without a pause. Then the thread sleeps for a moment, even if the
/// client's allowance is not used up, so that a burst does not keep the processor from other threads.
const MAX_MESSAGES_PER_ROUND: usize = 32;
const ROUND_PAUSE_NS: u64 = 500_000;
/// Time limit for the listener to open when a client connects or requests answers.
const LISTENER_OPEN_TIMEOUT: Nanos = Nanos::from_secs(2);

/// Handles the messages of a client until the connection or the service ends.
pub(super) fn serve_client(client: &ClientConnection, shared: &ServiceShared) {
    if client.rights.is_trusted {
        // This thread locks the queue for short moments, in which the sending thread has to wait. If this
        // thread lost the processor to other programs in such a moment, packets would be late.
        drop(sched::raise_thread_priority());
    }
    let began = now();
    let mut session = ClientSession { client, shared, is_introduced: false };
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    while !shared.has_ended() {
        let unread = client.flush_outbox();
        let pause = client.needed_pause();
        let may_read = unread < MAX_UNREAD_MESSAGES && pause == Nanos::ZERO;
        let is_open = if may_read {
            client.stream.wait_until_ready(unread > 0, STOP_CHECK_INTERVAL_NS).is_ok()
        } else {
            // The connection is checked even if nothing is read from it, so that the packets of a
            // disconnected client are removed.
            let within = if pause == Nanos::ZERO {
                STOP_CHECK_INTERVAL_NS
            } else {
                pause.as_u64().min(STOP_CHECK_INTERVAL_NS)
            };
            client.stream.wait_without_reading(unread > 0, within).unwrap_or(false)
        };
        let is_late = !session.is_introduced && now().since(began) > HELLO_TIMEOUT;
        if !is_open || is_late || may_read && !session.read_messages(&mut buffer) {
            break;
        }
    }
    // The client may still read the last messages to it.
    let deadline = now() + FLUSH_TIMEOUT;
    while client.flush_outbox() > 0
        && now() < deadline
        && client.stream.wait_for_room(STOP_CHECK_INTERVAL_NS).is_ok()
    {}
}

struct ClientSession<'a> {
    client: &'a ClientConnection,
    shared: &'a ServiceShared,
    is_introduced: bool,
}

impl ClientSession<'_> {
    /// Handles some of the waiting messages. Returns `false` if the connection must end.
    fn read_messages(&mut self, buffer: &mut [u8]) -> bool {
        for _ in 0..MAX_MESSAGES_PER_ROUND {
            match self.client.stream.receive_message(buffer) {
                Ok(ReceivedMessage::Nothing) => return true,
                Ok(ReceivedMessage::Closed) | Err(_) => return false,
                Ok(ReceivedMessage::Message(length)) => {
                    self.client.spend_units(work::MESSAGE_COST);
                    let bytes = buffer.get(..length).unwrap_or_default();
                    if !self.handle_message(bytes) {
                        return false;
                    }
                }
            }
            // A single message can use up the allowance or fill the outbox.
            let is_slowed = self.client.needed_pause() > Nanos::ZERO;
            if is_slowed || self.client.flush_outbox() >= MAX_UNREAD_MESSAGES || self.shared.has_ended() {
                return true;
            }
        }
        clock::sleep_until_ns(clock::monotonic_ns() + ROUND_PAUSE_NS);
        true
    }

    fn handle_message(&mut self, bytes: &[u8]) -> bool {
        let message = match ClientMessage::from_bytes(bytes) {
            Ok(message) => message,
            Err(broken) => {
                // The request number is at a fixed offset, so the answer to an invalid message usually has
                // the right number, too.
                let id = bytes.get(8..HEADER).and_then(|id| id.try_into().ok()).map_or(0, u64::from_ne_bytes);
                let place = Some(ErrorPosition { packet: broken.packet, byte: broken.byte });
                return self.fail_connection(id, ProtocolErrorCode::BrokenMessage, broken.to_string(), place);
            }
        };
        let id = message.id();
        match (message, self.is_introduced) {
            (ClientMessage::Hello { id, version, priority, name }, false) => {
                return self.welcome_client(id, version, priority, name);
            }
            (ClientMessage::Hello { .. }, true) => {
                return self.fail_connection(
                    id,
                    ProtocolErrorCode::BrokenMessage,
                    "HELLO was sent twice".to_owned(),
                    None,
                );
            }
            (_, false) => {
                let text = "the first message must be HELLO".to_owned();
                return self.fail_connection(id, ProtocolErrorCode::BrokenMessage, text, None);
            }
            (ClientMessage::Submit { batch, packets }, true) => {
                let answer = intake::queue_client_batch(self.client, self.shared, batch, packets);
                self.client.send_message(&answer);
            }
            (ClientMessage::Cancel { id, batch, train }, true) => self.cancel_packets(id, batch, train),
            (ClientMessage::Listen { id, filter }, true) => self.set_filter(id, filter),
            (ClientMessage::Status { id }, true) => {
                let state = self.client_status();
                self.client.send_message(&ServiceMessage::State { id, state });
            }
            (ClientMessage::Target { id, address }, true) => {
                let limits = self.shared.paths.limits_for(address, self.client.peer.user).map(packet_limits);
                self.client.send_message(&ServiceMessage::Limits { id, address, limits });
            }
        }
        true
    }

    fn cancel_packets(&self, id: u64, batch: u64, train: u32) {
        // The search checks every queued packet of the client, so its cost depends on their number before the search.
        let (queued, cancelled) = {
            let queue = &mut self.shared.lock_state().queue;
            (queue.queued_packets(self.client.id), queue.cancel_trains(self.client.id, batch, train))
        };
        self.client.spend_units(u64::from(queued) / work::QUEUED_PACKETS_PER_UNIT);
        let count = cancelled.iter().map(|train| crate::small_count(train.packets.len())).sum();
        self.client.send_message(&ServiceMessage::Cancelled { id, count });
        for train in &cancelled {
            self.client.report_refused(train, PacketRefusal::Cancelled);
        }
    }

    /// Sets the filter of answers. The acknowledgement is sent when the listener is open, so that the
    /// client misses no answer.
    fn set_filter(&self, id: u64, filter: Option<AnswerFilter>) {
        let is_off = filter.is_none();
        // The filter is set before the listener opens, so that an immediate answer is not missed.
        self.client.lock_state().filter = filter;
        if is_off || self.wait_for_listener() {
            self.client.send_message(&ServiceMessage::Listening { id });
        } else {
            self.client.lock_state().filter = None;
            let text = "the service cannot listen at the interface; check that the interface is up and has an address"
                .to_owned();
            let code = ProtocolErrorCode::CannotListen;
            self.client.send_message(&ServiceMessage::Error { id, code, closes: false, text, place: None });
        }
    }

    /// Waits up to two seconds until the listener for answers is open. Returns whether it is open.
    fn wait_for_listener(&self) -> bool {
        let deadline = now() + LISTENER_OPEN_TIMEOUT;
        while !self.shared.receives_answers() && now() < deadline && !self.shared.has_ended() {
            clock::sleep_until_ns(clock::monotonic_ns() + ROUND_PAUSE_NS);
        }
        self.shared.receives_answers()
    }

    fn welcome_client(&mut self, id: u64, version: u16, priority: u8, name: String) -> bool {
        if version != VERSION {
            let text = format!("protocol version {version} is unknown; this service uses version {VERSION}");
            return self.fail_connection(id, ProtocolErrorCode::UnknownVersion, text, None);
        }
        // A priority above the highest one that the user may request is lowered to that; WELCOME states the result.
        let priority = priority.min(self.client.rights.priority);
        let ServiceShared { interface, options, .. } = self.shared;
        let facts = ServiceFacts {
            version: VERSION,
            mechanism: report::mechanism_number(interface.mechanism),
            interface: interface.index,
            interface_name: interface.location.interface.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            batch_packets: MAX_BATCH_PACKETS,
            quota_packets: options.quota.packets,
            quota_bytes: options.quota.bytes,
            lead_ns: interface.hand_over_lead_time().as_u64(),
            tolerance_ns: options.tolerance.as_u64(),
            horizon_ns: options.horizon.as_u64(),
            priority,
            train_packets: intake::MAX_TRAIN_PACKETS,
            train_ns: intake::MAX_TRAIN_TIME.as_u64(),
            frame_bytes: crate::small_count(interface.longest_frame),
            targets: crate::small_count(MAX_TARGETS_OF_CLIENT),
            limits: packet_limits(options.least_limits),
        };
        {
            let mut state = self.client.lock_state();
            state.name = name;
            state.priority = priority;
        }
        self.shared.lock_state().queue.add_client(
            self.client.id,
            self.client.peer.user,
            priority,
            options.quota,
        );
        self.is_introduced = true;
        // No packet leaves before the listener is open, so the client need not begin earlier. Without a
        // listener, packets are refused with the reason "no route".
        self.wait_for_listener();
        self.client.send_message(&ServiceMessage::Welcome { id, facts });
        true
    }

    fn client_status(&self) -> ClientStatus {
        let clients = crate::small_count(self.shared.client_count());
        let queued = self.shared.lock_state().queue.queued_packets(self.client.id);
        let state = self.client.lock_state();
        let packets = &state.counts.packets;
        ClientStatus {
            queued,
            clients,
            sent: packets.sent,
            late: packets.late,
            shifted: packets.shifted,
            refused: packets.refused.values().sum(),
            answers: packets.answers,
        }
    }

    /// Reports an error to the client. Returns `false`, with which the caller ends the connection.
    fn fail_connection(
        &self,
        id: u64,
        code: ProtocolErrorCode,
        text: String,
        place: Option<ErrorPosition>,
    ) -> bool {
        self.client.send_message(&ServiceMessage::Error { id, code, closes: true, text, place });
        false
    }
}

const fn packet_limits(limits: TargetLimits) -> PacketLimits {
    let TargetLimits { probes_per_s, bits_per_s, burst, most, .. } = limits;
    PacketLimits { packets_per_s: probes_per_s, bits_per_s, most, burst }
}
