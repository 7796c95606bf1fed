//! Seeded traffic and the truth about it: how long flows are, what their packets are wrapped in, and what differs inside a flow.
//!
//! ```text
//!   Mix + seed -> flows at work (ACTIVE of them) -> one drawn, its next packet made -> frame, cut to HEADERS_KEPT
//!                                                                                   -> truth of its flow
//! ```
//! Lengths of flows are of published measurements, see [`Mix::PUBLISHED`]; which part of the flows has which headers is not published
//! anywhere and is ours. Both ends of a flow send; the first packet is of the end that the record calls source.
//!
//! Invariant: the truth of all flows together is what all frames together are.

mod stacks;

use crate::draw::Draw;
use packetrig_flow::FlowKey;
pub use stacks::Stack;
use stacks::Wrapped;
use std::collections::BTreeMap;

/// Flows that are under way at a time.
pub const ACTIVE: usize = 4096;
/// Bytes of a frame that are kept: all headers.
pub const HEADERS_KEPT: usize = 128;

/// How many packets a flow has.
#[derive(Clone, Copy, Debug)]
pub enum FlowLengths {
    /// All as many.
    Fixed(u32),
    /// The share of flows with so many packets at most; between two points lengths are even.
    Cumulated(&'static [(u32, f64)]),
    /// The sum of these.
    Mixture(&'static [Component]),
}

/// A part of a mixture of distributions.
#[derive(Clone, Copy, Debug)]
pub enum Component {
    /// Of a weight: from 1 to a length, all as often.
    Uniform(f64, u32),
    /// Of a weight: its logarithm is normal, with this deviation, and the median is this length.
    LogNormal(f64, f64, f64),
}

/// How long packets are, as frames with FCS, and how often.
pub type FrameSizes = &'static [(u16, u32)];

/// What traffic is made of.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Its name in tables.
    pub name: &'static str,
    /// Who published it.
    pub source: &'static str,
    /// How many packets flows have.
    pub lengths: FlowLengths,
    /// What packets are wrapped in, and how often.
    pub stacks: &'static [(Stack, u32)],
    /// How long packets are.
    pub sizes: FrameSizes,
    /// Whether packets of a flow differ in length, TCP flags and time to live; else all are as its first.
    pub differs: bool,
}

const SMALL: FrameSizes = &[(64, 1)];
/// 7 : 4 : 1.
const SIMPLE_IMIX: FrameSizes = &[(64, 7), (570, 4), (1518, 1)];
/// Full segments and acknowledgements.
const BULK: FrameSizes = &[(64, 1), (1518, 2)];
const PLAIN: &[(Stack, u32)] = &[(Stack::Ipv4, 1)];
/// Every stack that the meter reads, all as often.
const EVERY_STACK: &[(Stack, u32)] = &[
    (Stack::Ipv4, 1),
    (Stack::Vlan, 1),
    (Stack::TwoVlans, 1),
    (Stack::Mpls, 1),
    (Stack::Ipv6, 1),
    (Stack::Ipv6Extended, 1),
    (Stack::Gre, 1),
    (Stack::Vxlan, 1),
];
const CAMPUS: FlowLengths = FlowLengths::Mixture(&[
    Component::Uniform(0.305_026_6, 1),
    Component::Uniform(0.248_419_9, 2),
    Component::Uniform(0.063_660_6, 3),
    Component::Uniform(0.049_216_5, 4),
    Component::Uniform(0.009_315_6, 5),
    Component::Uniform(0.082_174_7, 6),
    Component::LogNormal(0.131_263_7, 0.520_702_3, 7.805_599_3),
    Component::LogNormal(0.073_286_2, 0.770_105_7, 22.109_725),
    Component::LogNormal(0.029_289_1, 1.125_264_5, 128.645_151_5),
    Component::LogNormal(0.008_347, 1.983_836_9, 1_084.470_758_8),
]);
const WEB_SEARCH: FlowLengths = FlowLengths::Cumulated(&[
    (6, 0.15),
    (13, 0.2),
    (19, 0.3),
    (33, 0.4),
    (53, 0.53),
    (133, 0.6),
    (667, 0.7),
    (1333, 0.8),
    (3333, 0.9),
    (6667, 0.97),
    (20_000, 1.0),
]);

impl Mix {
    /// What others are compared with: 12 small packets a flow, all the same.
    pub const PLAIN: Self = Self {
        name: "plain",
        source: "none: 12 packets a flow, IPv4 and UDP, 64 B",
        lengths: FlowLengths::Fixed(12),
        stacks: PLAIN,
        sizes: SMALL,
        differs: false,
    };

    /// Three that were published.
    pub const PUBLISHED: [Self; 3] = [
        Self {
            name: "IMIX",
            source: "packet sizes: simple IMIX, 7 of 64 B, 4 of 570 B, 1 of 1518 B (FD.io CSIT; a genome of RFC 6985); a genome is a flow",
            lengths: FlowLengths::Fixed(12),
            stacks: EVERY_STACK,
            sizes: SIMPLE_IMIX,
            differs: true,
        },
        Self {
            name: "campus",
            source: "flow lengths: Jurkiewicz, Rzym, Borylo, \"Flow length and size distributions in campus Internet traffic\" (2021), \
                     mixture of 4 032 376 751 flows (github.com/piotrjurkiewicz/flow-models, agh_2015, all); sizes: simple IMIX",
            lengths: CAMPUS,
            stacks: EVERY_STACK,
            sizes: SIMPLE_IMIX,
            differs: true,
        },
        Self {
            name: "web search",
            source: "flow lengths: Alizadeh et al., \"Data Center TCP\" (SIGCOMM 2010), as packets of 1460 B in \
                     github.com/HKUST-SING/TrafficGenerator (CDF_dctcp); sizes: full segments and acknowledgements",
            lengths: WEB_SEARCH,
            stacks: EVERY_STACK,
            sizes: BULK,
            differs: true,
        },
    ];

    /// The plain one with one thing changed at a time, each with its name.
    pub const fn changed_one_by_one() -> [Self; 5] {
        let plain = Self::PLAIN;
        let [imix, campus, search] = Self::PUBLISHED;
        [
            Self { name: "flow lengths: campus", lengths: campus.lengths, ..plain },
            Self { name: "flow lengths: web search", lengths: search.lengths, ..plain },
            Self { name: "packet sizes: IMIX", sizes: imix.sizes, ..plain },
            Self { name: "header stacks: every", stacks: EVERY_STACK, ..plain },
            Self { name: "packets differ", differs: true, ..plain },
        ]
    }
}

/// The truth about a flow, both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTruth {
    /// Packets, of the direction of the canonical key and of the other.
    pub packets: [u64; 2],
    /// Bytes of IP, alike.
    pub bytes: [u64; 2],
    /// Bytes of frames without FCS, both.
    pub frame_bytes: u64,
    /// All TCP flags.
    pub tcp_flags: u16,
    /// Least time to live.
    pub ttl_min: u8,
    /// Greatest.
    pub ttl_max: u8,
}

impl Default for FlowTruth {
    fn default() -> Self {
        Self { packets: [0; 2], bytes: [0; 2], frame_bytes: 0, tcp_flags: 0, ttl_min: u8::MAX, ttl_max: 0 }
    }
}

/// Frames, and the truth about them.
#[derive(Debug)]
pub struct MadeTraffic {
    /// The first bytes of frames, one behind the other, at places [`HEADERS_KEPT`] apart.
    pub bytes: Vec<u8>,
    /// How long each frame was, without FCS.
    pub lengths: Vec<u32>,
    /// By canonical key.
    pub truth: BTreeMap<FlowKey, FlowTruth>,
}

impl MadeTraffic {
    /// What is kept of each frame, and its length.
    pub fn frames(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.bytes.chunks_exact(HEADERS_KEPT).zip(&self.lengths).map(|(bytes, length)| {
            let length = *length as usize;
            (&bytes[..length.min(HEADERS_KEPT)], length)
        })
    }
}

/// A flow under way.
#[derive(Clone, Copy, Debug)]
struct FlowAtWork {
    number: u32,
    left: u32,
    is_begun: bool,
    stack: Stack,
    is_tcp: bool,
}

/// Makes so many packets.
pub fn make(mix: &Mix, seed: u64, packets: usize) -> MadeTraffic {
    let mut draw = Draw::of(seed, 0);
    let mut next = 0;
    let mut begin = |draw: &mut Draw| {
        next += 1;
        FlowAtWork {
            number: next,
            left: length_of_flow(mix.lengths, draw),
            is_begun: false,
            stack: weighted(mix.stacks, draw),
            is_tcp: mix.differs && !draw.next().is_multiple_of(4),
        }
    };
    let mut flows: Vec<FlowAtWork> = (0..ACTIVE).map(|_| begin(&mut draw)).collect();
    let mut made =
        MadeTraffic { bytes: vec![0; packets * HEADERS_KEPT], lengths: Vec::new(), truth: BTreeMap::new() };
    for place in made.bytes.chunks_exact_mut(HEADERS_KEPT) {
        let at = usize::try_from(draw.next() % ACTIVE as u64).unwrap_or(0);
        let flow = &mut flows[at];
        let packet = next_packet(mix, flow, &mut draw);
        let wrapped = stacks::wrap(flow.stack, flow.number, packet);
        let kept = wrapped.frame.len().min(HEADERS_KEPT);
        place[..kept].copy_from_slice(&wrapped.frame[..kept]);
        made.lengths.push(wrapped.frame_bytes);
        note(&mut made.truth, &wrapped, packet);
        flow.is_begun = true;
        flow.left -= 1;
        if flow.left == 0 {
            *flow = begin(&mut draw);
        }
    }
    made
}

/// What a packet is, whatever it is wrapped in.
#[derive(Clone, Copy, Debug)]
struct PacketParts {
    is_back: bool,
    is_tcp: bool,
    tcp_flags: u8,
    ttl: u8,
    /// Of the frame with FCS that it would be in alone.
    size: u16,
}

const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN: u8 = 1;
const PSH: u8 = 8;

fn next_packet(mix: &Mix, flow: &FlowAtWork, draw: &mut Draw) -> PacketParts {
    let size = weighted(mix.sizes, draw);
    if !mix.differs {
        return PacketParts { is_back: false, is_tcp: flow.is_tcp, tcp_flags: 0, ttl: 64, size };
    }
    let is_back = flow.is_begun && draw.next().is_multiple_of(3);
    let tcp_flags = match (flow.is_begun, flow.left) {
        (false, _) => SYN,
        (true, 1) => FIN | ACK,
        (true, _) => ACK | draw.one_of(&[0, 0, PSH]),
    };
    let ttl = 60 + u8::try_from(draw.next() % 5).unwrap_or(0);
    PacketParts {
        is_back,
        is_tcp: flow.is_tcp,
        tcp_flags: if flow.is_tcp { tcp_flags } else { 0 },
        ttl,
        size,
    }
}

fn note(truth: &mut BTreeMap<FlowKey, FlowTruth>, wrapped: &Wrapped, packet: PacketParts) {
    let canonical = wrapped.key.to_canonical();
    let direction = usize::from(canonical != wrapped.key);
    let of_flow = truth.entry(canonical).or_default();
    of_flow.packets[direction] += 1;
    of_flow.bytes[direction] += u64::from(wrapped.ip_bytes);
    of_flow.frame_bytes += u64::from(wrapped.frame_bytes);
    of_flow.tcp_flags |= u16::from(packet.tcp_flags);
    of_flow.ttl_min = of_flow.ttl_min.min(packet.ttl);
    of_flow.ttl_max = of_flow.ttl_max.max(packet.ttl);
}

fn weighted<T: Copy>(choices: &[(T, u32)], draw: &mut Draw) -> T {
    let all: u32 = choices.iter().map(|(_, weight)| weight).sum();
    let mut left = draw.next() % u64::from(all);
    for (choice, weight) in choices {
        let weight = u64::from(*weight);
        if left < weight {
            return *choice;
        }
        left -= weight;
    }
    choices[0].0
}

/// From 0 to 1, 1 excluded.
fn fraction(draw: &mut Draw) -> f64 {
    (draw.next() >> 11) as f64 / (1_u64 << 53) as f64
}

fn length_of_flow(lengths: FlowLengths, draw: &mut Draw) -> u32 {
    match lengths {
        FlowLengths::Fixed(packets) => packets,
        FlowLengths::Cumulated(points) => {
            let wanted = fraction(draw);
            let mut below = (0, 0.0);
            for point in points {
                if wanted < point.1 {
                    let part = (wanted - below.1) / (point.1 - below.1);
                    return whole(f64::from(below.0) + part * f64::from(point.0 - below.0));
                }
                below = *point;
            }
            below.0
        }
        FlowLengths::Mixture(components) => of_mixture(components, draw),
    }
}

fn of_mixture(components: &[Component], draw: &mut Draw) -> u32 {
    let mut left = fraction(draw);
    for component in components {
        let (Component::Uniform(weight, _) | Component::LogNormal(weight, ..)) = *component;
        if left < weight {
            return match *component {
                Component::Uniform(_, most) => whole(fraction(draw) * f64::from(most)),
                Component::LogNormal(_, deviation, median) => {
                    whole(median * (deviation * normal(draw)).exp())
                }
            };
        }
        left -= weight;
    }
    1
}

/// Standard normal, by Box and Muller.
fn normal(draw: &mut Draw) -> f64 {
    let radius = (-2.0 * (1.0 - fraction(draw)).ln()).sqrt();
    radius * (std::f64::consts::TAU * fraction(draw)).cos()
}

/// Upwards: a flow has a packet at least.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive length, saturated")]
fn whole(length: f64) -> u32 {
    (length.ceil() as u32).max(1)
}

#[cfg(test)]
mod tests;
