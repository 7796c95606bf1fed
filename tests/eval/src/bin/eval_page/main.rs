//! Evaluation of the pages: bytes, time to the first drawing, what viewers cost the server and the run, size of report pages and
//! the time they take to write. Run by `eval/run.sh page`. `EVAL_ONLY=viewers` measures one part only.

mod drawing;
mod reports;
mod viewers;

use packetrig_eval::output::{Goal, Output};
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

const PARTS: [(&str, Part); 3] =
    [("drawing", drawing::evaluate), ("viewers", viewers::evaluate), ("reports", reports::evaluate)];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("page", &directory("page"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    for (name, evaluate) in PARTS {
        if only.as_deref().is_some_and(|only| only.split(',').all(|part| part != name)) {
            continue;
        }
        // The other parts are worth something without this one.
        if let Err(error) = evaluate(effort, &mut output) {
            output.say(&format!("Part `{name}` came to no end: {error:#}\n"))?;
            output.goal(name, "nothing", "a measurement", &Goal::Unsupported(format!("{error:#}")));
        }
    }
    output.finish()
}
