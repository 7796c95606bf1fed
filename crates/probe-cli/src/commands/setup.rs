//! The set-up of `capacity`, `available` and `oneprobe`: the permission for the target, the path to it, a
//! reserved port and the release mechanism.

use super::bounds;
use super::mechanism::{self, ChosenMechanism};
use crate::args::{PermittedTargetArgs, ReleaseFlags, SendingInterfaceArgs};
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::{ProbePermit, TargetLimits};
use packetrig_probe_io::circumstances;
use packetrig_probe_io::listener::{PacketListener, SilencedPort, WantedPackets};
use packetrig_probe_io::path::{self, ProbePath};
use packetrig_probe_io::release::ReleaseDispatcher;
use packetrig_sys::loopback::LoopbackSettingsHolder;
use std::net::IpAddr;

pub(super) struct ProbeSetup {
    pub(super) permit: ProbePermit,
    pub(super) way: ProbePath,
    silenced_port: SilencedPort,
    pub(super) chosen: ChosenMechanism,
    /// Dropping this restores the settings of the loopback interface.
    _loopback: Option<LoopbackSettingsHolder>,
}

impl ProbeSetup {
    pub(super) fn new(
        bounds: &PermittedTargetArgs,
        outlet: &SendingInterfaceArgs,
        target: IpAddr,
        choose: fn(&ReleaseFlags, &PortLocation) -> ChosenMechanism,
    ) -> Result<Self, Error> {
        let permit = bounds::read_permit(bounds)?;
        // The permission is checked first: for a forbidden target, packetrig looks up no route and changes no
        // setting.
        let permitted = bounds::permit_target(&permit, target)?;
        let through = outlet.through.as_ref();
        let namespace = through.and_then(|location| location.namespace.as_deref());
        let way = path::find_path(namespace, permitted, through.map(|location| location.interface.as_str()))?;
        let loopback = path::open_loopback(&way)?;
        let chosen = choose(&outlet.release, &way.location);
        // Answers arrive at this port. If it were not reserved and silenced, the kernel would answer them
        // with a TCP reset or with "port unreachable".
        let silenced_port = SilencedPort::reserve_any_port(namespace, way.ends.source)?;
        Ok(Self { permit, way, silenced_port, chosen, _loopback: loopback })
    }

    /// Returns the limits of the target.
    pub(super) const fn limits(&self) -> TargetLimits {
        self.way.permitted.limits()
    }

    /// Returns the reserved port of this machine, from which the kernel sends no answers.
    pub(super) fn own_port(&self) -> u16 {
        self.silenced_port.port()
    }

    /// Builds the header of the records.
    pub(super) fn build_probe_header(&self) -> Result<ProbeHeader, Error> {
        let ChosenMechanism { mechanism, options, why } = &self.chosen;
        let header = circumstances::build_probe_header(&self.way.location, *mechanism, options, None)?;
        let targets = vec![self.way.ends.target.to_string()];
        Ok(ProbeHeader { targets, why: why.clone(), about: self.permit.about.clone(), ..header })
    }

    /// Opens the dispatcher that sends probes within the limits of the target.
    pub(super) fn open_dispatcher(&self) -> Result<ReleaseDispatcher, Error> {
        mechanism::open_dispatcher(&self.chosen, &self.way.location, self.limits())
    }

    /// Opens a listener for the packets that arrive at the reserved port, with room for this many frames
    /// while no thread reads them.
    pub(super) fn open_listener(&self, frames: u32) -> Result<PacketListener, Error> {
        let wanted = WantedPackets { addresses: vec![self.way.ends.source], port: Some(self.own_port()) };
        Ok(PacketListener::open_with_room_for(&self.way.location, self.way.index, &wanted, frames)?)
    }
}
