//! What really left and arrived, by the kernel's counters of the interfaces of the test network.
//!
//! Trials and the runs after them, which show whether the fleet is usable, send frames of two sizes. Frames and bytes of an
//! interface then tell how many there were of each: nobody else sends anything there.

use crate::network::{NODES, PORT, is_sender, node_name};
use packetrig_eval::process::pause;
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Frames of a trial, with FCS.
pub(crate) const TRIAL_SIZE: u64 = 128;
/// Frames of the runs that show whether the fleet is usable, and of a second controller's run.
pub(crate) const CHECK_SIZE: u64 = 256;
const FCS: u64 = 4;
/// Between two looks: how exactly the time of a frame is known.
const LOOK_MS: u64 = 4;

/// Frames by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    pub(crate) of_trial: u64,
    pub(crate) of_checks: u64,
}

impl FrameCounts {
    /// From an interface's counters; `None` if there were other frames.
    fn of(frames: u64, bytes: u64) -> Option<Self> {
        let small = TRIAL_SIZE - FCS;
        let large = CHECK_SIZE - FCS;
        let beyond = bytes.checked_sub(frames * small)?;
        let of_checks = beyond / (large - small);
        let is_whole = beyond.is_multiple_of(large - small) && of_checks <= frames;
        is_whole.then(|| Self { of_trial: frames - of_checks, of_checks })
    }

    fn since(self, earlier: Self) -> Self {
        Self { of_trial: self.of_trial - earlier.of_trial, of_checks: self.of_checks - earlier.of_checks }
    }
}

/// The counts of a node's port changed between these two instants.
#[derive(Clone, Copy, Debug)]
struct Change {
    after_ns: u64,
    seen_ns: u64,
    counts: FrameCounts,
}

/// One port of the test network: what senders sent, what receivers received.
#[derive(Clone, Debug, Default)]
struct PortHistory {
    at_mark: FrameCounts,
    changes: Vec<Change>,
    has_foreign_frames: bool,
}

impl PortHistory {
    fn now(&self) -> FrameCounts {
        self.changes.last().map_or(self.at_mark, |change| change.counts)
    }
}

type Histories = Arc<Mutex<Vec<PortHistory>>>;

/// The looking thread; ends when dropped.
#[derive(Debug)]
pub(crate) struct TrafficWitness {
    histories: Histories,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TrafficWitness {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut ports = Vec::new();
        for node in 0..NODES {
            let mut links = NamespaceLinks::open_in(&NetNs::open_named_namespace(&node_name(node))?)?;
            let index = links.find_link_by_name(PORT)?.index;
            ports.push((links, index));
        }
        let histories: Histories = Arc::new(Mutex::new(vec![PortHistory::default(); NODES]));
        let is_over = Arc::<AtomicBool>::default();
        let shared = Arc::clone(&histories);
        let ended = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name("witness".to_owned());
        let thread = thread.spawn(move || watch(ports, &shared, &ended))?;
        Ok(Self { histories, is_over, thread: Some(thread) })
    }

    /// Counts begin anew.
    pub(crate) fn mark(&self) {
        pause(3 * LOOK_MS);
        for history in own(&self.histories).iter_mut() {
            history.at_mark = history.now();
            history.changes.clear();
        }
    }

    /// Frames that each node's port sent or received since the mark.
    pub(crate) fn counts(&self) -> Vec<FrameCounts> {
        own(&self.histories).iter().map(|history| history.now().since(history.at_mark)).collect()
    }

    /// Whether the counts cannot be told apart: something else was on the test network.
    pub(crate) fn is_in_doubt(&self) -> bool {
        own(&self.histories).iter().any(|history| history.has_foreign_frames)
    }

    /// When the last frame of the trial left a node between two instants, at the earliest; `None` if none certainly did.
    pub(crate) fn last_of_trial_ns(&self, node: usize, from_ns: u64, until_ns: u64) -> Option<u64> {
        let histories = own(&self.histories);
        let history = &histories[node];
        let mut before = history.at_mark.of_trial;
        let mut last_ns = None;
        for change in &history.changes {
            let is_within = change.after_ns >= from_ns && change.seen_ns <= until_ns;
            if change.counts.of_trial > before && is_within {
                last_ns = Some(change.after_ns);
            }
            before = change.counts.of_trial;
        }
        last_ns
    }

    /// Frames of the trial that had left or arrived at a node by then, at least, since the mark.
    pub(crate) fn of_trial_by(&self, node: usize, at_ns: u64) -> u64 {
        let histories = own(&self.histories);
        let history = &histories[node];
        let earlier = history.changes.iter().rev().find(|change| change.seen_ns <= at_ns);
        earlier.map_or(0, |change| change.counts.of_trial - history.at_mark.of_trial)
    }

    /// When the first frame of a check left after `since_ns`, at any sender.
    pub(crate) fn first_of_check_ns(&self, since_ns: u64) -> Option<u64> {
        let histories = own(&self.histories);
        let firsts = histories.iter().map(|history| {
            let mut before = history.at_mark.of_checks;
            for change in &history.changes {
                if change.counts.of_checks > before && change.seen_ns > since_ns {
                    return Some(change.seen_ns);
                }
                before = change.counts.of_checks;
            }
            None
        });
        firsts.flatten().min()
    }
}

impl Drop for TrafficWitness {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn own(histories: &Histories) -> MutexGuard<'_, Vec<PortHistory>> {
    histories.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(mut ports: Vec<(NamespaceLinks, u32)>, histories: &Histories, is_over: &AtomicBool) {
    let mut before_ns = clock::monotonic_ns();
    while !is_over.load(Ordering::Acquire) {
        let began_ns = clock::monotonic_ns();
        look(&mut ports, before_ns, &mut own(histories));
        before_ns = began_ns;
        pause(LOOK_MS);
    }
}

fn look(ports: &mut [(NamespaceLinks, u32)], before_ns: u64, histories: &mut [PortHistory]) {
    for (node, (links, index)) in ports.iter_mut().enumerate() {
        let history = &mut histories[node];
        // A look that fails is made up for by the next one: counters only grow.
        let Ok(counters) = links.read_counters(*index) else { continue };
        let (frames, bytes) = if is_sender(node) {
            (counters.tx_frames, counters.tx_bytes)
        } else {
            (counters.rx_frames, counters.rx_bytes)
        };
        let counted = FrameCounts::of(frames, bytes);
        history.has_foreign_frames = counted.is_none();
        let Some(counts) = counted else { continue };
        if counts != history.now() {
            history.changes.push(Change { after_ns: before_ns, seen_ns: clock::monotonic_ns(), counts });
        }
    }
}
