//! Answers queries of the server's viewers: for results in the catalogue, and for the nodes of a fleet.

use crate::commands::{build_nodes_json, open_catalogue_to_read, render_stored_page};
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use packetrig_report::{PortReport, StreamReport};
use packetrig_server::{ResultArchive, ResultPage, ResultQuery, ResultSummary, RigPartSource, ViewRefusal};
use packetrig_stats::figure::FigureLimits;
use packetrig_store::results::{ComparableResult, ComparisonReport};
use packetrig_store::{
    CatalogueEntry, CatalogueQuery, Error as StoreError, RunCatalogue, StoredSummary, files,
};
use packetrig_units::clamp_to_usize;
use serde_json::{Value, json};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The catalogue in a directory. The first query that finds it opens it, and later queries use the same connection.
#[derive(Debug)]
pub(crate) struct CatalogueArchive {
    /// `None` stands for the default directory.
    place: Option<PathBuf>,
    // This lock delays only other viewers, because runs have their own connections. Files are read without the lock,
    // because reports may be large.
    open: Mutex<Option<RunCatalogue>>,
}

impl CatalogueArchive {
    pub(crate) fn new(place: Option<PathBuf>) -> Self {
        Self { place, open: Mutex::default() }
    }

    /// Queries the catalogue. Returns `None` if there is no catalogue yet.
    fn with_catalogue<T>(
        &self,
        question: impl FnOnce(&RunCatalogue) -> Result<T, StoreError>,
    ) -> Result<Option<T>, ViewRefusal> {
        // A lock poisoned by a panic is still usable, because this connection only reads the catalogue.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            *open =
                open_catalogue_to_read(self.place.as_deref()).map_err(|error| refusal_from_error(&error))?;
        }
        open.as_ref().map(|catalogue| question(catalogue).map_err(refusal_from_store_error)).transpose()
    }

    /// Queries the catalogue, like [`Self::with_catalogue`]. Without a catalogue, the error names `id` as unknown.
    fn with_existing_catalogue<T>(
        &self,
        id: &str,
        question: impl FnOnce(&RunCatalogue) -> Result<T, StoreError>,
    ) -> Result<T, ViewRefusal> {
        self.with_catalogue(question)?
            .ok_or_else(|| refusal_from_store_error(StoreError::Unknown(id.to_owned())))
    }

    /// Finds the run or method by its id, the beginning of its id, or its name; `last` is the newest one.
    fn find_stored_result(&self, id: &str) -> Result<StoredSummary, ViewRefusal> {
        self.with_existing_catalogue(id, |catalogue| find_by_id_or_last(catalogue, id))
    }

    /// Reads what a comparison needs of the result with this id: its plan or options, and its figures.
    fn read_comparable_result_by_id(&self, id: &str) -> Result<ComparableResult, ViewRefusal> {
        self.find_stored_result(id)?
            .read_comparable_result()
            .map_err(|error| explain_unreadable_result(error, id))
    }

    /// Renders the page of a stored result that has no page in its directory.
    fn render_result_page(&self, stored: &StoredSummary) -> Result<String, ViewRefusal> {
        // A separate connection is opened, so that other viewers need not wait while a whole result is read and
        // rendered. Only results of earlier versions, and results that were stored without a page, come here.
        let own =
            open_catalogue_to_read(self.place.as_deref()).map_err(|error| refusal_from_error(&error))?;
        let own = own.ok_or_else(|| refusal_from_store_error(StoreError::Unknown(stored.id().to_owned())))?;
        render_stored_page(&own, stored).map_err(|error| refusal_from_error(&error))
    }
}

/// Returns the refusal for a result that cannot be read. `id` is what the user called the result. A missing file means
/// that the run or method has no result yet.
fn explain_unreadable_result(error: StoreError, id: &str) -> ViewRefusal {
    match error {
        StoreError::File { source, .. } if source.kind() == ErrorKind::NotFound => missing_result_refusal(id),
        StoreError::NoResult(_) => missing_result_refusal(id),
        error => refusal_from_store_error(error),
    }
}

/// Reads the text of the whole result. Errors call the result `id`, as the user did.
fn read_result(stored: &StoredSummary, id: &str) -> Result<String, ViewRefusal> {
    let path = stored.result_file();
    // The text is passed on without being parsed: a report may be large, and the page reads it itself.
    fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing_result_refusal(id),
        _ => ViewRefusal::Failed(format!("cannot read {}: {error}", path.display())),
    })
}

fn missing_result_refusal(id: &str) -> ViewRefusal {
    ViewRefusal::Unknown(format!("{id} has no result yet"))
}

/// Finds the run or method by its id, the beginning of its id, or its name; `last` is the newest one.
fn find_by_id_or_last(catalogue: &RunCatalogue, id: &str) -> Result<StoredSummary, StoreError> {
    if id != "last" {
        return catalogue.find_stored_result(id);
    }
    catalogue.find_newest_stored_result()?.ok_or_else(|| StoreError::Unknown(id.to_owned()))
}

fn refusal_from_store_error(error: StoreError) -> ViewRefusal {
    match error {
        StoreError::Unknown(_) | StoreError::NoResult(_) => ViewRefusal::Unknown(error.to_string()),
        StoreError::Ambiguous { .. } => ViewRefusal::Invalid(error.to_string()),
        error => ViewRefusal::Failed(packetrig_units::message_with_causes(&error)),
    }
}

fn refusal_from_error(error: &Error) -> ViewRefusal {
    ViewRefusal::Failed(packetrig_units::message_with_causes(error))
}

impl ResultArchive for CatalogueArchive {
    fn list_results(&self, query: &ResultQuery) -> Result<ResultPage, ViewRefusal> {
        let query = CatalogueQuery {
            text: query.text.clone(),
            verdict: query.verdict.clone(),
            kind: query.kind.clone(),
            plan: query.plan.clone(),
            since_ns: query.since_ns,
            before_ns: query.before_ns,
            from: query.from,
            most: query.most,
        };
        let page = self.with_catalogue(|catalogue| catalogue.search_results(&query))?.unwrap_or_default();
        Ok(ResultPage {
            matching: clamp_to_usize(page.matching),
            total: clamp_to_usize(page.total),
            results: page.entries.into_iter().map(convert_catalogue_entry).collect(),
        })
    }

    fn result_json(&self, id: &str) -> Result<String, ViewRefusal> {
        read_result(&self.find_stored_result(id)?, id)
    }

    fn result_page(&self, id: &str) -> Result<String, ViewRefusal> {
        let stored = self.find_stored_result(id)?;
        let page = stored.directory().join(files::PAGE);
        match fs::read_to_string(&page) {
            // A result of an earlier version has no page, nor has one that was stored without it. Any other error is
            // shown: making the page again would hide a broken disk.
            Err(error) if error.kind() == ErrorKind::NotFound => self.render_result_page(&stored),
            read => {
                read.map_err(|error| ViewRefusal::Failed(format!("cannot read {}: {error}", page.display())))
            }
        }
    }

    fn result_series(&self, id: &str) -> Result<Value, ViewRefusal> {
        let stored = self.find_stored_result(id)?;
        // Only runs have series; a method has only the results of its trials.
        if matches!(stored, StoredSummary::Method(_)) {
            return Err(refusal_from_store_error(StoreError::NoResult(stored.id().to_owned())));
        }
        let report = stored.read_report().map_err(|error| explain_unreadable_result(error, id))?;
        Ok(json!({
            "id": report.run,
            "streams": report.streams.iter().map(build_stream_series).collect::<Vec<_>>(),
            "ports": report.ports.iter().map(build_port_series).collect::<Vec<_>>(),
        }))
    }

    fn compare_results(&self, before: &str, after: &str, anyway: bool) -> Result<Value, ViewRefusal> {
        let report = ComparisonReport::from_results(
            &self.read_comparable_result_by_id(before)?,
            &self.read_comparable_result_by_id(after)?,
            // No limits are set, because the page shows differences and does not judge them.
            &FigureLimits::new(Vec::new()),
            anyway,
        );
        serde_json::to_value(&report).map_err(|error| ViewRefusal::Failed(error.to_string()))
    }

    fn unlisted_runs(&self) -> Result<Value, ViewRefusal> {
        let kept = self.with_catalogue(RunCatalogue::list_unlisted_runs)?.unwrap_or_default();
        let rows = kept.iter().map(|run| {
            json!({
                "id": run.run,
                // The unit is milliseconds, as for dates in JavaScript: nanoseconds since 1970 exceed the 53
                // bits of its numbers.
                "begun_ms": run.begun_wall_ns / 1_000_000,
                "process": run.process,
                "captures": run.captures.len(),
                "has_report": run.has_report,
            })
        });
        Ok(json!({ "runs": rows.collect::<Vec<_>>() }))
    }
}

fn convert_catalogue_entry(entry: CatalogueEntry) -> ResultSummary {
    ResultSummary {
        id: entry.id,
        kind: entry.kind,
        name: entry.name,
        started_ms: entry.started_wall_ns / 1_000_000,
        verdict: entry.verdict,
        outcome: entry.outcome,
        plan_sha256: entry.plan_sha256,
        streams: entry.streams,
        sent: entry.sent,
        lost: entry.lost,
        trials: entry.trials,
    }
}

/// The nodes of a fleet, from the last hellos that `fleet up` recorded.
#[derive(Debug)]
pub(crate) struct FleetNodes(pub(crate) FleetPlace);

impl RigPartSource for FleetNodes {
    fn read_facts(&self) -> Result<Value, ViewRefusal> {
        build_nodes_json(&self.0).map_err(|error| refusal_from_error(&error))
    }
}

fn build_stream_series(stream: &StreamReport) -> Value {
    let received = stream.received.as_ref();
    json!({
        "name": stream.name,
        "sent": stream.sent.as_ref().map(|sent| &sent.series),
        "received": received.map(|received| &received.series),
        "quality": received.map(|received| &received.quality),
    })
}

fn build_port_series(port: &PortReport) -> Value {
    json!({ "name": port.full_name(), "sent": port.tx_series, "received": port.rx_series })
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_store::{MethodOutcome, MethodState, NewMethod, methods};
    use std::io::Write as _;
    use std::path::Path;
    use std::process::Command;

    const RESULT_TEXT: &str =
        r#"{"name": "nightly", "verdict": "PASS", "options": {"method": "bisect"}, "figures": []}"#;

    /// Stores a method that is complete.
    fn store_method(place: &Path, id: &str) {
        let catalogue = RunCatalogue::open_or_create(place).expect("a catalogue");
        let head = json!({});
        let new = NewMethod { id, started_wall_ns: 1, name: "nightly", method: "bisect", head: &head };
        let draft = catalogue.begin_method(&new).expect("it begins");
        let files = [(methods::RESULT_FILE_NAME, RESULT_TEXT)];
        let outcome = MethodOutcome { state: MethodState::Complete, verdict: "PASS", files: &files };
        draft.finish_method(&catalogue, &outcome).expect("it is stored");
    }

    #[test]
    fn slow_result_read_leaves_catalogue_unlocked() {
        let store = tempfile::tempdir().expect("a directory");
        for id in ["before", "after"] {
            store_method(store.path(), id);
        }
        let archive = CatalogueArchive::new(Some(store.path().to_owned()));
        let slow = store.path().join("methods/before").join(methods::RESULT_FILE_NAME);
        fs::remove_file(&slow).expect("it is there");
        assert!(Command::new("mkfifo").arg(&slow).status().expect("mkfifo starts").success());
        std::thread::scope(|scope| {
            let compared = scope.spawn(|| archive.compare_results("before", "after", false));
            // Returns once the comparison has opened the other end.
            let mut writer = fs::OpenOptions::new().write(true).open(&slow).expect("it opens");
            assert!(archive.open.try_lock().is_ok(), "the catalogue is locked while a file is read");
            writer.write_all(RESULT_TEXT.as_bytes()).expect("it is written");
            drop(writer);
            let report = compared.join().expect("no panic").expect("a comparison");
            assert_eq!(report["before"]["id"], "before");
            assert_eq!(report["after"]["kind"], "bisect");
        });
    }

    #[test]
    fn comparison_refuses_method_without_result() {
        let store = tempfile::tempdir().expect("a directory");
        store_method(store.path(), "one");
        fs::remove_file(store.path().join("methods/one").join(methods::RESULT_FILE_NAME))
            .expect("it is there");
        let archive = CatalogueArchive::new(Some(store.path().to_owned()));
        let refused = archive.compare_results("one", "one", false).expect_err("there is no result");
        assert_eq!(refused, ViewRefusal::Unknown("one has no result yet".to_owned()));
    }
}
