//! One UDP socket and its thread.

use super::intake::{Counters, Item, Messages, add};
use super::{Error, Shared};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{Source, Transport};
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
/// What is in the socket when the collector is stopped is still read, for so long.
const DRAIN_NS: u64 = 2_000_000_000;

pub(super) fn start(
    address: SocketAddr,
    room: usize,
    shared: &Arc<Shared>,
    counters: Arc<Counters>,
    queue: Sender<Item>,
) -> Result<(SocketAddr, JoinHandle<()>), Error> {
    let receiver = UdpReceiver::bind(address, room)?;
    let bound = receiver.address()?;
    let shared = Arc::clone(shared);
    let work = move || listen(receiver, &shared, &counters, &queue);
    let thread = std::thread::Builder::new().name("collect-udp".into()).spawn(work).map_err(Error::Thread)?;
    Ok((bound, thread))
}

fn listen(mut receiver: UdpReceiver, shared: &Shared, counters: &Counters, queue: &Sender<Item>) {
    let mut until_ns = None;
    loop {
        let is_over = shared.is_over();
        let wait = if is_over { Duration::ZERO } else { WAIT };
        let mut batch = Batch { shared, counters, queue, messages: Messages::new(), is_heard: true };
        let received = receiver.receive(wait, BATCH, |bytes, from| batch.take(bytes, from));
        if let Ok(dropped) = receiver.dropped() {
            counters.dropped.store(dropped, Ordering::Relaxed);
        }
        batch.send();
        if received.is_err() || !batch.is_heard {
            counters.failed.store(received.is_err(), Ordering::Relaxed);
            return;
        }
        if is_over {
            let until_ns = *until_ns.get_or_insert_with(|| clock::monotonic_ns() + DRAIN_NS);
            if matches!(received, Ok(0)) || clock::monotonic_ns() > until_ns {
                return;
            }
        }
    }
}

/// Datagrams on their way to the decoding thread.
struct Batch<'a> {
    shared: &'a Shared,
    counters: &'a Counters,
    queue: &'a Sender<Item>,
    messages: Messages,
    is_heard: bool,
}

impl Batch<'_> {
    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let address = from.ip().to_canonical();
        add(&self.counters.messages, 1);
        add(&self.counters.bytes, bytes.len() as u64);
        if !self.shared.allowed.allows(address) {
            add(&self.counters.not_allowed, 1);
            return;
        }
        self.messages.push(Source { address, port: from.port(), transport: Transport::Udp }, bytes);
        if self.messages.is_full() {
            self.send();
        }
    }

    fn send(&mut self) {
        self.is_heard &= std::mem::replace(&mut self.messages, Messages::new()).send(self.queue);
    }
}
