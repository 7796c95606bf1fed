//! `packetrig report` for test methods: lists, shows and removes their results.

use super::name_or_dash;
use crate::args::OutputFormat;
use crate::error::Error;
use crate::identity;
use crate::numbers::format_count;
use crate::output::CommandOutput;
use crate::table::format_fitted_table;
use packetrig_store::methods::{
    RESULT_CSV_FILE, RESULT_FILE_NAME, RESULT_JUNIT_FILE, RESULT_MARKDOWN_FILE, RESULT_TEXT_FILE,
};
use packetrig_store::{MethodState, MethodSummary, RunCatalogue, UnfinishedMethod};
use serde::Serialize;
use std::io;

/// Returns the command that continues an interrupted method.
fn format_resume_command(id: &str) -> String {
    format!("packetrig test resume {id}")
}

/// Prints the result of `report list --methods`.
pub(super) fn print_method_list(
    methods: &[MethodSummary],
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    if json {
        return Ok(output.write_json(&methods)?);
    }
    if methods.is_empty() {
        output.write_line("there are no test methods to list");
    }
    output.write_text(format_methods_table(methods, output));
    Ok(())
}

/// Shows methods below a list of runs, if there are any.
pub(super) fn print_methods_section(methods: &[MethodSummary], output: &mut CommandOutput) {
    if !methods.is_empty() {
        output.write_line("\nTest methods:");
        output.write_text(format_methods_table(methods, output));
    }
}

fn format_methods_table(methods: &[MethodSummary], output: &CommandOutput) -> String {
    if methods.is_empty() {
        return String::new();
    }
    let header = ["id", "started (UTC)", "type", "name", "verdict", "state", "trials"];
    let rows: Vec<_> = methods.iter().map(build_method_row).collect();
    // The id is never shortened: users need it for the commands that show, continue or remove a method.
    let least_important = ["trials", "started (UTC)", "name"];
    format_fitted_table(output.style().width(), &header, &rows, &least_important, "`--methods --json`")
}

fn build_method_row(method: &MethodSummary) -> Vec<String> {
    vec![
        method.id.clone(),
        identity::format_utc_date_time(method.started_wall_ns),
        method.method.clone(),
        name_or_dash(&method.name),
        // A method in progress has no verdict.
        if method.state == MethodState::UnderWay { "–".to_owned() } else { method.verdict.clone() },
        method.state.to_string(),
        format_count(method.trials),
    ]
}

/// Shows methods that are not complete, if there are any.
pub(super) fn print_unfinished_methods(methods: &[UnfinishedMethod], output: &mut CommandOutput) {
    if methods.is_empty() {
        return;
    }
    output.write_line("\nTest methods without a final result:");
    let header = ["id", "type", "name", "trials", "process", "resume with"];
    let rows: Vec<Vec<String>> = methods
        .iter()
        .map(|method| {
            let UnfinishedMethod { summary, process } = method;
            let (process, resume) = match process {
                Some(process) => (format!("{process}, alive"), "–".to_owned()),
                // A test can continue only if its process is gone: two processes would write one journal.
                None => ("ended".to_owned(), format_resume_command(&summary.id)),
            };
            let name = name_or_dash(&summary.name);
            vec![
                summary.id.clone(),
                summary.method.clone(),
                name,
                format_count(summary.trials),
                process,
                resume,
            ]
        })
        .collect();
    let all = "`packetrig report unfinished --methods --json`";
    output.write_text(format_fitted_table(
        output.style().width(),
        &header,
        &rows,
        // The column with the command is always shown: it has the whole id, and a dash if the process is alive.
        &["trials", "name", "process"],
        all,
    ));
}

/// A method that is not complete, for JSON.
#[derive(Serialize)]
pub(super) struct ResumableMethod<'a> {
    #[serde(flatten)]
    method: &'a UnfinishedMethod,
    /// Command that continues the method; absent while the process of the method is running.
    resume: Option<String>,
}

pub(super) fn resumable_methods(methods: &[UnfinishedMethod]) -> Vec<ResumableMethod<'_>> {
    let rows = methods.iter().map(|method| ResumableMethod {
        method,
        resume: method.process.is_none().then(|| format_resume_command(&method.summary.id)),
    });
    rows.collect()
}

/// Prints the stored result of a method in the format that the user chose.
pub(super) fn show_method(
    method: &MethodSummary,
    form: &OutputFormat,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let forms = [
        (form.json, RESULT_FILE_NAME),
        (form.csv, RESULT_CSV_FILE),
        (form.junit, RESULT_JUNIT_FILE),
        (form.markdown, RESULT_MARKDOWN_FILE),
    ];
    let chosen = forms.into_iter().find(|(is_chosen, _)| *is_chosen).map(|(_, file)| file);
    // The files of the test are printed as they are: a later version must not change a past result.
    let file = method.directory.join(chosen.unwrap_or(RESULT_TEXT_FILE));
    match std::fs::read_to_string(&file) {
        Ok(text) => output.write_text(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_result_error(method, chosen)),
        Err(error) => return Err(Error::unreadable_file(&file, error)),
    }
    if chosen.is_none() {
        output.write_line(format_args!("Files: {}", method.directory.display()));
    }
    Ok(())
}

fn no_result_error(method: &MethodSummary, file: Option<&str>) -> Error {
    let id = &method.id;
    Error::Usage(if method.state == MethodState::Complete {
        format!("method {id} has no file {}", file.unwrap_or(RESULT_TEXT_FILE))
    } else {
        format!(
            "method {id} has no result yet ({}, trials: {}); if its process has ended, `{}` continues it",
            method.state,
            format_count(method.trials),
            format_resume_command(id)
        )
    })
}

/// Runs `report discard` for a method: removes its files from the catalogue.
pub(super) fn discard_method(
    catalogue: &RunCatalogue,
    id: &str,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let gone = catalogue.discard_method(id)?;
    output.write_line(format_args!("Removed method {} (trials: {}).", gone.id, format_count(gone.trials)));
    Ok(())
}

/// Renders the web page of a complete method, from its result and its journal.
pub(super) fn render_method_page(method: &MethodSummary) -> Result<String, Error> {
    // Only a complete method has all files that its page needs.
    if method.state == MethodState::Complete {
        return crate::commands::method::rebuild_stored_page(&method.directory);
    }
    Err(no_result_error(method, None))
}
