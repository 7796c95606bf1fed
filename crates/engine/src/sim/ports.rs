//! Simulated ports for the rig, on the real clock: a run has real threads and files, but no interfaces or privileges.

use super::{LinkSpec, LinkTruth, SimLink, SimRx, SimTx};
use crate::Error;
use crate::clock::RealClock;
use crate::receiver::TestReceiver;
use crate::rig::{OpenPort, PortOpener};
use crate::sender::TestSender;
use packetrig_plan::Port;
use packetrig_stats::port::{BackEnd, PortInfo, StampKind};
use packetrig_units::FrameSize;

/// Largest frame of a simulated port, FCS included.
const MAX_FRAME: u32 = 9_238;

/// Links between ports, by the names of the ports in the plan.
#[derive(Debug, Default)]
pub struct SimPorts {
    wires: Vec<SimulatedWire>,
}

#[derive(Debug)]
struct SimulatedWire {
    from: String,
    to: String,
    spec: LinkSpec,
    link: SimLink,
}

impl SimPorts {
    /// Connects port `from` to port `to`, in this direction.
    #[must_use]
    pub fn add_wire(mut self, from: &str, to: &str, spec: LinkSpec) -> Self {
        let link = SimLink::new(spec.clone());
        self.wires.push(SimulatedWire { from: from.into(), to: to.into(), spec, link });
        self
    }

    /// Returns the histories of the links, in the order in which they were added.
    pub fn truths(&self) -> Vec<LinkTruth> {
        self.wires.iter().map(|wire| wire.link.truth()).collect()
    }
}

impl PortOpener for SimPorts {
    fn open_port(&self, port: &Port, _largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        let leaving: Vec<&SimulatedWire> = self.wires.iter().filter(|wire| wire.from == port.name).collect();
        let arriving = self.wires.iter().filter(|wire| wire.to == port.name);
        // A frame enters all links that leave the port, so the slowest link sets the speed of the port.
        let line_rate = leaving.iter().filter_map(|wire| wire.spec.rate).min();
        let tx = SimTx::new(leaving.iter().map(|wire| wire.link.clone()).collect(), RealClock::new());
        let rx = SimRx::new(arriving.map(|wire| wire.link.clone()).collect(), RealClock::new());
        let info = PortInfo {
            name: port.name.clone(),
            location: port.location.to_string(),
            back_end: BackEnd::Sim,
            why: "the caller asked for simulated links".into(),
            driver: "sim".into(),
            speed: port.speed.or(line_rate),
            max_frame: MAX_FRAME,
            tx_stamp: StampKind::User,
            rx_stamp: StampKind::Software,
        };
        Ok(OpenPort {
            info,
            tx: Box::new(TestSender::new(tx, RealClock::new())),
            rx: Box::new(TestReceiver::new(rx)),
            hold: Box::new(()),
        })
    }
}
