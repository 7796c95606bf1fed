//! What the nodes and the catalogue of a fleet say.

use super::{Fleet, RECEIVERS, SENDERS, await_that};
use packetrig_tests::program::Report;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

impl Fleet {
    /// Rows of `fleet status` for those that are heard now.
    pub(crate) fn status(&self) -> Vec<Value> {
        let (_, printed, _) = self.ask(&["fleet", "status", "--wait", "--json"]);
        let value: Value = serde_json::from_str(&printed).unwrap_or_default();
        let rows = value.as_array().or_else(|| value["nodes"].as_array());
        rows.cloned().unwrap_or_default()
    }

    /// Nodes that are led, by `fleet status`, each with its run.
    pub(crate) fn leads(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let rows = self.status().into_iter();
        rows.filter_map(|row| Some((text(&row["node"])?, text(&row["lead"]["run"])?))).collect()
    }

    pub(crate) fn await_status(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) {
        await_that(what, || is_so(&self.status()), || format!("{:?} {}", self.status(), self.everything()));
    }

    /// All results are with the controller, and no node is in a run.
    pub(crate) fn await_collected(&self) {
        self.await_status("nothing waits on the nodes", |rows| {
            rows.len() == 6
                && rows.iter().all(|row| is_empty(&row["hello"]["spooled"]) && row["hello"]["busy"].is_null())
        });
    }

    pub(crate) fn everything(&self) -> String {
        let of = |node: &&str| format!("\n--- {node}: {}", self.said(node));
        SENDERS.iter().chain(&RECEIVERS).map(of).chain([self.said("up")]).collect()
    }

    /// Runs in the catalogue, the latest first.
    pub(crate) fn catalogue(&self) -> Vec<Value> {
        self.catalogue_in(&[])
    }

    /// The same of another catalogue.
    pub(crate) fn catalogue_in(&self, store: &[&str]) -> Vec<Value> {
        let (_, printed, complaints) = self.ask(&[&["report", "list", "--json"], store].concat());
        let list: Value = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed} {complaints}"));
        list.as_array().cloned().expect("a list of runs")
    }

    /// Report of the latest run in the catalogue.
    pub(crate) fn latest(&self) -> Report {
        self.latest_in(&[])
    }

    /// Report of a run in the catalogue.
    pub(crate) fn kernel_report_from(&self, run: &str) -> Report {
        self.report_in(&[], run)
    }

    /// The same of another catalogue.
    pub(crate) fn latest_in(&self, store: &[&str]) -> Report {
        let id = self.catalogue_in(store)[0]["run"].as_str().expect("a run has a name").to_owned();
        self.report_in(store, &id)
    }

    fn report_in(&self, store: &[&str], run: &str) -> Report {
        let (_, path, _) = self.ask(&[&["report", "path", run], store].concat());
        let text =
            fs::read_to_string(Path::new(path.trim()).join("report.json")).expect("a run has a report");
        Report(serde_json::from_str(&text).expect("the report is JSON"))
    }
}

pub(super) fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}
