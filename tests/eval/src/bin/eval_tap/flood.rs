//! What loads a link: live frames in bursts, a paced flow from a packet ring, and a flood from an ordinary UDP socket.
//!
//! Nothing here counts: the kernel's counters at the stations do.

use packetrig_eval::peers;
use packetrig_sys::bpf::BpfProgram;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::lab::LabPort;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Sends between two looks at the clock.
const SENDS: usize = 64;

/// Bursts of live frames.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Size of a frame with FCS.
    pub(crate) size: u32,
    /// Frames that are put into the interface's queue before it is worked off.
    pub(crate) batch: u32,
    /// Frames of a burst.
    pub(crate) frames: u32,
    /// From one burst to the next. To begin one takes the kernel some ten milliseconds.
    pub(crate) every_ns: u64,
}

/// A thread that sends them; dropping it ends it.
pub(crate) struct Bursts {
    quit: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), packetrig_sys::Error>>>,
}

impl Bursts {
    /// Begins to send from the interface with this number.
    pub(crate) fn start(netns: &NetNs, index: u32, plan: Plan) -> anyhow::Result<Self> {
        // return bpf_redirect(index, 0)
        let code = [0xb7_u64 | 1 << 8 | u64::from(index) << 32, 0xb7 | 2 << 8, 0x85 | 23 << 32, 0x95];
        let program = BpfProgram::load_xdp("bursts", &code, false)?;
        let quit = Arc::new(AtomicBool::new(false));
        let (over, frame) = (Arc::clone(&quit), peers::frame(plan.size));
        let thread = netns.spawn_in_namespace("bursts".to_owned(), move || {
            let start = clock::monotonic_ns();
            for burst in 0_u64.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                clock::sleep_until_ns(start + burst * plan.every_ns);
                program.run_on_live_frames(&frame, plan.batch, plan.frames)?;
            }
            Ok(())
        })?;
        Ok(Self { quit, thread: Some(thread) })
    }
}

impl Drop for Bursts {
    fn drop(&mut self) {
        self.quit.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A thread that sends, and says how many frames the kernel took.
pub(crate) type Sender = JoinHandle<Result<u64, packetrig_sys::Error>>;

/// Sends so many frames of this size in each of so many milliseconds.
pub(crate) fn paced(port: &LabPort, size: u32, per_ms: u64, ms: u64) -> anyhow::Result<Sender> {
    let (inside, index, frame) = (port.netns().duplicate()?, port.link.index, peers::frame(size));
    let flow = move || {
        let mut ring = TxRing::open_on_interface(&inside, index, "flow", TxOptions::default())?;
        let start = clock::monotonic_ns();
        for burst in 0..ms {
            clock::sleep_until_ns(start + burst * 1_000_000);
            for _ in 0..per_ms {
                while ring.next_slot().is_none() {
                    ring.kick_kernel()?;
                }
                if let Some(slot) = ring.next_slot() {
                    slot[..frame.len()].copy_from_slice(&frame);
                    ring.commit_frame(frame.len());
                }
            }
            ring.kick_kernel()?;
        }
        while ring.pending_frames() > 0 {
            ring.kick_kernel()?;
        }
        Ok(ring.counts().taken)
    };
    Ok(port.netns().spawn_in_namespace("flow".to_owned(), flow)?)
}

/// Sends datagrams as fast as a socket takes them.
pub(crate) fn udp(from: &NetNs, to: SocketAddr, payload: usize, for_ns: u64) -> anyhow::Result<()> {
    let socket = from.run_in_namespace(|| UdpSocket::bind("0.0.0.0:0"))??;
    socket.connect(to)?;
    let bytes = vec![0x5a; payload];
    let end = clock::monotonic_ns() + for_ns;
    while clock::monotonic_ns() < end {
        for _ in 0..SENDS {
            // What the kernel refuses it has counted.
            drop(socket.send(&bytes));
        }
    }
    Ok(())
}
