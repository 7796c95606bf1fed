//! Connections: each has a thread that cuts what it reads into messages.
//!
//! Invariant: there are never more connections than the options allow, no address has more than its share of them, and each
//! holds at most one message that is not whole. A connection that says nothing has a deadline and makes room for others.

mod peers;
mod turns;

use super::intake::{IntakeItem, ListenerCounters, MessageBlock, add};
use super::{CollectorState, Error};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{MessageSource, MessageTransport, message_length};
use packetrig_sys::clock;
use peers::{ExporterPeer, PeerDenial, PeerState, make_room};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use turns::TurnStream;

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);
/// Room for the longest message and what was read behind it.
const ROOM: usize = 2 * 65_536;
/// When it is over, who waits is still let in, and connections are read while something comes, for so long in all.
const DRAIN_NS: u64 = 2_000_000_000;

pub(super) fn start(
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    shared: &Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<IntakeItem>,
) -> Result<(SocketAddr, JoinHandle<()>), Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let drain_until_ns = OnceLock::new();
    let desk = ConnectionDesk { tls, shared: Arc::clone(shared), counters, queue, drain_until_ns };
    let work = move || accept(&listener, &Arc::new(desk));
    let thread = std::thread::Builder::new().name("collect-tcp".into()).spawn(work).map_err(Error::Thread)?;
    Ok((bound, thread))
}

/// What the connections of a listener share.
struct ConnectionDesk {
    tls: Option<Arc<ServerConfig>>,
    shared: Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<IntakeItem>,
    drain_until_ns: OnceLock<u64>,
}

impl ConnectionDesk {
    fn is_slow(&self, begun_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(begun_ns) > self.shared.patience_ns
    }

    fn is_too_silent(&self, opened_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(opened_ns) > self.shared.first_message_ns
    }

    /// Whether it is over, and there is no time left for what still comes: one instant for all connections.
    fn is_drained(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        self.shared.is_over() && now_ns > *self.drain_until_ns.get_or_init(|| now_ns + DRAIN_NS)
    }
}

fn accept(listener: &TcpListener, desk: &Arc<ConnectionDesk>) {
    let mut peers = Vec::new();
    loop {
        // Asked before looking: who came before the end is let in, too.
        let is_over = desk.shared.is_over();
        peers.retain(|peer: &ExporterPeer| !peer.thread.is_finished());
        match listener.accept() {
            Ok((stream, from)) => admit(desk, &mut peers, stream, from),
            Err(error) if is_over && error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => std::thread::sleep(LOOK),
        }
        if desk.is_drained() {
            break;
        }
    }
    for peer in peers {
        // A panic of one connection is its end; what it had handed on is counted.
        peer.thread.join().unwrap_or(());
    }
}

fn admit(desk: &Arc<ConnectionDesk>, peers: &mut Vec<ExporterPeer>, stream: TcpStream, from: SocketAddr) {
    let address = from.ip().to_canonical();
    if !desk.shared.allowed.allows(address) {
        add(&desk.counters.not_allowed, 1);
        return;
    }
    match make_room(peers, address, &desk.shared) {
        Ok(()) => {}
        Err(PeerDenial::Full) => return add(&desk.counters.refused, 1),
        Err(PeerDenial::AddressFull) => return add(&desk.counters.address_full, 1),
    }
    let state = Arc::new(PeerState::new(address, stream));
    let of = Arc::clone(desk);
    let peer = Arc::clone(&state);
    let serve = move || serve(&of, &peer, from.port());
    match std::thread::Builder::new().name("collect-peer".into()).spawn(serve) {
        Ok(thread) => peers.push(ExporterPeer { state, thread }),
        Err(_) => add(&desk.counters.refused, 1),
    }
}

fn serve(desk: &ConnectionDesk, peer: &Arc<PeerState>, port: u16) {
    let counters = &desk.counters;
    add(&counters.connections, 1);
    add(&counters.open, 1);
    let transport = if desk.tls.is_some() { MessageTransport::Tls } else { MessageTransport::Tcp };
    let source = MessageSource { address: peer.address, port, transport };
    let end = converse(desk, peer, source);
    let counter = match end {
        _ if peer.is_evicted() => Some(&counters.made_room),
        ConnectionEnd::Orderly => None,
        ConnectionEnd::Refused => Some(&counters.refused),
        ConnectionEnd::Broken => Some(&counters.broken),
        ConnectionEnd::Slow => Some(&counters.slow),
        ConnectionEnd::Silent => Some(&counters.silent),
        ConnectionEnd::Cut => Some(&counters.cut),
    };
    if let Some(counter) = counter {
        add(counter, 1);
    }
    // It is closed now, even if the listener still knows it.
    peer.stream.shutdown(Shutdown::Both).unwrap_or(());
    // Nobody may be there any more to hear of it.
    desk.queue.send(IntakeItem::Closed(source)).unwrap_or(());
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    Orderly,
    Refused,
    Broken,
    Slow,
    Silent,
    /// The collector ended, and there was more to read.
    Cut,
}

fn converse(desk: &ConnectionDesk, peer: &Arc<PeerState>, source: MessageSource) -> ConnectionEnd {
    let stream = &peer.stream;
    let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK)));
    if ready.and_then(|()| stream.set_write_timeout(Some(Duration::from_secs(2)))).is_err() {
        return ConnectionEnd::Refused;
    }
    let stream = TurnStream::new(Arc::clone(peer));
    match &desk.tls {
        None => read(desk, peer, stream, source),
        Some(config) => match shake_hands(desk, stream, config) {
            Some(stream) => read(desk, peer, stream, source),
            None => ConnectionEnd::Refused,
        },
    }
}

fn shake_hands(
    desk: &ConnectionDesk,
    mut stream: TurnStream,
    config: &Arc<ServerConfig>,
) -> Option<StreamOwned<ServerConnection, TurnStream>> {
    let mut connection = ServerConnection::new(Arc::clone(config)).ok()?;
    let begun_ns = clock::monotonic_ns();
    while connection.is_handshaking() {
        match connection.complete_io(&mut stream) {
            Ok(_) => {}
            Err(error) if is_nothing_yet(&error) && !desk.shared.is_over() => {}
            Err(_) => return None,
        }
        if desk.is_slow(begun_ns) || desk.is_drained() {
            return None;
        }
    }
    Some(StreamOwned::new(connection, stream))
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads until the end, and hands every whole message on.
fn read(
    desk: &ConnectionDesk,
    peer: &PeerState,
    mut stream: impl Read,
    source: MessageSource,
) -> ConnectionEnd {
    let mut room = vec![0; ROOM];
    let mut filled = 0;
    let opened_ns = clock::monotonic_ns();
    // When the message that is not whole yet began.
    let mut begun_ns = 0;
    loop {
        let end = |filled| if filled == 0 { ConnectionEnd::Orderly } else { ConnectionEnd::Broken };
        match stream.read(&mut room[filled..]) {
            Ok(0) => return end(filled),
            Ok(length) => {
                begun_ns = if filled == 0 { clock::monotonic_ns() } else { begun_ns };
                filled += length;
                let Some(used) = hand_on(desk, peer, &room[..filled], source) else {
                    return ConnectionEnd::Broken;
                };
                if used > 0 {
                    room.copy_within(used..filled, 0);
                    filled -= used;
                    begun_ns = clock::monotonic_ns();
                }
            }
            // A turn of the reader is over, but something came.
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if is_nothing_yet(&error) && !desk.shared.is_over() => {}
            // It is over, or closed: some close an encrypted connection without saying so.
            Err(_) => return end(filled),
        }
        if desk.shared.is_over() {
            if desk.is_drained() {
                return if peer.has_more() { ConnectionEnd::Cut } else { end(filled) };
            }
        } else if filled > 0 && desk.is_slow(begun_ns) {
            return ConnectionEnd::Slow;
        } else if !peer.has_sent() && desk.is_too_silent(opened_ns) {
            return ConnectionEnd::Silent;
        }
    }
}

/// Hands whole messages on and says how many bytes they had; `None` if the connection cannot go on.
fn hand_on(desk: &ConnectionDesk, peer: &PeerState, bytes: &[u8], source: MessageSource) -> Option<usize> {
    let mut messages = MessageBlock::new();
    let used = cut(bytes, |message| messages.push(source, message));
    add(&desk.counters.messages, messages.parts.len() as u64);
    add(&desk.counters.bytes, messages.bytes.len() as u64);
    if !messages.parts.is_empty() {
        peer.hear();
    }
    if messages.send(&desk.queue) { used } else { None }
}

/// Gives out the whole messages at the beginning of some bytes, and says how many bytes they have; `None` if something else
/// comes behind them.
pub(super) fn cut(bytes: &[u8], mut take: impl FnMut(&[u8])) -> Option<usize> {
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
        assert_eq!(cut(&stream, |message| lengths.push(message.len())), Some(50));
        stream.extend(&message(40)[..39]);
        assert_eq!(cut(&stream, |message| lengths.push(message.len())), Some(50));
        assert_eq!(lengths, [20, 30, 20, 30]);
        stream.splice(50..52, [9, 9]);
        assert_eq!(cut(&stream, |message| lengths.push(message.len())), None);
        assert_eq!(lengths.len(), 6);
    }
}
