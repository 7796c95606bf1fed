//! What makes probing hard: busy processes on every processor, and flows through the same cable.
//!
//! Both are processes of their own, as somebody else's would be: this program with another first argument. They end by themselves
//! after ten minutes, and when dropped.

use anyhow::Context;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, sched};
use packetrig_testkit::Lab;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};

const LONGEST_NS: u64 = 600_000_000_000;
/// Of the sink at the far end, which is never read.
const PORT: u16 = 5001;
const FLOWS: usize = 4;
const PAYLOAD: usize = 1000;
/// Each flow sends so many datagrams in a row, and then waits: 5000 datagrams per second and flow, 160 Mbit/s in all.
const BURST: u32 = 5;
const EVERY_NS: u64 = 1_000_000;
/// Asked for by the first argument.
const HOG: &str = "--hog";
const FLOW: &str = "--flow";

/// What goes on beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Idle,
    Hogs,
    Cross,
}

impl Load {
    pub(crate) const ALL: [Self; 3] = [Self::Idle, Self::Hogs, Self::Cross];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Hogs => "CPU hogs",
            Self::Cross => "cross traffic",
        }
    }

    /// In names of goals and files.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Hogs => "hogs",
            Self::Cross => "cross",
        }
    }

    /// Lets it begin between the two ports of each of these labs; it ends when what is returned is dropped.
    pub(crate) fn begin(self, labs: &[&Lab]) -> anyhow::Result<Running> {
        let mut running = Running { children: Vec::new(), sinks: Vec::new() };
        match self {
            Self::Idle => {}
            Self::Hogs => {
                for cpu in sched::read_allowed_cpus()? {
                    running.children.push(spawn(None, &[HOG, &cpu.to_string()])?);
                }
            }
            Self::Cross => {
                for lab in labs {
                    running.flows(lab)?;
                }
            }
        }
        Ok(running)
    }
}

/// Load that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    children: Vec<Child>,
    sinks: Vec<UdpSocket>,
}

impl Running {
    fn flows(&mut self, lab: &Lab) -> anyhow::Result<()> {
        let to = SocketAddr::from((FAR, PORT));
        let sink = lab.ports()[1]
            .netns()
            .run_in_namespace(|| UdpSocket::bind(to))?
            .context("a sink of cross traffic")?;
        self.sinks.push(sink);
        for _ in 0..FLOWS {
            self.children.push(spawn(Some(lab.ports()[0].netns()), &[FLOW, &to.to_string()])?);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Addresses of the ends of a cable.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

fn spawn(netns: Option<&NetNs>, arguments: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let child = match netns {
        Some(netns) => netns.run_in_namespace(|| command.spawn())?,
        None => command.spawn(),
    };
    child.context("a load does not start")
}

/// If this process was started to be a load, is it to the end and says so.
pub(crate) fn is_it() -> anyhow::Result<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).take(2).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [HOG, cpu] => hog(cpu.parse()?),
        [FLOW, to] => flow(to.parse()?),
        _ => return Ok(false),
    }
    .map(|()| true)
}

fn hog(cpu: usize) -> anyhow::Result<()> {
    sched::pin_thread(cpu)?;
    let end = clock::monotonic_ns() + LONGEST_NS;
    while clock::monotonic_ns() < end && !is_orphan() {
        for _ in 0..1_000_000 {
            clock::hint_busy_loop();
        }
    }
    Ok(())
}

fn flow(to: SocketAddr) -> anyhow::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    let (bytes, start) = ([0x5a; PAYLOAD], clock::monotonic_ns());
    let mut next = start;
    while next < start + LONGEST_NS && !is_orphan() {
        next += EVERY_NS;
        clock::sleep_until_ns(next);
        for _ in 0..BURST {
            // What the kernel has no room for is part of the load.
            drop(socket.send(&bytes));
        }
    }
    Ok(())
}

/// Whoever started us is gone.
fn is_orphan() -> bool {
    rustix::process::getppid().is_none_or(|parent| parent == rustix::process::Pid::INIT)
}
