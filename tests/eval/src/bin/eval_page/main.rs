//! Evaluation of the pages: bytes, time to the first drawing, what viewers cost the server and the run, size of report pages and
//! the time they take to write. Run by `eval/run.sh page`. `EVAL_ONLY=viewers` measures one part only.

mod drawing;
mod reports;
mod viewers;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory, parts};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

const PARTS: [(&str, Part); 3] =
    [("drawing", drawing::evaluate), ("viewers", viewers::evaluate), ("reports", reports::evaluate)];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("page", &directory("page"), effort)?;
    parts::evaluate(PARTS, effort, &mut output)?;
    output.finish()
}
