//! The permit: which traffic the owner of a node allows the fleet to send from the node.
//!
//! The owner writes a file on the node; no message can extend it. The node checks every plan against the permit before
//! it opens a port, and every change of a running plan. This module checks the plan, not the frames. The agent enforces
//! the limits that only the run can show (the duration of an endless stream, the size of a capture).
//!
//! Invariant: traffic to unknown destinations, or with an unknown rate, is refused if the permit
//! limits destinations or rates.

mod file;
mod network;
mod probes;
#[cfg(test)]
mod tests;

pub use file::FileError;
pub use network::{NetworkSet, PermittedMacs};

use packetrig_plan::reach::{self, AddressFamily, FieldValues};
use packetrig_plan::recording::ReplayTiming;
use packetrig_plan::{BoundPlan, BoundStream, Stream};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{BitRate, Nanos};
use std::fmt;
use std::path::PathBuf;

/// Longest time for which a stream may send if the owner sets no limit.
pub const DEFAULT_MAX_DURATION: Nanos = Nanos::from_secs(3600);

/// A port of this machine that its owner allows the fleet to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedPort {
    /// Location on this machine: `eth1` or `ns/eth1`.
    pub interface: String,
    pub labels: Vec<String>,
    /// True if the owner has confirmed the port, although it looks like part of a real network.
    pub confirmed: bool,
    /// Maximum rate on the link (layer 1), with preamble and gaps.
    pub max_rate: Option<BitRate>,
    /// Maximum frames per second.
    pub max_frames_per_second: Option<u64>,
    pub max_mtu: Option<u32>,
}

/// What the owner allows. The default is for a node without a permit file: only benchmark networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LendingPermit {
    /// Labels of the node from its owner.
    pub labels: Vec<String>,
    /// Ports that the fleet may use; `None`: every interface in the namespace of the agent without a default route.
    pub ports: Option<Vec<PermittedPort>>,
    /// IP addresses to which the node may send.
    pub networks: NetworkSet,
    /// MAC addresses to which the node may send.
    pub macs: PermittedMacs,
    /// Longest time for which a stream or the probes of a port may send.
    pub max_duration: Nanos,
    /// Maximum number of bytes of captures that leave the machine after a run; `None`: no limit.
    pub max_capture: Option<u64>,
    /// Allowed back ends; `None`: all.
    pub back_ends: Option<Vec<BackEnd>>,
    /// Directory of the capture files that may be replayed; `None`: no file may be replayed.
    pub replays: Option<PathBuf>,
    /// The section `probe` of the permit file, as TOML. The crates for probes interpret it.
    pub probes: Option<String>,
}

impl Default for LendingPermit {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            ports: None,
            networks: NetworkSet::benchmark_networks(),
            macs: PermittedMacs::Any,
            max_duration: DEFAULT_MAX_DURATION,
            max_capture: None,
            back_ends: None,
            replays: None,
            probes: None,
        }
    }
}

/// A port of a plan that is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPlanPort {
    /// Index of the port in the plan.
    pub port: usize,
    /// Location of the port's interface on this node.
    pub interface: String,
    /// Speed that the link reports; the speed in the plan is not used for checks.
    pub link_speed: Option<BitRate>,
    /// The back end that sends the frames of the port, once the port is open.
    pub back_end: Option<BackEnd>,
}

/// Parts of a request to a node that the plan does not contain.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest<'a> {
    pub terms: &'a SharedRunOptions,
    /// Files with frames to send, without symbolic links; `None` for a file that does not exist.
    pub replays: &'a [Option<PathBuf>],
}

impl OwnPlanPort {
    fn refusal_text(&self, what: impl fmt::Display) -> String {
        format!("port {}: {what}", self.interface)
    }
}

impl LendingPermit {
    /// Parses the owner's file.
    pub fn from_toml(text: &str) -> Result<Self, FileError> {
        file::parse_permit(text)
    }

    /// Returns the limits for an interface; `None` if the fleet may not use it. `has_default_route` is true if the
    /// machine has its default route through the interface.
    pub fn find_permitted_port(&self, interface: &str, has_default_route: bool) -> Option<PermittedPort> {
        match &self.ports {
            Some(ports) => ports.iter().find(|port| port.interface == interface).cloned(),
            // The machine is reached through this interface, so test traffic could make the machine unreachable.
            None if has_default_route => None,
            // An interface in another namespace must be listed by the owner.
            None if interface.contains('/') => None,
            None => Some(PermittedPort { interface: interface.to_owned(), ..PermittedPort::default() }),
        }
    }

    /// Lists the interfaces that the owner has confirmed, although they look like part of a real network. A
    /// confirmation by the user of a controller does not count.
    pub fn list_confirmed_interfaces(&self) -> Vec<String> {
        let confirmed_interfaces = self.ports.iter().flatten().filter(|port| port.confirmed);
        confirmed_interfaces.map(|port| port.interface.clone()).collect()
    }

    /// True if frames may be sent with this back end.
    pub fn allows_back_end(&self, back_end: BackEnd) -> bool {
        self.back_ends.as_ref().is_none_or(|allowed| allowed.contains(&back_end))
    }

    /// Checks this node's part of a plan. Returns all reasons for refusing it; empty if the permit allows the plan.
    pub fn check_plan(
        &self,
        bound: &BoundPlan,
        mine: &[OwnPlanPort],
        request: PermitRequest<'_>,
    ) -> Vec<String> {
        let mut refusals = Vec::new();
        if let Some(back_end) = request.terms.back_end.filter(|back_end| !self.allows_back_end(*back_end)) {
            // All reasons are collected, so that the user can correct a plan in one round.
            refusals.push(format!("the owner does not allow back end `{}`", back_end.name()));
        }
        self.check_permitted_replays(request.replays, &mut refusals);
        for own in mine {
            self.check_permitted_port(bound, own, request, &mut refusals);
            for (index, stream) in bound.plan.streams.iter().enumerate().filter(|(_, s)| s.tx == own.port) {
                self.check_permitted_stream(bound, index, stream, &mut refusals);
            }
            self.check_permitted_probes(&bound.plan, own, &mut refusals);
        }
        refusals
    }

    fn check_permitted_replays(&self, files: &[Option<PathBuf>], refusals: &mut Vec<String>) {
        // A missing file is refused, because a file of that name could be created later.
        let are_lent = files.iter().all(|file| {
            let both = file.as_ref().zip(self.replays.as_ref());
            // Both paths are resolved without symbolic links, so a link cannot lead out of the directory.
            both.is_some_and(|(file, directory)| file.starts_with(directory))
        });
        if !are_lent {
            refusals.push(match &self.replays {
                None => "the owner of this node allows no replay of files".to_owned(),
                Some(directory) => {
                    format!("only existing files below {} may be replayed", directory.display())
                }
            });
        }
    }

    fn check_permitted_port(
        &self,
        bound: &BoundPlan,
        own: &OwnPlanPort,
        request: PermitRequest<'_>,
        refusals: &mut Vec<String>,
    ) {
        // The default route was checked when the port was offered, and is checked again when the port is opened.
        let Some(lent) = self.find_permitted_port(&own.interface, false) else {
            refusals.push(format!("the permit file of this node does not name port {}; choose another port, or ask the owner to add it", own.interface));
            return;
        };
        // The back end matters only for a port that sends.
        let sends = bound.plan.streams.iter().any(|stream| stream.tx == own.port);
        if let Some(other) = own.back_end.filter(|back_end| sends && !self.allows_back_end(*back_end)) {
            refusals.push(own.refusal_text(format_args!(
                "it would send with back end `{}`, which is not allowed",
                other.name()
            )));
        }
        refusals.extend(find_rate_refusals(bound, own, &lent).into_iter().map(|what| own.refusal_text(what)));
        let port = &bound.plan.ports[own.port];
        if let Some((mtu, most)) = port.mtu.zip(lent.max_mtu).filter(|(mtu, most)| mtu > most) {
            refusals.push(
                own.refusal_text(format_args!("the plan wants an MTU of {mtu}; at most {most} is allowed")),
            );
        }
        self.check_permitted_devices(bound, own, refusals);
        let receives = bound.plan.streams.iter().any(|stream| stream.rx.contains(&own.port));
        let captures = bound.plan.captures.iter().any(|capture| capture.ports.contains(&own.port));
        // The agent enforces a limit above zero, because only the run shows the size of the capture.
        if self.max_capture == Some(0) && (captures || request.terms.capture_all && receives) {
            refusals.push(own.refusal_text("captures are not allowed"));
        }
    }

    /// Checks the addresses of emulated interfaces and of their gateways.
    fn check_permitted_devices(&self, bound: &BoundPlan, own: &OwnPlanPort, refusals: &mut Vec<String>) {
        for (interface, ip) in reach::list_interface_addresses(&bound.plan, own.port) {
            if !self.networks.contains(ip) {
                refusals.push(own.refusal_text(format_args!(
                    "interface {interface}: the owner does not allow its address or gateway {ip}"
                )));
            }
        }
        let mut devices = bound.plan.interfaces.iter().filter(|interface| interface.port == own.port);
        if self.macs != PermittedMacs::Any && devices.next().is_some() {
            refusals.push(own.refusal_text(
                "emulated interfaces send to MAC addresses that are not known in advance; \
                 the owner must allow `mac = \"any\"`",
            ));
        }
    }

    fn check_permitted_stream(
        &self,
        bound: &BoundPlan,
        index: usize,
        stream: &Stream,
        refusals: &mut Vec<String>,
    ) {
        let name = &stream.name;
        let timeline = bound.streams[index].timeline;
        // The length of an endless stream is unknown; the agent ends it after `max_duration`.
        let length = timeline
            .total_frames()
            .and_then(|total| total.checked_sub(1))
            .map(|last| timeline.due_time(last));
        if let Some(length) = length.filter(|length| *length > self.max_duration) {
            refusals
                .push(format!("stream {name}: it lasts {length}; at most {} is allowed", self.max_duration));
        }
        let reach = stream.find_possible_destinations();
        if self.macs != PermittedMacs::Any || !self.networks.is_everything() {
            // A destination that is unknown in advance can be any address, so only a permit for
            // all addresses covers it.
            let open = reach.open.iter().filter(|why| self.forbids_unknown_destination(why));
            refusals.extend(
                open.map(|why| format!("stream {name}: its destination is not known in advance: {why}")),
            );
        }
        for target in &reach.targets {
            if let Some(stray) = self.find_forbidden_value(target.family, &target.values) {
                let field = &target.field;
                refusals.push(format!("stream {name}: its `{field}` can be {stray}, which is not allowed"));
            }
        }
    }

    /// True if a destination that is not known in advance, for the reason `why`, is forbidden. Only MAC addresses are
    /// resolved when the run starts, so they are allowed if all MAC addresses are.
    fn forbids_unknown_destination(&self, why: &str) -> bool {
        !(why == reach::UNKNOWN_MAC_REASON && self.macs == PermittedMacs::Any)
    }

    /// Returns one value of the field that is not allowed, as text; `None` if all values are allowed.
    fn find_forbidden_value(&self, family: AddressFamily, values: &FieldValues) -> Option<String> {
        match family {
            AddressFamily::Mac => self.macs.find_forbidden_value(values),
            AddressFamily::Ipv4 => self.networks.find_forbidden_value(values, false),
            AddressFamily::Ipv6 => self.networks.find_forbidden_value(values, true),
        }
    }
}

/// Returns the reasons why a plan sends too fast from this port.
fn find_rate_refusals(bound: &BoundPlan, own: &OwnPlanPort, lent: &PermittedPort) -> Vec<String> {
    let asked = RequestedLoad::from_plan(bound, own.port);
    let mut refusals = Vec::new();
    if let Some(most) = lent.max_rate {
        if asked.rate > most {
            refusals.push(format!("the plan sends {}; at most {most} is allowed", asked.rate));
        }
        // The frames of a file may have any size, so they may fill the link.
        if asked.unsized_frames && own.link_speed.is_none_or(|link| link > most) {
            refusals.push(format!("frames of a file can be sent at link speed; at most {most} is allowed"));
        }
    }
    if let Some(most) = lent.max_frames_per_second {
        if asked.frames_milli > u128::from(most) * 1000 {
            let frames = asked.frames_milli / 1000;
            refusals.push(format!("the plan sends {frames} frames/s; at most {most} are allowed"));
        }
        if asked.unpaced {
            refusals.push(format!(
                "the plan sends a file's frames at the file's times or at link speed; at most {most} frames/s are \
                 allowed"
            ));
        }
    }
    refusals
}

/// Maximum load that a plan sends from a port.
#[derive(Debug)]
struct RequestedLoad {
    rate: BitRate,
    frames_milli: u128,
    /// True if the sizes of some frames come from a file.
    unsized_frames: bool,
    /// True if some frames are sent at the times in a file, or as fast as possible.
    unpaced: bool,
}

impl RequestedLoad {
    fn from_plan(bound: &BoundPlan, port: usize) -> Self {
        let mut load = Self { rate: BitRate::new(0), frames_milli: 0, unsized_frames: false, unpaced: false };
        let streams = bound.plan.streams.iter().zip(&bound.streams);
        for (stream, bound) in streams.filter(|(stream, _)| stream.tx == port) {
            load.add_stream(stream, bound);
        }
        load.add_probes(&bound.plan, port);
        load
    }

    /// Adds a stream. The sizes and times of a recording are not used: this node knows them only from the controller.
    fn add_stream(&mut self, stream: &Stream, bound: &BoundStream) {
        let timing = stream.frames.recording().map(|recording| recording.timing);
        if timing.is_none() {
            let bits = stream.l1_rate(bound.timeline.rate).bits_per_second();
            self.rate = BitRate::new(self.rate.bits_per_second().saturating_add(bits));
        } else {
            self.unsized_frames = true;
        }
        if matches!(timing, None | Some(ReplayTiming::Even)) {
            // The number of frames in 1000 s is the rate in thousandths of a frame per second, as an integer.
            self.frames_milli += u128::from(bound.timeline.rate.frames_within(Nanos::from_secs(1000)));
        } else {
            self.unpaced = true;
        }
    }
}
