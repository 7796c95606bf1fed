//! What befalls a mirror, or the tap's process, while frames pass: how many of them are lost.

use crate::flood::{self, Bursts, Plan};
use crate::rig::{End, Middle, Rig, pause, uncopied};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_sys::link::NamespaceLinks;

/// Frames of a millisecond.
const PER_MS: u64 = 100;
/// Longer than the MTU that is too small.
const SIZE: u32 = 512;
const FLOOD: Plan = Plan { size: 64, batch: 256, frames: 40_000, every_ns: 40_000_000 };
const SMALL_MTU: u32 = 256;
/// For what is still on its way.
const SETTLE_MS: u64 = 300;
const MIDDLES: [Middle; 3] = [Middle::TapXdp, Middle::TapPacket, Middle::Mirred];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    None,
    Down,
    Full,
    Unplugged,
    Deleted,
    Small,
    Killed,
}

impl Failure {
    const ALL: [Self; 7] =
        [Self::None, Self::Down, Self::Full, Self::Unplugged, Self::Deleted, Self::Small, Self::Killed];

    fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Down => "the mirror is set down",
            Self::Full => "the mirror is flooded",
            Self::Unplugged => "the mirror's far end is set down",
            Self::Deleted => "the mirror is deleted",
            Self::Small => "the mirror's MTU becomes too small",
            Self::Killed => "kill -9 of the tap",
        }
    }

    /// In the name of its goal.
    fn short(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Down => "down",
            Self::Full => "full",
            Self::Unplugged => "unplugged",
            Self::Deleted => "deleted",
            Self::Small => "small_mtu",
            Self::Killed => "killed",
        }
    }

    /// Lets it happen; a flood lasts as long as what is returned.
    fn befall(self, rig: &mut Rig) -> anyhow::Result<Option<Bursts>> {
        let mut links = NamespaceLinks::open_in(rig.middle()?)?;
        let mirror = rig.mirror_index()?;
        match self {
            Self::None => {}
            Self::Down => links.switch_interface(mirror, false)?,
            Self::Full => return Bursts::start(rig.middle()?, mirror, FLOOD).map(Some),
            Self::Unplugged => {
                let far = rig.station(2);
                NamespaceLinks::open_in(far.netns())?.switch_interface(far.link.index, false)?;
            }
            Self::Deleted => links.delete_link(mirror)?,
            Self::Small => links.set_mtu(mirror, SMALL_MTU)?,
            Self::Killed => rig.kill(),
        }
        Ok(None)
    }
}

/// Frames.
struct Lost {
    sent: u64,
    arrived: u64,
    uncopied: u64,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, ms) = if effort.quick { (1, 900) } else { (3, 1500) };
    output.say(&format!(
        "## Failures\n\n{} frames of {SIZE} B per second for {ms} ms, {rounds} rounds; after a third of them it happens. Sent is what the \
         kernel took from the sender's ring, arrived is its count at the far end of the link.\n",
        PER_MS * 1000
    ))?;
    let mut table = Table::new(&[
        "between the ends",
        "what happens",
        "sent",
        "arrived",
        "lost",
        "copies given up, says the tap",
    ]);
    for failure in Failure::ALL {
        for middle in MIDDLES {
            if failure == Failure::Killed && middle != Middle::TapXdp {
                continue;
            }
            let lost = several(middle, failure, ms, rounds)?;
            let missing = i128::from(lost.sent) - i128::from(lost.arrived);
            let uncopied =
                if middle == Middle::Mirred { "–".to_owned() } else { lost.uncopied.to_string() };
            let frames = [lost.sent.to_string(), lost.arrived.to_string(), missing.to_string(), uncopied];
            table
                .rows
                .push([&[middle.name().to_owned(), failure.name().to_owned()][..], &frames[..]].concat());
            if middle == Middle::TapXdp && failure != Failure::None {
                output.goal(
                    &format!("failure_{}", failure.short()),
                    &format!("{missing} of {} frames lost", lost.sent),
                    "= 0",
                    &(missing == 0 && lost.sent > 0).into(),
                );
            }
        }
    }
    output.table("failures", &table)
}

fn several(middle: Middle, failure: Failure, ms: u64, rounds: u32) -> anyhow::Result<Lost> {
    let mut sum = Lost { sent: 0, arrived: 0, uncopied: 0 };
    for _ in 0..rounds {
        let next = once(middle, failure, ms)?;
        sum.sent += next.sent;
        sum.arrived += next.arrived;
        sum.uncopied += next.uncopied;
    }
    Ok(sum)
}

fn once(middle: Middle, failure: Failure, ms: u64) -> anyhow::Result<Lost> {
    let mut rig = Rig::new(middle, [End::Stack, End::Drop, End::Drop], false)?;
    let before = rig.count(1)?.taken;
    let flow = flood::paced(rig.station(0), SIZE, PER_MS, ms)?;
    pause(ms / 3);
    let flood = failure.befall(&mut rig)?;
    let sent = flow.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    drop(flood);
    pause(SETTLE_MS);
    let arrived = rig.count(1)?.taken - before;
    let tap = if failure == Failure::Killed { rig.end_killed()? } else { rig.end()? };
    Ok(Lost { sent, arrived, uncopied: uncopied(&tap) })
}
