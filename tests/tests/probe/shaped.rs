//! A link that the kernel shapes, and traffic of others over it.

use crate::testbed::Testbed;
use packetrig_sys::clock;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS: usize = 42;

/// Lets the link to the second host be as slow as `tc` is told.
pub(crate) fn shape(testbed: &Testbed, words: &str) {
    testbed.tc(&format!("qdisc add dev port1 root {words}"));
}

/// Bytes in a packet of others, without headers.
pub(crate) const OTHERS_PAYLOAD: usize = 700;

/// Traffic of others over the same link, in packets of so many bytes, until it is told to end.
pub(crate) fn others(
    testbed: &Testbed,
    payload: usize,
    bits_per_s: f64,
) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let near = testbed.host(0).run_in_namespace(|| UdpSocket::bind("198.18.1.2:0").unwrap()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    let packet = vec![0; payload];
    let thread = std::thread::spawn(move || {
        let (mut at, mut n) = (clock::monotonic_ns() as f64, 0);
        while !end.load(Ordering::Relaxed) {
            // Nobody listens there: an error message comes back now and then.
            drop(near.send_to(&packet, "198.18.2.2:9"));
            n += 1;
            let share = ((packetrig_wire::pattern::keyed_mix(3, n) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            at += -share.ln() * (payload + HEADERS) as f64 * 8e9 / bits_per_s;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an instant")]
            clock::sleep_until_ns(at as u64);
        }
    });
    (is_over, thread)
}
