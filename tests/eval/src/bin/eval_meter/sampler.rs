//! A meter looked at every second while frames arrive: processor time of its threads, and memory.

use crate::machine::kib;
use anyhow::Context;
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SAMPLE_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = 10_000_000;

/// One second.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Share of a processor by thread.
    pub(crate) threads: BTreeMap<String, f64>,
    pub(crate) memory_mib: f64,
}

impl Sample {
    /// What the busiest thread of those with such a name took.
    pub(crate) fn busiest(&self, is_wanted: impl Fn(&str) -> bool) -> f64 {
        let wanted = self.threads.iter().filter(|(name, _)| is_wanted(name));
        wanted.map(|(_, share)| *share).fold(0.0, f64::max)
    }
}

/// A thread that reads packets, and keeps the table.
pub(crate) fn is_worker(name: &str) -> bool {
    name.strip_prefix("meter-").is_some_and(|rest| rest.parse::<u32>().is_ok())
}

/// The thread that sends records.
pub(crate) fn is_exporter(name: &str) -> bool {
    name.starts_with("export") || name.starts_with("meter-export")
}

/// What was seen from the first frame to the last.
pub(crate) struct Watched {
    pub(crate) seconds: f64,
    pub(crate) samples: Vec<Sample>,
}

/// Looks at an interface and at a process until it is over. Seconds begin with the first frame; one in whose last part nothing arrived
/// is not kept, because it was not of sending only.
pub(crate) fn watch(
    pid: u32,
    links: &mut NamespaceLinks,
    index: u32,
    over: &AtomicBool,
) -> anyhow::Result<Watched> {
    let mut known = links.read_counters(index)?.rx_frames;
    let mut samples = Vec::new();
    let mut arrivals: Option<(u64, u64)> = None;
    let mut second: Option<Threads> = None;
    while !over.load(Ordering::Acquire) {
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        let count = links.read_counters(index)?.rx_frames;
        let now_ns = clock::monotonic_ns();
        let has_more = count > known;
        known = count;
        if has_more {
            let (first_ns, _) = arrivals.unwrap_or((now_ns - LOOK_NS, 0));
            arrivals = Some((first_ns, now_ns));
        }
        match &second {
            None if has_more => second = Some(Threads::of(pid)?),
            Some(began) if now_ns >= began.at_ns + SAMPLE_NS => {
                let ended = Threads::of(pid)?;
                let is_sending = arrivals.is_some_and(|(_, last_ns)| now_ns < last_ns + SAMPLE_NS / 10);
                if is_sending {
                    samples.push(Sample { threads: ended.since(began), memory_mib: ended.memory_mib });
                }
                second = Some(ended);
            }
            None | Some(_) => {}
        }
    }
    let seconds = arrivals.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 / 1e9);
    Ok(Watched { seconds, samples })
}

/// Processor time so far by thread, ns.
pub(crate) struct Threads {
    at_ns: u64,
    pub(crate) times: BTreeMap<String, u64>,
    memory_mib: f64,
}

impl Threads {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let mut times = BTreeMap::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
            let text = std::fs::read_to_string(task.join("schedstat"))?;
            let time: u64 = text.split_whitespace().next().context("schedstat")?.parse()?;
            *times.entry(name).or_default() += time;
        }
        let memory_mib = kib(&format!("/proc/{pid}/status"), "VmRSS:")? as f64 / 1024.0;
        Ok(Self { at_ns: clock::monotonic_ns(), times, memory_mib })
    }

    /// Shares of a processor since an earlier look.
    fn since(&self, before: &Self) -> BTreeMap<String, f64> {
        let passed = (self.at_ns - before.at_ns).max(1) as f64;
        let spent = |name: &String, time: u64| time - before.times.get(name).copied().unwrap_or_default();
        self.times.iter().map(|(name, &time)| (name.clone(), spent(name, time) as f64 / passed)).collect()
    }
}
