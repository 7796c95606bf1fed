//! A UDP listener: a socket, and the thread that receives datagrams from it.

use super::intake::{DecoderQueueItem, ListenerCounters, ListenerThread, MessageBlock, add_to_counter};
use super::relay::RelayQueue;
use super::{CollectorState, Error};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{MessageSource, MessageTransport};
use packetrig_sys::clock;
use packetrig_sys::udp::UdpReceiver;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of datagrams that are received in one call.
const MAX_DATAGRAMS_PER_BATCH: usize = 32;
const DATAGRAM_WAIT: Duration = Duration::from_millis(50);
/// After a stop, the datagrams that are still in the socket are decoded for this long. Then they are only counted, for
/// the same time again.
const SOCKET_DRAIN_TIMEOUT_NS: u64 = 5_000_000_000;

/// Destinations of a listener's datagrams.
pub(super) struct DatagramDestinations {
    /// Queue to the decoding thread.
    pub(super) queue: Sender<DecoderQueueItem>,
    pub(super) relays: Vec<RelayQueue>,
}

pub(super) fn start_udp_listener(
    address: SocketAddr,
    receive_buffer_bytes: usize,
    shared: &Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    outlets: DatagramDestinations,
) -> Result<ListenerThread, Error> {
    let receiver = UdpReceiver::bind_with_buffer(address, receive_buffer_bytes)?;
    let bound = receiver.address()?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("collect-udp".into())
        .spawn(move || receive_until_stopped(receiver, &shared, &counters, &outlets))
        .map_err(Error::Thread)?;
    Ok(ListenerThread { bound, thread })
}

fn receive_until_stopped(
    mut receiver: UdpReceiver,
    shared: &CollectorState,
    counters: &ListenerCounters,
    outlets: &DatagramDestinations,
) {
    let mut until_ns = None;
    loop {
        let is_over = shared.is_stopping();
        if is_over && until_ns.is_none() {
            until_ns = Some(clock::monotonic_ns() + SOCKET_DRAIN_TIMEOUT_NS);
            // A flood of datagrams would never end. If the socket cannot be shut down, SOCKET_DRAIN_TIMEOUT_NS still
            // limits the reading.
            drop(receiver.stop_intake());
            store_dropped_datagrams(&mut receiver, counters);
        }
        // After a stop, the receive call below does not wait. So it returns no datagram only if the socket is empty.
        let wait = if is_over { Duration::ZERO } else { DATAGRAM_WAIT };
        let is_late = until_ns.is_some_and(|until_ns| clock::monotonic_ns() > until_ns);
        // A block carries one time of arrival, so every wait begins a new block.
        let messages = MessageBlock::new();
        let mut batch = DatagramBatch { shared, counters, outlets, messages, is_late, is_heard: true };
        let received = receiver
            .receive_datagrams(wait, MAX_DATAGRAMS_PER_BATCH, |bytes, from| batch.add_datagram(bytes, from));
        // What arrives after the stop is not for this collector any more, so the kernel's drops from then
        // on are no loss.
        if !is_over {
            store_dropped_datagrams(&mut receiver, counters);
        }
        batch.send_block();
        let has_failed = received.is_err();
        // A failed socket is given up and shown as failed: the thread must not spin on its error.
        if has_failed || !batch.is_heard {
            counters.failed.store(has_failed, Ordering::Relaxed);
            return;
        }
        let is_beyond =
            until_ns.is_some_and(|until_ns| clock::monotonic_ns() > until_ns + SOCKET_DRAIN_TIMEOUT_NS);
        if is_over && (matches!(received, Ok(0)) || is_beyond) {
            return;
        }
    }
}

fn store_dropped_datagrams(receiver: &mut UdpReceiver, counters: &ListenerCounters) {
    // The kernel's counter is cumulative for the socket, so it is stored and not added.
    if let Ok(dropped) = receiver.dropped_datagrams() {
        counters.dropped.store(dropped, Ordering::Relaxed);
    }
}

/// Datagrams on their way to the decoding thread.
struct DatagramBatch<'a> {
    shared: &'a CollectorState,
    counters: &'a ListenerCounters,
    outlets: &'a DatagramDestinations,
    messages: MessageBlock,
    /// True once the time for decoding after a stop is over: datagrams are then only counted.
    is_late: bool,
    /// False once the decoding thread has ended and receives no more messages.
    is_heard: bool,
}

impl DatagramBatch<'_> {
    fn add_datagram(&mut self, bytes: &[u8], from: SocketAddr) {
        // An IPv6 socket reports IPv4 senders as mapped addresses; the list of exporters has plain ones.
        let address = from.ip().to_canonical();
        // The message is counted before any check: the ledger's rule is messages = read + refused + not
        // allowed + unread.
        add_to_counter(&self.counters.messages, 1);
        add_to_counter(&self.counters.bytes, bytes.len() as u64);
        if !self.shared.allowed.allows_address(address) {
            add_to_counter(&self.counters.not_allowed, 1);
            return;
        }
        if self.is_late {
            add_to_counter(&self.counters.unread, 1);
            return;
        }
        self.messages.push_message(
            MessageSource { address, port: from.port(), transport: MessageTransport::Udp },
            bytes,
        );
        if self.messages.is_full() {
            self.send_block();
        }
    }

    fn send_block(&mut self) {
        let messages = std::mem::replace(&mut self.messages, MessageBlock::new());
        // The relays get the block first, because sending it to the decoding thread may block.
        self.outlets.relays.iter().for_each(|relay| relay.queue_message_block(&messages));
        self.is_heard &= messages.send_to_decoder(&self.outlets.queue);
    }
}
