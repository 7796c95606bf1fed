//! Frames of 64 B forwarded per second while copies are made, and what a copy costs.

use crate::rig::{self, End, Middle, Rig};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::peers::{self, Tool};
use packetrig_eval::plot::{self, Titles};
use packetrig_testkit::Lab;

/// What is between the ends; nothing is a cable.
const MIDDLES: [Option<Middle>; 5] =
    [Some(Middle::TapXdp), Some(Middle::TapPacket), Some(Middle::Bridge), Some(Middle::Mirred), None];
/// Which of them are compared.
const OURS: usize = 0;
const PEER: usize = 3;
const CABLE: usize = 4;
const SIZE: u32 = 64;

/// The best of some rounds.
#[derive(Clone, Copy, Default)]
struct Best {
    /// Frames per second at the far end: whose stack takes them, whose driver drops them.
    rates: [f64; 2],
    /// Copies per frame that the far end got, when that was.
    copies: [f64; 2],
}

impl Best {
    fn rate(&self) -> f64 {
        self.rates[0].max(self.rates[1])
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (2, 300_000_000) } else { (5, 600_000_000) };
    output.say(&format!(
        "## Forwarding while copying\n\nFrames of {SIZE} B per second by the counter of the link's far end over {} ms, the best of {rounds} \
         rounds in turn. The same loop of live frames sends to all of them, as fast as it goes, on the same two processors. \
         Far ends once hand frames to their stack (behind the tap, way xdp, by a program that passes them: their cable takes no redirected \
         frames otherwise) and once drop them in the driver; so does the mirror's. A cable is the same sender and the same far end with nothing in between.\n",
        window / 1_000_000
    ))?;
    let mut best = [Best::default(); MIDDLES.len()];
    for _ in 0..rounds {
        for (middle, best) in MIDDLES.into_iter().zip(&mut best) {
            for (at, end) in [End::Stack, End::Drop].into_iter().enumerate() {
                let (rate, copies) = measure(middle, end, window)?;
                if rate > best.rates[at] {
                    (best.rates[at], best.copies[at]) = (rate, copies);
                }
            }
        }
    }
    show(output, &best)?;
    let ratio = best[OURS].rate() / best[PEER].rate().max(1.0);
    let alike = [0, 1].map(|at| best[OURS].rates[at] / best[PEER].rates[at].max(1.0));
    // Sender and far end take their time on the same processor: what is left is that of the middle and of the copy.
    let beyond = |which: usize| 1.0 / best[which].rate().max(1.0) - 1.0 / best[CABLE].rate().max(1.0);
    output.goal(
        "rate_64",
        &format!(
            "{ratio:.2}x of bridge and tc mirred, the better far end of each (both by the stack: {:.2}x, both dropped: {:.2}x); \
             of the time a frame takes beyond a cable's: {:.2}x",
            alike[0],
            alike[1],
            beyond(PEER) / beyond(OURS)
        ),
        ">= 3.0x",
        &(ratio >= 3.0).into(),
    );
    Ok(())
}

fn show(output: &mut Output, best: &[Best; MIDDLES.len()]) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "between the ends",
        "frames/s, far ends' stack",
        "copies per frame",
        "frames/s, dropped",
        "copies per frame",
    ]);
    for (middle, best) in MIDDLES.iter().zip(best) {
        let [stack, dropped] =
            [0, 1].map(|at| [format!("{:.0}", best.rates[at]), format!("{:.3}", best.copies[at])]);
        table.rows.push([vec![name(*middle).to_owned()], stack.to_vec(), dropped.to_vec()].concat());
    }
    output.table("rate", &table)?;
    let titles = Titles { plot: "Forwarding 64 B while copying", x: "", y: "frames per second" };
    let groups: Vec<_> =
        MIDDLES.iter().zip(best).map(|(m, best)| (name(*m).to_owned(), best.rates.to_vec())).collect();
    output.plot("rate", titles.plot, &plot::bars(titles, &["taken by the stack", "dropped"], &groups))
}

fn name(middle: Option<Middle>) -> &'static str {
    middle.map_or("cable", Middle::name)
}

/// Frames per second at the far end, and copies per frame that it got.
fn measure(middle: Option<Middle>, end: End, window: u64) -> anyhow::Result<(f64, f64)> {
    let rate = |lab: &Lab| {
        Ok::<_, anyhow::Error>(peers::rate(Tool::BareLiveFrames, SIZE, lab, window)?.unwrap_or(0.0))
    };
    let Some(middle) = middle else {
        let lab = Lab::cabled_pair()?;
        // A cable takes live frames only so.
        let _attachment = rig::prepare(&lab.ports()[1], end, true)?;
        return Ok((rate(&lab)?, 0.0));
    };
    let rig = Rig::new(middle, [End::Stack, end, end], true)?;
    let (far, mirror) = (rig.count(1)?.taken, rig.count(2)?.taken);
    let rate = rate(&rig.lab)?;
    let copies = rig.count(2)?.taken - mirror;
    let copies = copies as f64 / (rig.count(1)?.taken - far).max(1) as f64;
    rig.end()?;
    Ok((rate, copies))
}
