//! `packetrig report`: past runs and test methods from the catalogue.

mod diff;
mod html;
mod methods;
mod prune;
mod trend;

pub(crate) use html::page_of;

use super::execution::open_catalogue_to_read;
use super::kept;
use crate::args::{ListResults, OutputForm, ReportAction, ReportArgs as Arguments, UnfinishedArgs};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::count;
use crate::output::{CommandOutput, TextStyle};
use crate::table::fitted_table;
use crate::{identity, results};
use packetrig_fleet::report::columns::StreamTable;
use packetrig_store::{Error as StoreError, RunCatalogue, RunSummary, StoredSummary, files};
use std::path::Path;

/// Results that `report` lists without `--most`.
const MOST: usize = 50;

pub(crate) fn perform(arguments: Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let Some(action) = arguments.action else {
        let default = ListResults { store: arguments.store, most: MOST, methods: false, json: false };
        return list(&default, output).map(|()| CommandExit::Ok);
    };
    match action {
        ReportAction::List(arguments) => list(&arguments, output)?,
        ReportAction::Show { id, form, wide, store } => {
            let style = output.style_for_tables(wide);
            let catalogue = existing_catalogue(store.directory.as_deref(), &id)?;
            show(&catalogue, &id, &form, style, output)?;
        }
        ReportAction::Html { id, file, open, store } => {
            let catalogue = existing_catalogue(store.directory.as_deref(), &id)?;
            html::perform(&catalogue, &id, file, open, output)?;
        }
        ReportAction::Path { id, store } => {
            let catalogue = existing_catalogue(store.directory.as_deref(), &id)?;
            output.line(directory(&catalogue, &id)?.display());
        }
        ReportAction::Diff(arguments) => return diff::perform(&arguments, output),
        ReportAction::Trend(arguments) => return trend::perform(&arguments, output),
        ReportAction::Prune(arguments) => prune::prune(&arguments, output)?,
        ReportAction::Pin { id, store } => prune::pin(&id, store.directory.as_deref(), output)?,
        ReportAction::Unpin { id, store } => prune::unpin(&id, store.directory.as_deref(), output)?,
        ReportAction::Unfinished(arguments) => unfinished(&arguments, output)?,
        ReportAction::Late { store, discard, json } => {
            kept::late(catalogue_to_list(store.directory.as_deref())?.as_ref(), discard, json, output)?;
        }
        ReportAction::Discard { id, store } => {
            discard(&existing_catalogue(store.directory.as_deref(), &id)?, &id, output)?;
        }
    }
    Ok(CommandExit::Ok)
}

fn list(arguments: &ListResults, output: &mut CommandOutput) -> Result<(), Error> {
    let store = arguments.store.directory.as_deref();
    let catalogue = catalogue_to_list(store)?;
    let most = arguments.most;
    let methods = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| catalogue.methods(most))?;
    if arguments.methods {
        return methods::list_only(&methods, arguments.json, output);
    }
    let runs = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| catalogue.list(most))?;
    // Runs with a report only; `report unfinished --json` has the others.
    if arguments.json {
        return Ok(output.json(&runs)?);
    }
    if runs.is_empty() && methods.is_empty() {
        let place = store.map_or_else(packetrig_store::default_place, |place| Ok(place.to_owned()))?;
        output.line(format_args!("there are no runs in {} yet; `packetrig demo` makes one", place.display()));
    } else if !runs.is_empty() {
        let header = ["run", "started (UTC)", "name", "verdict", "ended", "streams", "sent", "lost"];
        let rows: Vec<_> = runs.iter().map(row).collect();
        let least_important = ["streams", "ended", "sent", "lost", "name"];
        output.text(fitted_table(output.style().width(), &header, &rows, &least_important, "`--json`"));
    }
    methods::list(&methods, output);
    let kept = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), RunCatalogue::kept)?;
    kept::list(&kept, output);
    kept::name_late(catalogue.as_ref(), output)
}

fn unfinished(arguments: &UnfinishedArgs, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = catalogue_to_list(arguments.store.directory.as_deref())?;
    let catalogue = catalogue.as_ref();
    let methods = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::unfinished_methods)?;
    if arguments.methods && arguments.json {
        return Ok(output.json(&methods::resumable(&methods))?);
    }
    let kept = if arguments.methods {
        Vec::new()
    } else {
        catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::kept)?
    };
    if arguments.json {
        return Ok(output.json(&kept)?);
    }
    if kept.is_empty() && methods.is_empty() {
        output.line("every run has its report, and every method its result");
    }
    kept::list(&kept, output);
    methods::list_unfinished(&methods, output);
    Ok(())
}

fn row(run: &RunSummary) -> Vec<String> {
    vec![
        run.run.0.clone(),
        identity::date(run.started_wall_ns),
        name_or_dash(&run.name),
        run.verdict.clone(),
        run.outcome.clone(),
        count(run.streams),
        count(run.sent),
        count(run.lost),
    ]
}

fn name_or_dash(name: &str) -> String {
    if name.is_empty() { "–".into() } else { results::short(name) }
}

fn show(
    catalogue: &RunCatalogue,
    id: &str,
    form: &OutputForm,
    style: TextStyle,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let id = match find_stored(catalogue, id)? {
        StoredSummary::Run(run) => run.run.0,
        StoredSummary::Method(method) => return methods::show(&method, form, output),
    };
    let (summary, report) = catalogue.show(&id)?;
    if form.json {
        output.text(files::json(&report));
    } else if form.csv {
        output.text(files::table_csv::<StreamTable>(&report));
    } else if form.junit {
        output.text(files::junit(&report));
    } else if form.markdown {
        output.text(files::markdown(&report));
    } else {
        output.text(results::render(&report, style));
        output.line(format_args!("Files: {}", summary.directory.display()));
    }
    Ok(())
}

/// Directory with the files of a result. A run that is still running, or was killed, has files but no row with a report.
fn directory(catalogue: &RunCatalogue, id: &str) -> Result<std::path::PathBuf, Error> {
    match find_stored(catalogue, id) {
        Err(Error::Store(StoreError::Unknown(_))) => Ok(catalogue.find_kept(id)?.directory),
        found => Ok(found?.directory().to_owned()),
    }
}

fn discard(catalogue: &RunCatalogue, id: &str, output: &mut CommandOutput) -> Result<(), Error> {
    match kept::discard(catalogue, id, output) {
        Err(Error::Store(StoreError::Unknown(_))) => methods::discard(catalogue, id, output),
        done => done,
    }
}

/// Opens the catalogue to list its runs. The first run creates the default one. A named directory that does not exist was
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

/// Opens the catalogue to find a run in it. Without a catalogue the run is unknown.
fn existing_catalogue(store: Option<&Path>, id: &str) -> Result<RunCatalogue, Error> {
    catalogue_to_list(store)?.ok_or_else(|| unknown_run(id))
}

fn unknown_run(id: &str) -> Error {
    if id == "last" {
        return Error::Usage("there are no runs yet; `packetrig demo` makes one".into());
    }
    StoreError::Unknown(id.to_owned()).into()
}

/// Finds the run with that id, or the newest for `last`.
pub(crate) fn find(catalogue: &RunCatalogue, id: &str) -> Result<RunSummary, Error> {
    if id != "last" {
        return Ok(catalogue.find(id)?);
    }
    let newest = catalogue.list(1)?.pop();
    newest.ok_or_else(|| unknown_run(id))
}

/// Finds the run or method with that id, or the newest for `last`.
fn find_stored(catalogue: &RunCatalogue, id: &str) -> Result<StoredSummary, Error> {
    if id != "last" {
        return Ok(catalogue.find_stored(id)?);
    }
    catalogue.newest_stored()?.ok_or_else(|| unknown_run(id))
}
