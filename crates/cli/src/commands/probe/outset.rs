//! What probing commands begin with: the proof that the target may be probed, the way there, a port of our own, the way out.

use super::bounds;
use super::mechanism::{self, Chosen};
use crate::args::{Bounds, MannerFlags, Outlet};
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::header::Header;
use packetrig_probe::{Limits, Permit};
use packetrig_prober::circumstances;
use packetrig_prober::ear::{Ear, Hush, Wanted};
use packetrig_prober::path::{self, OpenLoopback, Way};
use packetrig_prober::release::Dispatcher;
use std::net::IpAddr;

/// See the module.
pub(super) struct Outset {
    pub(super) permit: Permit,
    pub(super) way: Way,
    hush: Hush,
    pub(super) chosen: Chosen,
    /// Put back at the end.
    _loopback: OpenLoopback,
}

impl Outset {
    pub(super) fn new(
        bounds: &Bounds,
        outlet: &Outlet,
        target: IpAddr,
        choose: fn(&MannerFlags, &PortLocation) -> Chosen,
    ) -> Result<Self, Error> {
        let permit = bounds::permit(bounds)?;
        let permitted = bounds::permitted(&permit, target)?;
        let through = outlet.through.as_ref();
        let namespace = through.and_then(|location| location.namespace.as_deref());
        let way = path::find(namespace, permitted, through.map(|location| location.interface.as_str()))?;
        let loopback = OpenLoopback::open(&way)?;
        let chosen = choose(&outlet.manner, &way.location);
        let hush = Hush::any_port(namespace, way.ends.source)?;
        Ok(Self { permit, way, hush, chosen, _loopback: loopback })
    }

    /// What holds for the target.
    pub(super) const fn limits(&self) -> Limits {
        self.way.permitted.limits()
    }

    /// A port nobody answers at.
    pub(super) fn own_port(&self) -> u16 {
        self.hush.port()
    }

    /// What is said in front of records.
    pub(super) fn header(&self) -> Result<Header, Error> {
        let Chosen { mechanism, manner, why } = &self.chosen;
        let header = circumstances::header(&self.way.location, *mechanism, manner, None)?;
        let targets = vec![self.way.ends.target.to_string()];
        Ok(Header { targets, why: why.clone(), about: self.permit.about.clone(), ..header })
    }

    /// The only way out.
    pub(super) fn dispatcher(&self) -> Result<Dispatcher, Error> {
        mechanism::open(&self.chosen, &self.way.location, self.limits())
    }

    /// What comes back to our address; it holds so many frames while nobody listens.
    pub(super) fn ear(&self, frames: u32) -> Result<Ear, Error> {
        let wanted = Wanted { addresses: vec![self.way.ends.source], port: Some(self.own_port()) };
        Ok(Ear::open_holding(&self.way.location, self.way.index, &wanted, frames)?)
    }
}
