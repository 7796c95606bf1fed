//! Ports on AF_PACKET rings that stay open between runs: the kernel takes tens of milliseconds to create
//! and to close rings.
//!
//! ```text
//!  opened port -> halves and hold lent to a run --dropped-> unused -> checked, counters at zero -> lent to the next
//!                                                           `-> something has changed: closed and opened again
//! ```
//! A run has three parts of its port: the transmit half, the receive half, and the hold, which keeps the interface
//! locked. Each part is in a [`LentPart`], which returns the part when it is dropped, however the run ends. A panic
//! destroys the part, and a port without all its parts is closed.
//!
//! Between two runs the interface stays locked and quiet, the file with its original settings remains,
//! and nothing sends: no thread has the transmit half. Dropping the last [`ReusablePorts`] closes the ports
//! and restores their interfaces.
//!
//! Invariant: a port that is lent again is as good as new. Before that, the lab guard checks the interface again, its
//! settings are compared with those of the earlier run, the rings are emptied, and the counters begin at zero. In doubt
//! the port is closed and opened again.

use super::{
    OpenOptions, OpenedPort, PacketRx, PacketTx, PortHold, describe_port, format_location, guard, open_port,
};
use crate::Error;
use crate::device::PortInterfaceHandle;
use crate::port::{FrameRx, FrameTx, RingProgress, RxFrame};
use crate::rig::HeldPort;
use packetrig_plan::{Port, PortLocation};
use packetrig_stats::port::{PortInfo, RxCounters, TxCounters};
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_units::{FrameSize, Nanos};
use packetrig_wire::bpf::FilterProgram;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open ports, each unused or lent to a run. Clones share the ports.
#[derive(Clone, Debug, Default)]
pub struct ReusablePorts(Arc<Mutex<BTreeMap<PortLocation, ReusablePort>>>);

#[derive(Debug)]
struct ReusablePort {
    request: PortRequest,
    /// State of the interface when the port was opened.
    link: Link,
    parts: Arc<Mutex<ReturnedPortParts>>,
}

/// Parameters of a port that a run requests. Only a port with exactly the same parameters is lent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortRequest {
    largest: Option<FrameSize>,
    mtu: Option<u32>,
    promiscuous: bool,
}

/// Parts of a port that the run has returned. Fields drop in this order.
#[derive(Debug, Default)]
struct ReturnedPortParts {
    tx: Option<PacketTx>,
    rx: Option<PacketRx>,
    hold: Option<PortHold>,
}

/// A port that is lent to a run.
pub(crate) struct LentPort {
    pub(crate) info: PortInfo,
    pub(crate) tx: LentPart<PacketTx>,
    pub(crate) rx: LentPart<PacketRx>,
    pub(crate) hold: LentPart<PortHold>,
}

/// One part of a lent port. Dropping it returns the part to the port.
#[derive(Debug)]
pub(crate) struct LentPart<T> {
    /// `Some` until this value is dropped.
    part: Option<T>,
    parts: Arc<Mutex<ReturnedPortParts>>,
    put_back: fn(&mut ReturnedPortParts, T),
}

impl ReusablePorts {
    /// Returns the port of an earlier run if it can be restarted, otherwise a port that is opened now.
    pub(crate) fn reuse_or_open_port(&self, port: &Port, options: OpenOptions) -> Result<LentPort, Error> {
        let request = PortRequest { largest: options.largest, mtu: port.mtu, promiscuous: port.promiscuous };
        // An unused port that cannot be restarted is closed here, before the same interface is opened again.
        let kept = self
            .remove_if_unused(port, request)
            .map_or(Ok(None), |unused| unused.restart_port(port, options))?;
        let opened = kept.map_or_else(|| open_port(port, options), Ok)?;
        // The state is read after the interface was made quiet: later runs compare with it.
        let link =
            NamespaceLinks::open_in(&opened.hold.site.netns)?.find_link_by_index(opened.hold.site.index)?;
        let parts = Arc::default();
        let kept = ReusablePort { request, link, parts: Arc::clone(&parts) };
        self.lock_ports().insert(port.location.clone(), kept);
        Ok(LentPort {
            info: opened.info,
            tx: LentPart::new(opened.tx, &parts, |parts, tx| parts.tx = Some(tx)),
            rx: LentPart::new(opened.rx, &parts, |parts, rx| parts.rx = Some(rx)),
            hold: LentPart::new(opened.hold, &parts, |parts, hold| parts.hold = Some(hold)),
        })
    }

    /// Closes the port at this location. If a run holds it, it is closed when the run returns the last part.
    pub(crate) fn close_port(&self, location: &PortLocation) {
        // The lock is free again before the port is closed, which takes the kernel a while.
        let kept = self.lock_ports().remove(location);
        drop(kept);
    }

    /// Closes all ports except those at these locations. An interface that the next run does not use
    /// gets its settings back.
    pub fn close_all_except(&self, locations: &BTreeSet<PortLocation>) {
        let mut ports = self.lock_ports();
        let others: Vec<_> = ports.keys().filter(|location| !locations.contains(location)).cloned().collect();
        let closed: Vec<_> = others.iter().filter_map(|location| ports.remove(location)).collect();
        // The map is unlocked first: closing takes the kernel some time, and other runs need the map meanwhile.
        drop(ports);
        drop(closed);
    }

    /// Removes the port at this location from the map. Returns it if no run holds a part of it and its parameters are
    /// the requested ones; otherwise it is closed.
    fn remove_if_unused(&self, port: &Port, request: PortRequest) -> Option<UnusedPort> {
        let kept = self.lock_ports().remove(&port.location)?;
        // This fails if a run still has a part. Opening the port again then fails as well, because the
        // interface is still locked.
        let parts = Arc::into_inner(kept.parts)?.into_inner().unwrap_or_else(PoisonError::into_inner);
        let ReturnedPortParts { tx: Some(tx), rx: Some(rx), hold: Some(hold) } = parts else { return None };
        (kept.request == request).then_some(UnusedPort { link: kept.link, tx, rx, hold })
    }

    /// Locks the map. A poisoned lock is usable: each entry is complete between any two operations.
    fn lock_ports(&self) -> MutexGuard<'_, BTreeMap<PortLocation, ReusablePort>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A complete port that no run holds. Fields drop in this order.
#[derive(Debug)]
struct UnusedPort {
    link: Link,
    tx: PacketTx,
    rx: PacketRx,
    hold: PortHold,
}

impl UnusedPort {
    /// Resets the port for another run. Returns `None`, and closes the port, if it must be opened again. An error means
    /// that the interface cannot or may not be used.
    fn restart_port(mut self, port: &Port, options: OpenOptions) -> Result<Option<OpenedPort>, Error> {
        let netns = NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&port.location.interface)?;
        let location = format_location(&port.location);
        // The permission of an earlier run may have ended.
        guard::permit_port(&netns, link.index, &location, options.confirmed)?;
        let is_same = netns.inode()? == self.hold.site.netns.inode()? && is_same_link(&self.link, &link);
        // The cheap check comes first. A port that fails a check is closed, so a half-reset port is never used.
        if !is_same || !self.hold.reset_for_run()? || !self.tx.reset_for_run()? || !self.rx.reset_for_run()? {
            return Ok(None);
        }
        let info = describe_port(port, &location, &netns, &link)?;
        Ok(Some(OpenedPort { info, tx: self.tx, rx: self.rx, hold: self.hold }))
    }
}

/// Returns whether the interface is up and has not changed, except for its carrier, promiscuous mode and queueing
/// discipline. The carrier is checked when all ports are open; promiscuous mode belongs to the ring.
fn is_same_link(before: &Link, now: &Link) -> bool {
    let same = |link: &Link| Link { carrier: false, promiscuous: false, qdisc: None, ..link.clone() };
    now.up && same(before) == same(now)
}

impl PortHold {
    /// Resets the hold for another run; `false` if the interface's settings were changed.
    fn reset_for_run(&mut self) -> Result<bool, Error> {
        self.quieted.forget_carrier_caveats();
        // `aside` counts the frames of emulated interfaces, whose sockets ended with the earlier run.
        self.site.aside.store(0, Ordering::Release);
        Ok(self.quieted.is_unchanged()?)
    }
}

impl<T> LentPart<T> {
    fn new(part: T, parts: &Arc<Mutex<ReturnedPortParts>>, put_back: fn(&mut ReturnedPortParts, T)) -> Self {
        Self { part: Some(part), parts: Arc::clone(parts), put_back }
    }

    fn part(&self) -> &T {
        self.part.as_ref().expect("a part is there until it is dropped")
    }

    fn part_mut(&mut self) -> &mut T {
        self.part.as_mut().expect("a part is there until it is dropped")
    }
}

impl<T> Drop for LentPart<T> {
    fn drop(&mut self) {
        // After a panic the state of the part is unknown, so it is closed.
        if let Some(part) = self.part.take().filter(|_| !std::thread::panicking()) {
            (self.put_back)(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner), part);
        }
    }
}

impl FrameTx for LentPart<PacketTx> {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        self.part_mut().fill_slots(want, fill)
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        self.part_mut().flush_frames()
    }

    fn pending_frames(&self) -> usize {
        self.part().pending_frames()
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        self.part_mut().read_tx_counters()
    }
}

impl FrameRx for LentPart<PacketRx> {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        self.part_mut().receive_frames(most, sink)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        self.part_mut().wait_for_frames(within)
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        self.part_mut().read_rx_counters()
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        self.part_mut().ring_progress()
    }

    fn clock_bound(&self) -> Nanos {
        self.part().clock_bound()
    }

    fn set_traffic_expectation(&mut self, expected: bool) {
        self.part_mut().set_traffic_expectation(expected);
    }

    fn filter_in_kernel(&mut self, program: &FilterProgram) -> Result<bool, Error> {
        self.part_mut().filter_in_kernel(program)
    }
}

impl HeldPort for LentPart<PortHold> {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.part_mut().await_carrier()
    }

    fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        self.part().interface_site().map(Some)
    }

    fn caveats(&self) -> Vec<String> {
        self.part().caveats().to_vec()
    }

    fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.part_mut().switch_link(up)
    }
}
