//! Builds network namespaces, with virtual cables and devices between them, for one test or demo; removes them at the
//! end of the lab.
//!
//! ```text
//!   namespace a            namespace dut             namespace b
//!   [ eth0 ]-----cable-----[ port0  ?  port1 ]-----cable-----[ eth0 ]
//! ```
//! Each tester port is the interface `eth0` in its own namespace, with the location `namespace/eth0`. Dropping the
//! lab removes the namespaces with everything in them. A lab needs root or a user namespace.

mod ready;

use crate::device::{self, Device, DeviceReport, FaultPlan};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::{Link, Mac, NamespaceLinks, VethEnd};
use packetrig_sys::netns::{self, NetNs};
use packetrig_sys::{Error, kernel, xdp};
use std::sync::atomic::{AtomicU32, Ordering};

/// Name of the interface of every tester port.
pub const INTERFACE: &str = "eth0";
/// MTU of all interfaces: large enough for jumbo frames, so that only tests that set another MTU reach the limit.
const MTU: u32 = 9_216;
const BRIDGE: &str = "br0";
// ENOENT of errno(3). In a kernel without IPv6 or without bridge filters, the file of a setting does not exist.
const ENOENT_ERRNO: i32 = 2;

/// What connects the tester ports of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortConnection {
    /// A cable between two ports.
    Cable,
    Bridge,
    /// Each port has a cable to its own port of the device namespace; nothing connects these device ports.
    Nothing,
    Reference(FaultPlan),
}

/// A lab. Its fields are dropped in order, so the device stops before its interfaces are removed.
#[derive(Debug)]
pub struct Lab {
    device: Option<Device>,
    passes: Vec<BpfAttachment>,
    ports: Vec<LabPort>,
    device_namespace: Option<TestNamespace>,
}

#[derive(Debug)]
pub struct LabPort {
    namespace: TestNamespace,
    /// The interface as it was when the lab created it.
    pub link: Link,
}

impl LabPort {
    /// Location in the product's notation: `namespace/eth0`.
    pub fn location(&self) -> String {
        format!("{}/{INTERFACE}", self.namespace.name)
    }

    /// Name of the port's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace.name
    }

    pub fn netns(&self) -> &NetNs {
        &self.namespace.netns
    }
}

impl Lab {
    /// Builds two ports and a cable.
    pub fn cabled_pair() -> Result<Self, device::Error> {
        Self::build_named(&make_unique_prefix(), &["a", "b"], PortConnection::Cable)
    }

    /// Builds `count` ports around a kernel bridge.
    pub fn with_bridge(count: usize) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&make_unique_prefix(), &names, PortConnection::Bridge)
    }

    /// Builds `count` ports, each with a cable to its own device port (`port0` …). All device ports are in one separate
    /// namespace, and nothing connects them.
    pub fn with_unconnected_ports(count: usize) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&make_unique_prefix(), &names, PortConnection::Nothing)
    }

    /// Builds `count` ports around the reference device. A cable connects lab port n to device port n.
    pub fn with_device(count: usize, plan: FaultPlan) -> Result<Self, device::Error> {
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        Self::build_named(&make_unique_prefix(), &names, PortConnection::Reference(plan))
    }

    /// Builds ports in namespaces with the names `prefix` + name. An empty prefix gives short locations for users
    /// (`tx/eth0`), but two such labs cannot exist at the same time.
    pub fn build_named<S: AsRef<str>>(
        prefix: &str,
        names: &[S],
        middle: PortConnection,
    ) -> Result<Self, device::Error> {
        // If a step below fails, the namespaces made so far are dropped, which removes them with their content.
        let namespaces: Vec<TestNamespace> = names
            .iter()
            .map(|name| TestNamespace::create_quiet_namespace(&format!("{prefix}{}", name.as_ref())))
            .collect::<Result<_, _>>()?;
        if middle == PortConnection::Cable {
            return Ok(Self::connect_pair(namespaces)?);
        }
        let device_namespace = TestNamespace::create_quiet_namespace(&format!("{prefix}dut"))?;
        let mut ports = Vec::new();
        for (index, namespace) in namespaces.into_iter().enumerate() {
            let near = CableEnd { namespace: &namespace, name: INTERFACE, number: index };
            // The numbers of the device's ends begin at 0x80, so the low byte of a MAC address is unique for up to 128
            // ports.
            let name = device_port_name(index);
            let far = CableEnd { namespace: &device_namespace, name: &name, number: index + 0x80 };
            create_cable(near, far)?;
            ports.push(LabPort::from_namespace(namespace)?);
        }
        let device_ports: Vec<String> = (0..ports.len()).map(device_port_name).collect();
        let device = match middle {
            PortConnection::Reference(plan) => {
                Some(Device::start_forwarding(&device_namespace.netns, &device_ports, &plan)?)
            }
            PortConnection::Nothing => None,
            PortConnection::Bridge | PortConnection::Cable => {
                connect_ports_to_bridge(&device_namespace.netns, &device_ports)?;
                ready::await_forwarding(&ports)?;
                None
            }
        };
        Ok(Self { device, passes: Vec::new(), ports, device_namespace: Some(device_namespace) })
    }

    fn connect_pair(namespaces: Vec<TestNamespace>) -> Result<Self, Error> {
        if let [a, b] = namespaces.as_slice() {
            let near = CableEnd { namespace: a, name: INTERFACE, number: 0 };
            create_cable(near, CableEnd { namespace: b, name: INTERFACE, number: 1 })?;
        }
        let ports = namespaces.into_iter().map(LabPort::from_namespace).collect::<Result<_, _>>()?;
        Ok(Self { device: None, passes: Vec::new(), ports, device_namespace: None })
    }

    pub fn ports(&self) -> &[LabPort] {
        &self.ports
    }

    /// Returns the location `namespace/eth0` of tester port `index`. Panics if there is no such port.
    pub fn location(&self, index: usize) -> String {
        self.ports[index].location()
    }

    /// Returns the namespace of the device ports; `None` in a lab that has only a cable.
    pub fn device_netns(&self) -> Option<&NetNs> {
        self.device_namespace.as_ref().map(|namespace| &namespace.netns)
    }

    /// Returns the location `namespace/port…` of the device port at the other end of tester port `index`. Panics in a
    /// lab that has only a cable.
    pub fn device_location(&self, index: usize) -> String {
        let namespace = self.device_namespace.as_ref().expect("a lab with something between its ports");
        format!("{}/{}", namespace.name, device_port_name(index))
    }

    /// Makes the device's end of every cable accept the live frames of back end `xdp`, and switches its VLAN offload
    /// off. Does nothing in a lab that has only a cable.
    pub fn enable_live_frames(&mut self) -> Result<(), Error> {
        let Some(namespace) = &self.device_namespace else { return Ok(()) };
        let mut links = NamespaceLinks::open_in(&namespace.netns)?;
        let ethtool = EthtoolCalls::open_in(&namespace.netns)?;
        for port in (0..self.ports.len()).map(device_port_name) {
            let index = links.find_link_by_name(&port)?.index;
            // With this offload, a VLAN tag is not in the bytes of its frame, and a program at the other end would not
            // see it.
            ethtool.set_offload(&port, Offload::TxVlan, false)?;
            self.passes.push(xdp::attach_xdp_pass_program(&namespace.netns, index, &port)?);
        }
        Ok(())
    }

    /// Stops the reference device and returns its report; an empty report if there is no device.
    pub fn stop_device(&mut self) -> Result<DeviceReport, device::Error> {
        self.device.take().map_or_else(|| Ok(DeviceReport::default()), Device::stop_and_report)
    }
}

impl LabPort {
    fn from_namespace(namespace: TestNamespace) -> Result<Self, Error> {
        let link = NamespaceLinks::open_in(&namespace.netns)?.find_link_by_name(INTERFACE)?;
        Ok(Self { namespace, link })
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
        let namespace = Self { name: name.to_owned(), netns };
        // IPv6 is switched off: packets that the kernel sends by itself would be counted as foreign frames.
        for key in ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"] {
            write_if_setting_exists(&namespace.netns, key, "1")?;
        }
        for family in ["iptables", "ip6tables", "arptables"] {
            // The bridge must not pass test frames through the machine's packet filter.
            write_if_setting_exists(&namespace.netns, &format!("net/bridge/bridge-nf-call-{family}"), "0")?;
        }
        Ok(namespace)
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        // A failure cannot be handled here. In a private mount namespace, the name ends with the process.
        drop(netns::delete_named_namespace(&self.name));
    }
}

/// Writes a setting. A setting that this kernel does not have is skipped.
fn write_if_setting_exists(netns: &NetNs, key: &str, value: &str) -> Result<(), Error> {
    match kernel::write_setting(netns, key, value) {
        Err(error) if error.errno() == Some(ENOENT_ERRNO) => Ok(()),
        other => other,
    }
}

fn device_port_name(index: usize) -> String {
    format!("port{index}")
}

/// Returns a prefix that no other lab of this machine has, from the process ID and a counter.
fn make_unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("pr{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a locally administered MAC address that ends with the low byte of `number`.
fn make_local_mac(number: usize) -> Mac {
    // IEEE 802: bit 0x02 of the first byte marks an address that no manufacturer has. 0x50 0x52 are the letters PR.
    let [.., low] = number.to_be_bytes();
    [0x02, 0x50, 0x52, 0, 0, low]
}

/// One end of a cable: an interface to be created.
#[derive(Clone, Copy)]
struct CableEnd<'a> {
    namespace: &'a TestNamespace,
    name: &'a str,
    /// Number that makes the MAC address of the interface unique in the lab.
    number: usize,
}

fn create_cable(near: CableEnd<'_>, far: CableEnd<'_>) -> Result<(), Error> {
    // One request creates both ends, the far one directly in its namespace, so both may have the same name.
    let mut links = NamespaceLinks::open_in(&near.namespace.netns)?;
    links.create_veth(
        VethEnd { name: near.name, netns: None, mac: Some(make_local_mac(near.number)) },
        VethEnd { name: far.name, netns: Some(&far.namespace.netns), mac: Some(make_local_mac(far.number)) },
    )?;
    for end in [near, far] {
        let mut links = NamespaceLinks::open_in(&end.namespace.netns)?;
        let index = links.find_link_by_name(end.name)?.index;
        links.set_mtu(index, MTU)?;
        links.switch_interface(index, true)?;
    }
    Ok(())
}

fn connect_ports_to_bridge(netns: &NetNs, ports: &[String]) -> Result<(), Error> {
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
