//! Connections: each has a thread that cuts what it reads into messages.
//!
//! Invariant: there are never more connections than the options allow, and each holds at most one message that is not whole.

use super::intake::{Counters, Item, Messages, add};
use super::{Error, Shared};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{Source, Transport, message_length};
use packetrig_sys::clock;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);
/// Room for the longest message and what was read behind it.
const ROOM: usize = 2 * 65_536;
/// When it is over, who waits is still let in, and connections are read while something comes, for so long.
const DRAIN_NS: u64 = 2_000_000_000;

pub(super) fn start(
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    shared: &Arc<Shared>,
    counters: Arc<Counters>,
    queue: Sender<Item>,
) -> Result<(SocketAddr, JoinHandle<()>), Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let desk = Desk { tls, shared: Arc::clone(shared), counters, queue };
    let work = move || accept(&listener, &Arc::new(desk));
    let thread = std::thread::Builder::new().name("collect-tcp".into()).spawn(work).map_err(Error::Thread)?;
    Ok((bound, thread))
}

/// What the connections of a listener share.
struct Desk {
    tls: Option<Arc<ServerConfig>>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    queue: Sender<Item>,
}

impl Desk {
    fn is_slow(&self, begun_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(begun_ns) > self.shared.patience_ns
    }
}

fn accept(listener: &TcpListener, desk: &Arc<Desk>) {
    let mut threads = Vec::new();
    let mut until_ns = None;
    loop {
        // Asked before looking: who came before the end is let in, too.
        let is_over = desk.shared.is_over();
        threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
        match listener.accept() {
            Ok((stream, from)) => admit(desk, &mut threads, stream, from),
            Err(error) if is_over && error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => std::thread::sleep(LOOK),
        }
        if is_over
            && clock::monotonic_ns() > *until_ns.get_or_insert_with(|| clock::monotonic_ns() + DRAIN_NS)
        {
            break;
        }
    }
    for thread in threads {
        // A panic of one connection is its end; what it had handed on is counted.
        thread.join().unwrap_or(());
    }
}

fn admit(desk: &Arc<Desk>, threads: &mut Vec<JoinHandle<()>>, stream: TcpStream, from: SocketAddr) {
    if !desk.shared.allowed.allows(from.ip().to_canonical()) {
        add(&desk.counters.not_allowed, 1);
        return;
    }
    if threads.len() >= desk.shared.connections {
        add(&desk.counters.refused, 1);
        return;
    }
    let of = Arc::clone(desk);
    let serve = move || serve(&of, stream, from);
    match std::thread::Builder::new().name("collect-peer".into()).spawn(serve) {
        Ok(thread) => threads.push(thread),
        Err(_) => add(&desk.counters.refused, 1),
    }
}

fn serve(desk: &Desk, stream: TcpStream, from: SocketAddr) {
    let counters = &desk.counters;
    add(&counters.connections, 1);
    add(&counters.open, 1);
    let transport = if desk.tls.is_some() { Transport::Tls } else { Transport::Tcp };
    let source = Source { address: from.ip().to_canonical(), port: from.port(), transport };
    let end = converse(desk, stream, source);
    let counter = match end {
        End::Orderly => None,
        End::Refused => Some(&counters.refused),
        End::Broken => Some(&counters.broken),
        End::Slow => Some(&counters.slow),
    };
    if let Some(counter) = counter {
        add(counter, 1);
    }
    // Nobody may be there any more to hear of it.
    desk.queue.send(Item::Closed(source)).unwrap_or(());
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Orderly,
    Refused,
    Broken,
    Slow,
}

fn converse(desk: &Desk, stream: TcpStream, source: Source) -> End {
    let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK)));
    if ready.and_then(|()| stream.set_write_timeout(Some(Duration::from_secs(2)))).is_err() {
        return End::Refused;
    }
    match &desk.tls {
        None => read(desk, stream, source),
        Some(config) => match shake_hands(desk, stream, config) {
            Some(stream) => read(desk, stream, source),
            None => End::Refused,
        },
    }
}

fn shake_hands(
    desk: &Desk,
    mut stream: TcpStream,
    config: &Arc<ServerConfig>,
) -> Option<StreamOwned<ServerConnection, TcpStream>> {
    let mut connection = ServerConnection::new(Arc::clone(config)).ok()?;
    let until_ns = clock::monotonic_ns() + desk.shared.patience_ns;
    let is_awaited = || !desk.shared.is_over() && clock::monotonic_ns() <= until_ns;
    while connection.is_handshaking() {
        match connection.complete_io(&mut stream) {
            Ok(_) => {}
            Err(error) if is_nothing_yet(&error) && is_awaited() => {}
            Err(_) => return None,
        }
    }
    Some(StreamOwned::new(connection, stream))
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads until the end, and hands every whole message on.
fn read(desk: &Desk, mut stream: impl Read, source: Source) -> End {
    let mut room = vec![0; ROOM];
    let mut filled = 0;
    // When the message that is not whole yet began.
    let mut begun_ns = 0;
    let mut until_ns = None;
    loop {
        match stream.read(&mut room[filled..]) {
            Ok(0) => return if filled == 0 { End::Orderly } else { End::Broken },
            Ok(length) => {
                begun_ns = if filled == 0 { clock::monotonic_ns() } else { begun_ns };
                filled += length;
            }
            Err(error) if is_nothing_yet(&error) => {
                if desk.shared.is_over() {
                    return if filled == 0 { End::Orderly } else { End::Broken };
                }
                if filled > 0 && desk.is_slow(begun_ns) {
                    return End::Slow;
                }
                continue;
            }
            // Some close an encrypted connection without saying so.
            Err(_) => return if filled == 0 { End::Orderly } else { End::Broken },
        }
        let mut messages = Messages { at_ns: clock::wall_clock_ns(), ..Messages::default() };
        let cut = cut(&room[..filled], |message| messages.push(source, message));
        add(&desk.counters.messages, messages.parts.len() as u64);
        add(&desk.counters.bytes, messages.bytes.len() as u64);
        if !messages.send(&desk.queue) {
            return End::Broken;
        }
        let Some(used) = cut else { return End::Broken };
        if used > 0 {
            room.copy_within(used..filled, 0);
            filled -= used;
            begun_ns = clock::monotonic_ns();
        }
        if desk.shared.is_over() {
            let until_ns = *until_ns.get_or_insert_with(|| clock::monotonic_ns() + DRAIN_NS);
            if clock::monotonic_ns() > until_ns {
                return if filled == 0 { End::Orderly } else { End::Broken };
            }
        } else if filled > 0 && desk.is_slow(begun_ns) {
            return End::Slow;
        }
    }
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
