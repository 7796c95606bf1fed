//! MLRsearch beside the reference library: random searches and random sets of trials, decided by both.

use crate::oracle::ReferenceLibrary;
use crate::{classes, searches};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output};

/// Decisions that both sides made, and those that were equal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) all: u64,
    pub(crate) equal: u64,
}

pub(crate) fn evaluate(effort: Effort, seed: u64, output: &mut Output) -> anyhow::Result<()> {
    output.say("## MLRsearch beside the reference library\n")?;
    let mut library = ReferenceLibrary::start()?;
    let searches = searches::compare(effort, seed, &mut library, output)?;
    let classes = classes::compare(effort, seed, &mut library, output)?;
    let measured = format!(
        "{} of {} searches and {} of {} classifications identical to MLRsearch 1.2.1",
        searches.equal, searches.all, classes.equal, classes.all
    );
    let is_met = searches.equal == searches.all && classes.equal == classes.all;
    output.goal("mlrsearch", &measured, "all", &Goal::from(is_met));
    Ok(())
}
