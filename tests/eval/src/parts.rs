//! An evaluation in parts: `EVAL_ONLY=one,other` measures these only.

use crate::Effort;
use crate::output::{Goal, Output};

/// Measures the parts that are asked for, in their order. What the others found is worth something without a part that fails, so
/// that becomes a goal without a measurement.
pub fn evaluate(
    parts: impl IntoIterator<Item = (&'static str, impl Fn(Effort, &mut Output) -> anyhow::Result<()>)>,
    effort: Effort,
    output: &mut Output,
) -> anyhow::Result<()> {
    let only = std::env::var("EVAL_ONLY").ok();
    for (name, part) in parts {
        if only.as_deref().is_some_and(|only| only.split(',').all(|one| one != name)) {
            continue;
        }
        if let Err(error) = part(effort, output) {
            output.say(&format!("Part `{name}` came to no end: {error:#}\n"))?;
            output.goal(name, "nothing", "a measurement", &Goal::Unsupported(format!("{error:#}")));
        }
    }
    Ok(())
}
