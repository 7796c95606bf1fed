//! What the collector says that exporters hold is what the allocator gave it: never less, and not several times as much.

use packetrig_flow::collect::{CollectorOptions, FlowCollector, MessageSource, MessageTransport};
use packetrig_tests::exporters::{Attack, honest_message};
use std::net::Ipv4Addr;

const MEMORY: usize = 24 << 20;
/// The first entry of a map takes a whole node.
const FIRST_NODES: usize = 8 << 10;

fn source(n: u32) -> MessageSource {
    MessageSource {
        address: Ipv4Addr::from_bits(0x0a00_0000 + n).into(),
        port: 2055,
        transport: MessageTransport::Udp,
    }
}

/// Sends these messages from as many addresses as wanted, and compares. Gives what is counted at the end.
fn compare(addresses: u32, messages: u32, message: impl Fn(u32) -> Vec<u8>) -> usize {
    let before = super::live();
    let options = CollectorOptions { memory: MEMORY, ..CollectorOptions::default() };
    let mut collector = FlowCollector::new(options);
    for n in 0..messages {
        let now_ns = u64::from(n) * 20_000_000;
        collector.receive_message(source(n % addresses), &message(n), now_ns, &mut |_, _| {}).unwrap_or(());
        let held = usize::try_from(super::live() - before).unwrap();
        let counted = collector.memory_bytes();
        assert!(
            held <= counted + FIRST_NODES && counted <= MEMORY,
            "{held} held, {counted} counted, message {n}"
        );
    }
    collector.memory_bytes()
}

#[test]
fn a_collector_counts_what_exporters_hold() {
    for attack in Attack::ALL {
        for addresses in [1, 40, 10_000] {
            compare(addresses, 1500, |n| attack.message(n));
        }
    }
    let counted = compare(3, 3000, |n| honest_message(1, n / 3 * packetrig_tests::exporters::RECORDS));
    assert!(counted < 200 << 10, "three honest exporters count for {counted} bytes");
}
