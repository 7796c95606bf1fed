//! `packetrig report`: past runs from the catalogue.

use super::execution::open_catalogue_to_read;
use super::kept;
use crate::args::{OutputForm, ReportAction, ReportArgs as Arguments};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::count;
use crate::output::{CommandOutput, TextStyle};
use crate::table::fitted_table;
use crate::{identity, results};
use packetrig_fleet::report::columns::StreamTable;
use packetrig_store::{Error as StoreError, RunCatalogue, RunSummary, files};
use std::path::Path;

/// Runs that `report` lists without `--most`.
const MOST: usize = 50;

pub(crate) fn perform(arguments: Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let store = arguments.store.directory.as_deref();
    match arguments.action {
        None => list(store, MOST, false, output)?,
        Some(ReportAction::List { store, most, json }) => {
            list(store.directory.as_deref(), most, json, output)?;
        }
        Some(ReportAction::Show { id, form, wide, store }) => {
            let style = output.style_for_tables(wide);
            let catalogue = existing_catalogue(store.directory.as_deref(), &id)?;
            show(&catalogue, &id, &form, style, output)?;
        }
        Some(ReportAction::Path { id, store }) => {
            let catalogue = existing_catalogue(store.directory.as_deref(), &id)?;
            // A run that is still running, or was killed, has files but no row with a report.
            let directory = match find(&catalogue, &id) {
                Err(Error::Store(StoreError::Unknown(_))) => catalogue.find_kept(&id)?.directory,
                found => found?.directory,
            };
            output.line(directory.display());
        }
        Some(ReportAction::Unfinished { store, json }) => {
            unfinished(store.directory.as_deref(), json, output)?;
        }
        Some(ReportAction::Late { store, discard, json }) => {
            kept::late(catalogue_to_list(store.directory.as_deref())?.as_ref(), discard, json, output)?;
        }
        Some(ReportAction::Discard { id, store }) => {
            kept::discard(&existing_catalogue(store.directory.as_deref(), &id)?, &id, output)?;
        }
    }
    Ok(CommandExit::Ok)
}

fn list(store: Option<&Path>, most: usize, json: bool, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = catalogue_to_list(store)?;
    let runs = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| catalogue.list(most))?;
    // Runs with a report only; `report unfinished --json` has the others.
    if json {
        return Ok(output.json(&runs)?);
    }
    let kept = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), RunCatalogue::kept)?;
    if runs.is_empty() {
        let place = store.map_or_else(packetrig_store::default_place, |place| Ok(place.to_owned()))?;
        output.line(format_args!("there are no runs in {} yet; `packetrig demo` makes one", place.display()));
        kept::list(&kept, output);
        return kept::name_late(catalogue.as_ref(), output);
    }
    let header = ["run", "started (UTC)", "name", "verdict", "ended", "streams", "sent", "lost"];
    let rows: Vec<_> = runs.iter().map(row).collect();
    let least_important = ["streams", "ended", "sent", "lost", "name"];
    output.text(fitted_table(output.style().width(), &header, &rows, &least_important, "`--json`"));
    kept::list(&kept, output);
    kept::name_late(catalogue.as_ref(), output)
}

fn unfinished(store: Option<&Path>, json: bool, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = catalogue_to_list(store)?;
    let kept = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), RunCatalogue::kept)?;
    if json {
        return Ok(output.json(&kept)?);
    }
    if kept.is_empty() {
        output.line("every run has its report");
    }
    kept::list(&kept, output);
    Ok(())
}

fn row(run: &RunSummary) -> Vec<String> {
    vec![
        run.run.0.clone(),
        identity::date(run.started_wall_ns),
        if run.name.is_empty() { "–".into() } else { results::short(&run.name) },
        run.verdict.clone(),
        run.outcome.clone(),
        count(run.streams),
        count(run.sent),
        count(run.lost),
    ]
}

fn show(
    catalogue: &RunCatalogue,
    id: &str,
    form: &OutputForm,
    style: TextStyle,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let id = find(catalogue, id)?.run.0;
    let (summary, report) = catalogue.show(&id)?;
    if form.json {
        output.text(files::json(&report));
    } else if form.csv {
        output.text(files::table_csv::<StreamTable>(&report));
    } else if form.junit {
        output.text(files::junit(&report));
    } else {
        output.text(results::render(&report, style));
        output.line(format_args!("Files: {}", summary.directory.display()));
    }
    Ok(())
}

/// The catalogue whose runs are listed. The default one comes with the first run. A directory that was named is there, or it was
/// typed wrong: an empty list would look like lost results.
fn catalogue_to_list(store: Option<&Path>) -> Result<Option<RunCatalogue>, Error> {
    let catalogue = open_catalogue_to_read(store)?;
    match (store, &catalogue) {
        (Some(place), None) => {
            Err(Error::Usage(format!("there is no catalogue of runs in {}", place.display())))
        }
        _ => Ok(catalogue),
    }
}

/// The catalogue to look for a run in. If there is none yet, there is no such run.
fn existing_catalogue(store: Option<&Path>, id: &str) -> Result<RunCatalogue, Error> {
    catalogue_to_list(store)?.ok_or_else(|| unknown_run(id))
}

fn unknown_run(id: &str) -> Error {
    if id == "last" {
        return Error::Usage("there are no runs yet; `packetrig demo` makes one".into());
    }
    StoreError::Unknown(id.to_owned()).into()
}

/// The run with that id, or the newest for `last`.
pub(crate) fn find(catalogue: &RunCatalogue, id: &str) -> Result<RunSummary, Error> {
    if id != "last" {
        return Ok(catalogue.find(id)?);
    }
    let newest = catalogue.list(1)?.pop();
    newest.ok_or_else(|| unknown_run(id))
}
