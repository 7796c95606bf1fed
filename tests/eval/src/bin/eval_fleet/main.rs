//! Evaluation of the fleet: what a thousand agents cost, how far apart starts are, what a trial takes beside its traffic, when
//! the last frame leaves after a cut, whether results survive kills, and what a fleet carries. Run by `eval/run.sh fleet`, which
//! puts it into a private lab. `EVAL_ONLY=lease` measures one part only.

mod carried;
mod crowd;
mod frameless;
mod growth;
mod hosted;
mod kills;
mod lease;
mod paper;
mod plans;
mod rig;
mod segments;
mod start;
mod thousand;

use packetrig_eval::output::{Goal, Output};
use packetrig_eval::{Effort, directory, parts};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

/// Goals in the order of the page, for when none can be measured.
const GOALS: [&str; 8] =
    ["counters", "growth", "paper_growth", "fan_out", "start_skew", "trial", "lease", "results_equal"];

fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some(crowd::WORD) {
        return crowd::perform();
    }
    if std::env::args().nth(1).as_deref() == Some(hosted::WORD) {
        return hosted::perform();
    }
    let effort = Effort::from_environment();
    let mut output = Output::new("fleet", &directory("fleet"), effort)?;
    if let Err(missing) = packetrig_nats::broker::find_program(None) {
        for what in GOALS {
            output.goal(what, "nothing", "a measurement", &Goal::Unsupported(missing.to_string()));
        }
        return output.finish();
    }
    let all: [(&str, Part); 7] = [
        ("thousand", thousand::evaluate),
        ("growth", growth::evaluate),
        ("paper", paper::evaluate),
        ("start", start::evaluate),
        ("lease", lease::evaluate),
        ("kills", kills::evaluate),
        ("carried", carried::evaluate),
    ];
    parts::evaluate(all, effort, &mut output)?;
    output.finish()
}
