//! The kernel's counters of an interface.

use packetrig_sys::link::{LinkCounters, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns how much a counter has grown since `start`. Some drivers restart it at zero when the interface comes up
/// again; then all of it is growth.
fn subtract_start_count(now: u64, start: u64) -> u64 {
    now.checked_sub(start).unwrap_or(now)
}

/// Counts of an interface since the meter was started.
#[derive(Debug)]
pub struct InterfaceMeter {
    links: NamespaceLinks,
    index: u32,
    start: LinkCounters,
    /// Frames sent since the start of the meter that are not test frames.
    aside: Arc<AtomicU64>,
    /// Frames that arrived while the ring was opened: the ring may or may not have them.
    while_opening: u64,
}

impl InterfaceMeter {
    pub fn start(netns: &NetNs, index: u32) -> Result<Self, packetrig_sys::Error> {
        let mut links = NamespaceLinks::open_in(netns)?;
        let start = links.read_counters(index)?;
        Ok(Self { links, index, start, aside: Arc::default(), while_opening: 0 })
    }

    /// Subtracts the frames that are counted in `aside` from the sent frames, but not their bytes from the sent bytes.
    #[must_use]
    pub fn exclude_frames(self, aside: &Arc<AtomicU64>) -> Self {
        Self { aside: Arc::clone(aside), ..self }
    }

    /// Starts again from the present counts, after a ring was opened. The ring may or may not have the frames that
    /// arrived since the previous start.
    pub fn restart_interface_counts(&mut self) -> Result<(), packetrig_sys::Error> {
        let start = self.links.read_counters(self.index)?;
        self.while_opening = start.rx_frames.saturating_sub(self.start.rx_frames);
        self.start = start;
        Ok(())
    }

    /// Returns how many frames arrived. `accounted` is the number of frames that the ring delivered or dropped. The
    /// ring and the meter cannot be opened at the same instant: frames that came in between count as arrived only if
    /// the ring has them.
    pub fn arrived_frames(&self, counters: &LinkCounters, accounted: u64) -> u64 {
        accounted.clamp(counters.rx_frames, counters.rx_frames + self.while_opening)
    }

    /// Returns the counts since the start; `None` if the interface cannot be read, for example because it is gone.
    pub fn read_counters(&mut self) -> Option<LinkCounters> {
        // This counter is loaded first: every frame in `aside` is then already in the interface's count.
        let aside = self.aside.load(Ordering::Acquire);
        let now = self.links.read_counters(self.index).ok()?;
        let start = self.start;
        Some(LinkCounters {
            carrier: now.carrier,
            rx_frames: subtract_start_count(now.rx_frames, start.rx_frames),
            rx_bytes: subtract_start_count(now.rx_bytes, start.rx_bytes),
            rx_errors: subtract_start_count(now.rx_errors, start.rx_errors),
            rx_dropped: subtract_start_count(now.rx_dropped, start.rx_dropped),
            // Frames of emulated interfaces are not test frames.
            tx_frames: subtract_start_count(now.tx_frames, start.tx_frames).saturating_sub(aside),
            tx_bytes: subtract_start_count(now.tx_bytes, start.tx_bytes),
            tx_errors: subtract_start_count(now.tx_errors, start.tx_errors),
            tx_dropped: subtract_start_count(now.tx_dropped, start.tx_dropped),
        })
    }
}
