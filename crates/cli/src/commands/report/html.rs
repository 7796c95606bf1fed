//! `packetrig report html`: renders the web page of a stored result again.

use super::find_stored_result;
use crate::error::Error;
use crate::output::CommandOutput;
use crate::page_opener::PageOpener;
use packetrig_store::{RunCatalogue, StoredSummary, files};
use packetrig_sys::private_files;
use std::path::PathBuf;

/// Renders the web page of a stored result again, from its files.
pub(crate) fn render_stored_page(catalogue: &RunCatalogue, stored: &StoredSummary) -> Result<String, Error> {
    match stored {
        StoredSummary::Run(run) => {
            let (summary, report) = catalogue.load_report(&run.run.0)?;
            // A run that was stored without its plan still has a page.
            Ok(files::report_page(&report, &catalogue.read_plan(&summary.run).unwrap_or_default()))
        }
        StoredSummary::Method(method) => super::methods::render_method_page(method),
    }
}

/// Writes the page of a result to `file`, or into the directory of the result, and prints the path of the page.
pub(super) fn write_and_print_result_page(
    catalogue: &RunCatalogue,
    id: &str,
    file: Option<PathBuf>,
    open: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    // The program that opens the page is searched before the page is made, so that its absence is reported early.
    let opener = open.then(PageOpener::find_program).transpose()?;
    let stored = find_stored_result(catalogue, id)?;
    let page = render_stored_page(catalogue, &stored)?;
    let file = file.unwrap_or_else(|| stored.directory().join(files::PAGE));
    private_files::write_file(&file, page.as_bytes())
        .map_err(|source| Error::Write { what: file.display().to_string(), source })?;
    output.write_line(file.display());
    opener.map_or(Ok(()), |opener| opener.open_page(&file))
}
