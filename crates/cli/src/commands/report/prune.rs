//! `packetrig report prune`, which removes old results, and `pin` and `unpin`, which protect single results from it.

use super::{find_stored_result, name_or_dash, open_catalogue_to_list, open_existing_catalogue};
use crate::args::PruneArgs;
use crate::error::Error;
use crate::identity;
use crate::numbers::format_scaled;
use crate::output::CommandOutput;
use crate::table::format_fitted_table;
use packetrig_store::{PruneCriteria, PruneOutcome, PrunedResult};
use packetrig_sys::clock;
use std::path::Path;

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

pub(super) fn prune_results(arguments: &PruneArgs, output: &mut CommandOutput) -> Result<(), Error> {
    let age = arguments.older.map(|days| days.saturating_mul(DAY_NS));
    let criteria = PruneCriteria {
        keep: arguments.newest,
        // The parser accepts at most one of `--older` and `--before`.
        before_wall_ns: age.map(|age| clock::wall_clock_ns().saturating_sub(age)).or(arguments.before),
        name: arguments.name.clone(),
    };
    let outcome = match open_catalogue_to_list(arguments.store.directory.as_deref())? {
        None => PruneOutcome::default(),
        // A dry run prints the same plan that a real call carries out, so both name the same results.
        Some(catalogue) if arguments.dry_run => catalogue.plan_prune(&criteria)?,
        Some(catalogue) => catalogue.prune_results(&criteria)?,
    };
    if arguments.json {
        return Ok(output.write_json(&outcome)?);
    }
    show_prune_outcome(&outcome, arguments.dry_run, output);
    Ok(())
}

fn show_prune_outcome(outcome: &PruneOutcome, is_dry_run: bool, output: &mut CommandOutput) {
    if !outcome.removed.is_empty() {
        let header = ["id", "type", "name", "started (UTC)", "size"];
        let rows: Vec<_> = outcome.removed.iter().map(build_pruned_row).collect();
        output.write_text(format_fitted_table(
            output.style().width(),
            &header,
            &rows,
            &["started (UTC)", "name"],
            "`--json`",
        ));
    }
    // The sum saturates: sizes come from the catalogue, and a damaged size must not cause a panic.
    let bytes = outcome.removed.iter().map(|pruned| pruned.bytes).fold(0, u64::saturating_add);
    let verb = if is_dry_run { "results to remove" } else { "results removed" };
    output.write_line(format_args!(
        "{verb}: {}, {}",
        outcome.removed.len(),
        format_scaled(bytes as f64, "B")
    ));
    let stays = [("are pinned", &outcome.pinned), ("are incomplete or in use", &outcome.incomplete)];
    for (why, ids) in stays.into_iter().filter(|(_, ids)| !ids.is_empty()) {
        output.write_line(format_args!(
            "results that match, but stay because they {why}: {} ({})",
            ids.len(),
            ids.join(" ")
        ));
    }
    if is_dry_run && outcome.finished > 0 {
        output.write_line(format_args!(
            "interrupted removals that would also be finished: {}",
            outcome.finished
        ));
    }
}

fn build_pruned_row(pruned: &PrunedResult) -> Vec<String> {
    vec![
        pruned.id.clone(),
        pruned.kind.clone(),
        name_or_dash(&pruned.name),
        identity::format_utc_date_time(pruned.started_wall_ns),
        format_scaled(pruned.bytes as f64, "B"),
    ]
}

pub(super) fn pin_result(id: &str, store: Option<&Path>, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = open_existing_catalogue(store, id)?;
    let found = find_stored_result(&catalogue, id)?;
    let is_new = catalogue.pin_result(found.id(), clock::wall_clock_ns())?;
    let already = if is_new { "" } else { " already" };
    output.write_line(format_args!("{} is{already} pinned: `packetrig report prune` keeps it", found.id()));
    Ok(())
}

pub(super) fn unpin_result(id: &str, store: Option<&Path>, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = open_existing_catalogue(store, id)?;
    let found = find_stored_result(&catalogue, id)?;
    let had_pin = catalogue.unpin_result(found.id())?;
    let words = if had_pin { "is not pinned any more" } else { "was not pinned" };
    output.write_line(format_args!("{} {words}", found.id()));
    Ok(())
}
