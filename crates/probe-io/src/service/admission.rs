//! Admits connections: checks the rights of their users, and starts a thread for each client.
//!
//! Each user may have a limited number of connections; more are refused. If a user opens too many connections
//! per second, the connections wait, so that programs that connect again and again cannot use up a processor.
//! Connections of other users are served meanwhile.

use super::STOP_CHECK_INTERVAL_NS;
use super::ServiceOptions;
use super::answers;
use super::client;
use super::connection::{ClientConnection, ClientRights, SharedClientState};
use super::shared::ServiceShared;
use crate::{Error, now};
use packetrig_probe::service::WorkAllowance;
use packetrig_release::message::{ProtocolErrorCode, ServiceMessage};
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_sys::seqpacket::{PeerProcess, ReceivedMessage, SeqpacketListener, SeqpacketStream};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::{info, warn};

/// Maximum number of clients of root at a time. For each other user, this number is divided by the number of
/// users (see [`max_clients_per_user`]), so no user takes connections from another.
pub(super) const MAX_CLIENTS: usize = 64;
/// Smallest and largest limit for the clients of one user other than root.
const CLIENTS_PER_USER_RANGE: std::ops::RangeInclusive<usize> = 4..=16;
/// Maximum number of clients of each user other than root at a time, if this many users may use the service.
pub(super) fn max_clients_per_user(users: usize) -> usize {
    (MAX_CLIENTS / users.max(1)).clamp(*CLIENTS_PER_USER_RANGE.start(), *CLIENTS_PER_USER_RANGE.end())
}

/// Maximum number of connections of one user that wait until they are served.
const MAX_WAITING_CONNECTIONS_PER_USER: usize = 16;
/// Pause after a connection that cannot be served at once.
const ADMISSION_PAUSE_NS: u64 = 500_000;

pub(super) type ServiceThread = JoinHandle<Result<(), packetrig_sys::Error>>;

/// Accepts connections until the service is to end. Returns the threads that serve them, and the answer thread.
pub(super) fn serve_clients(
    listener: &SeqpacketListener,
    shared: &Arc<ServiceShared>,
    netns: &NetNs,
    stop: &dyn Fn() -> bool,
    outlet: &ServiceThread,
) -> Result<Vec<ServiceThread>, Error> {
    let inside = Arc::clone(shared);
    let answers = netns.spawn_in_namespace("release-answers".to_owned(), move || {
        answers::run_answer_thread(&inside);
        Ok(())
    })?;
    let mut entrance = ClientAdmission {
        shared,
        netns,
        threads: vec![answers],
        waiting: Vec::new(),
        allowed: BTreeMap::new(),
        refused: Vec::new(),
    };
    // Without its sending thread, the service would only collect packets, so the loop ends with that thread.
    while !stop() && !shared.is_ending() && !outlet.is_finished() {
        let mut has_come = false;
        if let Some(stream) = listener.accept_connection_within(STOP_CHECK_INTERVAL_NS)? {
            has_come = true;
            entrance.queue_connection(stream);
        }
        // Connections that have to wait must not keep this loop busy.
        if !entrance.admit_waiting_clients() && has_come {
            clock::sleep_until_ns(clock::monotonic_ns() + ADMISSION_PAUSE_NS);
        }
    }
    Ok(entrance.threads)
}

/// A connection that waits to be served, of a user who may use the service.
struct WaitingConnection {
    stream: SeqpacketStream,
    peer: PeerProcess,
    rights: ClientRights,
}

struct ClientAdmission<'a> {
    shared: &'a Arc<ServiceShared>,
    netns: &'a NetNs,
    threads: Vec<ServiceThread>,
    waiting: Vec<WaitingConnection>,
    /// Allowance of each user for new connections. Few users may use the service, so no entry is removed.
    allowed: BTreeMap<u32, WorkAllowance>,
    refused: Vec<RefusedConnection>,
}

impl ClientAdmission<'_> {
    /// Queues a connection to be served, unless its user may not use the service.
    fn queue_connection(&mut self, stream: SeqpacketStream) {
        let peer = stream.peer_process().ok();
        let rights = peer.and_then(|peer| Some((peer, client_rights(peer.user, &self.shared.options)?)));
        let Some((peer, rights)) = rights else {
            let user = peer.map_or_else(|| "this user".to_owned(), |peer| format!("user {}", peer.user));
            let text = format!(
                "{user} may not use this service; the owner of the service can allow this user with --allow-user"
            );
            return self.refuse_connection(stream, ProtocolErrorCode::NotAllowed, text);
        };
        // Waiting connections are counted for each user, so that those of one user do not keep other users out.
        let of_user = self.waiting.iter().filter(|waiting| waiting.peer.user == peer.user).count();
        if of_user >= MAX_WAITING_CONNECTIONS_PER_USER {
            let text = "programs of this user connect too often; keep one connection open".to_owned();
            return self.refuse_connection(stream, ProtocolErrorCode::TooManyClients, text);
        }
        self.waiting.push(WaitingConnection { stream, peer, rights });
    }

    fn refuse_connection(&mut self, stream: SeqpacketStream, code: ProtocolErrorCode, text: String) {
        warn!(why = text, "connection of a program refused");
        // Further connections are closed without an answer, so that refusals cannot use up memory.
        if self.refused.len() < MAX_REFUSED {
            self.refused.push(RefusedConnection::new(stream, code, text));
        }
    }

    /// Serves connections that have waited long enough. Returns true if no connection waits any more, neither
    /// to be served nor for the message that refuses it.
    fn admit_waiting_clients(&mut self) -> bool {
        self.refused.retain(RefusedConnection::is_open);
        // Threads that have ended are removed, so that the list does not grow with every connection.
        self.threads.retain(|thread| !thread.is_finished());
        // All connections are taken out first, and those that must still wait are put back in order.
        for waiting in std::mem::take(&mut self.waiting) {
            // A client that has disconnected in the meantime needs no thread.
            if !waiting.stream.wait_without_reading(false, 0).unwrap_or(false) {
                continue;
            }
            let now = now();
            let allowed =
                self.allowed.entry(waiting.peer.user).or_insert_with(WorkAllowance::for_connections);
            if allowed.needed_pause(now) > Nanos::ZERO {
                self.waiting.push(waiting);
                continue;
            }
            allowed.spend_units(1, now);
            self.admit_client(waiting);
        }
        self.waiting.is_empty() && self.refused.is_empty()
    }

    /// Starts a thread for a client. Refuses the connection if its user already has too many clients.
    fn admit_client(&mut self, waiting: WaitingConnection) {
        let WaitingConnection { stream, peer, rights } = waiting;
        if !self.shared.has_room_for(peer.user) {
            let most = self.shared.max_clients_of_user(peer.user);
            let text = format!(
                "{most} programs of this user are connected, which is the limit; try again when one has ended"
            );
            return self.refuse_connection(stream, ProtocolErrorCode::TooManyClients, text);
        }
        let id = self.shared.new_client_id();
        let shared = SharedClientState {
            of_user: self.shared.work_allowance_of_user(peer.user),
            totals: Arc::clone(&self.shared.totals),
        };
        let connection = Arc::new(ClientConnection::new(id, stream, peer, rights, shared));
        self.shared.add_client(&connection);
        info!(user = peer.user, process = peer.process, client = id.0, "program connected");
        let (served, inside) = (Arc::clone(&connection), Arc::clone(self.shared));
        let thread = self.netns.spawn_in_namespace(format!("release-client-{}", id.0), move || {
            client::serve_client(&served, &inside);
            inside.remove_client(&served);
            info!(client = served.id.0, "program disconnected");
            Ok(())
        });
        match thread {
            Ok(thread) => self.threads.push(thread),
            // The kernel may lack threads for a moment. This ends the connection, not the service. The client
            // is removed here, because it has no thread that would do it.
            Err(error) => {
                warn!(user = peer.user, %error, "cannot start a thread for a client; its connection is closed");
                self.shared.remove_client(&connection);
            }
        }
    }
}

/// Maximum number of refused connections that still wait for the message that refuses them.
const MAX_REFUSED: usize = 16;
/// Time limit for the first message of a refused program.
const REFUSED_HELLO_TIMEOUT: Nanos = Nanos::from_secs(1);

/// A connection that the service refuses. The program gets the refusal after its first message: if a connection
/// is closed with an unread message, the kernel reports an error in place of the refusal.
pub(super) struct RefusedConnection {
    stream: SeqpacketStream,
    since: MonoTime,
    message: Vec<u8>,
}

impl RefusedConnection {
    pub(super) fn new(stream: SeqpacketStream, code: ProtocolErrorCode, text: String) -> Self {
        let message = ServiceMessage::Error { id: 0, code, closes: true, text, place: None }.to_bytes();
        Self { stream, since: now(), message }
    }

    /// Sends the refusal if the first message has arrived. Returns whether the refusal still has to be sent.
    pub(super) fn is_open(&self) -> bool {
        // Only the arrival of a message matters, so the message may be cut off.
        match self.stream.receive_message(&mut [0; 64]) {
            Ok(ReceivedMessage::Nothing) => now().since(self.since) < REFUSED_HELLO_TIMEOUT,
            Ok(ReceivedMessage::Message(_)) => {
                // A program that has disconnected meanwhile needs no answer.
                drop(self.stream.send_message(&self.message));
                false
            }
            Ok(ReceivedMessage::Closed) | Err(_) => false,
        }
    }
}

/// Returns the rights of a user; `None` if the user may not use the service.
pub(super) fn client_rights(user: u32, options: &ServiceOptions) -> Option<ClientRights> {
    /// Priority of root and of the user of the service.
    const HIGHEST_PRIORITY: u8 = 7;
    if user == 0 || user == ThreadRights::current().user {
        return Some(ClientRights { priority: HIGHEST_PRIORITY, is_trusted: true });
    }
    let allowed = options.allowed.iter().find(|allowed| allowed.user == user)?;
    Some(ClientRights { priority: allowed.priority, is_trusted: false })
}
