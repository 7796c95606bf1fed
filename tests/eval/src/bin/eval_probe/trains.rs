//! Trains (E5.1, E5.2, E5.5): how far each sender's distances between frames are from the planned ones, by the far end's stamps.
//!
//! All senders of a table take turns train by train, so that whatever the machine does befalls all alike.

use crate::figures::{Series, difference, micros};
use crate::judge;
use crate::lab::Cable;
use crate::load::Load;
use crate::peers::{Peer, Ready};
use crate::referee::Seen;
use crate::sender::{Sender, Train, Way};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_probe::ReleaseMechanism;
use packetrig_probe_io::release::{DepartedFrame, ReleaseOptions};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::pattern::keyed_mix;
use std::path::Path;

/// Of a train, as in R5.
pub(crate) const FRAMES: u16 = 50;
pub(crate) const GAPS_US: [u64; 2] = [10, 1000];
pub(crate) const AHEAD_US: [u64; 4] = [0, 100, 500, 1000];
/// Longer than any distance: the processor stays awake throughout a train.
const AWAKE_US: u64 = 1_100;
/// For a sender's thread to wake up on a busy machine, and take the train.
const MARGIN: Nanos = Nanos::from_millis(8);
/// Of the kernel's timer, at 250 a second.
const TICK: Nanos = Nanos::from_millis(4);

/// Who sends.
enum Who {
    Ours(Sender),
    Peer(Ready),
}

/// Who sends, and what the referee saw of it.
pub(crate) struct Turn {
    pub(crate) name: String,
    /// Mechanism and options; `None` of peers.
    pub(crate) ours: Option<(ReleaseMechanism, ReleaseOptions)>,
    who: Who,
    /// Over the cable whose far end merges.
    pub(crate) merging: bool,
    whose: u16,
    pub(crate) found: Found,
}

/// What the referee saw, nanoseconds.
#[derive(Default)]
pub(crate) struct Found {
    sent: u64,
    lost: u64,
    /// Distance between neighbours minus the planned one.
    pub(crate) between: Series,
    /// Arrival minus planned instant; nothing of peers, which have their own start.
    after: Series,
    /// Release as reported minus planned instant.
    released: Series,
    /// Time the trains took, and what they should have taken.
    took: u64,
    planned: u64,
}

impl Found {
    fn take(&mut self, train: &Train, gone: Option<&[DepartedFrame]>, seen: &[Seen]) {
        self.sent += u64::from(train.frames);
        self.lost += u64::from(train.frames).saturating_sub(seen.len() as u64);
        let gap = train.gap.as_u64();
        for two in seen.windows(2) {
            let steps = u64::from(two[1].key.number.saturating_sub(two[0].key.number));
            self.between.push(difference(gap * steps, two[1].at.saturating_sub(two[0].at)));
        }
        if let [first, .., last] = seen {
            self.took += last.at.saturating_sub(first.at);
            self.planned += gap * u64::from(last.key.number.saturating_sub(first.key.number));
        }
        let Some(gone) = gone else { return };
        for seen in seen {
            self.after.push(difference(train.due(seen.key.number).as_nanos(), seen.at));
        }
        for (number, gone) in (0..).zip(gone) {
            let due = train.due(number).as_nanos();
            self.released.extend(gone.released.map(|released| difference(due, released.lo)));
        }
    }

    fn rate(&self) -> f64 {
        self.planned as f64 / self.took.max(1) as f64
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trains = if effort.quick { 10 } else { 200 };
    output.say(&format!(
        "## Trains\n\n{trains} trains of {FRAMES} frames of 200 B from each sender, all taking turns train by train. Errors are of the distance between \
         neighbours, by the far end's kernel stamps, microseconds; rate is planned over actual duration of the trains. `sleep, slack 50us` is the sequential baseline. `ring` keeps the instant of a train's first frame only, and is among the pairs. \
         Live frames need a far end that merges (NAPI), which stamps later than the wire: `spin` over such a cable stands beside it.\n"
    ))?;
    let mut judged = judge::Trains::default();
    for gap_us in GAPS_US {
        for load in Load::ALL {
            let (turns, refused) = measure(load, Nanos::from_micros(gap_us), trains)?;
            let name = format!("trains_{}_{gap_us}", load.short());
            output.say(&format!("### {gap_us} us apart, {}\n", load.name()))?;
            output.table(&name, &table(&turns))?;
            if judged.is_empty() && !refused.is_empty() {
                output.say(&format!("Not here:\n\n{}\n", refused.join("\n")))?;
            }
            judged.take(load, gap_us, &turns);
        }
    }
    judged.say(output)
}

fn table(turns: &[Turn]) -> Table {
    let mut table = Table::new(&[
        "sender",
        "frames",
        "lost",
        "error p50",
        "p99",
        "max",
        "after its instant p50",
        "p99",
        "released, it says, p50",
        "rate",
    ]);
    for turn in turns {
        let (found, errors) = (&turn.found, turn.found.between.absolute());
        let counts = [found.sent, found.lost].map(|frames| frames.to_string());
        let between = [500, 990, 1000].map(|share| micros(errors.permille(share)));
        let after = [500, 990].map(|share| micros(found.after.permille(share)));
        let name = [turn.name.clone()];
        table.rows.push(
            [
                &name[..],
                &counts,
                &between,
                &after,
                &[micros(found.released.permille(500)), format!("{:.4}", found.rate())],
            ]
            .concat(),
        );
    }
    table
}

/// Our ways and over which cable; baselines first.
fn ways() -> Vec<(Way, bool)> {
    let fifo = Way::usual(ReleaseMechanism::Sleep);
    let fifo = Way { name: "sleep, slack 1ns, FIFO".to_owned(), ..fifo };
    let mut ways = vec![
        (Way::plain(Nanos::from_micros(50)), false),
        (Way::plain(Nanos::new(1)), false),
        (fifo, false),
        (Way::usual(ReleaseMechanism::Spin), false),
        (Way::usual(ReleaseMechanism::Spin).spinning_from(AWAKE_US), false),
    ];
    ways.extend(AHEAD_US.map(|us| (Way::usual(ReleaseMechanism::Gate).ahead(us), false)));
    for mechanism in [ReleaseMechanism::Fq, ReleaseMechanism::Etf, ReleaseMechanism::Launch] {
        ways.push((Way::usual(mechanism), false));
    }
    let spin = Way::usual(ReleaseMechanism::Spin);
    ways.push((Way { name: "spin, far end merges".to_owned(), ..spin }, true));
    let live = |us| {
        let way = Way::usual(ReleaseMechanism::Live).ahead(us);
        (Way { name: format!("{}, far end merges", way.name), ..way }, true)
    };
    ways.extend(AHEAD_US.map(live));
    ways
}

/// Everybody's turns at one load and gap, and who cannot take part.
fn measure(load: Load, gap: Nanos, trains: u32) -> anyhow::Result<(Vec<Turn>, Vec<String>)> {
    let mut cables = [Cable::new(false)?, Cable::new(true)?];
    let files = tempfile::tempdir()?;
    let (mut turns, refused) = begin(&cables, gap, files.path())?;
    let running = load.begin(&cables.each_ref().map(|cable| &cable.lab))?;
    for number in 0..=trains {
        for turn in &mut turns {
            // The first round wakes everything up and is not counted.
            let cable = &mut cables[usize::from(turn.merging)];
            turn.once(cable, number, gap, number > 0)?;
        }
    }
    drop(running);
    Ok((turns, refused))
}

fn begin(cables: &[Cable; 2], gap: Nanos, files: &Path) -> anyhow::Result<(Vec<Turn>, Vec<String>)> {
    let (mut turns, mut refused) = (Vec::new(), Vec::new());
    for (whose, (way, merging)) in (0..).zip(ways()) {
        let from = &cables[usize::from(merging)].lab.ports()[0];
        match Sender::open(from, &way, whose) {
            Ok(sender) => turns.push(Turn {
                name: way.name,
                ours: Some((way.mechanism, way.options)),
                who: Who::Ours(sender),
                merging,
                whose,
                found: Found::default(),
            }),
            Err(error) => refused.push(format!("* `{}`: {error}", way.name)),
        }
    }
    for (whose, peer) in (1000..).zip([Peer::Trafgen, Peer::Tcpreplay]) {
        let ready = Ready::new(peer, whose, FRAMES, gap.as_u64(), files)?;
        turns.push(Turn {
            name: peer.name().to_owned(),
            ours: None,
            who: Who::Peer(ready),
            merging: false,
            whose,
            found: Found::default(),
        });
    }
    Ok((turns, refused))
}

impl Turn {
    fn once(&mut self, cable: &mut Cable, number: u32, gap: Nanos, counts: bool) -> anyhow::Result<()> {
        cable.referee.clear();
        // The referee's ring is handed over at a tick of the kernel's timer: without chance every train would begin at the same distance from one.
        let chance = Nanos::new(keyed_mix(u64::from(self.whose), number.into()) % TICK.as_u64());
        let start = MonoTime::from_nanos(clock::monotonic_ns()) + MARGIN + chance;
        let train = Train { number, frames: FRAMES, gap, start, size: crate::frames::SIZE };
        let gone = match &mut self.who {
            Who::Ours(sender) => Some(sender.send(train)?),
            Who::Peer(ready) => {
                ready.send(&cable.lab.ports()[0])?;
                None
            }
        };
        let mut seen = cable.referee.collect(FRAMES.into())?;
        let whose = self.whose;
        seen.retain(|seen| seen.key.whose == whose);
        if counts {
            self.found.take(&train, gone.as_deref(), &seen);
        }
        Ok(())
    }
}
