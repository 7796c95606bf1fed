//! TCP and TLS connections: each has a thread that splits what it reads into messages.
//!
//! Invariant: there are never more connections than the options allow, and no address (for IPv6: no /64) has more than
//! a quarter of them. The buffer of a connection holds at most one incomplete message. A silent connection has a
//! deadline, and a connection without records is closed when there is no room for a new connection.

mod peers;
mod turns;

use super::intake::{DecoderQueueItem, ListenerCounters, ListenerThread, MessageBlock, add_to_counter};
use super::tls::ListenerEncryption;
use super::{CollectorState, Error};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{MessageSource, MessageTransport, message_length};
use packetrig_sys::clock;
use peers::{ConnectionDenial, ExporterPeer, PeerState, evict_connection_if_full};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{debug, info, warn};
use turns::TimeLimitedStream;

/// Interval at which a thread checks whether the collector ends.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Buffer of a connection: twice the longest message, because the next message may be read together with it.
const CONNECTION_BUFFER_BYTES: usize = 2 * 65_536;
/// After a stop, waiting connections are still accepted and open connections are read, for this long in all.
const CONNECTION_DRAIN_TIMEOUT_NS: u64 = 2_000_000_000;

pub(super) fn start_tcp_listener(
    address: SocketAddr,
    tls: Option<ListenerEncryption>,
    shared: &Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<DecoderQueueItem>,
) -> Result<ListenerThread, Error> {
    let listener = bind_nonblocking(address).map_err(|source| Error::Listen { address, source })?;
    let bound = listener.local_addr().map_err(|source| Error::Listen { address, source })?;
    let drain_until_ns = OnceLock::new();
    let context = ConnectionContext { tls, shared: Arc::clone(shared), counters, queue, drain_until_ns };
    let thread = std::thread::Builder::new()
        .name("collect-tcp".into())
        .spawn(move || accept_exporters_until_stopped(&listener, &Arc::new(context)))
        .map_err(Error::Thread)?;
    Ok(ListenerThread { bound, thread })
}

fn bind_nonblocking(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // The accepting thread must not block: it also checks whether the collector ends.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// State that the connections of a listener share.
struct ConnectionContext {
    tls: Option<ListenerEncryption>,
    shared: Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<DecoderQueueItem>,
    drain_until_ns: OnceLock<u64>,
}

impl ConnectionContext {
    fn is_message_overdue(&self, begun_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(begun_ns) > self.shared.message_timeout_ns
    }

    fn is_first_message_overdue(&self, opened_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(opened_ns) > self.shared.first_message_ns
    }

    /// Reports whether the collector ends and the drain time is over. All connections share the deadline.
    fn is_drain_time_over(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        self.shared.is_stopping()
            && now_ns > *self.drain_until_ns.get_or_init(|| now_ns + CONNECTION_DRAIN_TIMEOUT_NS)
    }
}

fn accept_exporters_until_stopped(listener: &TcpListener, context: &Arc<ConnectionContext>) {
    let mut peers = Vec::new();
    loop {
        // The stop flag is read before accepting: a connection that came before the stop is still accepted. The loop
        // ends only if no connection is waiting after the stop.
        let is_over = context.shared.is_stopping();
        peers.retain(|peer: &ExporterPeer| !peer.thread.is_finished());
        match listener.accept() {
            Ok((stream, from)) => admit_connection(context, &mut peers, stream, from),
            Err(error) if is_over && error.kind() == ErrorKind::WouldBlock => break,
            // No connection waits, or the error is temporary, such as ECONNABORTED or EMFILE: the listener continues.
            Err(_) => std::thread::sleep(END_CHECK_INTERVAL),
        }
        // New connections must not delay the end for ever.
        if context.is_drain_time_over() {
            break;
        }
    }
    for peer in peers {
        // A panic ends one connection only; the messages that it had passed on are counted.
        drop(peer.thread.join());
    }
}

fn admit_connection(
    context: &Arc<ConnectionContext>,
    peers: &mut Vec<ExporterPeer>,
    stream: TcpStream,
    from: SocketAddr,
) {
    let address = from.ip().to_canonical();
    if !context.shared.allowed.allows_address(address) {
        debug!(peer = %address, "connection refused: address not allowed");
        add_to_counter(&context.counters.not_allowed, 1);
        return;
    }
    match evict_connection_if_full(peers, address, &context.shared) {
        Ok(()) => {}
        Err(ConnectionDenial::Full) => return add_to_counter(&context.counters.refused, 1),
        Err(ConnectionDenial::AddressFull) => return add_to_counter(&context.counters.address_full, 1),
    }
    let state = Arc::new(PeerState::new(address, stream));
    let context_of_peer = Arc::clone(context);
    let peer = Arc::clone(&state);
    let thread = std::thread::Builder::new().name("collect-peer".into());
    match thread.spawn(move || serve_connection(&context_of_peer, &peer, from.port())) {
        Ok(thread) => peers.push(ExporterPeer { state, thread }),
        Err(_) => add_to_counter(&context.counters.refused, 1),
    }
}

fn serve_connection(context: &ConnectionContext, peer: &Arc<PeerState>, port: u16) {
    let counters = &context.counters;
    add_to_counter(&counters.connections, 1);
    add_to_counter(&counters.open, 1);
    let transport = if context.tls.is_some() { MessageTransport::Tls } else { MessageTransport::Tcp };
    let source = MessageSource { address: peer.address, port, transport };
    info!(peer = %source.address, port, ?transport, "exporter connected");
    let end = serve_messages(context, peer, source);
    log_connection_end(source, end, peer.is_evicted());
    let counter = match end {
        // Eviction is checked first, because an evicted connection looks like one that the peer closed.
        _ if peer.is_evicted() => Some(&counters.made_room),
        ConnectionOutcome::Orderly => None,
        ConnectionOutcome::Refused => Some(&counters.refused),
        ConnectionOutcome::HandshakeFailed => Some(&counters.handshakes_failed),
        ConnectionOutcome::Broken => Some(&counters.broken),
        ConnectionOutcome::Slow => Some(&counters.slow),
        ConnectionOutcome::Silent => Some(&counters.silent),
        ConnectionOutcome::Cut => Some(&counters.cut),
    };
    if let Some(counter) = counter {
        add_to_counter(counter, 1);
    }
    // The listener still holds the socket, so dropping it here would not close it. The shutdown fails only if
    // the peer has closed already.
    drop(peer.stream.shutdown(Shutdown::Both));
    // The send fails only if the decoding thread has ended: then no session is left to close.
    drop(context.queue.send(DecoderQueueItem::Closed(source)));
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

fn log_connection_end(source: MessageSource, end: ConnectionOutcome, is_evicted: bool) {
    let (peer, port) = (source.address, source.port);
    match end {
        _ if is_evicted => warn!(%peer, port, "connection closed to make room for another one"),
        ConnectionOutcome::Orderly => info!(%peer, port, "exporter disconnected"),
        end => warn!(%peer, port, ?end, "connection ended"),
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionOutcome {
    Orderly,
    Refused,
    /// The exporter or the collector rejected the other's certificate or protocol.
    HandshakeFailed,
    Broken,
    Slow,
    Silent,
    /// The drain time was over, and there were unread bytes.
    Cut,
}

fn serve_messages(
    context: &ConnectionContext,
    peer: &Arc<PeerState>,
    source: MessageSource,
) -> ConnectionOutcome {
    let stream = &peer.stream;
    // Reads return every END_CHECK_INTERVAL, so that the loops below can check their deadlines and the end of the
    // collector.
    let ready =
        stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(END_CHECK_INTERVAL)));
    // Only TLS writes, and only little: a peer that does not read must not block this thread.
    if ready.and_then(|()| stream.set_write_timeout(Some(Duration::from_secs(2)))).is_err() {
        return ConnectionOutcome::Refused;
    }
    let stream = TimeLimitedStream::new(Arc::clone(peer));
    match &context.tls {
        None => read_until_closed(context, peer, stream, source),
        Some(encryption) => match perform_tls_handshake(context, stream, encryption) {
            Ok(stream) => read_until_closed(context, peer, stream, source),
            Err(Some(objection)) => {
                context.counters.record_handshake_failure(format!("{}: {objection}", source.address));
                ConnectionOutcome::HandshakeFailed
            }
            Err(None) => ConnectionOutcome::Refused,
        },
    }
}

/// Completes the TLS handshake. The error says why one side rejected the handshake; `None` if it took too long or the
/// peer only closed the connection.
fn perform_tls_handshake(
    context: &ConnectionContext,
    mut stream: TimeLimitedStream,
    encryption: &ListenerEncryption,
) -> Result<StreamOwned<ServerConnection, TimeLimitedStream>, Option<String>> {
    let mut connection = ServerConnection::new(Arc::clone(&encryption.config)).map_err(|_| None)?;
    let begun_ns = clock::monotonic_ns();
    while connection.is_handshaking() {
        match connection.complete_io(&mut stream) {
            Ok(_) => {}
            // After a stop, a handshake that would have to wait for data is given up.
            Err(error) if is_not_ready_error(&error) && !context.shared.is_stopping() => {}
            Err(error) => return Err(encryption.describe_handshake_failure(&error)),
        }
        if context.is_message_overdue(begun_ns) || context.is_drain_time_over() {
            return Err(None);
        }
    }
    Ok(StreamOwned::new(connection, stream))
}

fn is_not_ready_error(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads until the connection ends, and passes every whole message to the decoding thread.
fn read_until_closed(
    context: &ConnectionContext,
    peer: &PeerState,
    mut stream: impl Read,
    source: MessageSource,
) -> ConnectionOutcome {
    let mut room = vec![0; CONNECTION_BUFFER_BYTES];
    let mut filled = 0;
    let opened_ns = clock::monotonic_ns();
    // Arrival of the first bytes of the incomplete message.
    let mut begun_ns = 0;
    loop {
        match stream.read(&mut room[filled..]) {
            Ok(0) => return outcome_at_end_of_stream(filled),
            Ok(length) => {
                begun_ns = if filled == 0 { clock::monotonic_ns() } else { begun_ns };
                filled += length;
                let Some(used) = forward_messages(context, peer, &room[..filled], source) else {
                    return ConnectionOutcome::Broken;
                };
                if used > 0 {
                    room.copy_within(used..filled, 0);
                    filled -= used;
                    // The remaining bytes belong to the next message; its time limit begins now.
                    begun_ns = clock::monotonic_ns();
                }
            }
            // The turn is over although bytes arrive (see `turns`): check the deadlines, then read on.
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if is_not_ready_error(&error) && !context.shared.is_stopping() => {}
            // The collector ends and no bytes are waiting, or the peer has gone: many peers close a TLS connection
            // without `close_notify`, which rustls reports as an error. At a message boundary that is an orderly end.
            Err(_) => return outcome_at_end_of_stream(filled),
        }
        if context.shared.is_stopping() {
            if context.is_drain_time_over() {
                return if peer.has_unread_bytes() {
                    ConnectionOutcome::Cut
                } else {
                    outcome_at_end_of_stream(filled)
                };
            }
        // After a stop, only the drain deadline applies.
        } else if filled > 0 && context.is_message_overdue(begun_ns) {
            return ConnectionOutcome::Slow;
        } else if !peer.has_sent_message() && context.is_first_message_overdue(opened_ns) {
            return ConnectionOutcome::Silent;
        }
    }
}

fn outcome_at_end_of_stream(unfinished_bytes: usize) -> ConnectionOutcome {
    if unfinished_bytes == 0 { ConnectionOutcome::Orderly } else { ConnectionOutcome::Broken }
}

/// Passes on all whole messages and returns how many bytes they had. `None` if other data follow, or if the
/// decoding thread has ended.
fn forward_messages(
    context: &ConnectionContext,
    peer: &PeerState,
    bytes: &[u8],
    source: MessageSource,
) -> Option<usize> {
    let mut messages = MessageBlock::new_for_connection(&peer.delivered);
    let used = split_messages(bytes, |message| messages.push_message(source, message));
    add_to_counter(&context.counters.messages, messages.parts.len() as u64);
    add_to_counter(&context.counters.bytes, messages.bytes.len() as u64);
    // Only whole messages count as sent: a partial message must not keep a connection open.
    if !messages.parts.is_empty() {
        peer.mark_message_received();
    }
    // The messages before invalid data are still delivered; only then does the connection end.
    if messages.send_to_decoder(&context.queue) { used } else { None }
}

/// Calls `take` for every whole message at the start of `bytes`, and returns how many bytes the messages have. `None`
/// if something that is not a message follows.
pub(super) fn split_messages(bytes: &[u8], mut take: impl FnMut(&[u8])) -> Option<usize> {
    let mut used = 0;
    while let Some(length) = message_length(&bytes[used..]).ok()? {
        let Some(message) = bytes.get(used..used + length) else { break };
        take(message);
        used += length;
    }
    Some(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_where_they_end() {
        let message = |length: u16| {
            let mut bytes = vec![0, 10];
            bytes.extend(length.to_be_bytes());
            bytes.resize(length.into(), 7);
            bytes
        };
        let mut stream = [message(20), message(30)].concat();
        let mut lengths = Vec::new();
        assert_eq!(split_messages(&stream, |message| lengths.push(message.len())), Some(50));
        stream.extend(&message(40)[..39]);
        assert_eq!(split_messages(&stream, |message| lengths.push(message.len())), Some(50));
        assert_eq!(lengths, [20, 30, 20, 30]);
        stream.splice(50..52, [9, 9]);
        assert_eq!(split_messages(&stream, |message| lengths.push(message.len())), None);
        assert_eq!(lengths.len(), 6);
    }
}
