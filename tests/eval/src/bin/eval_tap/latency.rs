//! What a tap adds to a frame's way, and how evenly, with its mirror on, overloaded and unplugged, against a bare bridge.

use crate::flood::{Bursts, Plan};
use crate::rig::{self, End, Middle, Rig, uncopied};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::Running;
use serde_json::json;

const PPS: u64 = 10_000;
/// Fills the queue of the mirror's cable again and again: as many frames in one go as it holds.
const OVERLOAD: Plan = Plan { size: 64, batch: 256, frames: 40_000, every_ns: 40_000_000 };

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mirror {
    On,
    Overloaded,
    Unplugged,
}

/// What the probe goes through, nothing being a cable, and how the ends take frames.
type Case = (&'static str, Option<Middle>, End, Mirror);

const CASES: [Case; 8] = [
    ("cable", None, End::Passed, Mirror::On),
    ("bridge", Some(Middle::Bridge), End::Passed, Mirror::On),
    ("tap, way xdp, mirror on", Some(Middle::TapXdp), End::Passed, Mirror::On),
    ("tap, way xdp, mirror unplugged", Some(Middle::TapXdp), End::Passed, Mirror::Unplugged),
    ("bridge, the same flood beside it", Some(Middle::Bridge), End::Passed, Mirror::Overloaded),
    ("tap, way xdp, mirror overloaded", Some(Middle::TapXdp), End::Passed, Mirror::Overloaded),
    ("tap, way packet, mirror on", Some(Middle::TapPacket), End::Passed, Mirror::On),
    ("bridge, stamped before the far end's queue", Some(Middle::Bridge), End::Stack, Mirror::On),
];
/// Our cases with the bridge each is held against.
const GOALS: [(&str, usize, usize); 3] =
    [("mirror_on", 2, 1), ("mirror_unplugged", 3, 1), ("mirror_overloaded", 5, 4)];

/// Nanoseconds of the best round, and frames of all rounds.
#[derive(Clone, Copy)]
struct Found {
    p50: u64,
    p99: u64,
    jitter: u64,
    lost: u64,
    uncopied: u64,
}

impl Found {
    const NONE: Self = Self { p50: u64::MAX, p99: u64::MAX, jitter: u64::MAX, lost: 0, uncopied: 0 };

    fn take(&mut self, round: Self) {
        self.p50 = self.p50.min(round.p50);
        self.p99 = self.p99.min(round.p99);
        self.jitter = self.jitter.min(round.jitter);
        self.lost += round.lost;
        self.uncopied += round.uncopied;
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, seconds) = if effort.quick { (2, 1) } else { (4, 3) };
    output.say(&format!(
        "## Latency\n\n{PPS} frames of 128 B per second for {seconds} s by `packetrig run` on packet rings, by the kernel's stamps at the \
         far end; the ends have a program that passes all frames, so that all are stamped at the same place: where the far end's driver hands them to \
         the stack (the last line is of ends without one: there the kernel stamps before it queues, so the far end's part is left out). The least of {rounds} rounds in turn, microseconds. Added is what is more than on a cable. Jitter is the mean difference between \
         neighbours. A mirror is overloaded by {} frames per second in bursts that fill the queue of its cable; since on this machine that takes \
         processor time from everybody, it is held against a bridge beside the same flood.\n",
        u64::from(OVERLOAD.frames) * 1_000_000_000 / OVERLOAD.every_ns
    ))?;
    let mut found = [Found::NONE; CASES.len()];
    for _ in 0..rounds {
        for (case, found) in CASES.into_iter().zip(&mut found) {
            found.take(measure(case, seconds)?);
        }
    }
    show(output, &found)?;
    for (name, ours, peer) in GOALS {
        let (ours, peer) = (found[ours], found[peer]);
        let is_met = ours.p50 <= peer.p50 && ours.p99 <= peer.p99;
        output.goal(
            &format!("latency_{name}"),
            &format!(
                "p50 {} us (bridge {}), p99 {} us (bridge {}), jitter {} us (bridge {}), {} lost",
                micros(ours.p50),
                micros(peer.p50),
                micros(ours.p99),
                micros(peer.p99),
                micros(ours.jitter),
                micros(peer.jitter),
                ours.lost
            ),
            "p50 and p99 <= bare bridge",
            &is_met.into(),
        );
    }
    Ok(())
}

fn show(output: &mut Output, found: &[Found; CASES.len()]) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "between the ends",
        "p50",
        "p99",
        "added p50",
        "added p99",
        "jitter",
        "frames lost",
        "copies given up, says the tap",
    ]);
    let cable = found[0];
    for ((name, ..), found) in CASES.iter().zip(found) {
        let times = [found.p50, found.p99].map(micros);
        let added = [added(found.p50, cable.p50), added(found.p99, cable.p99), micros(found.jitter)];
        let frames = [found.lost, found.uncopied].map(|frames| frames.to_string());
        let name = [(*name).to_owned()];
        table.rows.push([&name[..], &times[..], &added[..], &frames[..]].concat());
    }
    output.table("latency", &table)
}

fn micros(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

fn added(ns: u64, cable: u64) -> String {
    format!("{:.2}", (ns as f64 - cable as f64) / 1e3)
}

fn measure((_, middle, end, mirror): Case, seconds: u64) -> anyhow::Result<Found> {
    let Some(middle) = middle else {
        let lab = Lab::cabled_pair()?;
        let passes = lab.ports().iter().map(|port| rig::prepare(port, end, false));
        let _passes = passes.collect::<Result<Vec<_>, _>>()?;
        return Ok(probe(&lab, seconds));
    };
    let rig = Rig::new(middle, [end, end, End::Drop], false)?;
    let flood = match mirror {
        Mirror::On => None,
        Mirror::Overloaded => Some(Bursts::start(rig.middle()?, rig.mirror_index()?, OVERLOAD)?),
        Mirror::Unplugged => {
            let far = rig.station(2);
            NamespaceLinks::open_in(far.netns())?.switch_interface(far.link.index, false)?;
            None
        }
    };
    let found = probe(&rig.lab, seconds);
    drop(flood);
    Ok(Found { uncopied: uncopied(&rig.end()?), ..found })
}

fn probe(lab: &Lab, seconds: u64) -> Found {
    let duration = json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}});
    let flow = Flow::new("probe", 1).pps(PPS).with("duration", duration);
    let document = Document::new(&[lab.location(0), lab.location(1)]).flow(flow);
    let report = Running::run(&document, &["--quiet", "--back-end", "packet"]).finish().report();
    let number = |path: &str| report.number("probe", path);
    Found {
        p50: number("/latency/p50"),
        p99: number("/latency/p99"),
        jitter: number("/jitter/ipdv_mean"),
        lost: number("/loss/lost"),
        uncopied: 0,
    }
}
