//! The catalogue and the nodes of a fleet as the server's viewers see them.

use crate::commands::{open_catalogue_to_read, page_of, shown_nodes};
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use packetrig_server::{NodeDirectory, ResultArchive, ResultPage, ResultQuery, ResultSummary, ViewRefusal};
use packetrig_stats::figure::FigureLimits;
use packetrig_store::results::ComparisonReport;
use packetrig_store::{
    CatalogueEntry, CatalogueQuery, Error as StoreError, RunCatalogue, StoredSummary, files, methods,
};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The catalogue in a directory. It is opened with the first question after there is one.
#[derive(Debug)]
pub(crate) struct CatalogueArchive {
    /// `None` is the default one.
    place: Option<PathBuf>,
    // Viewers wait for each other here, and for nobody else: runs have their own connections.
    open: Mutex<Option<RunCatalogue>>,
}

impl CatalogueArchive {
    pub(crate) fn new(place: Option<PathBuf>) -> Self {
        Self { place, open: Mutex::default() }
    }

    /// Asks the catalogue. Without one there are no results.
    fn ask<T>(
        &self,
        question: impl FnOnce(&RunCatalogue) -> Result<T, StoreError>,
    ) -> Result<Option<T>, ViewRefusal> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            *open = open_catalogue_to_read(self.place.as_deref()).map_err(|error| refusal_of(&error))?;
        }
        open.as_ref().map(|catalogue| question(catalogue).map_err(refusal)).transpose()
    }

    fn ask_about<T>(
        &self,
        id: &str,
        question: impl FnOnce(&RunCatalogue) -> Result<T, StoreError>,
    ) -> Result<T, ViewRefusal> {
        self.ask(question)?.ok_or_else(|| refusal(StoreError::Unknown(id.to_owned())))
    }
}

/// The run or method with this id, or the newest for `last`.
fn find(catalogue: &RunCatalogue, id: &str) -> Result<StoredSummary, StoreError> {
    if id != "last" {
        return catalogue.find_stored(id);
    }
    catalogue.newest_stored()?.ok_or_else(|| StoreError::Unknown(id.to_owned()))
}

fn refusal(error: StoreError) -> ViewRefusal {
    match error {
        StoreError::Unknown(_) | StoreError::NoResult(_) => ViewRefusal::Unknown(error.to_string()),
        StoreError::Ambiguous { .. } => ViewRefusal::Invalid(error.to_string()),
        error => ViewRefusal::Failed(packetrig_units::message_with_causes(&error)),
    }
}

fn refusal_of(error: &Error) -> ViewRefusal {
    ViewRefusal::Failed(packetrig_units::message_with_causes(error))
}

impl ResultArchive for CatalogueArchive {
    fn results(&self, query: &ResultQuery) -> Result<ResultPage, ViewRefusal> {
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
        let page = self.ask(|catalogue| catalogue.search(&query))?.unwrap_or_default();
        Ok(ResultPage {
            matching: usize::try_from(page.matching).unwrap_or(usize::MAX),
            total: usize::try_from(page.total).unwrap_or(usize::MAX),
            results: page.entries.into_iter().map(summary).collect(),
        })
    }

    fn result(&self, id: &str) -> Result<String, ViewRefusal> {
        let path = self.ask_about(id, |catalogue| {
            let stored = find(catalogue, id)?;
            let name = if matches!(stored, StoredSummary::Run(_)) { files::REPORT } else { methods::RESULT };
            Ok(stored.directory().join(name))
        })?;
        // Read without the lock: reports may be large.
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ViewRefusal::Unknown(format!("{id} has no result yet")),
            _ => ViewRefusal::Failed(format!("cannot read {}: {error}", path.display())),
        })
    }

    fn page(&self, id: &str) -> Result<String, ViewRefusal> {
        let stored = self.ask_about(id, |catalogue| find(catalogue, id))?;
        let page = stored.directory().join(files::PAGE);
        match fs::read_to_string(&page) {
            // A result of an earlier version, or one that was kept without its page.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self
                .ask_about(id, |catalogue| Ok(page_of(catalogue, &stored)))?
                .map_err(|error| refusal_of(&error)),
            read => {
                read.map_err(|error| ViewRefusal::Failed(format!("cannot read {}: {error}", page.display())))
            }
        }
    }

    fn series(&self, id: &str) -> Result<Value, ViewRefusal> {
        let report = self.ask_about(id, |catalogue| match find(catalogue, id)? {
            StoredSummary::Run(run) => catalogue.show(&run.run.0).map(|(_, report)| report),
            StoredSummary::Method(method) => Err(StoreError::NoResult(method.id)),
        })?;
        let stream = |stream: &packetrig_fleet::report::StreamReport| {
            json!({
                "name": stream.name,
                "sent": stream.sent.as_ref().map(|sent| &sent.series),
                "received": stream.received.as_ref().map(|received| &received.series),
                "quality": stream.received.as_ref().map(|received| &received.quality),
            })
        };
        let port = |port: &packetrig_fleet::report::PortReport| json!({ "name": port.full_name(), "sent": port.tx_series, "received": port.rx_series });
        Ok(json!({
            "id": report.run,
            "streams": report.streams.iter().map(stream).collect::<Vec<_>>(),
            "ports": report.ports.iter().map(port).collect::<Vec<_>>(),
        }))
    }

    fn compare(&self, before: &str, after: &str, anyway: bool) -> Result<Value, ViewRefusal> {
        let comparable =
            |id: &str| self.ask_about(id, |catalogue| catalogue.comparable(&find(catalogue, id)?));
        let report = ComparisonReport::of(
            &comparable(before)?,
            &comparable(after)?,
            &FigureLimits::new(Vec::new()),
            anyway,
        );
        serde_json::to_value(&report).map_err(|error| ViewRefusal::Failed(error.to_string()))
    }

    fn unfinished(&self) -> Result<Value, ViewRefusal> {
        let kept = self.ask(RunCatalogue::kept)?.unwrap_or_default();
        let rows = kept.iter().map(|run| {
            json!({
                "id": run.run,
                "begun_ms": run.begun_wall_ns / 1_000_000,
                "process": run.process,
                "captures": run.captures.len(),
                "has_report": run.has_report,
            })
        });
        Ok(json!({ "runs": rows.collect::<Vec<_>>() }))
    }
}

fn summary(entry: CatalogueEntry) -> ResultSummary {
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

/// The nodes of a fleet, as `fleet up` last heard them.
#[derive(Debug)]
pub(crate) struct FleetNodes(pub(crate) FleetPlace);

impl NodeDirectory for FleetNodes {
    fn nodes(&self) -> Result<Value, ViewRefusal> {
        shown_nodes(&self.0).map_err(|error| refusal_of(&error))
    }
}
