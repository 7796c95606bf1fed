//! A cable of the control network whose faults can be changed while it is in use: a thread for each direction forwards frames
//! between two interfaces.

use packetrig_eval::draw::Draw;
use packetrig_sys::Error;
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{FrameOptions, FrameSocket, RxOptions, RxRing};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Frames taken at once.
const BATCH: usize = 64;
/// A thread looks this often whether it should end; frames wake it earlier.
const LONGEST_WAIT_NS: u64 = 50_000_000;
/// Frames that wait in one direction; more are dropped, as in a switch.
const MAX_WAITING: usize = 4096;

/// What happens to the frames of a cable. Both directions are treated alike unless it is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkConditions {
    /// Nothing reaches the node.
    pub(crate) cut_to_node: bool,
    /// Nothing leaves the node.
    pub(crate) cut_from_node: bool,
    /// Each frame takes this long.
    pub(crate) delay_ns: u64,
    /// And up to this much longer; frames keep their order.
    pub(crate) jitter_ns: u64,
    /// Frames lost, of 1000.
    pub(crate) loss_permille: u64,
}

/// See the module. Ends when dropped.
#[derive(Debug)]
pub(crate) struct ControlLink {
    conditions: Arc<Mutex<LinkConditions>>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
}

impl ControlLink {
    /// Between two interfaces of a namespace: the controller's end, then the node's.
    pub(crate) fn open(netns: &NetNs, ends: [String; 2], seed: u64) -> anyhow::Result<Self> {
        let mut link = Self { conditions: Arc::default(), is_over: Arc::default(), threads: Vec::new() };
        let [controller, node] = ends;
        for (from, to, is_to_node) in [(&controller, &node, true), (&node, &controller, false)] {
            let mut direction = Direction {
                ring: open_ring(netns, from)?,
                exit: open_exit(netns, to)?,
                conditions: Arc::clone(&link.conditions),
                is_to_node,
                draw: Draw::of(seed, u64::from(is_to_node)),
                waiting: VecDeque::new(),
            };
            let is_over = Arc::clone(&link.is_over);
            let thread = std::thread::Builder::new().name(format!("link-{to}"));
            link.threads.push(thread.spawn(move || direction.forward(&is_over))?);
        }
        Ok(link)
    }

    pub(crate) fn set_conditions(&self, conditions: LinkConditions) {
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // The trial that it served has its result.
            drop(thread.join());
        }
    }
}

fn open_ring(netns: &NetNs, interface: &str) -> Result<RxRing, Error> {
    let index = NamespaceLinks::open_in(netns)?.find_link_by_name(interface)?.index;
    let options = RxOptions { blocks: 32, retire_ms: 1, ..RxOptions::default() };
    RxRing::open_on_interface(netns, index, interface, options)
}

fn open_exit(netns: &NetNs, interface: &str) -> Result<FrameSocket, Error> {
    let index = NamespaceLinks::open_in(netns)?.find_link_by_name(interface)?.index;
    FrameSocket::open_on_interface(
        netns,
        index,
        interface,
        FrameOptions { bypass_queue: true, ..FrameOptions::default() },
    )
}

struct WaitingFrame {
    due_ns: u64,
    bytes: Vec<u8>,
}

struct Direction {
    ring: RxRing,
    exit: FrameSocket,
    conditions: Arc<Mutex<LinkConditions>>,
    is_to_node: bool,
    draw: Draw,
    waiting: VecDeque<WaitingFrame>,
}

impl Direction {
    fn forward(&mut self, is_over: &AtomicBool) -> Result<(), Error> {
        // What it forwards keeps leases alive: it must not stand behind senders.
        packetrig_sys::sched::raise_thread_priority().unwrap_or(());
        while !is_over.load(Ordering::Acquire) {
            self.take_in();
            self.send_due(clock::monotonic_ns());
            let until_due = self
                .waiting
                .front()
                .map_or(LONGEST_WAIT_NS, |first| first.due_ns.saturating_sub(clock::monotonic_ns()));
            if until_due > 0 {
                self.ring.wait_for_frames(until_due.min(LONGEST_WAIT_NS))?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self) {
        let conditions = *self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_cut = if self.is_to_node { conditions.cut_to_node } else { conditions.cut_from_node };
        let now_ns = clock::monotonic_ns();
        let draw = &mut self.draw;
        let waiting = &mut self.waiting;
        self.ring.receive_frames(BATCH, &mut |frame| {
            let is_lost = draw.within(0, 1000) < conditions.loss_permille;
            let extra_ns = draw.within(0, conditions.jitter_ns.max(1));
            if is_cut || is_lost || waiting.len() >= MAX_WAITING {
                return;
            }
            let earliest_ns = waiting.back().map_or(0, |last| last.due_ns);
            let due_ns = (now_ns + conditions.delay_ns + extra_ns).max(earliest_ns);
            waiting.push_back(WaitingFrame { due_ns, bytes: frame.bytes.to_vec() });
        });
        if is_cut {
            // A cable that is pulled takes along what is on it.
            waiting.clear();
        }
    }

    fn send_due(&mut self, now_ns: u64) {
        while self.waiting.front().is_some_and(|first| first.due_ns <= now_ns) {
            if let Some(frame) = self.waiting.pop_front() {
                // A frame that the kernel refuses is lost, which control messages survive.
                self.exit.send_frame(&frame.bytes).unwrap_or(());
            }
        }
    }
}
