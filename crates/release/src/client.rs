//! A connection to the release service.
//!
//! Invariant: REPORTs and ANSWERs that arrive during a request are queued; `next_event` returns them in order.

use crate::message::{
    AnswerFilter, ClientMessage, ClientStatus, ErrorPosition, MAX_MESSAGE_BYTES, PacketLimits, PacketReport,
    PacketToRelease, ReceivedAnswer, ServiceFacts, ServiceMessage, VERSION,
};
use packetrig_sys::clock;
use packetrig_sys::runtime_directory;
use packetrig_sys::seqpacket::{ReceivedMessage, SeqpacketStream};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Environment variable that sets the path of the socket.
pub const SOCKET_VARIABLE: &str = "PACKETRIG_RELEASE_SOCKET";
const SOCKET_FILE_NAME: &str = "release.sock";
/// Timeout for an answer of the service.
// The service waits up to 8 s for hardware addresses before ACCEPTED, and up to 2 s for its listener
// before WELCOME and LISTENING.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);

/// Path of the service's socket: the value of [`SOCKET_VARIABLE`], or else the default in the runtime directory.
pub fn release_socket_path() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE)
        .map_or_else(|| runtime_directory::runtime_directory().join(SOCKET_FILE_NAME), PathBuf::from)
}

#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    #[error("cannot reach the release service; start it with `packetrig probe serve`")]
    Unreachable(#[source] packetrig_sys::Error),
    #[error("the connection to the release service failed")]
    Connection(#[from] packetrig_sys::Error),
    #[error("the release service closed the connection")]
    Closed,
    #[error("the release service refused the request: {text}")]
    Refused {
        text: String,
        /// Field of the message that the service could not read, if the fault is in a field.
        place: Option<ErrorPosition>,
    },
    #[error("the release service did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Silent,
    #[error(
        "the release service sent a message that breaks the protocol; client and service must use version {VERSION}"
    )]
    Broken,
    #[error(
        "a batch must have 1 to {most} packets and at most {} bytes; this one has {packets} packets and {bytes} bytes",
        MAX_MESSAGE_BYTES - 24
    )]
    WrongSize { packets: usize, most: u32, bytes: usize },
}

/// Messages that the service sends without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseEvent {
    /// Reports about packets of this client.
    Reports(Vec<PacketReport>),
    Answer(ReceivedAnswer),
}

/// Result of a submitted batch: the numbers of accepted and refused packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAcceptance {
    pub accepted: u32,
    /// Refused packets; their reports have the reasons.
    pub refused: u32,
    /// Packets of this client in the queue.
    pub queued: u32,
}

#[derive(Debug)]
pub struct ReleaseClient {
    connection: ServiceConnection,
    facts: ServiceFacts,
    next_id: u64,
}

impl ReleaseClient {
    /// Connects and sends HELLO. `name` is shown in the report of the service.
    pub fn connect(path: &Path, name: &str, priority: u8) -> Result<Self, ReleaseError> {
        let stream = SeqpacketStream::connect_to(path).map_err(ReleaseError::Unreachable)?;
        let mut connection =
            ServiceConnection { stream, buffer: vec![0; MAX_MESSAGE_BYTES], events: VecDeque::new() };
        // Id 0 is free for HELLO: later requests count from 1. The service may grant a lower priority,
        // which its facts state.
        let hello = ClientMessage::Hello { id: 0, version: VERSION, priority, name: name.to_owned() };
        match connection.send_request(&hello)? {
            // The version is not compared: a service with another version has refused HELLO.
            ServiceMessage::Welcome { facts, .. } => Ok(Self { connection, facts, next_id: 0 }),
            // `send_request` has compared the id, so a message of another type breaks the protocol.
            // The same holds below.
            _ => Err(ReleaseError::Broken),
        }
    }

    /// Properties of the service.
    pub const fn facts(&self) -> &ServiceFacts {
        &self.facts
    }

    /// Submits packets as one batch. Returns the number of the batch and how many packets were accepted;
    /// reports arrive as events.
    pub fn submit_packets(
        &mut self,
        packets: Vec<PacketToRelease>,
    ) -> Result<(u64, BatchAcceptance), ReleaseError> {
        // A batch that is refused here has used up its number. Gaps in the numbers do no harm,
        // but repeated numbers would.
        let batch = self.next_request_id();
        let count = packets.len();
        let bytes: usize = packets.iter().map(PacketToRelease::length_in_message).sum();
        let most = self.facts.batch_packets;
        // The header has 16 bytes, and SUBMIT has 8 more before its packets.
        if count == 0 || count > most as usize || bytes > MAX_MESSAGE_BYTES - 24 {
            return Err(ReleaseError::WrongSize { packets: count, most, bytes });
        }
        match self.connection.send_request(&ClientMessage::Submit { batch, packets })? {
            ServiceMessage::Accepted { accepted, refused, queued, .. } => {
                Ok((batch, BatchAcceptance { accepted, refused, queued }))
            }
            _ => Err(ReleaseError::Broken),
        }
    }

    /// Removes packets from the queue and returns their number. `batch` 0 means all batches, and `train` 0 all trains.
    pub fn cancel_packets(&mut self, batch: u64, train: u32) -> Result<u32, ReleaseError> {
        let id = self.next_request_id();
        match self.connection.send_request(&ClientMessage::Cancel { id, batch, train })? {
            ServiceMessage::Cancelled { count, .. } => Ok(count),
            _ => Err(ReleaseError::Broken),
        }
    }

    /// Selects the answers to this client's packets that the service sends; `None`: the service sends
    /// no answers any more.
    pub fn set_answer_filter(&mut self, filter: Option<AnswerFilter>) -> Result<(), ReleaseError> {
        let id = self.next_request_id();
        match self.connection.send_request(&ClientMessage::Listen { id, filter })? {
            ServiceMessage::Listening { .. } => Ok(()),
            _ => Err(ReleaseError::Broken),
        }
    }

    pub fn query_status(&mut self) -> Result<ClientStatus, ReleaseError> {
        let id = self.next_request_id();
        match self.connection.send_request(&ClientMessage::Status { id })? {
            ServiceMessage::State { state, .. } => Ok(state),
            _ => Err(ReleaseError::Broken),
        }
    }

    /// Returns the limits of a target; `None` if it may not be probed.
    pub fn query_limits(&mut self, target: IpAddr) -> Result<Option<PacketLimits>, ReleaseError> {
        let id = self.next_request_id();
        match self.connection.send_request(&ClientMessage::Target { id, address: target })? {
            ServiceMessage::Limits { limits, .. } => Ok(limits),
            _ => Err(ReleaseError::Broken),
        }
    }

    /// Waits at most for the time `within` for the next event; `None` if none arrives.
    pub fn next_event(&mut self, within: Duration) -> Result<Option<ReleaseEvent>, ReleaseError> {
        self.connection.next_event(within)
    }

    const fn next_request_id(&mut self) -> u64 {
        // The id is never 0, which means all batches in CANCEL.
        self.next_id += 1;
        self.next_id
    }
}

#[derive(Debug)]
struct ServiceConnection {
    stream: SeqpacketStream,
    buffer: Vec<u8>,
    events: VecDeque<ReleaseEvent>,
}

impl ServiceConnection {
    fn next_event(&mut self, within: Duration) -> Result<Option<ReleaseEvent>, ReleaseError> {
        let deadline = deadline_after(within);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.receive_message(deadline)? {
                None => return Ok(None),
                // No request is open: this ERROR is about the connection, or about a request that has timed out.
                Some(ServiceMessage::Error { text, place, .. }) => {
                    return Err(ReleaseError::Refused { text, place });
                }
                // An answer that comes here belongs to a request that has timed out. `queue_event` drops it.
                Some(message) => self.queue_event(message),
            }
        }
    }

    /// Sends a message and waits for its answer.
    fn send_request(&mut self, message: &ClientMessage) -> Result<ServiceMessage, ReleaseError> {
        // One deadline for the request and its answer: a busy service must not double the timeout.
        let deadline = deadline_after(ANSWER_TIMEOUT);
        self.send_bytes(&message.to_bytes(), deadline)?;
        loop {
            let answer = self.receive_message(deadline)?.ok_or(ReleaseError::Silent)?;
            match answer {
                // This may also be the answer to an earlier request that has timed out. `queue_event` drops it.
                _ if !is_answer_to(&answer, message.id()) => self.queue_event(answer),
                ServiceMessage::Error { text, place, .. } => {
                    return Err(ReleaseError::Refused { text, place });
                }
                _ => return Ok(answer),
            }
        }
    }

    fn send_bytes(&self, bytes: &[u8], deadline: u64) -> Result<(), ReleaseError> {
        loop {
            match self.stream.send_message(bytes) {
                Ok(false) => {}
                // If the service refuses this program, it has sent the reason before it closed the
                // connection: the reason is received next.
                Ok(true) | Err(_) => return Ok(()),
            }
            // The deadline is checked after the first try, so a message is sent even if no time is left.
            let now = clock::monotonic_ns();
            if now >= deadline {
                return Err(ReleaseError::Silent);
            }
            self.stream.wait_for_room(deadline - now)?;
        }
    }

    /// Queues a report or a received answer. Every other message is a late reply to an earlier request, and is dropped.
    fn queue_event(&mut self, message: ServiceMessage) {
        match message {
            ServiceMessage::Report { reports } => self.events.push_back(ReleaseEvent::Reports(reports)),
            ServiceMessage::Answer(answer) => self.events.push_back(ReleaseEvent::Answer(answer)),
            _ => {}
        }
    }

    fn receive_message(&mut self, deadline: u64) -> Result<Option<ServiceMessage>, ReleaseError> {
        loop {
            // The socket is read before the deadline is checked: a wait of zero returns the
            // messages that have arrived.
            match self.stream.receive_message(&mut self.buffer)? {
                ReceivedMessage::Closed => return Err(ReleaseError::Closed),
                ReceivedMessage::Message(length) => {
                    // The socket reports the whole length of a message that it has cut to the buffer. No
                    // message of the protocol is that long.
                    let bytes = self.buffer.get(..length).ok_or(ReleaseError::Broken)?;
                    match ServiceMessage::from_bytes(bytes) {
                        Some(message) => return Ok(Some(message)),
                        None if ServiceMessage::has_known_type(bytes) => return Err(ReleaseError::Broken),
                        // A later service has sent this message: the protocol tells clients to ignore it.
                        None => {}
                    }
                }
                ReceivedMessage::Nothing => {
                    let now = clock::monotonic_ns();
                    if now >= deadline {
                        return Ok(None);
                    }
                    self.stream.wait_until_ready(false, deadline - now)?;
                }
            }
        }
    }
}

/// Returns whether a message answers the request with this id. An ERROR that ends the connection answers every request.
fn is_answer_to(message: &ServiceMessage, id: u64) -> bool {
    match message {
        // A service that refuses the connection sends its ERROR with id 0.
        ServiceMessage::Error { id: 0, .. } | ServiceMessage::Error { closes: true, .. } => true,
        _ => message.id() == Some(id),
    }
}

fn deadline_after(within: Duration) -> u64 {
    // Saturating: `Duration::MAX` is a wait without end, and a sum that wraps would be a deadline in the past.
    clock::monotonic_ns().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ProtocolErrorCode;

    #[test]
    fn error_of_earlier_request_is_no_answer() {
        let error = |id, closes| {
            let (code, text) = (ProtocolErrorCode::CannotListen, String::new());
            ServiceMessage::Error { id, code, closes, text, place: None }
        };
        let is_answer = |message: &ServiceMessage| is_answer_to(message, 5);
        assert!(!is_answer(&error(4, false)) && is_answer(&error(5, false)));
        assert!(is_answer(&error(4, true)) && is_answer(&error(0, false)));
        let reports = ServiceMessage::Report { reports: Vec::new() };
        assert!(!is_answer(&reports) && !is_answer(&ServiceMessage::Listening { id: 4 }));
        assert!(is_answer(&ServiceMessage::Listening { id: 5 }));
    }
}
