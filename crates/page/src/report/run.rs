//! The page of a run.

use super::elements::{write_verdict_sign, write_wall_time};
use super::shell::{self, PageParts};
use super::{caveats, probes, setup, streams, verdict as verdict_part};
use crate::draw::ledger::{LedgerDiagram, tabulate_ledger};
use crate::markup::Markup;
use packetrig_report::RunReport;

/// The contents of the page of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunPage<'a> {
    pub report: &'a RunReport,
    /// The plan's text; empty if it is not known.
    pub document: &'a str,
}

/// A file that only runs with probes have.
const PROBES_FILE: &str = "probes.csv";

const RUN_FILES: [(&str, &str); 11] = [
    ("report.json", "everything on this page and more, for programs"),
    (PROBES_FILE, "one row for each pair of ends that probes were sent between"),
    ("streams.csv", "one row for each stream"),
    ("receivers.csv", "one row for each stream at each receiving port"),
    ("series.csv", "frames and bytes of each second"),
    ("quality.csv", "loss and latency of each second"),
    ("outages.csv", "one row for each outage: consecutive lost frames"),
    ("ports.csv", "one row for each port"),
    ("csv-metadata.json", "type, unit and meaning of each column of the tables"),
    ("junit.xml", "the verdict for build servers"),
    ("plan.yaml", "the plan, to run it again"),
];

/// Renders the page of a run as one complete HTML file.
pub fn render_run(run: RunPage<'_>) -> String {
    let report = run.report;
    let mut parts = PageParts::default();
    parts.add_section("verdict", "Verdict", "Verdict", |page| verdict_part::write_verdict(page, report));
    if let Some(probes) = &report.probes {
        parts.add_section("probes", "Probes", "Probes", |page| probes::write_probes_section(page, probes));
    }
    // The ledger comes before the streams: a loss of the rig itself can explain losses of streams,
    // but not the reverse.
    parts.add_section("ledger", "Ledger", "Where the frames are", |page| write_ledger(page, report));
    // A plan has either flows or probes.
    if report.probes.is_none() {
        parts.add_section("streams", "Streams", "Streams", |page| streams::write_table(page, report));
        parts.add_section("charts", "Charts", "Stream by stream", |page| {
            streams::write_single_streams(page, report);
        });
    }
    parts.add_section("caveats", "Caveats", "Caveats", |page| caveats::write_caveats(page, &report.caveats));
    parts.add_section("setup", "Environment", "Environment, calibration and clocks", |page| {
        setup::write_environment(page, report);
    });
    parts.add_section("plan", "Plan", "Plan and files", |page| write_plan_and_files(page, run));
    shell::render_page(
        &format_page_title(report),
        &build_page_head(report),
        &parts,
        &report.packetrig_version,
    )
}

/// The verdict comes first, because a tab or a list of files shows only the beginning.
fn format_page_title(report: &RunReport) -> String {
    let name = if report.name.is_empty() { String::new() } else { format!("{} – ", report.name) };
    format!("{}: {name}run {} – packetrig", report.verdict.as_str(), report.run)
}

fn build_page_head(report: &RunReport) -> Markup {
    let mut head = Markup::new();
    head.open_element("div", &[("class", "head-line")]);
    let title = if report.name.is_empty() { format!("Run {}", report.run) } else { report.name.clone() };
    head.add_element("h1", &[], &title);
    write_verdict_sign(
        &mut head,
        verdict_part::choose_verdict_sign(&report.verdict),
        report.verdict.as_str(),
        false,
    );
    head.close_element("div").open_element("p", &[("class", "muted")]);
    head.add_text("Run ").add_element("code", &[], &report.run.0).add_text(", started ");
    write_wall_time(&mut head, report.started_wall_ns);
    head.close_element("p");
    head
}

fn write_ledger(page: &mut Markup, report: &RunReport) {
    page.open_element("p", &[])
        .add_text("The drawing follows the frames from the plan to the count, from left to right or from ")
        .add_text("top to bottom. ");
    page.add_text("The drawing shows where frames were lost, not how many: ");
    page.add_text(
        "the width of a loss grows with the logarithm of its count, so even a few lost frames are visible.",
    )
    .close_element("p");
    let flow = LedgerDiagram::from_ledger(&report.ledger, &report.imbalances, &report.lost);
    page.append(&flow.draw_figure());
    page.open_element("details", &[]).add_element(
        "summary",
        &[],
        "The same as a table, with the rules that must hold",
    );
    page.append(&tabulate_ledger(&report.ledger, &report.imbalances)).close_element("details");
}

fn write_plan_and_files(page: &mut Markup, run: RunPage<'_>) {
    if run.document.is_empty() {
        page.add_element("p", &[("class", "absent")], "The text of the plan is not available.");
    } else {
        setup::write_plan(page, "The plan as it was run", run.document);
    }
    page.add_element("h3", &[], "Files beside this page");
    let has_probes = run.report.probes.is_some();
    // A link to a file that does not exist would look like a result that was lost.
    let files = RUN_FILES.iter().filter(|(name, _)| has_probes || *name != PROBES_FILE);
    setup::write_file_list(page, files);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn page(probes: &Value) -> String {
        let report = json!({
            "schema_version": 1, "packetrig_version": "0.1.0", "run": "20261126-080000-abcdef", "name": "",
            "plan_sha256": "934907b0a01a0aa0971384616b837e2b0591ad7970c747c2c5a8ba1b0c69925e",
            "started_wall_ns": 1_795_668_797_550_396_441_u64, "seed": 7, "sending": 1_000_000_000,
            "outcome": {"state": "complete", "stopped": false}, "verdict": {"verdict": "PASS"},
            "criteria": {
                "max_loss": 0, "max_duplicates": 0, "max_damaged": 0, "max_misdelivered": 0, "max_reordered": null,
                "max_altered": null, "latency": [], "max_jitter": null, "max_outage": null, "min_rate": null,
                "min_verified": 0, "max_late": 0, "max_skew": null
            },
            "coverage": {"reported": 1, "expected": 1}, "streams": [], "ports": [], "ledger": {"counts": {}},
            "imbalances": [], "unchecked": [], "captures": [], "caveats": [], "probes": probes,
            "lost": {"total": 0, "sender": 0, "receiver": 0, "in_doubt": 0, "path": null}
        });
        let report: RunReport = serde_json::from_value(report).unwrap();
        render_run(RunPage { report: &report, document: "" })
    }

    #[test]
    fn run_with_probes_shows_probe_section_not_streams() {
        let line = json!({"from": "a", "from_node": "a", "to": "b", "target": "", "missing": "node a did not report"});
        let probes = json!({"method": "ping", "count": 1, "interval": 1, "size": 64, "lines": [line]});
        let page = page(&probes);
        assert!(page.contains("<section id=\"probes\"") && page.contains("<a href=\"#probes\">"));
        assert!(page.contains("missing: node a did not report"));
        assert!(!page.contains("<section id=\"streams\"") && !page.contains("figures are in probes.csv"));
        assert!(page.contains("<li><a href=\"probes.csv\">"), "the file is among those beside the page");
    }

    #[test]
    fn run_without_probes_has_no_probe_section() {
        let page = page(&Value::Null);
        assert!(page.contains("<section id=\"streams\"") && !page.contains("id=\"probes\""));
        assert!(!page.contains("href=\"probes.csv\""));
    }
}
