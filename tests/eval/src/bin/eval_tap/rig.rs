//! Three stations around what is compared: 0 and 1 are the ends of the link, 2 is the far end of the mirror.
//!
//! It makes them, puts a tap or a bridge between them and reads the kernel's counters. It judges nothing. A rig has one
//! thing between its stations from beginning to end, and that forwards when [`Rig::new`] returns.

use anyhow::{Context, ensure};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_sys::{clock, xdp};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_tests::program::{Finished, Running};
use rustix::process::Signal;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where copies go.
const TO: &str = "02:00:00:00:00:09";
const BRIDGE: &str = "br0";
const BRIDGE_MTU: u32 = 9_216;
/// For the last of the frames that were sent to see whether it forwards.
const LAST_MS: u64 = 50;
/// A bridge's ports forward some time after they are up.
const PATIENCE_NS: u64 = 15_000_000_000;

/// What is between the ends of the link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Middle {
    /// A tap in the kernel, with a mirror.
    TapXdp,
    /// A tap in its process, with a mirror.
    TapPacket,
    /// A kernel bridge.
    Bridge,
    /// A kernel bridge whose ports are mirrored by `tc`.
    Mirred,
}

impl Middle {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TapXdp => "tap, way xdp, with a mirror",
            Self::TapPacket => "tap, way packet, with a mirror",
            Self::Bridge => "bridge",
            Self::Mirred => "bridge and tc mirred",
        }
    }
}

/// How a station takes frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As the kernel made it, everything on that a virtual cable can leave undone.
    Virtual,
    /// By the stack; behind a tap in the kernel, from which it would hear nothing otherwise, after a program that passes all.
    Stack,
    /// By the stack, after such a program whatever is in between: so all frames are stamped at the same place.
    Passed,
    /// By the stack, which merges what belongs together before.
    Merging,
    /// Not at all: the driver drops it.
    Drop,
}

/// The kernel's account of a station.
#[derive(Clone, Copy)]
pub(crate) struct Count {
    /// Frames that the station sent, those included that the other end of its cable had no room for.
    pub(crate) given: u64,
    /// Frames that arrived.
    pub(crate) taken: u64,
}

pub(crate) struct Rig {
    tap: Option<Running>,
    /// What a tap is called.
    name: String,
    passes: Vec<BpfAttachment>,
    /// The stations; behind everything that uses their interfaces.
    pub(crate) lab: Lab,
}

impl Rig {
    /// Stations around it. With `is_live` the first one is going to send live frames.
    pub(crate) fn new(middle: Middle, ends: [End; 3], is_live: bool) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("eval-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut rig = Self { tap: None, name, passes: Vec::new(), lab: Lab::with_unconnected_ports(3)? };
        for (port, end) in rig.lab.ports().iter().zip(ends) {
            rig.passes.extend(prepare(port, end, middle == Middle::TapXdp)?);
        }
        match middle {
            Middle::TapXdp => rig.begin_tap("xdp"),
            Middle::TapPacket => {
                if is_live {
                    rig.lab.enable_live_frames()?;
                }
                rig.begin_tap("packet");
            }
            Middle::Bridge | Middle::Mirred => {
                if is_live {
                    EthtoolCalls::open_in(rig.middle()?)?.set_offload("port0", Offload::Gro, true)?;
                }
                rig.bridge()?;
                if middle == Middle::Mirred {
                    rig.mirror_ports()?;
                }
            }
        }
        rig.await_way(0, 1)?;
        rig.await_way(1, 0)?;
        pause(LAST_MS);
        Ok(rig)
    }

    /// The namespace of what is between the stations.
    pub(crate) fn middle(&self) -> anyhow::Result<&NetNs> {
        self.lab.device_netns().context("a lab with something between its ports")
    }

    /// Number of the mirror's interface on the side of the tap.
    pub(crate) fn mirror_index(&self) -> anyhow::Result<u32> {
        Ok(NamespaceLinks::open_in(self.middle()?)?.find_link_by_name("port2")?.index)
    }

    pub(crate) fn station(&self, number: usize) -> &LabPort {
        &self.lab.ports()[number]
    }

    /// What the kernel has counted at a station so far.
    pub(crate) fn count(&self, number: usize) -> anyhow::Result<Count> {
        let port = self.station(number);
        let counters = NamespaceLinks::open_in(port.netns())?.read_counters(port.link.index)?;
        Ok(Count { given: counters.tx_frames + counters.tx_dropped, taken: counters.rx_frames })
    }

    /// Gives the ends of the link addresses, and the MTU of an Ethernet.
    pub(crate) fn address(&self) -> anyhow::Result<[Ipv4Addr; 2]> {
        let addresses = [1, 2].map(|host| Ipv4Addr::new(198, 18, 0, host));
        for (port, address) in self.lab.ports().iter().zip(addresses) {
            let mut links = NamespaceLinks::open_in(port.netns())?;
            links.set_mtu(port.link.index, 1500)?;
            links.add_address(port.link.index, address.into(), 24)?;
        }
        Ok(addresses)
    }

    fn begin_tap(&mut self, way: &str) {
        let [a, b, mirror] = [0, 1, 2].map(|station| self.lab.device_location(station));
        let mut arguments = vec!["tap", &a, &b, "--mirror", &mirror, "--to", TO, "--back-end", way];
        arguments.extend(["--name", &self.name, "--json"]);
        let mut tap = Running::start(&arguments, "");
        tap.await_remark("forwarding with back end");
        self.tap = Some(tap);
    }

    fn bridge(&self) -> anyhow::Result<()> {
        let mut links = NamespaceLinks::open_in(self.middle()?)?;
        links.create_bridge(BRIDGE)?;
        let bridge = links.find_link_by_name(BRIDGE)?.index;
        for port in ["port0", "port1"] {
            let index = links.find_link_by_name(port)?.index;
            links.set_master(index, Some(bridge))?;
        }
        links.set_mtu(bridge, BRIDGE_MTU)?;
        Ok(links.switch_interface(bridge, true)?)
    }

    /// Copies of what arrives at both ports, by the classifier that every kernel has.
    fn mirror_ports(&self) -> anyhow::Result<()> {
        for port in ["port0", "port1"] {
            self.tc(&format!("qdisc add dev {port} clsact"))?;
            self.tc(&format!(
                "filter add dev {port} ingress protocol all u32 match u32 0 0 action mirred egress mirror dev port2"
            ))?;
        }
        Ok(())
    }

    fn tc(&self, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new("tc");
        command.args(arguments.split(' '));
        let output = self.middle()?.run_in_namespace(|| command.output())?.context("tc")?;
        ensure!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Sends a frame now and then until one arrives.
    fn await_way(&self, from: usize, to: usize) -> anyhow::Result<()> {
        let port = self.station(from);
        let options = TxOptions { slots: 16, ..TxOptions::default() };
        let mut ring = TxRing::open_on_interface(port.netns(), port.link.index, INTERFACE, options)?;
        let before = self.count(to)?.taken;
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        while self.count(to)?.taken == before {
            ensure!(clock::monotonic_ns() < deadline, "no frame from station {from} to station {to}");
            if let Some(slot) = ring.next_slot() {
                slot[..60].fill(0);
                slot[..6].fill(0xff);
                slot[6] = 2;
                slot[12..14].copy_from_slice(&[0x88, 0xb5]);
                ring.commit_frame(60);
            }
            ring.kick_kernel()?;
            pause(5);
        }
        Ok(())
    }

    /// Kills the tap's process, as an accident would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut tap) = self.tap.take() {
            tap.signal(Signal::KILL);
            tap.finish();
        }
    }

    /// Ends the tap; what it says of itself, null for a bridge.
    pub(crate) fn end(mut self) -> anyhow::Result<Value> {
        let Some(finished) = self.finish_tap() else { return Ok(Value::Null) };
        serde_json::from_str(&finished.stdout)
            .with_context(|| format!("the tap ended with {:?}: {}", finished.code, finished.stderr))
    }

    /// Ends a tap whose process was killed; what it says of itself.
    pub(crate) fn end_killed(&self) -> anyhow::Result<Value> {
        let finished = Running::start(&["tap", "stop", &self.name, "--json"], "").finish();
        serde_json::from_str(&finished.stdout).with_context(|| format!("tap stop: {}", finished.stderr))
    }

    fn finish_tap(&mut self) -> Option<Finished> {
        let mut tap = self.tap.take()?;
        tap.signal(Signal::INT);
        Some(tap.finish())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A tap that is only killed would forward on.
        self.finish_tap();
    }
}

/// Makes a station take frames so; far ends of cables take redirected frames only while they have a program or merge.
pub(crate) fn prepare(
    port: &LabPort,
    end: End,
    is_redirected: bool,
) -> anyhow::Result<Option<BpfAttachment>> {
    if end == End::Virtual {
        return Ok(None);
    }
    let ethtool = EthtoolCalls::open_in(port.netns())?;
    // Checksums and segments are made by the sender, as they are on a wire.
    ethtool.set_offload(INTERFACE, Offload::TxCsum, false)?;
    let (netns, index) = (port.netns(), port.link.index);
    Ok(match end {
        End::Stack if !is_redirected => None,
        End::Virtual => None,
        End::Stack | End::Passed => Some(xdp::attach_xdp_pass_program(netns, index, &port.location())?),
        End::Drop => Some(xdp::attach_discard_program(netns, index, &port.location())?),
        End::Merging => {
            ethtool.set_offload(INTERFACE, Offload::Gro, true)?;
            None
        }
    })
}

/// Waits some milliseconds.
pub(crate) fn pause(ms: u64) {
    clock::sleep_until_ns(clock::monotonic_ns() + ms * 1_000_000);
}

/// Frames of all causes that a tap says it did not copy, from the first end of the link.
pub(crate) fn uncopied(tap: &Value) -> u64 {
    let dropped = tap.pointer("/accounts/directions/0/mirrors/0/dropped").and_then(Value::as_object);
    dropped.into_iter().flatten().filter_map(|(_, frames)| frames.as_u64()).sum()
}
