//! `packetrig report`: lists, shows, compares and removes the results of runs and test methods in the catalogue.

mod diff;
mod html;
mod methods;
mod prune;
mod trend;

pub(crate) use html::render_stored_page;

use super::execution::open_catalogue_to_read;
use super::kept;
use crate::args::{
    ListResults, ListUnfinishedArgs, OutputFormat, ReportAction, ReportArgs as Arguments, SinceArgs,
};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::{CommandOutput, TextStyle};
use crate::table::format_fitted_table;
use crate::{identity, results};
use packetrig_report::columns::StreamTable;
use packetrig_store::{Error as StoreError, RunCatalogue, RunSummary, StoredSummary, files};
use std::path::Path;

/// Results that `report` lists without `--most`.
const DEFAULT_RESULT_LIMIT: usize = 50;
/// Names in the list are shortened in terminals with fewer columns than this.
const NARROW_TERMINAL: usize = 120;
/// Largest number of characters of a name in a terminal narrower than [`NARROW_TERMINAL`].
const MAX_NARROW_NAME_CHARACTERS: usize = 24;

pub(crate) fn run_report(arguments: Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let Some(action) = arguments.action else {
        let (store, since) = (arguments.store, SinceArgs::default());
        // `report` alone is `report list`: most users want to see past results.
        let default = ListResults { store, most: DEFAULT_RESULT_LIMIT, since, methods: false, json: false };
        return list_results(&default, output).map(|()| CommandExit::Ok);
    };
    match action {
        ReportAction::List(arguments) => list_results(&arguments, output)?,
        ReportAction::Show { id, form, wide, store } => {
            let style = output.style_for_tables(wide);
            let catalogue = open_existing_catalogue(store.directory.as_deref(), &id)?;
            show_result(&catalogue, &id, &form, style, output)?;
        }
        ReportAction::Html { id, file, open, store } => {
            let catalogue = open_existing_catalogue(store.directory.as_deref(), &id)?;
            html::write_and_print_result_page(&catalogue, &id, file, open, output)?;
        }
        ReportAction::Path { id, store } => {
            let catalogue = open_existing_catalogue(store.directory.as_deref(), &id)?;
            output.write_line(find_result_directory(&catalogue, &id)?.display());
        }
        ReportAction::Diff(arguments) => return diff::compare_results(&arguments, output),
        ReportAction::Trend(arguments) => return trend::show_trend(&arguments, output),
        ReportAction::Prune(arguments) => prune::prune_results(&arguments, output)?,
        ReportAction::Pin { id, store } => prune::pin_result(&id, store.directory.as_deref(), output)?,
        ReportAction::Unpin { id, store } => prune::unpin_result(&id, store.directory.as_deref(), output)?,
        ReportAction::Unfinished(arguments) => list_unfinished_results(&arguments, output)?,
        ReportAction::Late { store, discard, json } => {
            kept::show_late_results(
                open_catalogue_to_list(store.directory.as_deref())?.as_ref(),
                discard,
                json,
                output,
            )?;
        }
        ReportAction::Discard { id, store } => {
            discard_result(&open_existing_catalogue(store.directory.as_deref(), &id)?, &id, output)?;
        }
    }
    Ok(CommandExit::Ok)
}

fn list_results(arguments: &ListResults, output: &mut CommandOutput) -> Result<(), Error> {
    let store = arguments.store.directory.as_deref();
    let catalogue = open_catalogue_to_list(store)?;
    let (most, since_ns) = (arguments.most, arguments.since.since_ns());
    let mut methods =
        catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| catalogue.list_methods(most))?;
    // The catalogue has returned the newest methods, so the limit drops none that is newer than a listed one.
    methods.retain(|method| method.started_wall_ns >= since_ns);
    if arguments.methods {
        return methods::print_method_list(&methods, arguments.json, output);
    }
    let mut runs =
        catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| catalogue.list_runs(most))?;
    runs.retain(|run| run.started_wall_ns >= since_ns);
    // The list has only runs with a report; `report unfinished --json` lists the other runs.
    if arguments.json {
        return Ok(output.write_json(&runs)?);
    }
    // An empty catalogue has another message, because here older results may exist.
    if runs.is_empty() && methods.is_empty() && since_ns > 0 {
        output.write_line("no run and no test began in this time; `packetrig report list` shows older ones");
        return Ok(());
    }
    if runs.is_empty() && methods.is_empty() {
        let place =
            store.map_or_else(packetrig_store::default_store_directory, |place| Ok(place.to_owned()))?;
        output.write_line(format_args!(
            "there are no runs in {} yet; `packetrig demo` makes one",
            place.display()
        ));
    } else if !runs.is_empty() {
        let header = ["run", "started (UTC)", "name", "verdict", "ended", "streams", "sent", "lost"];
        let width = output.style().width();
        let is_narrow = width.is_some_and(|width| width < NARROW_TERMINAL);
        // A shortened name is more useful than none.
        let longest_name = if is_narrow { MAX_NARROW_NAME_CHARACTERS } else { results::LONGEST_NAME };
        let rows: Vec<_> = runs.iter().map(|run| run_summary_cells(run, longest_name)).collect();
        // The id contains the start time, so the name is more useful than the column with the start.
        let least_important = ["streams", "ended", "sent", "lost", "started (UTC)", "name"];
        output.write_text(format_fitted_table(width, &header, &rows, &least_important, "`--json`"));
    }
    methods::print_methods_section(&methods, output);
    let kept = catalogue.as_ref().map_or_else(|| Ok(Vec::new()), RunCatalogue::list_unlisted_runs)?;
    kept::print_runs_without_report(&kept, output);
    kept::print_late_results(catalogue.as_ref(), output)
}

fn list_unfinished_results(arguments: &ListUnfinishedArgs, output: &mut CommandOutput) -> Result<(), Error> {
    let catalogue = open_catalogue_to_list(arguments.store.directory.as_deref())?;
    let catalogue = catalogue.as_ref();
    let methods = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::list_unfinished_methods)?;
    if arguments.methods && arguments.json {
        return Ok(output.write_json(&methods::resumable_methods(&methods))?);
    }
    let kept = if arguments.methods {
        Vec::new()
    } else {
        catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::list_unlisted_runs)?
    };
    if arguments.json {
        return Ok(output.write_json(&kept)?);
    }
    if kept.is_empty() && methods.is_empty() {
        output.write_line(
            "there are no unfinished runs or methods: every run has its report, and every method its result",
        );
    }
    kept::print_runs_without_report(&kept, output);
    methods::print_unfinished_methods(&methods, output);
    Ok(())
}

fn run_summary_cells(run: &RunSummary, longest_name: usize) -> Vec<String> {
    // A run of probes has no streams. The list shows a dash, because a zero would mean that frames were counted.
    let count = |frames| if run.streams == 0 { "–".to_owned() } else { format_count(frames) };
    vec![
        run.run.0.clone(),
        identity::format_utc_date_time(run.started_wall_ns),
        results::shorten_text(&name_or_dash(&run.name), longest_name),
        run.verdict.clone(),
        run.outcome.clone(),
        count(run.streams),
        count(run.sent),
        count(run.lost),
    ]
}

fn name_or_dash(name: &str) -> String {
    if name.is_empty() { "–".into() } else { results::shorten_name(name) }
}

fn show_result(
    catalogue: &RunCatalogue,
    id: &str,
    form: &OutputFormat,
    style: TextStyle,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let id = match find_stored_result(catalogue, id)? {
        StoredSummary::Run(run) => run.run.0,
        // A method has other tables than a run, and its own files.
        StoredSummary::Method(method) => return methods::show_method(&method, form, output),
    };
    let (summary, report) = catalogue.load_report(&id)?;
    if form.json {
        output.write_text(files::report_json(&report));
    } else if form.csv {
        output.write_text(files::table_csv::<StreamTable>(&report));
    } else if form.junit {
        output.write_text(files::report_junit(&report));
    } else if form.markdown {
        output.write_text(files::report_markdown(&report));
    } else {
        output.write_text(results::render_report(&report, style));
        output.write_line(format_args!("Files: {}", summary.directory.display()));
    }
    Ok(())
}

/// Returns the directory with the files of a result. Also finds a run without a report, because it is still in
/// progress or was killed.
fn find_result_directory(catalogue: &RunCatalogue, id: &str) -> Result<std::path::PathBuf, Error> {
    match find_stored_result(catalogue, id) {
        // Only an unknown id is searched among the runs without a report: an ambiguous id stays an error.
        Err(Error::Store(StoreError::Unknown(_))) => Ok(catalogue.find_unlisted_run(id)?.directory),
        found => Ok(found?.directory().to_owned()),
    }
}

fn discard_result(catalogue: &RunCatalogue, id: &str, output: &mut CommandOutput) -> Result<(), Error> {
    // Runs and methods have ids of the same form, so an id that belongs to no run may belong to a method.
    match kept::discard_run(catalogue, id, output) {
        Err(Error::Store(StoreError::Unknown(_))) => methods::discard_method(catalogue, id, output),
        done => done,
    }
}

/// Opens the catalogue to list its runs; `None` if the default one does not exist yet, because the first run
/// creates it. A named directory without a catalogue is an error: it was probably typed wrong, and an empty list
/// would look like lost results.
fn open_catalogue_to_list(store: Option<&Path>) -> Result<Option<RunCatalogue>, Error> {
    let catalogue = open_catalogue_to_read(store)?;
    match (store, &catalogue) {
        (Some(place), None) => {
            Err(Error::Usage(format!("there is no catalogue of runs in {}", place.display())))
        }
        _ => Ok(catalogue),
    }
}

/// Opens the catalogue to find the run `id`. Without a catalogue, the error says that this run is unknown.
fn open_existing_catalogue(store: Option<&Path>, id: &str) -> Result<RunCatalogue, Error> {
    open_catalogue_to_list(store)?.ok_or_else(|| unknown_run_error(id))
}

fn unknown_run_error(id: &str) -> Error {
    if id == "last" {
        return Error::Usage("there are no runs yet; `packetrig demo` makes one".into());
    }
    StoreError::Unknown(id.to_owned()).into()
}

/// Finds the run by its id, the beginning of its id, or its name; `last` means the newest run.
pub(crate) fn find_run(catalogue: &RunCatalogue, id: &str) -> Result<RunSummary, Error> {
    if id != "last" {
        return Ok(catalogue.find_run(id)?);
    }
    let newest = catalogue.list_runs(1)?.pop();
    newest.ok_or_else(|| unknown_run_error(id))
}

/// Finds the run or method by its id, the beginning of its id, or its name; `last` means the newest of all.
fn find_stored_result(catalogue: &RunCatalogue, id: &str) -> Result<StoredSummary, Error> {
    if id != "last" {
        return Ok(catalogue.find_stored_result(id)?);
    }
    catalogue.find_newest_stored_result()?.ok_or_else(|| unknown_run_error(id))
}
