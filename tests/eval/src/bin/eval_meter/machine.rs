//! What the table is told of this machine's memory, a place for records, and the processor's time.

use anyhow::Context;
use packetrig_flow::{FlowEventReceiver, FlowRecord, MemoryHints};

/// Hints as the meter gives them.
pub(crate) struct Machine;

impl MemoryHints for Machine {
    #[inline]
    fn prefetch<T>(line: &T) {
        packetrig_sys::memory::prefetch(line);
    }

    fn use_large_pages<T>(memory: &mut [T]) -> bool {
        packetrig_sys::memory::request_large_pages(memory)
    }
}

/// Counts what is in records, and keeps none.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) packets: u64,
}

impl FlowEventReceiver for Sink {
    fn on_record(&mut self, record: &FlowRecord) {
        self.packets += record.packets();
    }
}

/// Time that this thread has had a processor, ns.
pub(crate) fn processor_ns() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    text.split_whitespace().next().context("schedstat")?.parse().context("schedstat")
}

/// Memory that this process has, in bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    kib("/proc/self/status", "VmRSS:").map(|kib| kib * 1024)
}

/// A line of a status file.
pub(crate) fn kib(path: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line =
        text.lines().find(|line| line.starts_with(name)).with_context(|| format!("{name} in {path}"))?;
    line.split_whitespace().nth(1).context("a number")?.parse().context("a number")
}
