//! Measures how fast a transmit ring is: `ring_rate INTERFACE [bytes=60] [seconds=2] [slots=1024] [batch=64] [bypass=1]`.
//!
//! Sends frames without a receiver through the interface, in the namespace in which it runs, and prints
//! frames per second. Run it only in your own namespace.
#![expect(clippy::print_stdout, reason = "a tool for people")]

use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{TxOptions, TxRing};

fn main() -> Result<(), packetrig_sys::Error> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "a".into());
    let mut number = |default: usize| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (length, seconds, slots, batch, bypass) =
        (number(60), number(2), number(1024), number(64), number(1));
    let netns = NetNs::current()?;
    let index = NamespaceLinks::open_in(&netns)?.find_link_by_name(&name)?.index;
    let options = TxOptions { slots, longest: length, bypass_queue: bypass != 0 };
    let mut ring = TxRing::open_on_interface(&netns, index, &name, options)?;
    let start = clock::monotonic_ns();
    let end = start + seconds as u64 * 1_000_000_000;
    let (mut kicks, mut number) = (0u64, 0u64);
    while clock::monotonic_ns() < end {
        for _ in 0..batch {
            let Some(slot) = ring.next_slot() else { break };
            slot[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xee, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
            slot[14..22].copy_from_slice(&number.to_be_bytes());
            slot[22..length].fill(0);
            ring.commit_frame(length);
            number += 1;
        }
        ring.kick_kernel()?;
        kicks += 1;
    }
    let spent = clock::monotonic_ns() - start;
    let counts = ring.counts();
    println!(
        "{} frames/s ({} taken, {} refused, {kicks} kicks)",
        counts.taken * 1_000_000_000 / spent,
        counts.taken,
        counts.refused
    );
    Ok(())
}
