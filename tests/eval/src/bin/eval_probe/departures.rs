//! What a mechanism says of a frame's departure against the far end's stamp (E5.4).
//!
//! On a virtual cable nothing lies between the driver and the far end's stamp but the driver itself: what is left is the report's error.

use crate::figures::{Series, difference, micros};
use crate::judge;
use crate::lab::Cable;
use crate::load::Load;
use crate::sender::{Sender, Train, Way};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_probe::{DepartureStage, ReleaseMechanism};
use packetrig_probe_io::release::DepartedFrame;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};

const FRAMES: u16 = 50;
const GAP: Nanos = Nanos::from_micros(200);
const MARGIN: Nanos = Nanos::from_millis(8);
/// The last stage that was stamped is to be this near to the wire, for 99 of 100 frames. R5: "microsecond level".
const NEAR_NS: i64 = 10_000;

/// Reported minus the far end's stamp, by what was reported.
#[derive(Default)]
struct Found {
    last: Series,
    driver: Series,
    released: Series,
    frames: u64,
    /// Frames that arrived outside of hand-over's end, beyond its interval.
    stages: Vec<DepartureStage>,
}

impl Found {
    fn take(&mut self, gone: &DepartedFrame, at: u64) {
        self.frames += 1;
        let off = |stamp: packetrig_probe::ProbeStamp| difference(at, stamp.middle());
        self.last.extend(judge::left(gone).map(off));
        self.released.extend(gone.released.map(off));
        for departure in &gone.departures {
            if departure.stage == DepartureStage::Driver {
                self.driver.push(off(departure.stamp));
            }
            if !self.stages.contains(&departure.stage) {
                self.stages.push(departure.stage);
            }
        }
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trains = if effort.quick { 10 } else { 200 };
    output.say(&format!(
        "## Reported departure\n\n{trains} trains of {FRAMES} frames, {GAP} apart. What the sender reports minus the far end's kernel stamp, microseconds: \
         below zero is before. The last stage that a mechanism can stamp, what the driver's stamp alone says, and the release.\n"
    ))?;
    let mut table = Table::new(&[
        "mechanism",
        "load",
        "frames",
        "stages",
        "last p1",
        "p50",
        "p99",
        "driver p50",
        "p99 - p1",
        "release p50",
        "p99 - p1",
    ]);
    let mut worst: Option<(i64, String)> = None;
    for load in [Load::Idle, Load::Hogs] {
        for (mechanism, found) in measure(load, trains)? {
            table.rows.push(row(mechanism, load, &found));
            let far = found.last.absolute().permille(990);
            if load == Load::Idle
                && let Some(far) = far
                && worst.as_ref().is_none_or(|(most, _)| far > *most)
            {
                worst = Some((far, mechanism.to_string()));
            }
        }
    }
    output.table("departures", &table)?;
    if let Some((far, name)) = worst {
        output.goal(
            "departure",
            &format!(
                "99 of 100 within {} us of the far end's stamp for the worst mechanism ({name})",
                micros(Some(far))
            ),
            &format!("<= {} us", micros(Some(NEAR_NS))),
            &(far <= NEAR_NS).into(),
        );
    }
    Ok(())
}

fn row(mechanism: ReleaseMechanism, load: Load, found: &Found) -> Vec<String> {
    let stages: Vec<String> = found.stages.iter().map(|stage| format!("{stage:?}").to_lowercase()).collect();
    let mut cells =
        vec![mechanism.to_string(), load.name().to_owned(), found.frames.to_string(), stages.join(" ")];
    cells.extend([10, 500, 990].map(|share| micros(found.last.permille(share))));
    for series in [&found.driver, &found.released] {
        let spread = series.permille(990).zip(series.permille(10)).map(|(high, low)| high - low);
        cells.extend([micros(series.permille(500)), micros(spread)]);
    }
    cells
}

fn measure(load: Load, trains: u32) -> anyhow::Result<Vec<(ReleaseMechanism, Found)>> {
    let mut cables = [Cable::new(false)?, Cable::new(true)?];
    let mut senders = Vec::new();
    for (whose, mechanism) in (0..).zip(ReleaseMechanism::ALL) {
        let merging = mechanism == ReleaseMechanism::Live;
        let way = Way::usual(mechanism).with_stamps();
        let from = &cables[usize::from(merging)].lab.ports()[0];
        if let Ok(sender) = Sender::open(from, &way, whose) {
            senders.push((mechanism, merging, sender, Found::default()));
        }
    }
    let running = load.begin(&[])?;
    for number in 0..=trains {
        for (_, merging, sender, found) in &mut senders {
            let referee = &mut cables[usize::from(*merging)].referee;
            referee.clear();
            let start = MonoTime::from_nanos(clock::monotonic_ns()) + MARGIN;
            let gone =
                sender.send(Train { number, frames: FRAMES, gap: GAP, start, size: crate::frames::SIZE })?;
            for seen in referee.collect(FRAMES.into())? {
                if number > 0
                    && let Some(gone) = gone.get(usize::from(seen.key.number))
                {
                    found.take(gone, seen.at);
                }
            }
        }
    }
    drop(running);
    Ok(senders.into_iter().map(|(mechanism, _, _, found)| (mechanism, found)).collect())
}
