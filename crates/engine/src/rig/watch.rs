//! Watches the interfaces of a rig's ports during the run, so that a loss is not blamed on the device when the rig's
//! own interface was down, changed or gone.
//!
//! One thread asks the kernel for the state of every port each [`PORT_CHECK_INTERVAL`]. [`events`], which is pure,
//! interprets the answers. The kernel's count of carrier changes shows a flap between two checks.

mod events;

use crate::Error;
use crate::clock::RealClock;
use crate::device::PortInterfaceHandle;
use crate::port::WorkerClock;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use events::{EventLog, LinkObservation, PortState};
use packetrig_stats::port_event::PortEvent;
use packetrig_sys::link::NamespaceLinks;
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Interval between two checks of a port. The start of an event is known to within this time.
const PORT_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);

/// Thread that watches the links of a run's ports. Dropping this value ends the thread.
#[derive(Debug)]
pub(super) struct PortWatcher {
    logs: Arc<Mutex<BTreeMap<usize, EventLog>>>,
    quit: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A watched port: its index in the plan and its location.
pub(super) type WatchedPort = (usize, PortInterfaceHandle);

impl PortWatcher {
    /// Starts to watch these ports. They are expected to be up, to have a carrier, and otherwise to stay
    /// as they are now.
    pub(super) fn start(ports: Vec<WatchedPort>) -> Result<Self, Error> {
        let mut looks = Vec::with_capacity(ports.len());
        let mut logs = BTreeMap::new();
        for (port, site) in ports {
            let links = NamespaceLinks::open_in(&site.netns)?;
            // Each port has its own netlink socket, in the namespace of the interface.
            let mut look = PortLinkReader { port, index: site.index, links };
            let asked = RealClock::new().now();
            // An interface that the kernel does not show now cannot be compared later; it is not watched.
            if let Some(LinkObservation::Present(state)) = look.observe_link() {
                logs.insert(port, EventLog::new(state, asked));
                looks.push(look);
            }
        }
        let logs = Arc::new(Mutex::new(logs));
        let (quit, until_told) = bounded(0);
        let thread = {
            let logs = Arc::clone(&logs);
            std::thread::Builder::new()
                .name("port-watch".to_owned())
                .spawn(move || watch_ports(&mut looks, &logs, &until_told))
                .map_err(|source| Error::Thread { name: "port-watch".into(), source })?
        };
        Ok(Self { logs, quit: Some(quit), thread: Some(thread) })
    }

    /// Tells the watcher that the plan is about to switch the link of this port. A link that the plan switched
    /// down is no fault.
    pub(super) fn declare_link_change(&self, port: usize, down: bool) {
        if let Some(log) = lock_logs(&self.logs).get_mut(&port) {
            log.declare_link_change(down);
        }
    }

    /// Ends the thread after one more check of each port; returns the events of each port.
    pub(super) fn finish_watch(&mut self) -> BTreeMap<usize, Vec<PortEvent>> {
        self.end_thread();
        lock_logs(&self.logs).iter_mut().map(|(port, log)| (*port, log.take_events())).collect()
    }

    fn end_thread(&mut self) {
        self.quit = None;
        if let Some(thread) = self.thread.take() {
            // The thread only observes: if it panicked, the events that it found before are returned.
            drop(thread.join());
        }
    }
}

impl Drop for PortWatcher {
    fn drop(&mut self) {
        self.end_thread();
    }
}

/// Locks the logs. After a panic they are still usable, because each log is complete between any two operations.
fn lock_logs(logs: &Mutex<BTreeMap<usize, EventLog>>) -> MutexGuard<'_, BTreeMap<usize, EventLog>> {
    logs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_ports(looks: &mut [PortLinkReader], logs: &Mutex<BTreeMap<usize, EventLog>>, quit: &Receiver<()>) {
    let clock = RealClock::new();
    loop {
        // The channel's sender is dropped when the watch is over; then one more check follows. Waiting on the channel,
        // and not on a clock, lets the end of the watch interrupt the wait at once.
        let is_over = quit.recv_timeout(PORT_CHECK_INTERVAL.to_std()) != Err(RecvTimeoutError::Timeout);
        for look in &mut *looks {
            let asked = clock.now();
            let Some(seen) = look.observe_link() else { continue };
            if let Some(log) = lock_logs(logs).get_mut(&look.port) {
                log.on_observation(asked, clock.now(), seen);
            }
        }
        if is_over {
            return;
        }
    }
}

#[derive(Debug)]
struct PortLinkReader {
    port: usize,
    index: u32,
    links: NamespaceLinks,
}

impl PortLinkReader {
    /// Asks the kernel for the state; `None` if the kernel did not answer, which proves nothing about the interface.
    fn observe_link(&mut self) -> Option<LinkObservation> {
        match self.links.read_state(self.index) {
            Ok(state) => Some(LinkObservation::Present(PortState {
                is_up: state.link.up,
                has_carrier: state.link.carrier,
                mtu: state.link.mtu,
                mac: state.link.mac,
                master: state.link.master,
                carrier_changes: state.carrier_changes,
                driver_dropped: state.driver_dropped,
            })),
            Err(packetrig_sys::Error::Missing { .. }) => Some(LinkObservation::Gone),
            Err(_) => None,
        }
    }
}
