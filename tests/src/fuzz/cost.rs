//! The cost oracle: an input may cost processor time and memory in proportion to its bytes, and no more. A fault that panics
//! nowhere shows here.
//!
//! [`assert_bounded`] compares with what honest input costs, so a slow machine, a sanitizer or a build without optimisation
//! changes both. [`assert_linear`] has bounds of its own, far beyond what is measured and far below what hurts.

use crate::exporters::honest_message;
use packetrig_flow::collect::{CollectorOptions, FlowCollector, MessageSource, MessageTransport};
use packetrig_sys::memory::MeteredAllocator;
use rustix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

/// A byte of any input may cost this much more than one of an honest exporter. Measured are at most 30.
const FACTOR: u64 = 150;
/// What any input may cost, nanoseconds: the least that can be measured well.
const BASE_NS: u64 = 5_000_000;
/// A measurement that is too long is repeated: an interrupt is charged to the thread that it stops.
const ATTEMPTS: usize = 3;

/// Memory that any input may take on the calling thread, and for each of its bytes.
const MEMORY: u64 = 16 << 20;
const MEMORY_PER_BYTE: u64 = 20_000;
/// Processor time of all threads that any input may take, and for each of its bytes, in nanoseconds.
const TIME_NS: u64 = 300_000_000;
const TIME_PER_BYTE_NS: u64 = 100_000;

/// Runs `work` on an input of so many bytes, and fails if it takes more memory or time than that. Memory is seen where the
/// program has the [`MeteredAllocator`].
pub fn assert_linear(bytes: usize, work: impl FnOnce()) {
    let before = cpu_ns(ClockId::ProcessCPUTime);
    let peak = MeteredAllocator::measure_peak(work);
    let cost_ns = cpu_ns(ClockId::ProcessCPUTime) - before;
    let bytes = bytes as u64;
    let most = MEMORY + MEMORY_PER_BYTE * bytes;
    assert!(peak.is_none_or(|peak| peak <= most), "{bytes} bytes held {peak:?} bytes of memory");
    assert!(
        cost_ns <= TIME_NS + TIME_PER_BYTE_NS * bytes,
        "{bytes} bytes took {cost_ns} ns of processor time"
    );
}

/// Runs `work` on an input of so many bytes, and fails if it costs too much for them.
pub fn assert_bounded(bytes: usize, mut work: impl FnMut()) {
    let limit_ns = BASE_NS + bytes as u64 * FACTOR * honest_ns_per_byte();
    let cost_ns = (0..ATTEMPTS).map(|_| processor_ns(&mut work)).find(|cost| *cost <= limit_ns);
    assert!(cost_ns.is_some(), "{bytes} bytes cost more than {limit_ns} ns, {ATTEMPTS} times");
}

/// How much more a byte may cost in an input of four times the length. Work in proportion to the square of the length makes it four
/// times as much.
const GROWTH: u64 = 2;
/// The shorter input takes at least this long: less is not measured well.
const LEAST_NS: u64 = 3_000_000;
/// The smallest size: work that is given up beyond some number of names (hints at what is meant: 100) is over by then.
const LEAST_SIZE: usize = 128;
/// The longest input that is made.
const MAX_BYTES: usize = 16 << 20;

/// Fails if a byte of an input of four times the size costs more than twice as much. `make` gives an input of a size, whose unit is
/// its own business. Sizes grow until the time can be measured.
pub fn assert_proportional(what: &str, make: impl Fn(usize) -> String, mut work: impl FnMut(&str)) {
    let mut size = LEAST_SIZE;
    loop {
        let (short, long) = (make(size), make(4 * size));
        if best_ns(&short, &mut work) < LEAST_NS && 4 * long.len() <= MAX_BYTES {
            size *= 2;
            continue;
        }
        let per_byte = |input: &str, ns: u64| ns as f64 / input.len() as f64;
        let growth = (0..ATTEMPTS).map(|_| {
            let before = per_byte(&short, best_ns(&short, &mut work));
            per_byte(&long, best_ns(&long, &mut work)) / before
        });
        let growth: Vec<f64> = growth.collect();
        let least = growth.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            least <= GROWTH as f64,
            "{what}: a byte of {} costs {growth:.1?} times as much as one of {}",
            long.len(),
            short.len()
        );
        return;
    }
}

/// The least of some measurements: what else runs only adds to it.
fn best_ns(input: &str, work: &mut impl FnMut(&str)) -> u64 {
    let measured = (0..ATTEMPTS).map(|_| processor_ns(|| work(input)));
    measured.min().unwrap_or(0).max(1)
}

/// Processor time of this thread that `work` takes.
pub fn processor_ns(work: impl FnOnce()) -> u64 {
    let before = cpu_ns(ClockId::ThreadCPUTime);
    work();
    cpu_ns(ClockId::ThreadCPUTime) - before
}

fn cpu_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// What a byte of an honest exporter costs, at least one nanosecond.
fn honest_ns_per_byte() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let messages: Vec<_> = (0..500).map(|n| honest_message(1, n * crate::exporters::RECORDS)).collect();
        let bytes: usize = messages.iter().map(Vec::len).sum();
        let source = MessageSource {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 1,
            transport: MessageTransport::Udp,
        };
        let cost = (0..ATTEMPTS).map(|_| {
            let mut collector = FlowCollector::new(CollectorOptions::default());
            processor_ns(|| {
                for message in &messages {
                    collector.receive_message(source, message, 1, &mut |_, _| {}).unwrap_or(());
                }
            })
        });
        (cost.min().unwrap_or(0) / bytes as u64).max(1)
    })
}
