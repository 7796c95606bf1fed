//! Where ports come from: interfaces of this machine, on the back end the user insists on or the default one. Tests bring
//! their own opener.

use crate::Error;
use crate::clock::RealClock;
use crate::device::Site;
use crate::packet::{self, OpenOptions, PortHold};
use crate::pktgen;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::stream::{StreamRx, StreamTx};
use crate::xdp;
use packetrig_plan::{Location, Port};
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_units::FrameSize;
use std::collections::BTreeSet;

/// An open port at the stream level.
pub struct OpenPort {
    /// What it turned out to be.
    pub info: PortInfo,
    /// Its transmit half.
    pub tx: Box<dyn StreamTx>,
    /// Its receive half.
    pub rx: Box<dyn StreamRx>,
    /// What must live as long as the port is used: its lock, its interface's former settings.
    pub hold: Box<dyn Hold>,
}

/// Keeps a port ours; dropping it gives it back as it was.
pub trait Hold: Send {
    /// Waits until the port can carry frames. Called when all ports are open, because they may depend on each other.
    fn settle(&mut self) -> Result<(), Error>;
    /// Where the interface is, for emulated interfaces; `None` if the port cannot have any.
    fn site(&self) -> Result<Option<Site>, Error> {
        Ok(None)
    }
    /// Doubts about the port, in words.
    fn caveats(&self) -> Vec<String>;
}

/// A port that needs no keeping.
impl Hold for () {
    fn settle(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn caveats(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Hold for PortHold {
    fn settle(&mut self) -> Result<(), Error> {
        self.await_carrier()
    }

    fn site(&self) -> Result<Option<Site>, Error> {
        Self::site(self).map(Some)
    }

    fn caveats(&self) -> Vec<String> {
        Self::caveats(self).to_vec()
    }
}

impl std::fmt::Debug for OpenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPort").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Opens ports.
pub trait Opener {
    /// Opens one. `largest` is the largest frame that will be sent from it.
    fn open(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error>;
}

/// Interfaces of this machine.
#[derive(Clone, Debug, Default)]
pub struct MachinePorts {
    /// Those the user confirmed.
    pub confirmed: BTreeSet<Location>,
    /// The back end the user insists on.
    pub back_end: Option<BackEnd>,
    /// Those that emulated interfaces will be on.
    pub with_devices: BTreeSet<Location>,
}

impl Opener for MachinePorts {
    fn open(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        let confirmed = self.confirmed.contains(&port.location);
        let has_devices = self.with_devices.contains(&port.location);
        let options = OpenOptions { confirmed, largest, has_devices };
        match self.back_end {
            Some(BackEnd::Xdp) => xdp::open(port, options),
            // It only sends: a port that receives is on rings.
            Some(BackEnd::Pktgen) if largest.is_some() => pktgen::open(port, options),
            _ => Self::open_packet(port, options),
        }
    }
}

impl MachinePorts {
    fn open_packet(port: &Port, options: OpenOptions) -> Result<OpenPort, Error> {
        let opened = packet::open(port, options)?;
        Ok(OpenPort {
            info: opened.info,
            tx: Box::new(Sender::new(opened.tx, RealClock::new())),
            rx: Box::new(Receiver::new(opened.rx)),
            hold: Box::new(opened.hold),
        })
    }
}
