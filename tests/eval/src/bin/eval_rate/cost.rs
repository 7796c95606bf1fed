//! Processor time of capturing, the kernel's part included: a sender that never spins, and what is charged to whom.

use anyhow::Context;
use packetrig_eval::peers;
use packetrig_sys::bpf::BpfProgram;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use std::path::{Path, PathBuf};

/// Frames of a burst, and the time from one to the next.
const BURST: u32 = 4000;
const EVERY_NS: u64 = 10_000_000;
/// Frames per second that this makes.
pub(crate) const RATE: u64 = BURST as u64 * 1_000_000_000 / EVERY_NS;

/// Sends live frames in bursts from the first port for some seconds; returns how many, and the processor time that was
/// charged to the sending thread and to the kernel's threads for interrupts meanwhile, in ns.
pub(crate) fn send(lab: &Lab, size: u32, seconds: u64) -> anyhow::Result<(u64, f64)> {
    let port = &lab.ports()[0];
    // return bpf_redirect(index, 0)
    let index = u64::from(port.link.index);
    let code = [0xb7_u64 | 1 << 8 | index << 32, 0xb7 | 2 << 8, 0x85 | 23 << 32, 0x95];
    let program = BpfProgram::load_xdp("bursts", &code, false)?;
    let frame = peers::frame(size);
    let bursts = seconds * 1_000_000_000 / EVERY_NS;
    let netns = NetNs::duplicate(port.netns())?;
    let before = interrupts()?;
    let thread = netns.spawn_in_namespace("bursts".to_owned(), move || {
        let start = clock::monotonic_ns();
        for burst in 0..bursts {
            clock::sleep_until_ns(start + burst * EVERY_NS);
            program.run_on_live_frames(&frame, 64, BURST)?;
        }
        Ok(time_of(Path::new("/proc/thread-self")))
    })?;
    let own = thread.join().map_err(|_| anyhow::anyhow!("the sender panicked"))???;
    // What the last burst left to do.
    clock::sleep_until_ns(clock::monotonic_ns() + EVERY_NS);
    Ok((bursts * u64::from(BURST), own + interrupts()? - before))
}

/// Processor time so far of a process or thread, in ns.
pub(crate) fn time_of(entry: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(entry.join("schedstat"))?;
    text.split_whitespace().next().context("schedstat")?.parse().context("schedstat")
}

/// Processor time so far of the kernel's threads for interrupts.
fn interrupts() -> anyhow::Result<f64> {
    let is_one = |entry: &PathBuf| {
        std::fs::read_to_string(entry.join("comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    let entries = std::fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
    let times: Vec<f64> = entries.filter(is_one).map(|entry| time_of(&entry)).collect::<Result<_, _>>()?;
    anyhow::ensure!(!times.is_empty(), "the kernel's threads are not to be seen here");
    Ok(times.iter().sum())
}
