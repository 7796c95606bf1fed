//! Labs for the tests of this crate, and the simplest way to send: no product code stands on it.

use crate::Error;
use crate::path::ProbePath;
use crate::release::{DepartedFrame, DueFrame, FrameReleaser};
use packetrig_plan::PortLocation;
use packetrig_probe::{PermittedTarget, ProbePermit, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::link::{NamespaceLinks, VethEnd};
use packetrig_sys::netns::{self, NetNs};
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_sys::{clock, kernel};
use packetrig_units::MonoTime;
use std::sync::atomic::{AtomicU32, Ordering};

/// Two namespaces and a cable; the near end is 192.0.2.1, the far one 192.0.2.2.
pub(crate) struct ProbeLab {
    pub(crate) near: String,
    pub(crate) far: String,
}

impl ProbeLab {
    /// `None` where rights are missing.
    pub(crate) fn new() -> Option<Self> {
        let (near_name, near) = namespace("a")?;
        let (far_name, far) = namespace("b")?;
        let lab = Self { near: near_name, far: far_name };
        let (end, far_end) = (veth_end("a"), VethEnd { netns: Some(&far), ..veth_end("b") });
        NamespaceLinks::open_in(&near).unwrap().create_veth(end, far_end).unwrap();
        for (netns, name, ip, ip6) in
            [(&near, "a", "192.0.2.1", "2001:db8::1"), (&far, "b", "192.0.2.2", "2001:db8::2")]
        {
            kernel::write_setting(netns, "net/ipv6/conf/all/accept_dad", "0").unwrap();
            kernel::write_setting(netns, &format!("net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
            let mut links = NamespaceLinks::open_in(netns).unwrap();
            let index = links.find_link_by_name(name).unwrap().index;
            links.switch_interface(index, true).unwrap();
            links.add_address(index, ip.parse().unwrap(), 24).unwrap();
            links.add_address(index, ip6.parse().unwrap(), 64).unwrap();
            let loopback = links.find_link_by_name("lo").unwrap().index;
            links.switch_interface(loopback, true).unwrap();
        }
        Some(lab)
    }
}

impl Drop for ProbeLab {
    fn drop(&mut self) {
        netns::delete_named_namespace(&self.near).unwrap();
        netns::delete_named_namespace(&self.far).unwrap();
    }
}

/// A cable `a` - `b` without addresses, in a separate namespace.
pub(crate) struct LabCable {
    pub(crate) name: String,
    pub(crate) netns: NetNs,
}

impl LabCable {
    /// `None` where rights are missing.
    pub(crate) fn new() -> Option<Self> {
        let (name, netns) = namespace("cable")?;
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        links.create_veth(veth_end("a"), veth_end("b")).unwrap();
        for name in ["a", "b"] {
            kernel::write_setting(&netns, &format!("net/ipv6/conf/{name}/disable_ipv6"), "1").unwrap();
            let index = links.find_link_by_name(name).unwrap().index;
            links.switch_interface(index, true).unwrap();
        }
        Some(Self { name, netns })
    }

    pub(crate) fn at(&self, interface: &str) -> PortLocation {
        PortLocation { namespace: Some(self.name.clone()), interface: interface.into() }
    }

    pub(crate) fn index(&self, interface: &str) -> u32 {
        NamespaceLinks::open_in(&self.netns).unwrap().find_link_by_name(interface).unwrap().index
    }
}

impl Drop for LabCable {
    fn drop(&mut self) {
        netns::delete_named_namespace(&self.name).unwrap();
    }
}

/// A new namespace; `None` where rights are missing.
fn namespace(what: &str) -> Option<(String, NetNs)> {
    static NEXT_LAB_NUMBER: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("prober-{}-{}-{what}", std::process::id(), NEXT_LAB_NUMBER.fetch_add(1, Ordering::Relaxed));
    match NetNs::create_named_namespace(&name) {
        Ok(netns) => Some((name, netns)),
        Err(error) => {
            assert!(error.is_permission_error(), "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

pub(crate) fn permitted(ip: &str) -> PermittedTarget {
    let mut permit = ProbePermit::default();
    permit.allow_network("192.0.2.0/24".parse().unwrap());
    permit.allow_network("198.51.100.0/24".parse().unwrap());
    permit.allow_network("2001:db8::/32".parse().unwrap());
    permit.permit_target(ip.parse().unwrap(), "2026-11-22").unwrap()
}

pub(crate) fn send(way: &ProbePath, frame: &[u8]) -> u64 {
    let netns = NetNs::open_named_or_current_namespace(way.location.namespace.as_deref()).unwrap();
    let options = TxOptions { bypass_queue: false, ..TxOptions::default() };
    let mut ring = TxRing::open_on_interface(&netns, way.index, "test", options).unwrap();
    ring.next_slot().unwrap()[..frame.len()].copy_from_slice(frame);
    ring.commit_frame(frame.len());
    let at = clock::monotonic_ns();
    ring.kick_kernel().unwrap();
    at
}

#[derive(Debug)]
pub(crate) struct PlainRelease(TxRing);

impl PlainRelease {
    pub(crate) fn open(way: &ProbePath) -> Self {
        let netns = NetNs::open_named_or_current_namespace(way.location.namespace.as_deref()).unwrap();
        let options = TxOptions { bypass_queue: false, ..TxOptions::default() };
        Self(TxRing::open_on_interface(&netns, way.index, "test", options).unwrap())
    }
}

impl FrameReleaser for PlainRelease {
    fn mechanism(&self) -> ReleaseMechanism {
        ReleaseMechanism::Sleep
    }

    fn release_train(&mut self, train: &[DueFrame<'_>], gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        for due in train {
            clock::sleep_until_ns(due.at.as_nanos());
            self.0.next_slot().unwrap()[..due.frame.len()].copy_from_slice(due.frame);
            self.0.commit_frame(due.frame.len());
            let before = MonoTime::from_nanos(clock::monotonic_ns());
            self.0.kick_kernel()?;
            let after = MonoTime::from_nanos(clock::monotonic_ns());
            let handed_over = Some(ProbeStamp::between_readings(StampSource::Program, before, after));
            gone.push(DepartedFrame { handed_over, ..DepartedFrame::default() });
        }
        Ok(())
    }
}

const fn veth_end(name: &str) -> VethEnd<'_> {
    VethEnd { name, netns: None, mac: None }
}
