//! `packetrig report` with test methods: lists, comparisons, trends, prune.

use crate::runner::{Ended, packetrig};
use packetrig_store::{MethodOutcome, MethodState, NewMethod, RunCatalogue};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// The result of a method with this throughput.
fn result(throughput: Option<f64>, sizes: &[u32]) -> Value {
    let figure = |name: &str, value: Option<f64>, unit: &str, better: &str| json!({"name": name, "subject": "64 B", "value": value, "unit": unit, "better": better});
    json!({
        "options": {"method": "bisect", "sizes": sizes},
        "figures": [
            figure("throughput", throughput, "frames/s", "higher"),
            figure("latency-p99", Some(12_000.0), "ns", "lower"),
        ],
    })
}

/// Stores a method. `second` is when it was started.
fn store(place: &Path, id: &str, second: u64, state: MethodState, result: &Value) {
    let catalogue = RunCatalogue::open_or_create(place).unwrap();
    let started_wall_ns = second * 1_000_000_000;
    let new = NewMethod { id, started_wall_ns, name: "nightly", method: "bisect", head: &Value::Null };
    let draft = catalogue.begin_method(&new).unwrap();
    let text = result.to_string();
    let files =
        [("result.json", &text[..]), ("result.txt", "64 B: 1 000 frames/s\n"), ("result.md", "| 64 B |\n")];
    draft.finish_method(&catalogue, &MethodOutcome { state, verdict: "PASS", files: &files }).unwrap();
}

struct Store(TempDir);

impl Store {
    /// A store with methods of these throughputs, `m1` the oldest.
    fn of(throughputs: &[f64]) -> Self {
        let place = tempfile::tempdir().unwrap();
        for (index, throughput) in throughputs.iter().enumerate() {
            let number = index as u64 + 1;
            let result = result(Some(*throughput), &[64]);
            store(place.path(), &format!("m{number}"), number, MethodState::Complete, &result);
        }
        Self(place)
    }

    fn report(&self, arguments: &[&str]) -> Ended {
        packetrig(&[&["report"], arguments, &["--store", self.0.path().to_str().unwrap()]].concat())
    }

    /// Writes a file beside the store.
    fn file(&self, name: &str, value: &Value) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path.display().to_string()
    }
}

#[test]
fn comparison_exit_code_tells_regression() {
    let store = Store::of(&[1000.0, 970.0]);
    let code = |arguments: &[&str]| store.report(&[&["diff"], arguments].concat()).code;
    assert_eq!(code(&["m1", "last"]), 0, "nothing is judged");
    assert_eq!(code(&["m1", "m2", "--max-worse", "5%"]), 0);
    assert_eq!(code(&["m1", "m2", "--max-worse", "5%,throughput=2%"]), 1);
    assert_eq!(code(&["m2", "m1", "--max-worse", "throughput=2%"]), 0, "better is not worse");
    assert_eq!(code(&["m1", "m2", "--max-worse", "latency-p99=1us"]), 0);
    assert_eq!(code(&["m1", "m2", "--max-worse", "throughput=2%", "--figure", "latency-p99"]), 7);
    assert_eq!(code(&["m1", "m2", "--max-worse", "loss=1"]), 7, "no such figure");
    assert_eq!(code(&["m1", "m3", "--max-worse", "5%"]), 2, "no such method");
    assert_eq!(code(&["m1", "m2", "--figure", "thruput"]), 2);
    let unknown = store.file("unknown.json", &result(None, &[64]));
    assert_eq!(code(&["m1", &unknown, "--max-worse", "5%"]), 7);
    let other = store.file("other.json", &result(Some(1000.0), &[128]));
    let refused = store.report(&["diff", &other, "m1"]);
    assert_eq!(refused.code, 7);
    assert!(
        refused.results.contains("their options differ") && refused.results.contains("--anyway"),
        "{}",
        refused.results
    );
    assert_eq!(code(&[&other, "m1", "--anyway", "--max-worse", "5%"]), 0);
    let missing = store.report(&["diff", "nothing.json", "m1"]);
    assert!(missing.code == 2 && missing.remarks.contains("nothing.json"), "{}", missing.remarks);
}

#[test]
fn two_files_are_compared_without_a_catalogue() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, throughput| {
        let path = place.path().join(name);
        std::fs::write(&path, result(Some(throughput), &[64]).to_string()).unwrap();
        path.display().to_string()
    };
    let (before, after) = (file("before.json", 1000.0), file("after.json", 900.0));
    let ended = packetrig(&["report", "diff", &before, &after, "--max-worse", "5%"]);
    assert_eq!(ended.code, 1, "{}", ended.remarks);
    for part in ["before: bisect", "1 000 frames/s", "-100 frames/s", "-10 %", "worse", "Verdict: FAIL"] {
        assert!(ended.results.contains(part), "{part} in {}", ended.results);
    }
}

#[test]
fn a_comparison_has_the_forms_of_build_servers() {
    let store = Store::of(&[1000.0, 900.0]);
    let form = |flag: &str| {
        let ended = store.report(&["diff", "m1", "m2", "--max-worse", "5%", flag]);
        assert_eq!(ended.code, 1, "{}", ended.remarks);
        ended.results
    };
    let value: Value = serde_json::from_str(&form("--json")).unwrap();
    assert_eq!((&value["verdict"], &value["figures"][0]["percent"]), (&json!("FAIL"), &json!(-10.0)));
    assert_eq!((&value["before"]["id"], &value["schema_version"]), (&json!("m1"), &json!(1)));
    assert!(form("--csv").contains("throughput,64 B,frames/s,higher,1000,900,-100,-10,,worse,5%,FAIL,"));
    assert!(form("--junit").contains("tests=\"3\" failures=\"2\" errors=\"0\""));
    assert!(form("--markdown").starts_with("## FAIL: bisect m2 \"nightly\" against bisect m1 \"nightly\"\n"));
}

#[test]
fn trend_shows_results_and_judges_newest() {
    let store = Store::of(&[1000.0, 1010.0, 990.0, 900.0]);
    let ended = store.report(&["trend", "nightly", "--max-worse", "5%"]);
    assert_eq!(ended.code, 1, "{}", ended.remarks);
    for part in ["Trend of \"nightly\" (results: 4)", "m1", "1970-01-01 00:00:04", "▇█▇▁", "Verdict: FAIL"]
    {
        assert!(ended.results.contains(part), "{part} in {}", ended.results);
    }
    assert_eq!(store.report(&["trend", "nightly", "--max-worse", "throughput=15%"]).code, 0);
    assert_eq!(store.report(&["trend", "nightly", "--most", "1", "--max-worse", "5%"]).code, 7);
    assert_eq!(store.report(&["trend", "nobody"]).code, 2);
    let csv = store.report(&["trend", "nightly", "--since", "1970-01-01T00:00:03", "--csv"]).results;
    assert_eq!(csv.lines().count(), 5, "{csv}");
    let value: Value = serde_json::from_str(&store.report(&["trend", "nightly", "--json"]).results).unwrap();
    assert_eq!((&value["figures"][0]["median"], &value["figures"][0]["min"]), (&json!(995.0), &json!(900.0)));
    assert!(
        store.report(&["trend", "nightly", "--markdown"]).results.starts_with("## 4 results of nightly\n")
    );
}

#[test]
fn prune_keeps_pinned_and_unfinished_results() {
    let store = Store::of(&[1.0, 2.0, 3.0, 4.0]);
    crate::report::store(store.0.path(), "m0", 9, MethodState::Stopped, &result(None, &[64]));
    assert_eq!(store.report(&["pin", "m1"]).code, 0);
    let planned = store.report(&["prune", "--newest", "1", "--dry-run"]);
    assert!(planned.results.contains("results to remove: 2"), "{}", planned.results);
    assert!(store.report(&["show", "m2"]).code == 0, "a dry run removes nothing");
    let done = store.report(&["prune", "--newest", "1"]);
    for part in ["results removed: 2", "results that match, but stay because they are pinned: 1 (m1)"] {
        assert!(done.results.contains(part), "{part} in {}", done.results);
    }
    let listed: Value =
        serde_json::from_str(&store.report(&["list", "--methods", "--json"]).results).unwrap();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["m0", "m4", "m1"]);
    assert_eq!(store.report(&["unpin", "m1"]).code, 0);
    let done = store.report(&["prune", "--older", "1", "--json"]);
    let value: Value = serde_json::from_str(&done.results).unwrap();
    assert_eq!(value["removed"].as_array().unwrap().len(), 2);
}

#[test]
fn methods_are_listed_and_shown_with_resume_command() {
    let store = Store::of(&[1000.0]);
    crate::report::store(store.0.path(), "m2", 2, MethodState::Stopped, &result(None, &[64]));
    let listed = store.report(&["list"]).results;
    assert!(listed.contains("Test methods:") && listed.contains("stopped"), "{listed}");
    assert_eq!(store.report(&["list", "--json"]).results, "[]\n", "runs only, as ever");
    let shown = store.report(&["show", "m1"]).results;
    assert!(shown.starts_with("64 B: 1 000 frames/s\nFiles: "), "{shown}");
    assert_eq!(store.report(&["show", "m1", "--markdown"]).results, "| 64 B |\n");
    assert!(store.report(&["show", "last", "--json"]).results.contains("\"figures\""));
    let without = store.report(&["show", "m1", "--csv"]);
    assert!(
        without.code == 2 && without.remarks.contains("method m1 has no file result.csv"),
        "{}",
        without.remarks
    );
    let path = store.report(&["path", "m1"]).results;
    assert!(path.trim_end().ends_with("methods/m1"), "{path}");
    let unfinished = store.report(&["unfinished"]).results;
    assert!(unfinished.contains("packetrig test resume m2"), "{unfinished}");
    let listed: Value =
        serde_json::from_str(&store.report(&["unfinished", "--methods", "--json"]).results).unwrap();
    assert_eq!(listed[0]["resume"], "packetrig test resume m2");
    assert!(store.report(&["discard", "m1"]).code == 2, "a complete result is pruned, not discarded");
    assert!(store.report(&["discard", "m2"]).results.starts_with("Removed method m2"));
}
