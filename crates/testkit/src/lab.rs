//! Network namespaces, cables and devices between them, made for one test or demo and removed with it.
//!
//! ```text
//!   namespace a            namespace dut             namespace b
//!   [ eth0 ]-----cable-----[ port0  ?  port1 ]-----cable-----[ eth0 ]
//! ```
//! Each tester port is the interface `eth0` in its own namespace, with the location `namespace/eth0`. Dropping the
//! lab removes the namespaces, and with them everything inside. A lab needs root or a user namespace.

mod ready;

use crate::device::{self, Device, DeviceReport, FaultPlan};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::{Link, Mac, NamespaceLinks, VethEnd};
use packetrig_sys::netns::{self, NetNs};
use packetrig_sys::{Error, kernel, xdp};
use std::sync::atomic::{AtomicU32, Ordering};

/// The interface of every tester port.
pub const INTERFACE: &str = "eth0";
/// Room for jumbo frames, so that no test meets the limit unless it sets it.
const MTU: u32 = 9_216;
const BRIDGE: &str = "br0";
// ENOENT of errno(3). The setting has no file in a kernel without IPv6 or without bridge filters.
const ENOENT_ERRNO: i32 = 2;

/// Connection between the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortConnection {
    /// A cable between two ports.
    Cable,
    Bridge,
    /// There is no connection yet: the interfaces stand alone.
    Nothing,
    Reference(FaultPlan),
}

/// A lab. Fields drop in order: the device stops before its interfaces go.
#[derive(Debug)]
pub struct Lab {
    device: Option<Device>,
    passes: Vec<BpfAttachment>,
    ports: Vec<LabPort>,
    device_space: Option<TestNamespace>,
}

#[derive(Debug)]
pub struct LabPort {
    space: TestNamespace,
    /// The interface as it was when the lab created it.
    pub link: Link,
}

impl LabPort {
    /// Location in the product's notation: `namespace/eth0`.
    pub fn location(&self) -> String {
        format!("{}/{INTERFACE}", self.space.name)
    }

    /// Name of its namespace.
    pub fn namespace(&self) -> &str {
        &self.space.name
    }

    pub fn netns(&self) -> &NetNs {
        &self.space.netns
    }
}

impl Lab {
    /// Builds two ports and a cable.
    pub fn cabled_pair() -> Result<Self, device::Error> {
        Self::build_named(&unique_prefix(), &["a", "b"], PortConnection::Cable)
    }

    /// Builds `count` ports around a kernel bridge.
    pub fn with_bridge(count: usize) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&unique_prefix(), &names, PortConnection::Bridge)
    }

    /// Builds `count` ports with unconnected neighbours, `port0` …, in a separate namespace.
    pub fn with_unconnected_ports(count: usize) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&unique_prefix(), &names, PortConnection::Nothing)
    }

    /// Builds `count` ports around the reference device; device port n is the neighbour of lab port n.
    pub fn with_device(count: usize, plan: FaultPlan) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&unique_prefix(), &names, PortConnection::Reference(plan))
    }

    /// Builds ports in namespaces `prefix` + name. With an empty prefix the names are meant for users (`tx/eth0`), and two such
    /// labs cannot exist side by side.
    pub fn build_named<S: AsRef<str>>(
        prefix: &str,
        names: &[S],
        middle: PortConnection,
    ) -> Result<Self, device::Error> {
        // On a failure below, everything made so far is dropped, and each namespace removes itself with its content.
        let spaces: Vec<TestNamespace> = names
            .iter()
            .map(|name| TestNamespace::create_quiet_namespace(&format!("{prefix}{}", name.as_ref())))
            .collect::<Result<_, _>>()?;
        if middle == PortConnection::Cable {
            return Ok(Self::connect_pair(spaces)?);
        }
        let device_space = TestNamespace::create_quiet_namespace(&format!("{prefix}dut"))?;
        let mut ports = Vec::new();
        for (index, space) in spaces.into_iter().enumerate() {
            let near = CableEnd { space: &space, name: INTERFACE, number: index };
            // The device's ends count from 0x80, so the low byte of a MAC address is unique for up to 128 ports.
            let far = CableEnd { space: &device_space, name: &device_port(index), number: index + 0x80 };
            create_cable(near, far)?;
            ports.push(LabPort::from_space(space)?);
        }
        let device_ports: Vec<String> = (0..ports.len()).map(device_port).collect();
        let device = match middle {
            PortConnection::Reference(plan) => {
                Some(Device::start_forwarding(&device_space.netns, &device_ports, &plan)?)
            }
            PortConnection::Nothing => None,
            PortConnection::Bridge | PortConnection::Cable => {
                bridge_ports(&device_space.netns, &device_ports)?;
                ready::await_forwarding(&ports)?;
                None
            }
        };
        Ok(Self { device, passes: Vec::new(), ports, device_space: Some(device_space) })
    }

    fn connect_pair(spaces: Vec<TestNamespace>) -> Result<Self, Error> {
        if let [a, b] = spaces.as_slice() {
            let near = CableEnd { space: a, name: INTERFACE, number: 0 };
            create_cable(near, CableEnd { space: b, name: INTERFACE, number: 1 })?;
        }
        let ports = spaces.into_iter().map(LabPort::from_space).collect::<Result<_, _>>()?;
        Ok(Self { device: None, passes: Vec::new(), ports, device_space: None })
    }

    pub fn ports(&self) -> &[LabPort] {
        &self.ports
    }

    /// `namespace/eth0` of tester port `index`. Panics if there is no such port.
    pub fn location(&self, index: usize) -> String {
        self.ports[index].location()
    }

    /// Namespace of the device or bridge between the ports; `None` for a cable.
    pub fn device_netns(&self) -> Option<&NetNs> {
        self.device_space.as_ref().map(|space| &space.netns)
    }

    /// `namespace/port…` of the neighbour of tester port `index`. Panics for a cable, which has none.
    pub fn device_location(&self, index: usize) -> String {
        let space = self.device_space.as_ref().expect("a lab with something between its ports");
        format!("{}/{}", space.name, device_port(index))
    }

    /// Makes the device's end of every cable take the live frames of back end `xdp`.
    pub fn enable_live_frames(&mut self) -> Result<(), Error> {
        let Some(space) = &self.device_space else { return Ok(()) };
        let mut links = NamespaceLinks::open_in(&space.netns)?;
        let ethtool = EthtoolCalls::open_in(&space.netns)?;
        for port in (0..self.ports.len()).map(device_port) {
            let index = links.find_link_by_name(&port)?.index;
            // A VLAN tag that travels beside its frame is not seen by a program at the other end.
            ethtool.set_offload(&port, Offload::TxVlan, false)?;
            self.passes.push(xdp::attach_xdp_pass_program(&space.netns, index, &port)?);
        }
        Ok(())
    }

    /// Stops the reference device and takes its report; an empty one if there is none.
    pub fn stop_device(&mut self) -> Result<DeviceReport, device::Error> {
        self.device.take().map_or_else(|| Ok(DeviceReport::default()), Device::stop_forwarding_device)
    }
}

impl LabPort {
    fn from_space(space: TestNamespace) -> Result<Self, Error> {
        let link = NamespaceLinks::open_in(&space.netns)?.find_link_by_name(INTERFACE)?;
        Ok(Self { space, link })
    }
}

/// A named namespace that is removed when dropped.
#[derive(Debug)]
struct TestNamespace {
    name: String,
    netns: NetNs,
}

impl TestNamespace {
    fn create_quiet_namespace(name: &str) -> Result<Self, Error> {
        let netns = NetNs::create_named_namespace(name)?;
        // The value exists before the settings are written: if one fails, its drop removes the namespace.
        let space = Self { name: name.to_owned(), netns };
        // IPv6 is switched off: packets that the kernel sends by itself would be counted as foreign frames.
        for key in ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"] {
            write_if_setting_exists(&space.netns, key, "1")?;
        }
        for family in ["iptables", "ip6tables", "arptables"] {
            // The bridge must not pass test frames through the machine's packet filter.
            write_if_setting_exists(&space.netns, &format!("net/bridge/bridge-nf-call-{family}"), "0")?;
        }
        Ok(space)
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        // A failure here has no remedy, and inside a private lab the name ends with the process.
        drop(netns::delete_named_namespace(&self.name));
    }
}

/// Writes a setting. One that this kernel does not have needs no change.
fn write_if_setting_exists(netns: &NetNs, key: &str, value: &str) -> Result<(), Error> {
    match kernel::write_setting(netns, key, value) {
        Err(error) if error.errno() == Some(ENOENT_ERRNO) => Ok(()),
        other => other,
    }
}

fn device_port(index: usize) -> String {
    format!("port{index}")
}

/// Prefix that no other lab of this machine has: process and counter.
fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("pr{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Locally administered address that identifies the end.
fn local_mac(number: usize) -> Mac {
    // IEEE 802: bit 0x02 of the first byte marks an address that no manufacturer has. 0x50 0x52 are the letters PR.
    let [.., low] = number.to_be_bytes();
    [0x02, 0x50, 0x52, 0, 0, low]
}

/// One end of a cable: an interface that is to be made.
#[derive(Clone, Copy)]
struct CableEnd<'a> {
    space: &'a TestNamespace,
    name: &'a str,
    /// Makes its MAC address unique in the lab.
    number: usize,
}

fn create_cable(near: CableEnd<'_>, far: CableEnd<'_>) -> Result<(), Error> {
    // One request makes both ends, the far one directly in its namespace: both may have the same name.
    let mut links = NamespaceLinks::open_in(&near.space.netns)?;
    links.create_veth(
        VethEnd { name: near.name, netns: None, mac: Some(local_mac(near.number)) },
        VethEnd { name: far.name, netns: Some(&far.space.netns), mac: Some(local_mac(far.number)) },
    )?;
    for end in [near, far] {
        let mut links = NamespaceLinks::open_in(&end.space.netns)?;
        let index = links.find_link_by_name(end.name)?.index;
        links.set_mtu(index, MTU)?;
        links.switch_interface(index, true)?;
    }
    Ok(())
}

fn bridge_ports(netns: &NetNs, ports: &[String]) -> Result<(), Error> {
    let mut links = NamespaceLinks::open_in(netns)?;
    links.create_bridge(BRIDGE)?;
    let bridge = links.find_link_by_name(BRIDGE)?.index;
    for port in ports {
        let index = links.find_link_by_name(port)?.index;
        links.set_master(index, Some(bridge))?;
    }
    links.set_mtu(bridge, MTU)?;
    links.switch_interface(bridge, true)
}
