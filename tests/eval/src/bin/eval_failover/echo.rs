//! The traffic: requests and their answers, of many flows in turn.

use packetrig_sys::clock;
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::lab::LabPort;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Packets of each flow, by its number.
pub(crate) type FlowPackets = BTreeMap<u32, u64>;
/// Ports of the near ends begin here.
pub(crate) const FIRST_PORT: u16 = 10_000;
/// Bits of a flow's number that are in the port; the others are in the address.
const PORT_BITS: u32 = 14;

/// A request and its answer every so often, each time of the next flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EchoTraffic {
    pub(crate) every_ns: u64,
    /// Requests each time.
    pub(crate) at_once: u32,
    pub(crate) flows: u32,
}

pub(crate) struct RunningEcho {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<FlowPackets>>,
}

impl EchoTraffic {
    pub(crate) fn start(self, port: &LabPort) -> anyhow::Result<RunningEcho> {
        let mut ring =
            TxRing::open_on_interface(port.netns(), port.link.index, "echo", TxOptions::default())?;
        let is_over = Arc::<AtomicBool>::default();
        let end = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut sent = FlowPackets::new();
            let mut due_ns = clock::monotonic_ns();
            for n in 0_u64.. {
                if end.load(Ordering::Acquire) {
                    break;
                }
                let first = n * u64::from(self.at_once);
                for request in first..first + u64::from(self.at_once) {
                    let flow = u32::try_from(request % u64::from(self.flows))?;
                    put(&mut ring, &[frame(flow, false), frame(flow, true)])?;
                    *sent.entry(flow).or_default() += 2;
                }
                while ring.pending_frames() > 0 {
                    ring.kick_kernel()?;
                }
                due_ns += self.every_ns;
                clock::sleep_until_ns(due_ns);
            }
            Ok(sent)
        });
        Ok(RunningEcho { is_over, thread })
    }
}

impl RunningEcho {
    /// Ends it; returns what was sent.
    pub(crate) fn stop(self) -> anyhow::Result<FlowPackets> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?
    }
}

fn put(ring: &mut TxRing, frames: &[Vec<u8>]) -> anyhow::Result<()> {
    for frame in frames {
        while ring.next_slot().is_none() {
            ring.kick_kernel()?;
        }
        if let Some(slot) = ring.next_slot() {
            slot[..frame.len()].copy_from_slice(frame);
            ring.commit_frame(frame.len());
        }
    }
    Ok(())
}

/// The number of the flow whose near end is this.
pub(crate) fn flow_of(near: Ipv4Addr, port: u64) -> Option<u32> {
    let [.., high, low] = near.octets();
    let port = u32::try_from(port.checked_sub(FIRST_PORT.into())?).ok()?;
    Some(u32::from(u16::from_be_bytes([high, low])) << PORT_BITS | port)
}

/// A UDP packet of 98 bytes, as a ping. Both directions have the same addresses of Ethernet, so that a bridge floods them.
fn frame(flow: u32, is_answer: bool) -> Vec<u8> {
    let [_, _, high, low] = (flow >> PORT_BITS).to_be_bytes();
    let (near, far) = ([198, 18, high, low], [198, 19, 0, 2]);
    let (from, to) = if is_answer { (far, near) } else { (near, far) };
    let port = u16::try_from(flow & ((1 << PORT_BITS) - 1)).unwrap_or_default();
    let ports = [FIRST_PORT + port, 7];
    let ports = if is_answer { [ports[1], ports[0]] } else { ports };
    let mut head = vec![0x45, 0, 0, 84, 0, 0, 0, 0, 64, 17, 0, 0];
    head.extend([from, to].concat());
    let sum: u32 = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or_default();
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    let [from, to] = ports.map(u16::to_be_bytes);
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    [&ethernet[..], &head, &from, &to, &[0, 64, 0, 0], &[7; 56]].concat()
}
