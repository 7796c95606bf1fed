//! Generators, ours and others', that send as fast as they go, and the kernel's count of what arrives.

use anyhow::Context;
use packetrig_sys::bpf::BpfProgram;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, signal};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow, ethernet};
use packetrig_tests::program::{Running, binary};
use serde_json::json;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A tool that sends nothing within this time does not work here.
const PATIENCE_NS: u64 = 15_000_000_000;
const WARM_UP_NS: u64 = 300_000_000;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// packetrig on this back end, with tag, checksums and schedule on.
    Ours(&'static str),
    /// The same with two varying fields.
    OursVarying(&'static str),
    /// netsniff-ng's trafgen.
    Trafgen,
    /// tcpreplay.
    Tcpreplay,
    /// A loop of live frames that sends one constant frame: the machine's limit.
    BareLiveFrames,
}

/// Frames per second of one tool from the first port of a lab to the second; `None` if it is not installed.
pub fn rate(tool: Tool, size: u32, lab: &Lab, window: u64) -> anyhow::Result<Option<f64>> {
    let files = tempfile::tempdir()?;
    let started = match tool {
        Tool::Ours(back_end) => Some(Sender::Ours(ours(lab, size, back_end, false))),
        Tool::OursVarying(back_end) => Some(Sender::Ours(ours(lab, size, back_end, true))),
        Tool::BareLiveFrames => Some(Sender::Bare(Bare::start(lab, size)?)),
        Tool::Trafgen => {
            let config = files.path().join("frames.cfg");
            std::fs::write(&config, trafgen_config(size))?;
            let arguments = ["--cpus", "1", "--out", INTERFACE, "--conf"];
            peer(lab, Command::new("trafgen").args(arguments).arg(&config))?.map(Sender::Peer)
        }
        Tool::Tcpreplay => {
            let capture = files.path().join("frames.pcap");
            std::fs::write(&capture, pcap(size))?;
            let arguments = ["--intf1", INTERFACE, "--preload-pcap", "--topspeed", "--loop=0", "--quiet"];
            peer(lab, Command::new("tcpreplay").args(arguments).arg(&capture))?.map(Sender::Peer)
        }
    };
    let Some(mut sender) = started else { return Ok(None) };
    let rate = count(lab, window);
    sender.stop()?;
    rate.with_context(|| format!("{tool:?}")).map(Some)
}

enum Sender {
    Ours(Running),
    Peer(Child),
    Bare(Bare),
}

impl Sender {
    fn stop(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Ours(running) => running.signal(rustix::process::Signal::INT),
            Self::Peer(child) => {
                child.kill()?;
                child.wait()?;
            }
            Self::Bare(bare) => bare.stop(),
        }
        Ok(())
    }
}

/// A thread that sends the same live frame over and over.
struct Bare {
    quit: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), packetrig_sys::Error>>>,
}

impl Bare {
    fn start(lab: &Lab, size: u32) -> anyhow::Result<Self> {
        let port = &lab.ports()[0];
        // return bpf_redirect(index, 0)
        let index = u64::from(port.link.index);
        let code = [0xb7_u64 | 1 << 8 | index << 32, 0xb7 | 2 << 8, 0x85 | 23 << 32, 0x95];
        let program = BpfProgram::load_xdp("bare", &code, false)?;
        signal::install_interrupt_handler()?;
        let quit = Arc::new(AtomicBool::new(false));
        let (over, frame) = (Arc::clone(&quit), frame(size));
        let netns = NetNs::duplicate(port.netns())?;
        let thread = netns.spawn_in_namespace("bare".to_owned(), move || {
            while !over.load(Ordering::Acquire) {
                program.run_on_live_frames(&frame, 64, u32::MAX)?;
            }
            Ok(())
        })?;
        Ok(Self { quit, thread: Some(thread) })
    }

    fn stop(&mut self) {
        self.quit.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                signal::interrupt_thread_syscall(&thread);
                clock::sleep_until_ns(clock::monotonic_ns() + 1_000_000);
            }
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ours(lab: &Lab, size: u32, back_end: &str, varying: bool) -> Running {
    binary();
    // More than any of them reaches: as fast as it goes.
    let mut flow = Flow::new("fast", 1)
        .size(size)
        .pps(20_000_000)
        .between(0, &[])
        .with("duration", json!({"choice": "continuous"}));
    if varying {
        let counting = |start: &str, step: &str| json!({"choice": "increment", "increment": {"start": start, "step": step, "count": 1000}});
        let ports =
            json!({"choice": "random", "random": {"min": 1024, "max": 65_535, "seed": 1, "count": 5000}});
        flow = flow.packet([
            ethernet(1),
            json!({"choice": "ipv4", "ipv4": {"src": counting("198.18.0.1", "0.0.0.1"), "dst": {"choice": "value", "value": "198.19.0.1"}}}),
            json!({"choice": "udp", "udp": {"src_port": ports}}),
        ]);
    }
    let speed = json!([{"name": "layer 1", "port_names": ["port 0"], "speed": "speed_400_gbps"}]);
    let document = Document::new(&[lab.location(0)]).flow(flow).with("layer1", speed);
    Running::run(&document, &["--quiet", "--back-end", back_end])
}

/// Starts a peer in the sender's namespace; `None` if it is not installed.
pub fn peer(lab: &Lab, command: &mut Command) -> anyhow::Result<Option<Child>> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match lab.ports()[0].netns().run_in_namespace(|| command.spawn())? {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Frames per second that arrive at the second port, once they do.
pub fn count(lab: &Lab, window: u64) -> anyhow::Result<f64> {
    let port = &lab.ports()[1];
    let mut links = NamespaceLinks::open_in(port.netns())?;
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    while links.read_counters(port.link.index)?.rx_frames < 1000 {
        anyhow::ensure!(clock::monotonic_ns() < deadline, "sends nothing");
        clock::sleep_until_ns(clock::monotonic_ns() + 10_000_000);
    }
    clock::sleep_until_ns(clock::monotonic_ns() + WARM_UP_NS);
    let (before, start) = (links.read_counters(port.link.index)?.rx_frames, clock::monotonic_ns());
    clock::sleep_until_ns(start + window);
    let (after, end) = (links.read_counters(port.link.index)?.rx_frames, clock::monotonic_ns());
    Ok((after - before) as f64 * 1e9 / (end - start) as f64)
}

/// The frame that all peers send: an IPv4 and UDP header and zeros, without FCS.
pub fn frame(size: u32) -> Vec<u8> {
    let length = size as usize - 4;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = u16::try_from(length - 14).unwrap_or(u16::MAX).to_be_bytes();
    frame.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1]);
    frame.resize(length, 0);
    frame
}

fn trafgen_config(size: u32) -> String {
    let bytes: Vec<String> = frame(size).iter().map(|byte| format!("0x{byte:02x}")).collect();
    format!("{{ {} }}\n", bytes.join(", "))
}

/// A capture file of 1000 such frames, for tcpreplay to keep in memory.
pub fn pcap(size: u32) -> Vec<u8> {
    let frame = frame(size);
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for n in 0..1000u32 {
        for word in [1, n, size - 4, size - 4] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame);
    }
    file
}
