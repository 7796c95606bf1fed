//! Runs the device on packet rings, with one thread per port.

use super::{FaultPlan, KeyFrameTruth};
use packetrig_link::{FrameImpairer, KeyTruths};
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Maximum number of frames taken from a ring before the kernel is asked to send.
const BATCH: usize = 64;
/// Longest wait of a thread before it checks whether it should stop.
const STOP_CHECK_INTERVAL_NS: u64 = 5_000_000;
/// Maximum time after the stop for forwarding the frames that had arrived before.
const FINAL_FORWARDING_TIMEOUT_NS: u64 = 30_000_000_000;
/// Number of blocks of a receive ring. Single frames use up one block per millisecond, so the thread may be
/// delayed by 2 s.
const BLOCKS: u32 = 2_048;
/// Size of a block, more than the longest frame; all blocks together are 32 MiB.
const BLOCK_BYTES: u32 = 1 << 14;
/// Length of the longest frame that is forwarded, without FCS.
const LONGEST: usize = 9_230;
/// Number of kicks of a full transmit ring before the frame is dropped and counted as the device's own loss.
const MAX_KICKS: u32 = 10_000;

/// Error of the lab or the device: it could not be set up, or it stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot set up the virtual cables of the lab, or forward frames between them: {0}")]
    Kernel(#[from] packetrig_sys::Error),
    /// A forwarding thread panicked.
    #[error("the reference device's thread for port {0} panicked; this is a bug in packetrig")]
    Panicked(usize),
}

/// What a device did to the frames that arrived at its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// What happened to the frames, by port of arrival and key.
    pub truths: BTreeMap<(usize, u32), KeyFrameTruth>,
    /// Number of frames that the device lost although its plan did not drop them. Unless it is zero,
    /// the truth is incomplete.
    pub own_losses: u64,
}

impl DeviceReport {
    /// Returns what happened to frames with `key` that arrived on `port`; all zero if no such frame arrived.
    pub fn truth(&self, port: usize, key: u32) -> KeyFrameTruth {
        self.truths.get(&(port, key)).cloned().unwrap_or_default()
    }
}

/// Report of one port of a device.
#[derive(Debug)]
struct SideReport {
    truths: BTreeMap<u32, KeyFrameTruth>,
    own_losses: u64,
}

type PortOutcome = Result<SideReport, packetrig_sys::Error>;

/// A running device. Dropping it stops it.
#[derive(Debug)]
pub struct Device {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<PortOutcome>>,
}

impl Device {
    /// Starts a device that forwards between the named interfaces of `netns`. They are its ports 0, 1 and so on.
    pub fn start_forwarding(netns: &NetNs, interfaces: &[String], plan: &FaultPlan) -> Result<Self, Error> {
        let indices = find_interface_indices(netns, interfaces)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut sides = Vec::new();
        for port in 0..interfaces.len() {
            sides.push(DevicePortPath::open_rings(netns, interfaces, &indices, port)?);
        }
        // All rings are open here, so a port that cannot be opened leaves no thread behind. From here on, a failure
        // drops the device, and its drop stops the threads.
        let mut device = Self { stop, threads: Vec::new() };
        for (port, side) in sides.into_iter().enumerate() {
            let impairer = FrameImpairer::new(plan.clone(), port, KeyTruths::default());
            let stop = Arc::clone(&device.stop);
            let thread = std::thread::Builder::new()
                .name(format!("device-{port}"))
                .spawn(move || side.forward_until_stopped(impairer, &stop))
                .expect("a test machine has room for a thread");
            device.threads.push(thread);
        }
        Ok(device)
    }

    /// Stops the device after it has forwarded the frames that have arrived, and returns its report.
    pub fn stop_and_report(mut self) -> Result<DeviceReport, Error> {
        self.stop.store(true, Ordering::Release);
        let mut report = DeviceReport::default();
        for (port, thread) in std::mem::take(&mut self.threads).into_iter().enumerate() {
            let side = thread.join().map_err(|_| Error::Panicked(port))??;
            report.truths.extend(side.truths.into_iter().map(|(key, truth)| ((port, key), truth)));
            report.own_losses += side.own_losses;
        }
        Ok(report)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A destructor cannot report a panic; here it only matters that the thread has ended.
            drop(thread.join());
        }
    }
}

fn find_interface_indices(netns: &NetNs, interfaces: &[String]) -> Result<Vec<u32>, packetrig_sys::Error> {
    let mut links = NamespaceLinks::open_in(netns)?;
    interfaces.iter().map(|name| links.find_link_by_name(name).map(|link| link.index)).collect()
}

/// Data path of one port through the device.
struct DevicePortPath {
    rx: RxRing,
    out: OutgoingRings,
}

impl DevicePortPath {
    fn open_rings(
        netns: &NetNs,
        interfaces: &[String],
        indices: &[u32],
        port: usize,
    ) -> Result<Self, packetrig_sys::Error> {
        let mut exits = Vec::new();
        for other in (0..interfaces.len()).filter(|other| *other != port) {
            let options = TxOptions { longest: LONGEST, slots: 512, ..TxOptions::default() };
            exits.push(TxRing::open_on_interface(netns, indices[other], &interfaces[other], options)?);
        }
        let options =
            RxOptions { blocks: BLOCKS, block_bytes: BLOCK_BYTES, retire_ms: 1, ..RxOptions::default() };
        let rx = RxRing::open_on_interface(netns, indices[port], &interfaces[port], options)?;
        Ok(Self { rx, out: OutgoingRings { rings: exits, losses: 0 } })
    }

    fn forward_until_stopped(
        mut self,
        mut impairer: FrameImpairer<KeyTruths>,
        stop: &AtomicBool,
    ) -> PortOutcome {
        // An error is ignored, because it only makes delayed frames leave about 50 us later.
        drop(clock::tighten_timer_slack());
        let mut last = None;
        let unread = loop {
            // The number of arrived frames is read once at the stop. Later frames are not awaited, so a steady
            // stream cannot delay the end.
            if last.is_none() && stop.load(Ordering::Acquire) {
                last = Some(LastFrames::from_ring(&mut self.rx)?);
            }
            let taken = self.forward_frame_batch(&mut impairer)?;
            if let Some(last) = &last
                && let Some(unread) = last.count_unread_if_final(&mut self.rx)?
            {
                break unread;
            }
            if taken == 0 {
                self.wait_for_frames_or_due_time(&impairer)?;
            }
        };
        let out = &mut self.out;
        // Frames that the fault plan still delays leave now, so that the truth includes every frame.
        let truths = impairer.into_observer(clock::monotonic_ns(), &mut |bytes, _| out.send_to_all(bytes));
        // The rings are drained before the losses are counted: frames that are still pending count as lost.
        self.out.drain_rings()?;
        let own_losses = self.out.count_losses() + self.rx.read_stats()?.dropped + unread;
        Ok(SideReport { truths: truths.0, own_losses })
    }

    /// Forwards the frames that have arrived, and the delayed frames that are due. Returns how many had arrived.
    fn forward_frame_batch(
        &mut self,
        impairer: &mut FrameImpairer<KeyTruths>,
    ) -> Result<usize, packetrig_sys::Error> {
        // The offset is measured for each batch: stamps are wall-clock times, and NTP may change that clock during a
        // test.
        let offset = clock::measure_realtime_offset();
        let out = &mut self.out;
        let taken = self.rx.receive_frames(BATCH, &mut |frame| {
            let arrived = offset.to_monotonic(frame.realtime_ns);
            impairer.accept_frame(arrived, frame.bytes, &mut |bytes, _| out.send_to_all(bytes));
        });
        impairer.release_due_frames(clock::monotonic_ns(), &mut |bytes, _| out.send_to_all(bytes));
        out.kick_pending_rings()?;
        Ok(taken)
    }

    fn wait_for_frames_or_due_time(
        &mut self,
        impairer: &FrameImpairer<KeyTruths>,
    ) -> Result<(), packetrig_sys::Error> {
        let nap = impairer
            .next_due_time()
            .map_or(STOP_CHECK_INTERVAL_NS, |due| due.saturating_sub(clock::monotonic_ns()));
        if nap > 0 { self.rx.wait_for_frames(nap.min(STOP_CHECK_INTERVAL_NS)) } else { Ok(()) }
    }
}

/// The frames that had arrived when the device got the order to stop; they are still forwarded. The last of them may be
/// in a block that the kernel hands over later, so an empty ring does not mean that all were read.
struct LastFrames {
    arrived: u64,
    until_ns: u64,
}

impl LastFrames {
    fn from_ring(ring: &mut RxRing) -> Result<Self, packetrig_sys::Error> {
        Ok(Self {
            arrived: ring.read_progress()?.arrived,
            until_ns: clock::monotonic_ns() + FINAL_FORWARDING_TIMEOUT_NS,
        })
    }

    /// Returns how many frames were not read, once this number is final: when all were read, or after the
    /// time limit. `None` before.
    fn count_unread_if_final(&self, ring: &mut RxRing) -> Result<Option<u64>, packetrig_sys::Error> {
        let unread = self.arrived.saturating_sub(ring.read_progress()?.read);
        let is_over = unread == 0 || clock::monotonic_ns() >= self.until_ns;
        Ok(is_over.then_some(unread))
    }
}

/// The rings towards the other ports.
struct OutgoingRings {
    rings: Vec<TxRing>,
    losses: u64,
}

impl OutgoingRings {
    fn send_to_all(&mut self, frame: &[u8]) {
        for ring in &mut self.rings {
            let mut kicks_left = MAX_KICKS;
            while ring.next_slot().is_none() && kicks_left > 0 {
                kicks_left -= 1;
                // An error is ignored here: if the interface is down, the frame counts as a loss after the last kick.
                drop(ring.kick_kernel());
            }
            match ring.next_slot() {
                Some(slot) if frame.len() <= slot.len() => {
                    slot[..frame.len()].copy_from_slice(frame);
                    ring.commit_frame(frame.len());
                }
                // A frame that does not fit into a slot, or whose ring stays full, is a loss of the device itself.
                _ => self.losses += 1,
            }
        }
    }

    fn kick_pending_rings(&mut self) -> Result<(), packetrig_sys::Error> {
        self.rings.iter_mut().filter(|ring| ring.pending_frames() > 0).try_for_each(TxRing::kick_kernel)
    }

    fn drain_rings(&mut self) -> Result<(), packetrig_sys::Error> {
        let mut kicks_left = MAX_KICKS;
        while kicks_left > 0 && self.rings.iter().any(|ring| ring.pending_frames() > 0) {
            self.kick_pending_rings()?;
            kicks_left -= 1;
        }
        Ok(())
    }

    fn count_losses(&self) -> u64 {
        let stuck: u64 =
            self.rings.iter().map(|ring| ring.pending_frames() as u64 + ring.counts().refused).sum();
        self.losses + stuck
    }
}
