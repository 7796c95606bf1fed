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
        let mut messages = Messages { at_ns: clock::wall_clock_ns(), ..Messages::default() };
        let received = receiver.receive(wait, BATCH, |bytes, from| {
            let source =
                Source { address: from.ip().to_canonical(), port: from.port(), transport: Transport::Udp };
            messages.push(source, bytes);
        });
        if let Ok(dropped) = receiver.dropped() {
            counters.dropped.store(dropped, Ordering::Relaxed);
        }
        add(&counters.messages, messages.parts.len() as u64);
        add(&counters.bytes, messages.bytes.len() as u64);
        let is_heard = messages.send(queue);
        if received.is_err() || !is_heard {
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
