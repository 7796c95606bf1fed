//! Comparisons of windows and places, and series of groups, against the sums that `flows top` gives for the same records.

use super::made::Made;
use super::{packetrig, store};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const BEFORE: &str = "2026-11-21T13:00..2026-11-21T13:10";
const AFTER: &str = "2026-11-21T13:10..2026-11-21T13:15";

fn json_lines(arguments: &[&str], places: &Path) -> Vec<Value> {
    packetrig(arguments, places).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Packets of each source in a window, by `flows top`.
fn packets_in(window: &str, records: &Path) -> BTreeMap<String, u64> {
    let (from, to) = window.split_once("..").unwrap();
    let asked = ["top", "--json", "-n", "5000", "--order", "packets", "--from", from, "--to", to];
    let groups = json_lines(&asked, records).into_iter();
    let pair =
        |group: Value| (group["src-ip"].as_str().unwrap().to_owned(), group["packets"].as_u64().unwrap());
    groups.map(pair).collect()
}

#[test]
fn comparison_of_windows_agrees_with_both_of_them() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Made::new(3000));
    let windows = ["--a", BEFORE, "--b", AFTER];
    let asked = [&["compare", "--json", "--order", "packets", "-n", "5000"][..], &windows].concat();
    let changes = json_lines(&asked, directory.path());
    let [before, after] = [BEFORE, AFTER].map(|window| packets_in(window, directory.path()));
    let mut differences = Vec::new();
    let mut shown = BTreeMap::new();
    for change in &changes {
        let source = change["src-ip"].as_str().unwrap();
        let [a, b] = [&before, &after].map(|side| side.get(source).copied().unwrap_or(0));
        assert_eq!([&change["a"]["packets"], &change["b"]["packets"]], [a, b].map(Value::from).each_ref());
        // Ten minutes and five.
        let difference = b as f64 / 300.0 - a as f64 / 600.0;
        assert!((change["difference"].as_f64().unwrap() - difference).abs() < 0.001, "{change}");
        differences.push(difference.abs());
        let kind = match (a, b) {
            (0, _) => "new",
            (_, 0) => "gone",
            _ if difference > 0.0 => "grown",
            _ => "shrunk",
        };
        assert_eq!(change["change"], kind, "{change}");
        *shown.entry(kind).or_insert(0_u64) += 1;
    }
    assert!(differences.is_sorted_by(|one, other| one >= other));
    assert_eq!(shown.keys().copied().collect::<Vec<_>>(), ["gone", "grown", "new", "shrunk"]);
    // Every source of either window is there, or has the same rate in both.
    let sources = before.keys().chain(after.keys()).collect::<std::collections::BTreeSet<_>>();
    let is_same = |source: &str| {
        before.get(source).copied().unwrap_or(0) == 2 * after.get(source).copied().unwrap_or(0)
    };
    assert_eq!(changes.len(), sources.iter().filter(|source| !is_same(source)).count());
    let only =
        [&["compare", "--csv", "--order", "packets", "-n", "5000", "--only", "new"][..], &windows].concat();
    let csv = packetrig(&only, directory.path());
    assert_eq!(csv.lines().count() as u64, 1 + shown["new"], "{csv}");
    let table = packetrig(&[&["compare", "-n", "3"][..], &windows].concat(), directory.path());
    assert_eq!(table.lines().count(), 6, "heading, three changes, all, and the kinds: {table}");
}

#[test]
fn comparison_takes_two_directories() {
    let places = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| places.path().join(name));
    store(&before, &Made::new(40));
    store(&after, &Made::new(80));
    let asked = ["compare", "--json", "--by", "dst-port,protocol", before.to_str().unwrap()];
    let changes = json_lines(&asked, &after);
    assert!(!changes.is_empty());
    let window = ["compare", "--a", BEFORE, "--b", "2026-11-21T14:00..2026-11-21T13:00"];
    let mut command = std::process::Command::new(packetrig_tests::program::binary());
    let output = command.arg("flows").args(window).arg(&before).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let mut command = std::process::Command::new(packetrig_tests::program::binary());
    let output = command.args(["flows", "compare"]).arg(&before).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("two directories"));
}

#[test]
fn series_add_up_to_the_groups() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Made::new(3000));
    let top = json_lines(&["top", "--json", "--by", "protocol", "-n", "3"], directory.path());
    let steps =
        json_lines(&["top", "--json", "--by", "protocol", "-n", "3", "--bucket", "10min"], directory.path());
    let mut sums: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    let mut starts = std::collections::BTreeSet::new();
    for step in &steps {
        let number = |name: &str| step[name].as_u64().unwrap();
        assert_eq!(number("start_ns") % 600_000_000_000, 0);
        starts.insert(number("start_ns"));
        let sum = sums.entry(number("protocol")).or_default();
        (sum.0, sum.1, sum.2) = (sum.0 + number("flows"), sum.1 + number("packets"), sum.2 + number("bytes"));
        let rate = number("bytes") as f64 * 8.0 / 600.0;
        assert!((step["bits_per_second"].as_f64().unwrap() - rate).abs() < 0.001, "{step}");
    }
    for group in &top {
        let number = |name: &str| group[name].as_u64().unwrap();
        assert_eq!(sums[&number("protocol")], (number("flows"), number("packets"), number("bytes")));
    }
    // Three hours in steps of ten minutes, and none is left out.
    assert_eq!((starts.len(), steps.len()), (18, 18 * top.len()));
    let csv =
        packetrig(&["top", "--csv", "--by", "protocol", "-n", "3", "--bucket", "10min"], directory.path());
    assert_eq!(csv.lines().count(), 1 + steps.len());
    let table = packetrig(&["top", "--by", "protocol", "-n", "3", "--bucket", "10min"], directory.path());
    assert_eq!(table.lines().count(), 1 + top.len(), "{table}");
}
