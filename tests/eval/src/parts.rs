//! An evaluation in parts: `EVAL_ONLY=one,other` measures these only.

use crate::Effort;
use crate::output::{Goal, Output};
use anyhow::ensure;
use std::collections::BTreeSet;

/// Measures the parts that are asked for, in their order. What the others found is worth something without a part that fails, so
/// that becomes a goal without a measurement.
pub fn evaluate(
    parts: impl IntoIterator<Item = (&'static str, impl Fn(Effort, &mut Output) -> anyhow::Result<()>)>,
    effort: Effort,
    output: &mut Output,
) -> anyhow::Result<()> {
    let only = std::env::var("EVAL_ONLY").ok();
    let mut wanted: BTreeSet<&str> = only.iter().flat_map(|only| only.split(',')).collect();
    for (name, part) in parts {
        if only.is_some() && !wanted.remove(name) {
            continue;
        }
        if let Err(error) = part(effort, output) {
            output.say(&format!("Part `{name}` came to no end: {error:#}\n"))?;
            output.goal(name, "nothing", "a measurement", &Goal::Unsupported(format!("{error:#}")));
        }
    }
    ensure!(wanted.is_empty(), "EVAL_ONLY names parts that do not exist: {wanted:?}");
    Ok(())
}
