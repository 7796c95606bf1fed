//! The plan: a valid document in packetrig's own terms.

use crate::device::{DeviceInterface, DeviceNeighbour, Mac};
use crate::document::TextPosition;
use crate::recording::FrameOrigin;
use crate::timeline::{SendPattern, StreamTimeline};
use crate::{PlanProblem, PlanProblems, clamp_to_u64};
use packetrig_units::{BitRate, FrameRate, Nanos, Rate};
use packetrig_wire::FrameTemplate;
use packetrig_wire::filter::FrameFilter;
use packetrig_wire::header::FieldSetting;
use packetrig_wire::pattern::FieldPattern;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Everything a run needs to know.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub ports: Vec<Port>,
    /// Interfaces of emulated devices.
    pub interfaces: Vec<DeviceInterface>,
    /// Whether these begin to answer and to ask as soon as their ports are open.
    pub auto_start: bool,
    /// A stream's index is its number in the test tag.
    pub streams: Vec<Stream>,
    pub captures: Vec<PlannedCapture>,
    pub criteria: crate::criteria::AcceptanceCriteria,
    pub warnings: Vec<PlanProblem>,
}

/// The interface of a port: `eth1`, or `ns/eth1` in a named network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortLocation {
    /// Name of the network namespace; `None` is the caller's own.
    pub namespace: Option<String>,
    pub interface: String,
}

impl FromStr for PortLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Only the first slash divides: a second one stays in the interface name, which is then refused.
        let namespace = text.split_once('/').map(|(namespace, _)| namespace);
        let interface = text.split_once('/').map_or(text, |(_, interface)| interface);
        // IFNAMSIZ is 16 with the final zero.
        if interface.len() > 15 || !is_name(interface) || !namespace.is_none_or(is_name) {
            return Err(format!("`{text}` is not an interface; write `eth1`, or `namespace/eth1`"));
        }
        Ok(Self { namespace: namespace.map(str::to_owned), interface: interface.to_owned() })
    }
}

fn is_name(name: &str) -> bool {
    // The kernel refuses `.`, `..`, `/` and `:` in interface names. Other testers write `:`, `;` and `+`
    // between the parts of a location; such a location needs an alias and is no interface here.
    !matches!(name, "" | "." | "..") && !name.contains(['/', ':', ';', '+', ' ', '\0'])
}

impl fmt::Display for PortLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.interface)
    }
}

impl PortLocation {
    /// Stands for a location that is not known yet. No interface has this name.
    pub const fn unsettled() -> Self {
        Self { namespace: None, interface: String::new() }
    }
}

/// The machine of a port. A plan for this machine alone has only [`PortHost::Here`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortHost {
    #[default]
    Here,
    /// The node of this name.
    Node(String),
    /// Any port of a fleet with this label. It is chosen when the nodes are known; until then its location is
    /// [`PortLocation::unsettled`].
    Any(String),
}

/// A network interface used for test traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name in the plan.
    pub name: String,
    pub site: PortHost,
    /// Its interface on that machine.
    pub location: PortLocation,
    /// Speed that the document gives (`layer1.speed`).
    pub speed: Option<BitRate>,
    /// MTU that the document requests.
    pub mtu: Option<u32>,
    /// Whether it receives all frames (default yes).
    pub promiscuous: bool,
}

impl Port {
    /// Its location as it is written in documents: `eth1`, `node7/eth1`, `any-tx`.
    pub fn whereabouts(&self) -> String {
        match &self.site {
            PortHost::Here => self.location.to_string(),
            PortHost::Node(node) => format!("{node}/{}", self.location),
            PortHost::Any(label) => format!("any-{label}"),
        }
    }
}

/// Frames from one port to others: one OTG flow, or the share of one pair of emulated interfaces.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Position of its rate in the document, where a load that the link cannot carry is reported.
    pub place: TextPosition,
    /// Its name: the flow's, with the pair of interfaces if the flow has several.
    pub name: String,
    /// Index of its flow in the document.
    pub flow: usize,
    pub flow_name: String,
    /// The frames of its flow that it sends.
    pub part: FlowShare,
    /// The neighbour whose MAC address its frames need, if that is known only at run time; see [`Stream::frames_to`].
    pub awaits: Option<DeviceNeighbour>,
    /// Index of the sending port.
    pub tx: usize,
    /// Indices of the receiving ports; may be empty.
    pub rx: Vec<usize>,
    pub frames: FrameOrigin,
    pub rate: Rate,
    pub duration: StreamDuration,
    pub metrics: WantedMetrics,
}

/// One of `of` streams that share the frames of a flow: it sends frames `index`, `index + of`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShare {
    /// Counted from 0, so always below `of`.
    pub index: u64,
    pub of: u64,
}

impl FlowShare {
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// How many of `frames` frames it sends.
    const fn share(self, frames: u64) -> u64 {
        // The first `frames % of` parts send one frame more, so that all parts add up to `frames`.
        frames / self.of + (self.index < frames % self.of) as u64
    }
}

impl FlowShare {
    /// Its part of a flow's schedule. All parts together have exactly the flow's frames, each at the flow's time.
    // Part i sends frames i, i + of, …: it starts when frame i is due, at a rate of 1/of. Bursts must divide evenly, or frames of one burst
    // would belong to another part's burst.
    fn deal(self, whole: StreamTimeline) -> Result<StreamTimeline, String> {
        if self.of == 1 {
            return Ok(whole);
        }
        let shape = match whole.shape {
            SendPattern::Endless => SendPattern::Endless,
            // A time limit becomes a count: each part would round its own last frame differently.
            SendPattern::Frames(_) | SendPattern::Within(_) => match self.share(whole.total().unwrap_or(0)) {
                0 => return Err(self.too_few()),
                frames => SendPattern::Frames(frames),
            },
            SendPattern::Bursts { frames, .. } if frames % self.of != 0 => {
                return Err(format!(
                    "bursts of {frames} frames cannot be divided evenly among {} pairs of interfaces; make the \
                        number of frames a multiple of the number of pairs",
                    self.of
                ));
            }
            // Fewer frames at a rate that is lower by the same factor take as long: the pause stays.
            SendPattern::Bursts { bursts, frames, pause } => {
                SendPattern::Bursts { bursts, frames: frames / self.of, pause }
            }
        };
        let rate = whole.rate.part_of(self.of).ok_or_else(|| self.too_few())?;
        Ok(StreamTimeline { rate, delay: whole.delay + whole.rate.due(self.index), shape })
    }

    fn too_few(self) -> String {
        format!("its frames are fewer than one for each of {} pairs of interfaces", self.of)
    }
}

/// The mean size of frames as a fraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanSize {
    /// FCS included.
    pub(crate) bytes: u64,
    /// The number of frames that have these bytes; at least 1.
    pub(crate) frames: u64,
}

impl From<(u64, u64)> for MeanSize {
    fn from((bytes, frames): (u64, u64)) -> Self {
        Self { bytes, frames }
    }
}

impl MeanSize {
    /// The bytes with 20 more for each frame: preamble, start of frame and inter-frame gap.
    const fn l1_bytes(self) -> u64 {
        self.bytes + self.frames * 20
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.bytes as f64 / self.frames as f64
    }

    /// The bytes of this many frames; `None` if no counter can hold them.
    pub(crate) fn bytes_of(self, frames: u64) -> Option<u64> {
        // The product of two 64-bit numbers needs 128 bits.
        u64::try_from(u128::from(frames) * u128::from(self.bytes) / u128::from(self.frames)).ok()
    }
}

/// A pause in OTG's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterFrameGap {
    /// The time that these bytes take on the link.
    Bytes(u64),
    Time(Nanos),
}

impl InterFrameGap {
    /// Its time on a link of this speed; `None` if it needs the speed and that is unknown.
    fn on(self, link: Option<BitRate>) -> Option<Nanos> {
        match self {
            // Zero bytes take no time on any link, so a document without pauses needs no link speed.
            Self::Bytes(0) => Some(Nanos::ZERO),
            Self::Bytes(bytes) => link.map(|speed| speed.time_for(bytes)),
            Self::Time(time) => Some(time),
        }
    }
}

/// How long a stream sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamDuration {
    pub amount: StreamAmount,
    /// Pause before the first frame.
    pub delay: InterFrameGap,
    /// Least idle bytes between frames.
    pub gap: u32,
}

/// OTG's kinds of duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAmount {
    Continuous,
    /// Stops after this many frames.
    Packets(u64),
    Seconds(Nanos),
    /// Bursts of frames at the stream's rate.
    Bursts {
        /// Number of bursts; 0 = until stopped.
        bursts: u64,
        packets: u64,
        /// From the end of one burst to the next.
        between: InterFrameGap,
    },
}

/// Requested measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedMetrics {
    /// Frames carry the test tag.
    pub enable: bool,
    pub latency: bool,
    /// Copies expected per sent frame, in thousandths: 1000 unless OTG's `rx_tx_ratio` says otherwise.
    pub rx_per_tx_thousandths: u64,
}

/// A capture of what ports receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCapture {
    /// Its name in the plan.
    pub name: String,
    pub ports: Vec<usize>,
    pub format: CaptureFormat,
    /// Most bytes of a frame that are kept.
    pub snap_len: Option<u32>,
    /// Whether to overwrite the oldest frames when the capture is full (default), or to stop.
    pub overwrite: bool,
    pub filter: FrameFilter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    Pcap,
    Pcapng,
}

/// A plan with rates and gaps computed for its links.
#[derive(Clone, Debug)]
pub struct BoundPlan {
    pub plan: Plan,
    /// In the order of the plan's streams.
    pub streams: Vec<BoundStream>,
    /// Speed of each port, if known.
    pub speeds: Vec<Option<BitRate>>,
}

#[derive(Clone, Copy, Debug)]
pub struct BoundStream {
    /// When each frame is due.
    pub timeline: StreamTimeline,
    /// The speed of its link is not known here, so the schedule is a guess, good enough for receiving.
    pub assumed: bool,
}

/// Options of reading a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Seed for the values that the document leaves random, so that a report can name it.
    pub seed: u64,
    /// The plan is for a fleet: locations are `NODE/IF`, `NODE/NS/IF` or `any-LABEL`.
    pub fleet: bool,
    /// The document is the part of a plan that one node needs, see [`crate::PlanParts`].
    pub part: bool,
}

/// Assumed speed of a link that reports none, to guess the duration of a stream that is sent as fast as possible, or by another node.
const FAST: BitRate = BitRate::new(10_000_000_000);

impl Plan {
    /// Reads a document (YAML or JSON). `Ok` may carry warnings.
    pub fn read(text: &str) -> Result<Self, PlanProblems> {
        Self::read_with(text, ReadOptions::default())
    }

    /// As [`Self::read`], with options.
    pub fn read_with(text: &str, options: ReadOptions) -> Result<Self, PlanProblems> {
        crate::read::plan(text, options)
    }

    /// Computes rates and gaps for the given port speeds (one per port; `layer1.speed` overrides the link's own). Refuses a plan that needs
    /// more than a port's speed.
    pub fn bind(self, speeds: &[Option<BitRate>]) -> Result<BoundPlan, PlanProblems> {
        self.bind_part(speeds, &|_| true)
    }

    /// As [`Self::bind`], on a node that has only the ports for which `is_here` is true. Streams from other nodes may get an assumed
    /// schedule.
    pub fn bind_part(
        self,
        speeds: &[Option<BitRate>],
        is_here: &dyn Fn(usize) -> bool,
    ) -> Result<BoundPlan, PlanProblems> {
        // Without this tail, `zip` would drop the ports for which the caller gives no speed.
        let of_links = speeds.iter().copied().chain(std::iter::repeat(None));
        let speeds: Vec<_> =
            self.ports.iter().zip(of_links).map(|(port, link)| port.speed.or(link)).collect();
        let mut problems = Vec::new();
        let mut streams = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let exact =
                stream.bind(speeds[stream.tx]).map(|timeline| BoundStream { timeline, assumed: false });
            let bound = match exact {
                // The sending node reports a real error itself; this node only receives the stream.
                Err(_) if !is_here(stream.tx) => {
                    stream.bind(Some(FAST)).map(|timeline| BoundStream { timeline, assumed: true })
                }
                exact => exact,
            };
            match bound {
                Ok(bound) => streams.push(bound),
                Err(problem) => problems.push(stream.place.locate(*problem)),
            }
        }
        // The load of a port is known only when all its streams have a schedule.
        if problems.is_empty() {
            problems = self.overload(&streams, &speeds);
        }
        if problems.is_empty() {
            Ok(BoundPlan { plan: self, streams, speeds })
        } else {
            Err(PlanProblems(problems))
        }
    }

    /// Problems of ports that would have to carry more than their speed.
    fn overload(&self, streams: &[BoundStream], speeds: &[Option<BitRate>]) -> Vec<PlanProblem> {
        let over = speeds.iter().enumerate().filter_map(|(port, speed)| {
            let speed = (*speed)?;
            let load = self.load(streams, port);
            (load > speed).then(|| {
                // The rates of all these flows add up. The first one gets the problem, because a problem has one place.
                let first = self.streams.iter().find(|stream| stream.tx == port);
                let message = format!(
                    "the flows of port `{}` ({}) need {load} on the line (layer 1), but its link has {speed}",
                    self.ports[port].name,
                    self.senders_on(port)
                );
                let path = format!("flows[{}].rate", first.map_or(0, |stream| stream.flow));
                let problem = PlanProblem::error(path, message)
                    .with_hint("lower the rates, or set `layer1` speed if the link is really faster");
                first.map(|stream| stream.place.locate(problem.clone())).unwrap_or(problem)
            })
        });
        over.collect()
    }

    /// What the streams of a port send together, at layer 1.
    fn load(&self, streams: &[BoundStream], port: usize) -> BitRate {
        let of_port = self.streams.iter().zip(streams).filter(|(stream, _)| stream.tx == port);
        // An unpaced stream takes what the link has left.
        let loads = of_port
            .filter(|(stream, _)| !stream.frames.is_unpaced())
            .map(|(stream, bound)| stream.l1_rate(bound.timeline.rate).bits_per_second());
        BitRate::new(loads.fold(0, u64::saturating_add))
    }

    /// The names of the flows that a port sends; if there are many, only the first ones.
    fn senders_on(&self, port: usize) -> String {
        let names: Vec<&str> = self
            .streams
            .iter()
            .filter(|stream| stream.tx == port)
            .map(|stream| stream.name.as_str())
            .collect();
        match names.len() {
            0..=6 => names.join(", "),
            many => format!("{} and {} more", names[..5].join(", "), many - 5),
        }
    }
}

impl Stream {
    /// The schedule on a link of this speed.
    fn bind(&self, link: Option<BitRate>) -> Result<StreamTimeline, Box<PlanProblem>> {
        let size = MeanSize::from(self.frames.mean());
        // An unpaced stream has no real rate: any speed will do to estimate how long it takes.
        let link = if self.frames.is_unpaced() { link.or(Some(FAST)) } else { link };
        // OTG's `bps` counts layer 2 with FCS, its `percentage` counts layer 1 (preamble and gap included).
        let rate = match self.rate {
            Rate::Frames(rate) => Some(rate),
            Rate::Bits(bits) => FrameRate::from_bits(bits, size.bytes, size.frames),
            Rate::Share(share) => {
                let link = link.ok_or_else(|| self.needs_speed("rate.percentage", "a percentage"))?;
                FrameRate::from_share(link, share, size.l1_bytes(), size.frames)
            }
        };
        let rate = rate.ok_or_else(|| self.problem("rate", "the rate rounds to zero"))?;
        self.check_gap(rate, link).map_err(|message| self.problem("duration", message))?;
        let shape = match self.duration.amount {
            StreamAmount::Continuous => SendPattern::Endless,
            StreamAmount::Packets(packets) => SendPattern::Frames(packets),
            StreamAmount::Seconds(seconds) => SendPattern::Within(seconds),
            StreamAmount::Bursts { bursts, packets, between } => {
                // `StreamTimeline::due` divides by the frames of a burst.
                SendPattern::Bursts { bursts, frames: packets.max(1), pause: self.pause(between, link)? }
            }
        };
        let delay = self.pause(self.duration.delay, link)?;
        let whole = StreamTimeline { rate, delay, shape };
        Ok(self.part.deal(whole).map_err(|message| self.problem("duration", message))?)
    }

    /// A pause as time, on a link of this speed.
    fn pause(&self, gap: InterFrameGap, link: Option<BitRate>) -> Result<Nanos, Box<PlanProblem>> {
        Ok(gap.on(link).ok_or_else(|| self.needs_speed("duration", "a pause in bytes"))?)
    }

    fn problem(&self, field: &str, message: impl Into<String>) -> PlanProblem {
        PlanProblem::error(format!("flows[{}].{field}", self.flow), message)
    }

    fn needs_speed(&self, field: &str, what: &str) -> PlanProblem {
        let problem = self.problem(field, format!("{what} needs the speed of the link, which is not known"));
        problem.with_hint("set the port's `speed` in `layer1`")
    }

    /// Its frames with the MAC address that it awaited. Frames that await none stay as they are.
    pub fn frames_to(&self, mac: Mac) -> Result<FrameOrigin, packetrig_wire::Error> {
        let Some(template) = self.awaits.and_then(|_| self.frames.template()) else {
            return Ok(self.frames.clone());
        };
        // Only device flows that begin with Ethernet await an address, so the first header is the right one.
        let mut spec = template.spec().clone();
        if let Some(ethernet) = spec.headers.first_mut() {
            let value = mac.iter().fold(0, |value, byte| value << 8 | u128::from(*byte));
            ethernet.set("dst", FieldSetting::Pattern(FieldPattern::Value(value)));
        }
        Ok(Arc::new(FrameTemplate::new(spec)?).into())
    }

    /// Checks that a gap wider than Ethernet's own 12 bytes fits between frames at the requested rate.
    fn check_gap(&self, rate: FrameRate, link: Option<BitRate>) -> Result<(), String> {
        let Some(link) = link.filter(|_| self.duration.gap > 12) else { return Ok(()) };
        let size = MeanSize::from(self.frames.mean());
        // Preamble and start delimiter are 8 bytes; the gap replaces the usual 12.
        let spaced = size.bytes + size.frames * (8 + u64::from(self.duration.gap));
        let needed = rate.bits(spaced, size.frames);
        if needed > link {
            return Err(format!(
                "a gap of {} bytes at this rate needs {needed}; the link has {link}",
                self.duration.gap
            ));
        }
        Ok(())
    }

    /// Layer 1 bits per second at this frame rate.
    pub fn l1_rate(&self, rate: FrameRate) -> BitRate {
        let size = MeanSize::from(self.frames.mean());
        rate.bits(size.l1_bytes(), size.frames)
    }

    /// Layer 2 bits per second at this frame rate, FCS included.
    pub fn l2_rate(&self, rate: FrameRate) -> BitRate {
        let size = MeanSize::from(self.frames.mean());
        rate.bits(size.bytes, size.frames)
    }

    /// Copies that receivers should see of `sent` frames.
    pub fn expected(&self, sent: u64) -> u64 {
        // 128 bits: the count of a long run times 1000 overflows 64.
        let expected = u128::from(sent) * u128::from(self.metrics.rx_per_tx_thousandths) / 1000;
        clamp_to_u64(expected)
    }
}
