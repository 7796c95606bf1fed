//! One UDP socket and its thread.

use super::intake::{IntakeItem, ListenerCounters, MessageBlock, add};
use super::{CollectorState, Error};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{MessageSource, MessageTransport};
use packetrig_sys::clock;
use packetrig_sys::udp::UdpReceiver;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Datagrams handed on at a time, at most.
const BATCH: usize = 32;
const WAIT: Duration = Duration::from_millis(50);
/// What is in the socket when the collector is stopped is still read, for so long; what is there then is counted, for as long.
const DRAIN_NS: u64 = 5_000_000_000;

pub(super) fn start(
    address: SocketAddr,
    room: usize,
    shared: &Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<IntakeItem>,
) -> Result<(SocketAddr, JoinHandle<()>), Error> {
    let receiver = UdpReceiver::bind(address, room)?;
    let bound = receiver.address()?;
    let shared = Arc::clone(shared);
    let work = move || listen(receiver, &shared, &counters, &queue);
    let thread = std::thread::Builder::new().name("collect-udp".into()).spawn(work).map_err(Error::Thread)?;
    Ok((bound, thread))
}

fn listen(
    mut receiver: UdpReceiver,
    shared: &CollectorState,
    counters: &ListenerCounters,
    queue: &Sender<IntakeItem>,
) {
    let mut until_ns = None;
    loop {
        let is_over = shared.is_over();
        if is_over && until_ns.is_none() {
            until_ns = Some(clock::monotonic_ns() + DRAIN_NS);
            // A flood would have no end. Where the socket cannot be shut, the time limits what is read.
            receiver.shut().unwrap_or(());
        }
        let wait = if is_over { Duration::ZERO } else { WAIT };
        let is_late = until_ns.is_some_and(|until_ns| clock::monotonic_ns() > until_ns);
        let messages = MessageBlock::new();
        let mut batch = DatagramBatch { shared, counters, queue, messages, is_late, is_heard: true };
        let received = receiver.receive(wait, BATCH, |bytes, from| batch.take(bytes, from));
        if let Ok(dropped) = receiver.dropped() {
            counters.dropped.store(dropped, Ordering::Relaxed);
        }
        batch.send();
        let has_failed = received.is_err();
        if has_failed || !batch.is_heard {
            counters.failed.store(has_failed, Ordering::Relaxed);
            return;
        }
        let is_beyond = until_ns.is_some_and(|until_ns| clock::monotonic_ns() > until_ns + DRAIN_NS);
        if is_over && (matches!(received, Ok(0)) || is_beyond) {
            return;
        }
    }
}

/// Datagrams on their way to the decoding thread.
struct DatagramBatch<'a> {
    shared: &'a CollectorState,
    counters: &'a ListenerCounters,
    queue: &'a Sender<IntakeItem>,
    messages: MessageBlock,
    /// Whether there is no time left to read them: they are counted.
    is_late: bool,
    is_heard: bool,
}

impl DatagramBatch<'_> {
    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let address = from.ip().to_canonical();
        add(&self.counters.messages, 1);
        add(&self.counters.bytes, bytes.len() as u64);
        if !self.shared.allowed.allows(address) {
            add(&self.counters.not_allowed, 1);
            return;
        }
        if self.is_late {
            add(&self.counters.unread, 1);
            return;
        }
        self.messages
            .push(MessageSource { address, port: from.port(), transport: MessageTransport::Udp }, bytes);
        if self.messages.is_full() {
            self.send();
        }
    }

    fn send(&mut self) {
        self.is_heard &= std::mem::replace(&mut self.messages, MessageBlock::new()).send(self.queue);
    }
}
