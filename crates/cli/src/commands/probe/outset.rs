//! What probing commands begin with: the proof that the target may be probed, the way there, a port of our own, the way out.

use super::bounds;
use super::mechanism::{self, ChosenMechanism};
use crate::args::{BoundsArgs, MannerFlags, OutletArgs};
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::{ProbePermit, TargetLimits};
use packetrig_prober::circumstances;
use packetrig_prober::ear::{PacketListener, SilencedPort, WantedPackets};
use packetrig_prober::path::{self, OpenLoopback, ProbePath};
use packetrig_prober::release::ReleaseDispatcher;
use std::net::IpAddr;

pub(super) struct ProbeOutset {
    pub(super) permit: ProbePermit,
    pub(super) way: ProbePath,
    hush: SilencedPort,
    pub(super) chosen: ChosenMechanism,
    /// Put back at the end.
    _loopback: OpenLoopback,
}

impl ProbeOutset {
    pub(super) fn new(
        bounds: &BoundsArgs,
        outlet: &OutletArgs,
        target: IpAddr,
        choose: fn(&MannerFlags, &PortLocation) -> ChosenMechanism,
    ) -> Result<Self, Error> {
        let permit = bounds::permit(bounds)?;
        let permitted = bounds::permitted(&permit, target)?;
        let through = outlet.through.as_ref();
        let namespace = through.and_then(|location| location.namespace.as_deref());
        let way = path::find(namespace, permitted, through.map(|location| location.interface.as_str()))?;
        let loopback = OpenLoopback::open(&way)?;
        let chosen = choose(&outlet.manner, &way.location);
        let hush = SilencedPort::any_port(namespace, way.ends.source)?;
        Ok(Self { permit, way, hush, chosen, _loopback: loopback })
    }

    /// What holds for the target.
    pub(super) const fn limits(&self) -> TargetLimits {
        self.way.permitted.limits()
    }

    /// A port nobody answers at.
    pub(super) fn own_port(&self) -> u16 {
        self.hush.port()
    }

    /// What is said in front of records.
    pub(super) fn header(&self) -> Result<ProbeHeader, Error> {
        let ChosenMechanism { mechanism, manner, why } = &self.chosen;
        let header = circumstances::header(&self.way.location, *mechanism, manner, None)?;
        let targets = vec![self.way.ends.target.to_string()];
        Ok(ProbeHeader { targets, why: why.clone(), about: self.permit.about.clone(), ..header })
    }

    /// The only way out.
    pub(super) fn dispatcher(&self) -> Result<ReleaseDispatcher, Error> {
        mechanism::open(&self.chosen, &self.way.location, self.limits())
    }

    /// What comes back to our address; it holds so many frames while nobody listens.
    pub(super) fn ear(&self, frames: u32) -> Result<PacketListener, Error> {
        let wanted = WantedPackets { addresses: vec![self.way.ends.source], port: Some(self.own_port()) };
        Ok(PacketListener::open_holding(&self.way.location, self.way.index, &wanted, frames)?)
    }
}
