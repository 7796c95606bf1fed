//! Random scenarios: what is sent, what the device does to it, and what happens to the rig meanwhile. Pure.

use packetrig_eval::draw::Draw;
use packetrig_tests::rig_fault::RigFault;

pub(crate) const KEY: u16 = 40_000;
/// Larger than the MTU that a fault of the rig leaves.
pub(crate) const SIZE: u32 = 1000;
/// Tenths of a second that a scenario sends.
const TENTHS: u64 = 22;
const BACK_ENDS: [&str; 3] = ["packet", "xdp", "af-xdp"];

/// How the rig's fault and the device's lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    NoRigFault,
    Apart,
    Overlapping,
    RigFaultAlone,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::NoRigFault, Self::Apart, Self::Overlapping, Self::RigFaultAlone];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) index: u64,
    pub(crate) kind: Kind,
    pub(crate) back_end: &'static str,
    pub(crate) pps: u64,
    pub(crate) packets: u64,
    pub(crate) rig_fault: RigFault,
    /// Frames that have left before it.
    pub(crate) fault_after: u64,
    pub(crate) fault_ns: u64,
    /// Rules of the forwarder.
    pub(crate) rules: String,
}

impl Scenario {
    /// The scenario with this number: the same whenever the seed is.
    pub(crate) fn draw(seed: u64, index: u64) -> Self {
        let mut draw = Draw::of(seed, index);
        // Back ends and kinds in turn, and each back end with each kind.
        let back_end = BACK_ENDS[(index % 3) as usize];
        let kind = Kind::ALL[(index / 3 % 4) as usize];
        let pps = draw.within(1000, 4000);
        let packets = pps * TENTHS / 10;
        let fault_after = packets * draw.within(45, 55) / 100;
        let rig_fault =
            if kind == Kind::NoRigFault { RigFault::None } else { draw.one_of(&RigFault::ALL[1..]) };
        let fault_ns = draw.within(300, 600) * 1_000_000;
        let rules = rules(&mut draw, kind, packets, fault_after);
        Self { index, kind, back_end, pps, packets, rig_fault, fault_after, fault_ns, rules }
    }
}

fn rules(draw: &mut Draw, kind: Kind, packets: u64, fault_after: u64) -> String {
    match kind {
        Kind::RigFaultAlone => String::new(),
        Kind::NoRigFault => any_rule(draw, packets),
        Kind::Apart => early_loss(draw, packets),
        Kind::Overlapping => overlapping_loss(draw, packets, fault_after),
    }
}

fn any_rule(draw: &mut Draw, packets: u64) -> String {
    let (block, seed) = (block(draw, packets / 20, packets), draw.within(1, 1_000_000));
    let rule = match draw.within(0, 9) {
        0 => return String::new(),
        1 => format!("drop frames={block}"),
        2 => format!("drop share={} seed={seed}", draw.within(1, 50)),
        3 => format!("copy frames={block} copies={}", draw.within(1, 4)),
        4 => format!("corrupt frames={block} offset_from_end={} mask=0x10", draw.within(60, 600)),
        5 => format!("misdeliver frames={block} to=port2"),
        6 => format!("flood frames={block} to=port2"),
        7 => format!("reflect frames={block}"),
        _ => format!("delay ms={}", draw.within(1, 500)),
    };
    format!("{rule} key={KEY}\n")
}

/// Loss that is over long before half of the frames have left.
fn early_loss(draw: &mut Draw, packets: u64) -> String {
    let block = block(draw, packets / 20, packets / 4);
    match draw.within(0, 3) {
        0 => format!("drop frames={block} key={KEY}\n"),
        1 => format!("drop frames={block} every={} key={KEY}\n", draw.within(2, 20)),
        _ => format!("misdeliver frames={block} to=port2 key={KEY}\n"),
    }
}

/// Loss around the frames during which the rig's fault begins.
fn overlapping_loss(draw: &mut Draw, packets: u64, fault_after: u64) -> String {
    let first = fault_after - draw.within(20, packets / 10);
    let last = fault_after + draw.within(packets / 10, packets / 4);
    let share = draw.within(100, 1001);
    format!("drop frames={first}-{last} share={share} seed={} key={KEY}\n", draw.within(1, 1_000_000))
}

/// A range of frame numbers within these.
fn block(draw: &mut Draw, least: u64, most: u64) -> String {
    let length = draw.within(1, (most - least) / 2);
    let first = draw.within(least, most - length);
    format!("{first}-{}", first + length)
}
