//! `packetrig plan`: look at a plan without running it. Needs no rights.

use crate::args::{Plan as Arguments, PlanFile};
use crate::diagnostics;
use crate::document::Document;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{Output, Style, remark};
use packetrig_plan::{Plan, Problem, Severity};
use serde::Serialize;

pub(crate) fn perform(arguments: &Arguments, output: &mut Output) -> Result<Exit, Error> {
    match arguments {
        Arguments::Check(file) => check(file, output),
        Arguments::Explain(file) => explain(file, output),
    }
}

/// What `plan check --json` prints.
#[derive(Serialize)]
struct Checked<'a> {
    schema_version: u32,
    file: &'a str,
    can_run: bool,
    problems: &'a [Problem],
}

fn check(file: &PlanFile, output: &mut Output) -> Result<Exit, Error> {
    let document = Document::read(&file.file)?;
    let read = Plan::read(&document.text);
    let problems = match &read {
        Ok(plan) => &plan.warnings,
        Err(problems) => &problems.0,
    };
    if file.json {
        let checked = Checked { schema_version: 1, file: &document.name, can_run: read.is_ok(), problems };
        output.json(&checked)?;
    } else {
        output.text(diagnostics::render(document.source(), problems, output.style()));
        output.line(summary(&document, &read, problems));
    }
    Ok(if read.is_ok() { Exit::Ok } else { Exit::Plan })
}

fn summary<E>(document: &Document, read: &Result<Plan, E>, problems: &[Problem]) -> String {
    match read {
        Ok(plan) => format!(
            "{}: a plan that can run: {} ports, {} streams, {} captures ({})",
            document.name,
            plan.ports.len(),
            plan.streams.len(),
            plan.captures.len(),
            diagnostics::tally(problems)
        ),
        Err(_) => format!("{}: not a plan that can run ({})", document.name, diagnostics::tally(problems)),
    }
}

fn explain(file: &PlanFile, output: &mut Output) -> Result<Exit, Error> {
    let document = Document::read(&file.file)?;
    let plan = read(&document)?;
    let _ = (plan, output);
    Err(Error::Usage("not wired up yet".into()))
}

/// Reads a plan that shall be used: errors end the command, warnings are shown.
pub(crate) fn read(document: &Document) -> Result<Plan, Error> {
    match Plan::read(&document.text) {
        Ok(plan) => {
            warn(document, &plan.warnings);
            Ok(plan)
        }
        Err(problems) => Err(refused(document, &problems.0)),
    }
}

fn warn(document: &Document, warnings: &[Problem]) {
    let style = Style::of_remarks();
    for warning in warnings.iter().filter(|problem| problem.severity == Severity::Warning) {
        let place = warning.position.map_or_else(String::new, |(line, _)| format!(":{line}"));
        remark(format_args!(
            "{} {}{place}: {}: {}",
            style.doubtful("warning:"),
            document.name,
            warning.path,
            warning.message
        ));
    }
}

/// The error for a document with these problems.
pub(crate) fn refused(document: &Document, problems: &[Problem]) -> Error {
    Error::BadPlan {
        name: document.name.clone(),
        shown: diagnostics::render(document.source(), problems, Style::of_remarks()),
        tally: diagnostics::tally(problems),
    }
}
