//! Three or four stations around a tap: 0 and 1 are the ends of the link, the others the far ends of mirrors.

use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_sys::{clock, xdp};
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::station::{self, Station};
use rustix::process::Signal;
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};

/// Longer than anything here takes.
const PATIENCE_NS: u64 = 30_000_000_000;
/// After this long without a frame no more are coming.
const SILENCE_NS: u64 = 100_000_000;
/// A slow trickle of frames takes one block of a ring in this time, so that a ring that nobody reads lasts for 25 s.
const RETIRE_MS: u32 = 50;

pub(crate) struct Testbed {
    lab: OwnLab,
    passes: Vec<BpfAttachment>,
}

impl Testbed {
    /// Stations around a tap that goes this way; `None` without the rights it takes.
    pub(crate) fn new(way: &str, stations: usize) -> Option<Self> {
        if way == "xdp" && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
            return None;
        }
        let lab = skip::lab(|| Lab::with_unconnected_ports(stations))?;
        let mut testbed = Self { lab, passes: Vec::new() };
        if way == "xdp" {
            testbed.take_redirected();
        }
        Some(testbed)
    }

    /// Lets the far end of every cable take frames that were redirected.
    fn take_redirected(&mut self) {
        let pass = |port: &packetrig_testkit::lab::LabPort| {
            xdp::attach_xdp_pass_program(port.netns(), port.link.index, &port.location()).unwrap()
        };
        self.passes = self.lab.ports().iter().map(pass).collect();
    }

    /// The far end of a station's cable takes no redirected frames any more.
    pub(crate) fn deafen(&mut self, station: usize) {
        drop(self.passes.remove(station));
    }

    /// Where the tap finds the neighbour of a station.
    pub(crate) fn side(&self, station: usize) -> String {
        self.lab.device_location(station)
    }

    /// The tap's namespace.
    pub(crate) fn netns(&self) -> &NetNs {
        self.lab.device_netns().unwrap()
    }

    /// The interface of the tap that is the neighbour of a station.
    pub(crate) fn side_link(&self, station: usize) -> Link {
        NamespaceLinks::open_in(self.netns()).unwrap().find_link_by_name(&format!("port{station}")).unwrap()
    }

    /// The interface of a station.
    pub(crate) fn link(&self, station: usize) -> Link {
        let port = &self.lab.ports()[station];
        NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_index(port.link.index).unwrap()
    }

    pub(crate) fn switch_interface(&self, station: usize, up: bool) {
        let port = &self.lab.ports()[station];
        NamespaceLinks::open_in(port.netns()).unwrap().switch_interface(port.link.index, up).unwrap();
    }

    /// Starts a tap between stations 0 and 1.
    pub(crate) fn tap(&self, way: &str, flags: &[&str]) -> Running {
        let (a, b) = (self.side(0), self.side(1));
        let mut arguments = vec!["tap", &a, &b, "--back-end", way, "--json"];
        arguments.extend(flags);
        let mut running = Running::start(&arguments, "");
        running.await_remark("forwarding with back end");
        running
    }

    /// Listens at a station.
    pub(crate) fn listen(&self, station: usize) -> StationListener {
        let port = &self.lab.ports()[station];
        let options = RxOptions { retire_ms: RETIRE_MS, ..RxOptions::default() };
        StationListener(RxRing::open_on_interface(port.netns(), port.link.index, "test", options).unwrap())
    }

    /// A sender at a station.
    pub(crate) fn station(&self, number: usize) -> Station {
        Station::open(&self.lab.ports()[number])
    }

    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Sends frames from a station.
    pub(crate) fn send(&self, from: usize, frames: &[Vec<u8>]) {
        station::send(&self.lab.ports()[from], frames);
    }
}

/// Receives the frames that arrive at a station.
pub(crate) struct StationListener(RxRing);

impl StationListener {
    /// Waits until something comes; how many frames that are.
    pub(crate) fn await_frames(&mut self) -> usize {
        let mut frames = 0;
        until("frames come", || {
            frames = self.0.receive_frames(usize::MAX, &mut |_| {});
            frames > 0
        });
        frames
    }

    /// All that comes until nothing comes any more, but at least so many frames.
    pub(crate) fn hear(&mut self, least: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        let mut silent_since = clock::monotonic_ns();
        loop {
            let now = clock::monotonic_ns();
            if self.0.receive_frames(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec())) > 0 {
                silent_since = now;
                continue;
            }
            let is_silent = frames.len() >= least && now >= silent_since + SILENCE_NS;
            // A frame that has come may be in a block that the kernel still fills.
            if (is_silent && self.0.read_progress().unwrap().is_read()) || now >= deadline {
                return frames;
            }
            self.0.wait_for_frames(5_000_000).unwrap();
        }
    }
}

/// Asks a tap to end; what it printed.
pub(crate) fn stop(mut tap: Running) -> Value {
    tap.signal(Signal::INT);
    balanced(&tap.finish())
}

/// What a tap printed when it ended well.
pub(crate) fn balanced(finished: &Finished) -> Value {
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(result["imbalances"], serde_json::json!([]), "{result}");
    result
}

/// A number by its path.
pub(crate) fn number(result: &Value, path: &str) -> u64 {
    result.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {path} in {result}"))
}

/// Runs a command of the program to its end.
pub(crate) fn command(arguments: &[&str]) -> Finished {
    Running::start(arguments, "").finish()
}

/// A name for a tap. They must be told apart: tests of several processes may run at once.
pub(crate) fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("the-tap-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What `packetrig tap status` says of a tap.
pub(crate) fn status(name: &str) -> Value {
    let finished = command(&["tap", "status", name, "--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str::<Value>(&finished.stdout).unwrap()[0].clone()
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    while !is_so() {
        assert!(clock::monotonic_ns() < deadline, "never: {what}");
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
}

/// A UDP frame over IPv4 between stations, told apart by its number.
pub(crate) fn udp(number: u32, port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(u16::try_from(len - 14).unwrap().to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 4, 0]);
    frame.extend(port.to_be_bytes());
    frame.extend(u16::try_from(len - 34).unwrap().to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(len, 0x5a);
    frame
}

/// So many of them.
pub(crate) fn many(count: u32, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| udp(number, 9, len)).collect()
}
