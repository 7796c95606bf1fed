//! The kernel's own counters of an interface, from when its rings were opened until they were shut.
//!
//! Opening and shutting take a moment in which packets may arrive. The counters are read before and after
//! that moment, and the true number lies in between.

use crate::Error;
use crate::ledger::InterfaceTotals;
use packetrig_engine::port::PortLocation;
use packetrig_sys::link::{LinkCounters, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use std::sync::{Arc, Mutex};

/// Counters that the ledger reads, and that the sources of an interface read when they end.
pub type SharedInterfaceCounts = Arc<Mutex<InterfaceCounts>>;

#[derive(Debug)]
pub struct InterfaceCounts {
    /// The interface as the user wrote it.
    pub name: String,
    /// Interface index in its namespace.
    pub index: u32,
    pub is_up: bool,
    pub mtu: u32,
    links: NamespaceLinks,
    start: CounterReadingPair,
    /// Set when the first ring is shut.
    end: Option<CounterReadingPair>,
}

/// Counters before and after the rings were opened, or were shut.
#[derive(Clone, Copy, Debug)]
struct CounterReadingPair {
    before: LinkCounters,
    after: LinkCounters,
}

impl CounterReadingPair {
    const fn at_once(counters: LinkCounters) -> Self {
        Self { before: counters, after: counters }
    }
}

impl InterfaceCounts {
    /// Reads the state of the interface, with its counters at the start. Call it before the first ring is opened.
    pub fn start_counting(location: &PortLocation) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let mut links = NamespaceLinks::open_in(&netns)?;
        let link = links.find_link_by_name(&location.interface)?;
        let start = CounterReadingPair::at_once(links.read_counters(link.index)?);
        Ok(Self {
            name: location.to_string(),
            index: link.index,
            is_up: link.up,
            mtu: link.mtu,
            links,
            start,
            end: None,
        })
    }

    /// Reads the counters again. Call it when all rings are open.
    pub(crate) fn read_counters_after_opening(&mut self) -> Result<(), Error> {
        self.start.after = self.links.read_counters(self.index)?;
        Ok(())
    }

    /// Reads the counters at the end. Call it before a ring is shut, and after it.
    pub(crate) fn read_counters_at_shutdown(&mut self) {
        // A removed interface has no counters, and the ledger reports this.
        if let Ok(now) = self.links.read_counters(self.index) {
            self.end.get_or_insert_with(|| CounterReadingPair::at_once(now)).after = now;
        }
    }

    /// Reads the arrived and dropped frames since the start; `None` once the interface is gone.
    pub(crate) fn read_totals(&mut self) -> Option<InterfaceTotals> {
        let now = match self.end {
            Some(end) => end,
            None => CounterReadingPair::at_once(self.links.read_counters(self.index).ok()?),
        };
        Some(InterfaceTotals {
            // The narrowest and the widest window: frames in the moments of opening and shutting may count or not.
            least: count_since_start(self.start.after.rx_frames, now.before.rx_frames),
            most: count_since_start(self.start.before.rx_frames, now.after.rx_frames),
            arrived: count_since_start(self.start.after.rx_frames, now.after.rx_frames),
            dropped: count_since_start(self.start.after.rx_dropped, now.after.rx_dropped),
        })
    }
}

// Some drivers start from zero when the interface is brought up again: then the counter itself is the best estimate.
fn count_since_start(start: u64, now: u64) -> u64 {
    now.checked_sub(start).unwrap_or(now)
}
