//! Relays: forward received datagrams unchanged to other collectors.
//!
//! Each target has its own thread and a bounded queue, so a target never delays a listener. Forwarded datagrams have
//! this machine as their sender: keeping the exporter's address would need rights to forge addresses.
//!
//! Invariant: each datagram that was offered is sent, refused by the kernel, or dropped because the queue was full.

use super::Error;
use super::intake::{MessageBlock, add_to_counter};
use crate::export::{ExportTarget, TargetError};
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::collect::MessageTransport;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of blocks of datagrams that wait for one target; a block has at most 64 KiB and one datagram more.
const RELAY_QUEUE_BLOCKS: usize = 256;

/// A collector to which received datagrams are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayTarget {
    host: String,
    port: u16,
}

/// The text is not a target of a relay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayTargetError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("`{0}` is not a valid relay target: only datagrams are forwarded; write udp://HOST:PORT")]
    NotUdp(String),
}

impl FromStr for RelayTarget {
    type Err = RelayTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse()? {
            ExportTarget::Udp(place) => Ok(Self { host: place.host, port: place.port }),
            _ => Err(RelayTargetError::NotUdp(text.to_owned())),
        }
    }
}

impl fmt::Display for RelayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "udp://[{host}]:{port}") } else { write!(f, "udp://{host}:{port}") }
    }
}

/// Counts of the datagrams for one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayCounts {
    pub to: String,
    /// Datagrams that were forwarded.
    pub sent: u64,
    pub sent_bytes: u64,
    /// Datagrams that the kernel refused to send.
    pub refused: u64,
    /// Datagrams that were dropped because too many were waiting for this target.
    pub dropped: u64,
    /// Error text of the last datagram that the kernel refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl RelayCounts {
    /// Returns each number with its metric name and help text.
    pub const fn named_counts(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("sent_total", "datagrams forwarded", self.sent),
            ("sent_bytes_total", "bytes of the datagrams forwarded", self.sent_bytes),
            ("refused_total", "datagrams not forwarded: the kernel refused to send them", self.refused),
            ("dropped_total", "datagrams not forwarded: too many were waiting for this target", self.dropped),
        ]
    }
}

#[derive(Debug, Default)]
pub(super) struct RelayCounters {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl RelayCounters {
    pub(super) fn read_counts(&self, to: String) -> RelayCounts {
        RelayCounts {
            to,
            sent: self.sent.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failure: self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// The sending half of a target's queue, for the listeners.
#[derive(Clone, Debug)]
pub(super) struct RelayQueue {
    queue: Sender<RelayedDatagrams>,
    counters: Arc<RelayCounters>,
}

/// Datagrams in one buffer, with the length of each.
#[derive(Debug)]
struct RelayedDatagrams {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl RelayQueue {
    /// Queues the datagrams of a block for the target. If the queue is full, counts them as dropped.
    pub(super) fn queue_message_block(&self, block: &MessageBlock) {
        if block.parts.is_empty() {
            return;
        }
        let count = block.parts.len() as u64;
        // This check comes before the copy: a slow target costs the listener nothing.
        if self.queue.is_full() {
            add_to_counter(&self.counters.dropped, count);
            return;
        }
        let lengths: Vec<usize> = block.parts.iter().map(|(_, length)| *length).collect();
        // The listener never waits: otherwise the kernel would drop datagrams that the collector should store.
        if self.queue.try_send(RelayedDatagrams { bytes: block.bytes.clone(), lengths }).is_err() {
            add_to_counter(&self.counters.dropped, count);
        }
    }
}

/// A running relay: the queue, counters and thread of one target.
#[derive(Debug)]
pub(super) struct RunningRelay {
    pub(super) queue: RelayQueue,
    pub(super) counters: Arc<RelayCounters>,
    pub(super) thread: JoinHandle<()>,
}

/// Starts the thread of a target. The thread ends when all copies of its queue have been dropped and
/// the waiting datagrams are sent.
pub(super) fn start_relay(
    target: &RelayTarget,
    listen: &[super::ListenAddress],
) -> Result<RunningRelay, Error> {
    let failed = |source| Error::Relay { target: target.to_string(), source };
    let mut found = (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)?;
    // The name is looked up once, and its first address is used: a name that changes later needs a restart.
    let address = found.next().ok_or_else(|| failed(std::io::Error::other("the name has no address")))?;
    // A relay to one of our own ports would forward each datagram in a loop for ever.
    let mut own = listen.iter().filter(|listen| listen.transport == MessageTransport::Udp);
    if own.any(|listen| reaches_listener(address, listen.address)) && is_local(address) {
        return Err(Error::RelayLoop(target.to_string()));
    }
    // The kernel chooses the source address by its route to the target.
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    let (queue, received) = bounded(RELAY_QUEUE_BLOCKS);
    let counters = Arc::<RelayCounters>::default();
    let of_thread = Arc::clone(&counters);
    let thread = std::thread::Builder::new()
        .name("collect-relay".into())
        .spawn(move || send_until_closed(&socket, address, &received, &of_thread))
        .map_err(Error::Thread)?;
    Ok(RunningRelay { queue: RelayQueue { queue, counters: Arc::clone(&counters) }, counters, thread })
}

/// Returns whether a datagram to this target may reach this listener, if the target is on this machine.
fn reaches_listener(target: SocketAddr, listener: SocketAddr) -> bool {
    let (to, own) = (target.ip().to_canonical(), listener.ip().to_canonical());
    target.port() == listener.port() && (to == own || own.is_unspecified() || to.is_unspecified())
}

/// Returns whether the address belongs to this machine: with few exceptions, only local addresses can be bound.
fn is_local(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

fn send_until_closed(
    socket: &UdpSocket,
    address: SocketAddr,
    received: &Receiver<RelayedDatagrams>,
    counters: &RelayCounters,
) {
    for RelayedDatagrams { bytes, lengths } in received {
        // The datagrams follow one another in the buffer.
        let mut rest = &bytes[..];
        for length in lengths {
            let (datagram, behind) = rest.split_at(length);
            rest = behind;
            // The socket is not connected: otherwise an ICMP error from the target would make the next send fail.
            match socket.send_to(datagram, address) {
                Ok(_) => {
                    add_to_counter(&counters.sent, 1);
                    add_to_counter(&counters.sent_bytes, length as u64);
                }
                Err(error) => {
                    add_to_counter(&counters.refused, 1);
                    *counters.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(error.to_string());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::collect::MessageSource;
    use std::net::IpAddr;
    use std::time::Duration;

    fn block(datagrams: &[&[u8]]) -> MessageBlock {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let source = MessageSource { address, port: 7, transport: MessageTransport::Udp };
        let mut block = MessageBlock::new();
        for datagram in datagrams {
            block.push_message(source, datagram);
        }
        block
    }

    #[test]
    fn relay_sends_each_datagram_unchanged() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let target: RelayTarget = format!("udp://{}", receiver.local_addr().unwrap()).parse().unwrap();
        let RunningRelay { queue, counters, thread } = start_relay(&target, &[]).unwrap();
        queue.queue_message_block(&block(&[b"one", b"", b"three"]));
        queue.queue_message_block(&block(&[]));
        drop(queue);
        thread.join().unwrap();
        let mut buffer = [0; 100];
        let mut next = || {
            let length = receiver.recv(&mut buffer).unwrap();
            buffer[..length].to_vec()
        };
        assert_eq!([next(), next(), next()], [b"one".to_vec(), Vec::new(), b"three".to_vec()]);
        let counts = counters.read_counts(target.to_string());
        assert_eq!((counts.sent, counts.sent_bytes, counts.refused, counts.dropped), (3, 8, 0, 0));
    }

    #[test]
    fn full_relay_queue_drops_without_waiting() {
        let (queue, _received) = bounded(1);
        let counters = Arc::<RelayCounters>::default();
        let queue = RelayQueue { queue, counters: Arc::clone(&counters) };
        queue.queue_message_block(&block(&[b"waits"]));
        queue.queue_message_block(&block(&[b"is", b"dropped"]));
        assert_eq!(counters.read_counts(String::new()).dropped, 2);
    }

    #[test]
    fn relay_to_itself_is_refused() {
        let listen = |text: &str| vec![text.parse().unwrap()];
        let target: RelayTarget = "udp://127.0.0.1:4739".parse().unwrap();
        let error = start_relay(&target, &listen("udp://0.0.0.0:4739")).unwrap_err();
        assert!(matches!(error, Error::RelayLoop(_)), "{error}");
        drop(start_relay(&target, &listen("tcp://0.0.0.0:4739")).unwrap());
        // Another collector of this machine may listen at another of its addresses.
        drop(start_relay(&target, &listen("udp://127.0.0.2:4739")).unwrap());
        for wrong in ["tcp://127.0.0.1:1", "udp://127.0.0.1", "a.ipfix/x"] {
            assert!(wrong.parse::<RelayTarget>().is_err(), "{wrong}");
        }
        assert_eq!("udp://[::1]:9".parse::<RelayTarget>().unwrap().to_string(), "udp://[::1]:9");
    }
}
