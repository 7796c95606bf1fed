//! What the owner of a node lets others send from it.
//!
//! The owner writes a file on the node; no message can widen it. The node checks every plan against it before it opens a
//! port, and every change of a plan under way. It sees the plan, not the frames: limits that only the time shows (how
//! long an endless stream goes on, how much a capture holds) are for the agent to keep.
//!
//! Invariant: what cannot be bounded is refused, unless everything of its kind is allowed.

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
use packetrig_stats::terms::RunTerms;
use packetrig_units::{BitRate, Nanos};
use std::fmt;
use std::path::PathBuf;

/// Longest run if the owner sets no limit.
pub const USUAL_DURATION: Nanos = Nanos::from_secs(3600);

/// A port that is lent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedPort {
    /// As a location of this machine: `eth1` or `ns/eth1`.
    pub interface: String,
    pub labels: Vec<String>,
    /// The owner knows that it looks like part of a real network.
    pub confirmed: bool,
    /// Most on the line (layer 1).
    pub max_rate: Option<BitRate>,
    /// Most frames per second.
    pub max_frames_per_second: Option<u64>,
    pub max_mtu: Option<u32>,
}

/// What the owner allows. The default is that of a node without a file: test networks only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LendingPermit {
    /// What the owner calls the node.
    pub labels: Vec<String>,
    /// The ports lent; `None`: every interface that carries no default route.
    pub ports: Option<Vec<PermittedPort>>,
    /// IP addresses that may be sent to.
    pub networks: NetworkSet,
    /// MAC addresses that may be sent to.
    pub macs: PermittedMacs,
    /// Longest time to send.
    pub max_duration: Nanos,
    /// Most bytes of captures that leave the machine after a run; `None`: as much as there is.
    pub max_capture: Option<u64>,
    /// Ways to send; `None`: all.
    pub back_ends: Option<Vec<BackEnd>>,
    /// Only recordings below this directory may be replayed; `None`: no recordings at all.
    pub replays: Option<PathBuf>,
    /// The section about probes, as TOML. The crates for probes know what it means.
    pub probes: Option<String>,
}

impl Default for LendingPermit {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            ports: None,
            networks: NetworkSet::for_tests(),
            macs: PermittedMacs::Any,
            max_duration: USUAL_DURATION,
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
    /// Its index in the plan.
    pub port: usize,
    /// Its interface here, as it is opened.
    pub interface: String,
    /// What the link itself says of its speed. What the plan says of it counts for nothing here.
    pub link_speed: Option<BitRate>,
    /// The back end that its frames leave by, once it is open.
    pub back_end: Option<BackEnd>,
}

/// What a node is asked to do, beside what the plan says.
#[derive(Clone, Copy, Debug)]
pub struct PermitWish<'a> {
    pub terms: &'a RunTerms,
    /// Files whose frames are to be sent, without symbolic links; `None`: one cannot be found.
    pub replays: &'a [Option<PathBuf>],
}

impl OwnPlanPort {
    fn refusal(&self, what: impl fmt::Display) -> String {
        format!("port {}: {what}", self.interface)
    }
}

impl LendingPermit {
    /// Reads the owner's file.
    pub fn read(text: &str) -> Result<Self, FileError> {
        file::read(text)
    }

    /// The port lent, if this interface is one. `has_default_route`: whether the kernel sends its own traffic there.
    pub fn port(&self, interface: &str, has_default_route: bool) -> Option<PermittedPort> {
        match &self.ports {
            Some(ports) => ports.iter().find(|port| port.interface == interface).cloned(),
            None if has_default_route => None,
            // Another namespace is another machine's, as far as the owner has not said otherwise.
            None if interface.contains('/') => None,
            None => Some(PermittedPort { interface: interface.to_owned(), ..PermittedPort::default() }),
        }
    }

    /// Interfaces that may be used although they look like part of a real network. What a controller confirms does not
    /// count here.
    pub fn confirmed(&self) -> Vec<String> {
        let confirmed = self.ports.iter().flatten().filter(|port| port.confirmed);
        confirmed.map(|port| port.interface.clone()).collect()
    }

    /// Whether frames may go this way.
    pub fn allows_back_end(&self, back_end: BackEnd) -> bool {
        self.back_ends.as_ref().is_none_or(|allowed| allowed.contains(&back_end))
    }

    /// Why this node does not do its part of a plan: everything at once; empty if it does.
    pub fn check(&self, bound: &BoundPlan, mine: &[OwnPlanPort], wish: PermitWish<'_>) -> Vec<String> {
        let mut refusals = Vec::new();
        if let Some(back_end) = wish.terms.back_end.filter(|back_end| !self.allows_back_end(*back_end)) {
            refusals.push(format!("back end {} is not allowed", back_end.name()));
        }
        self.check_replays(wish.replays, &mut refusals);
        for own in mine {
            self.check_port(bound, own, wish, &mut refusals);
            for (index, stream) in bound.plan.streams.iter().enumerate().filter(|(_, s)| s.tx == own.port) {
                self.check_stream(bound, index, stream, &mut refusals);
            }
            self.check_probes(&bound.plan, own, &mut refusals);
        }
        refusals
    }

    fn check_replays(&self, files: &[Option<PathBuf>], refusals: &mut Vec<String>) {
        let are_lent = files.iter().all(|file| {
            let both = file.as_ref().zip(self.replays.as_ref());
            both.is_some_and(|(file, directory)| file.starts_with(directory))
        });
        if !are_lent {
            refusals.push(match &self.replays {
                None => "no file of this node may be replayed".to_owned(),
                Some(directory) => {
                    format!("only files below {} may be replayed", directory.display())
                }
            });
        }
    }

    fn check_port(
        &self,
        bound: &BoundPlan,
        own: &OwnPlanPort,
        wish: PermitWish<'_>,
        refusals: &mut Vec<String>,
    ) {
        // Whether it carries a default route was asked when it was offered; the guard asks again when it is opened.
        let Some(lent) = self.port(&own.interface, false) else {
            refusals.push(format!("port {} is not lent", own.interface));
            return;
        };
        let sends = bound.plan.streams.iter().any(|stream| stream.tx == own.port);
        if let Some(other) = own.back_end.filter(|back_end| sends && !self.allows_back_end(*back_end)) {
            refusals.push(
                own.refusal(format_args!(
                    "it would send with back end {}, which is not allowed",
                    other.name()
                )),
            );
        }
        refusals.extend(rate_refusals(bound, own, &lent).into_iter().map(|what| own.refusal(what)));
        let port = &bound.plan.ports[own.port];
        if let Some((mtu, most)) = port.mtu.zip(lent.max_mtu).filter(|(mtu, most)| mtu > most) {
            refusals
                .push(own.refusal(format_args!("the plan wants an MTU of {mtu}; at most {most} is allowed")));
        }
        self.check_devices(bound, own, refusals);
        let receives = bound.plan.streams.iter().any(|stream| stream.rx.contains(&own.port));
        let captures = bound.plan.captures.iter().any(|capture| capture.ports.contains(&own.port));
        if self.max_capture == Some(0) && (captures || wish.terms.capture_all && receives) {
            refusals.push(own.refusal("captures are not allowed"));
        }
    }

    /// What emulated interfaces are and turn to.
    fn check_devices(&self, bound: &BoundPlan, own: &OwnPlanPort, refusals: &mut Vec<String>) {
        for (interface, ip) in reach::claimed(&bound.plan, own.port) {
            if !self.networks.contains(ip) {
                refusals.push(own.refusal(format_args!(
                    "interface {interface} has the address {ip} or contacts it, which is not allowed"
                )));
            }
        }
        let mut devices = bound.plan.interfaces.iter().filter(|interface| interface.port == own.port);
        if self.macs != PermittedMacs::Any && devices.next().is_some() {
            refusals.push(own.refusal(
                "emulated interfaces talk to MAC addresses that are not known in advance; allow `mac = \"any\"`",
            ));
        }
    }

    fn check_stream(&self, bound: &BoundPlan, index: usize, stream: &Stream, refusals: &mut Vec<String>) {
        let name = &stream.name;
        let timeline = bound.streams[index].timeline;
        // An endless stream has no length here; the agent ends it after `max_duration`.
        let length = timeline.total().and_then(|total| total.checked_sub(1)).map(|last| timeline.due(last));
        if let Some(length) = length.filter(|length| *length > self.max_duration) {
            refusals
                .push(format!("stream {name}: it lasts {length}; at most {} is allowed", self.max_duration));
        }
        let reach = stream.reach();
        if self.macs != PermittedMacs::Any || !self.networks.is_everything() {
            let open = reach.open.iter().filter(|why| self.forbids_unknown(why));
            refusals.extend(
                open.map(|why| format!("stream {name}: its destination is not known in advance: {why}")),
            );
        }
        for target in &reach.targets {
            if let Some(stray) = self.forbidden_value(target.family, &target.values) {
                let field = &target.field;
                refusals.push(format!("stream {name}: its `{field}` can be {stray}, which is not allowed"));
            }
        }
    }

    /// An address that is found only when the run starts is a MAC address; everything else that is open can be anything.
    fn forbids_unknown(&self, why: &str) -> bool {
        !(why == reach::ASKED_FOR && self.macs == PermittedMacs::Any)
    }

    /// A value that is not allowed.
    fn forbidden_value(&self, family: AddressFamily, values: &FieldValues) -> Option<String> {
        match family {
            AddressFamily::Mac => self.macs.forbidden_value(values),
            AddressFamily::Ipv4 => self.networks.forbidden_value(values, false),
            AddressFamily::Ipv6 => self.networks.forbidden_value(values, true),
        }
    }
}

/// What is too fast about a plan.
fn rate_refusals(bound: &BoundPlan, own: &OwnPlanPort, lent: &PermittedPort) -> Vec<String> {
    let asked = AskedLoad::of(bound, own.port);
    let mut refusals = Vec::new();
    if let Some(most) = lent.max_rate {
        if asked.rate > most {
            refusals.push(format!("the plan sends {}; at most {most} is allowed", asked.rate));
        }
        // Frames of a file go as fast as the link, for all that is known.
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
                "the plan sends frames of a file at the file's own times; at most {most}/s are allowed"
            ));
        }
    }
    refusals
}

/// What a plan asks of a port at most.
#[derive(Debug)]
struct AskedLoad {
    rate: BitRate,
    frames_milli: u128,
    /// Some of its frames are as large as a file says.
    unsized_frames: bool,
    /// Some of its frames leave when a file says, or as fast as they can.
    unpaced: bool,
}

impl AskedLoad {
    fn of(bound: &BoundPlan, port: usize) -> Self {
        let mut load = Self { rate: BitRate::new(0), frames_milli: 0, unsized_frames: false, unpaced: false };
        let streams = bound.plan.streams.iter().zip(&bound.streams);
        for (stream, bound) in streams.filter(|(stream, _)| stream.tx == port) {
            load.add(stream, bound);
        }
        load.add_probes(&bound.plan, port);
        load
    }

    /// Adds a stream. Sizes and times of a recording are only the controller's claim here, so they bound nothing.
    fn add(&mut self, stream: &Stream, bound: &BoundStream) {
        let timing = stream.frames.recording().map(|recording| recording.timing);
        if timing.is_none() {
            let bits = stream.l1_rate(bound.timeline.rate).bits_per_second();
            self.rate = BitRate::new(self.rate.bits_per_second().saturating_add(bits));
        } else {
            self.unsized_frames = true;
        }
        if matches!(timing, None | Some(ReplayTiming::Even)) {
            // Frames in 1000 s are frames per second in thousandths, without a fraction.
            self.frames_milli += u128::from(bound.timeline.rate.frames_within(Nanos::from_secs(1000)));
        } else {
            self.unpaced = true;
        }
    }
}
