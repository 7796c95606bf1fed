//! What runs with probes measured, on the page of a catalogue: all pairs of the newest run, and one pair over time.

use crate::sample;
use packetrig_report::{RunId, RunReport};
use packetrig_store::RunCatalogue;
use packetrig_tests::browser::Browser;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use serde_json::Value;
use std::path::Path;

const RUNS: u64 = 3;

/// The same measurement, made several times; the newest last.
fn store_runs(place: &Path) -> RunReport {
    let catalogue = RunCatalogue::open_or_create(place).unwrap();
    let mut report = sample::page_of_probes(4).report;
    let first = report.started_wall_ns;
    for number in 0..RUNS {
        report.run = RunId(format!("20261126-08000{number}-aaaaaa"));
        report.started_wall_ns = first + number * 3_600_000_000_000;
        catalogue.store_finished_run(&report, "flows: []").unwrap();
    }
    report
}

#[test]
fn probe_page_shows_pairs_and_history() {
    let store = tempfile::tempdir().unwrap();
    let newest = store_runs(store.path());
    let place = store.path().display().to_string();
    let mut server = Running::start(&["page", "--listen", "127.0.0.1:18935", "--store", &place], "");
    server.await_printed("Page: http://127.0.0.1:18935/ui/");
    let Some(mut browser) = Browser::start() else { return };
    browser.open_address("http://127.0.0.1:18935/ui/#/probes");
    browser.await_true("document.querySelectorAll('#probe-pairs tbody tr').length === 4");
    let cells: Value = browser.evaluate(
        "[...document.querySelectorAll('#probe-pairs tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))",
    );
    for line in &newest.probes.as_ref().unwrap().lines {
        let place = |node: &str| {
            node.chars().filter(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap()
        };
        let cell = cells[place(&line.from)][place(&line.to) + 1].as_str().unwrap();
        match &line.found {
            None => assert!(cell.contains("missing"), "{cell}"),
            Some(found) => {
                let median = found.delay_there.unwrap().p50_ns / 1000;
                assert!(cell.starts_with(&median.to_string()), "{median} µs is not in {cell}");
                assert_eq!(cell.contains("lost"), found.counts.lost > 0, "{cell}");
            }
        }
    }
    browser.await_true(&format!("document.querySelectorAll('#probe-runs tbody tr').length === {RUNS}"));
    // Another pair is chosen where its value is, and the address says which.
    browser.click("#probe-pairs tbody tr:nth-child(4) td:nth-child(2) button, #probe-pairs tbody tr:nth-child(4) td:nth-child(2) a");
    browser.await_true("document.querySelector('#probe-pair').textContent.includes('node<3>')");
    browser.await_true(&format!("document.querySelectorAll('#probe-runs tbody tr').length === {RUNS}"));
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("from="));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    for width in [360, 1280] {
        browser.resize(width);
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert!(overflow.as_i64().is_some_and(|pixels| pixels <= 0), "{width}: {overflow}");
    }
    if let Some(axe) = skip::client("axe") {
        let axe = std::fs::read_to_string(axe).unwrap();
        assert_eq!(browser.axe_violations(&axe), Vec::<String>::new());
    }
}
