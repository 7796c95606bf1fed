//! Faults of the rig itself, made while a run sends: they may never be blamed on the device.

use crate::program::Running;
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use rustix::process::Signal;

/// Less than the frames that these tests send.
const LOW_MTU: u32 = 600;
/// Longer than any run of these tests.
const PATIENCE_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 2_000_000;

/// What happens to the rig. The sender is port 0 of the lab, the receiver port 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RigFault {
    /// Nothing.
    None,
    /// The sending interface is switched down.
    TxDown,
    /// The MTU of the sending interface is made too small.
    TxMtuLowered,
    /// The sending interface is deleted, for good.
    TxDeleted,
    /// The receiving interface is deleted, for good.
    RxDeleted,
    /// Both are.
    BothDeleted,
    /// The receiving interface is switched down.
    RxDown,
    /// The receiving interface loses its carrier, because the device's end of the cable is switched down.
    RxCarrierLost,
    /// The program is stopped (SIGSTOP).
    Stalled,
}

impl RigFault {
    /// All, the absence of a fault first.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::TxDown,
        Self::TxMtuLowered,
        Self::TxDeleted,
        Self::RxDeleted,
        Self::BothDeleted,
        Self::RxDown,
        Self::RxCarrierLost,
        Self::Stalled,
    ];

    /// Whether nothing arrives any more once it was made.
    pub const fn ends_receiving(self) -> bool {
        matches!(self, Self::RxDeleted | Self::BothDeleted)
    }

    /// Makes the fault now, and undoes it after `length_ns`.
    pub fn apply(self, lab: &Lab, running: &mut Running, length_ns: u64) {
        self.apply_during(lab, running, |_| clock::sleep_until_ns(clock::monotonic_ns() + length_ns));
    }

    /// Makes the fault now, and undoes it when `wait` returns.
    pub fn apply_during(self, lab: &Lab, running: &mut Running, wait: impl FnOnce(&mut Running)) {
        let device = || lab.device_netns().expect("a lab with something between its ports");
        match self {
            Self::None => {}
            Self::TxDown => switch(lab.ports()[0].netns(), INTERFACE, || wait(running)),
            Self::RxDown => switch(lab.ports()[1].netns(), INTERFACE, || wait(running)),
            Self::RxCarrierLost => switch(device(), "port1", || wait(running)),
            Self::TxMtuLowered => lower_mtu(lab.ports()[0].netns(), || wait(running)),
            Self::TxDeleted => delete(lab, 0),
            Self::RxDeleted => delete(lab, 1),
            Self::BothDeleted => [0, 1].into_iter().for_each(|port| delete(lab, port)),
            Self::Stalled => {
                running.signal(Signal::STOP);
                wait(running);
                running.signal(Signal::CONT);
            }
        }
    }
}

/// Waits until the device has received this many frames from port 0. Panics if the program ends before.
pub fn await_frames(lab: &Lab, running: &mut Running, count: u64) {
    let device = lab.device_netns().expect("a lab with something between its ports");
    let (mut links, index) = link(device, "port0");
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    while links.read_counters(index).expect("the interface is there").rx_frames < count {
        let is_alive = !running.has_ended() && clock::monotonic_ns() < deadline;
        assert!(is_alive, "fewer than {count} frames are sent: {}", running.remarks());
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
    }
}

/// Frames that the device has received from port 0 so far.
pub fn received_frames(lab: &Lab) -> u64 {
    let device = lab.device_netns().expect("a lab with something between its ports");
    let (mut links, index) = link(device, "port0");
    links.read_counters(index).expect("the interface is there").rx_frames
}

fn link(namespace: &NetNs, name: &str) -> (NamespaceLinks, u32) {
    let mut links = NamespaceLinks::open_in(namespace).expect("the namespace can be entered");
    let index = links.find_link_by_name(name).expect("the interface is there").index;
    (links, index)
}

fn delete(lab: &Lab, port: usize) {
    let (mut links, index) = link(lab.ports()[port].netns(), INTERFACE);
    links.delete_link(index).expect("the interface can be deleted");
}

fn switch(namespace: &NetNs, name: &str, wait: impl FnOnce()) {
    let (mut links, index) = link(namespace, name);
    links.switch_interface(index, false).expect("the interface can be switched down");
    wait();
    links.switch_interface(index, true).expect("the interface can be switched up");
}

fn lower_mtu(namespace: &NetNs, wait: impl FnOnce()) {
    let (mut links, index) = link(namespace, INTERFACE);
    let before = links.find_link_by_index(index).expect("the interface is there").mtu;
    links.set_mtu(index, LOW_MTU).expect("the MTU can be lowered");
    wait();
    links.set_mtu(index, before).expect("the MTU can be restored");
}
