//! The smallest distance of two packets (E5.3), which bounds the capacity that a pair can measure.

use crate::figures::{Series, difference};
use crate::frames::{Key, frame};
use crate::lab::Cable;
use crate::sender::{Sender, Train, Way};
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_probe::ReleaseMechanism;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{FrameOptions, FrameSocket};
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_units::{MonoTime, Nanos};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags};
use std::io::IoSlice;

const SIZES: [usize; 2] = [60, 1514];
const MARGIN: Nanos = Nanos::from_millis(2);
/// The raw socket's smallest pair is to be this many times ours.
const TIMES: f64 = 3.0;
/// Largest capacity that a pair of full frames can tell: bits of an IP packet.
const BITS: f64 = 1500.0 * 8.0;

enum Who {
    /// One call for each frame.
    TwoCalls(FrameSocket),
    /// One call for both.
    OneCall(FrameSocket),
    Ours(Sender),
}

struct Turn {
    name: String,
    who: Who,
    merging: bool,
    whose: u16,
    /// By size.
    gaps: [Series; 2],
}

impl Turn {
    fn send(&mut self, number: u32, size: usize) -> anyhow::Result<()> {
        let frames = [0, 1].map(|n| frame(Key { whose: self.whose, train: number, number: n }, size));
        match &mut self.who {
            Who::TwoCalls(socket) => {
                socket.send_frame(&frames[0])?;
                socket.send_frame(&frames[1])?;
            }
            Who::OneCall(socket) => {
                let parts = frames.each_ref().map(|frame| [IoSlice::new(frame)]);
                let mut none = [SendAncillaryBuffer::default(), SendAncillaryBuffer::default()];
                let [first, second] = &mut none;
                let mut both = [MMsgHdr::new(&parts[0], first), MMsgHdr::new(&parts[1], second)];
                rustix::net::sendmmsg(socket, &mut both, SendFlags::empty()).context("sendmmsg")?;
            }
            Who::Ours(sender) => {
                let start = MonoTime::from_nanos(clock::monotonic_ns()) + MARGIN;
                sender.send(Train { number, frames: 2, gap: Nanos::ZERO, start, size })?;
            }
        }
        Ok(())
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let pairs = if effort.quick { 200 } else { 2000 };
    output.say(&format!(
        "## Pairs\n\n{pairs} pairs of frames due at once from each sender, taking turns, on an idle machine (frames that are due at once are given to the driver together by `ring` and `live`); the distance of the two by the far end's kernel \
         stamps, nanoseconds. The last column is the largest capacity that a pair of 1500 B packets could tell: two packets further apart than they take on the \
         narrow link tell nothing about it.\n"
    ))?;
    let turns = measure(pairs)?;
    let mut table = Table::new(&[
        "sender",
        "60 B: p1",
        "p50",
        "p99",
        "1514 B: p1",
        "p50",
        "p99",
        "largest capacity, Gbit/s",
    ]);
    for turn in &turns {
        let mut cells = vec![turn.name.clone()];
        for gaps in &turn.gaps {
            let ns = |share| gaps.permille(share).map_or_else(|| "–".to_owned(), |ns| ns.to_string());
            cells.extend([10, 500, 990].map(ns));
        }
        cells.push(format!("{:.2}", BITS / middle(turn, 1).max(1.0)));
        table.rows.push(cells);
    }
    output.table("pairs", &table)?;
    judge(output, &turns);
    Ok(())
}

fn middle(turn: &Turn, size: usize) -> f64 {
    turn.gaps[size].permille(500).map_or(f64::MAX, |ns| ns as f64)
}

fn judge(output: &mut Output, turns: &[Turn]) {
    let ours = turns.iter().filter(|turn| matches!(turn.who, Who::Ours(_)));
    for (size, name) in [(0, "pair_60"), (1, "pair_1514")] {
        // Each against the raw socket on its own cable.
        let raw = |merging| {
            let raw =
                turns.iter().find(|turn| turn.merging == merging && matches!(turn.who, Who::TwoCalls(_)));
            raw.map_or(0.0, |raw| middle(raw, size))
        };
        let times = |turn: &Turn| raw(turn.merging) / middle(turn, size).max(1.0);
        let Some(best) = ours.clone().max_by(|a, b| times(a).total_cmp(&times(b))) else { return };
        output.goal(
            name,
            &format!(
                "{:.0} ns ({}), raw socket {:.0} ns: {:.1}x below",
                middle(best, size),
                best.name,
                raw(best.merging),
                times(best)
            ),
            &format!(">= {TIMES}x below"),
            &(times(best) >= TIMES).into(),
        );
    }
}

fn measure(pairs: u32) -> anyhow::Result<Vec<Turn>> {
    let mut cables = [Cable::new(false)?, Cable::new(true)?];
    let mut turns = begin(&cables)?;
    for number in 0..=pairs {
        for turn in &mut turns {
            for (size, bytes) in SIZES.into_iter().enumerate() {
                let referee = &mut cables[usize::from(turn.merging)].referee;
                referee.clear();
                turn.send(number, bytes)?;
                if let [one, other] = referee.collect(2)?[..]
                    && number > 0
                {
                    turn.gaps[size].push(difference(one.at, other.at));
                }
            }
        }
    }
    Ok(turns)
}

fn begin(cables: &[Cable; 2]) -> anyhow::Result<Vec<Turn>> {
    let [plain, merges] = cables.each_ref().map(|cable| &cable.lab.ports()[0]);
    let turn = |name: &str, who, merging, whose| Turn {
        name: name.to_owned(),
        who,
        merging,
        whose,
        gaps: Default::default(),
    };
    let mut turns = vec![
        turn("raw socket, two sends", Who::TwoCalls(raw(plain)?), false, 100),
        turn("raw socket, two sends, far end merges", Who::TwoCalls(raw(merges)?), true, 102),
        turn("raw socket, sendmmsg", Who::OneCall(raw(plain)?), false, 101),
    ];
    for (whose, mechanism) in (0..).zip(ReleaseMechanism::ALL) {
        let merging = mechanism == ReleaseMechanism::Live;
        let from = &cables[usize::from(merging)].lab.ports()[0];
        if let Ok(sender) = Sender::open(from, &Way::usual(mechanism), whose) {
            let name = if merging { "live, far end merges" } else { mechanism.name() };
            turns.push(turn(name, Who::Ours(sender), merging, whose));
        }
    }
    Ok(turns)
}

fn raw(port: &LabPort) -> anyhow::Result<FrameSocket> {
    let netns: &NetNs = port.netns();
    Ok(FrameSocket::open_on_interface(netns, port.link.index, INTERFACE, FrameOptions::default())?)
}
