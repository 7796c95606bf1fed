//! A run of the program through the judge, with a fault of the rig while it sends.

use crate::document::{Document, Flow, ethernet, ipv4, value};
use crate::judge::{Judge, JudgeLog};
use crate::program::{Finished, Running};
use crate::rig_fault::{RigFault, await_frames, received_frames};
use crate::skip::{self, OwnLab};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use serde_json::json;

/// A drain of twice the time for which a busy machine holds up a process. While frames come it goes on by itself.
pub const LONG_DRAIN: &str = "1200ms";
/// Flags of a run on a busy machine, which may hold up the sender, the judge or the receiver: that must not make the verdict.
pub const ON_A_BUSY_MACHINE: [&str; 4] = ["--max-late", "20s", "--drain", LONG_DRAIN];

/// A flow that the judge knows by its source port.
pub fn flow(name: &str, key: u16) -> Flow {
    let udp = json!({"choice": "udp", "udp": {"src_port": value(key), "dst_port": value(20000)}});
    Flow::new(name, key).packet([ethernet(key), ipv4(), udp])
}

/// Three ports whose neighbours nothing connects yet, ready for this back end; `None` without rights.
pub fn lab(back_end: &str) -> Option<OwnLab> {
    let mut lab = skip::lab(|| Lab::with_unconnected_ports(3))?;
    let is_ready = back_end == "packet" || skip::may_use_bpf(lab.enable_live_frames());
    is_ready.then_some(lab)
}

/// A document of flows between all ports of a lab.
pub fn document(lab: &Lab, flows: Vec<Flow>) -> Document {
    Document::new(&lab.ports().iter().map(LabPort::location).collect::<Vec<_>>()).flows(flows)
}

/// What is sent, what the device does to it, and what happens to the rig meanwhile.
#[derive(Clone, Debug)]
pub struct JudgedRun<'a> {
    /// How it is sent.
    pub back_end: &'a str,
    /// What, from port 0 to port 1 unless the flow says otherwise.
    pub flows: Vec<Flow>,
    /// Rules of the forwarder.
    pub rules: &'a str,
    /// What happens to the rig.
    pub rig_fault: RigFault,
    /// Frames that have left before that, of all flows together.
    pub fault_after: u64,
    /// How long it lasts.
    pub fault_ns: u64,
    /// Further flags of the program.
    pub flags: &'a [&'a str],
}

/// A finished run and the truth.
#[derive(Debug)]
pub struct Judged {
    /// What the program says.
    pub finished: Finished,
    /// What the device did.
    pub log: JudgeLog,
    /// Frames that had come to the device by then, if it is still there.
    pub frames_at_fault: Option<u64>,
}

impl JudgedRun<'_> {
    /// Runs it in a new lab; `None` without the rights or the tools.
    pub fn run(self) -> Option<Judged> {
        let lab = lab(self.back_end)?;
        let judge = Judge::start(&lab, self.rules)?;
        let flags = [&["--quiet", "--back-end", self.back_end], self.flags].concat();
        let mut running = Running::run(&document(&lab, self.flows), &flags);
        let mut frames_at_fault = None;
        if self.rig_fault != RigFault::None {
            await_frames(&lab, &mut running, self.fault_after);
            if self.rig_fault.ends_receiving() {
                // What the judge has not passed on by then never arrives, and nobody knows when it would have.
                judge.await_read(&lab);
            }
            self.rig_fault.apply_during(&lab, &mut running, |_| {
                frames_at_fault = Some(received_frames(&lab));
                clock::sleep_until_ns(clock::monotonic_ns() + self.fault_ns);
            });
        }
        let finished = running.finish();
        Some(Judged { finished, log: judge.stop(), frames_at_fault })
    }
}
