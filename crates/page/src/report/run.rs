//! The page of a run.

use super::elements::{verdict, wall_time};
use super::shell::{self, PageParts};
use super::{caveats, probes, setup, streams, verdict as verdict_part};
use crate::draw::ledger::{LedgerFlow, tabulate_ledger};
use crate::markup::Markup;
use packetrig_fleet::report::RunReport;

/// What the page of a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct RunPage<'a> {
    pub report: &'a RunReport,
    /// The plan's text; empty if it is not known.
    pub document: &'a str,
}

/// Only of a run with probes.
const PROBES_FILE: &str = "probes.csv";

const FILES: [(&str, &str); 9] = [
    ("report.json", "everything on this page and more, for programs"),
    (PROBES_FILE, "one row for each pair of ends that probes were sent between"),
    ("streams.csv", "one row for each stream"),
    ("series.csv", "frames and bytes of each second"),
    ("quality.csv", "loss and latency of each second"),
    ("outages.csv", "when frames were missing"),
    ("ports.csv", "one row for each port"),
    ("junit.xml", "the verdict for build servers"),
    ("plan.yaml", "the plan, to run it again"),
];

/// The page of a run, complete in itself.
pub fn render_run(run: RunPage<'_>) -> String {
    let report = run.report;
    let mut parts = PageParts::default();
    parts.add("verdict", "Verdict", "Verdict", |page| verdict_part::write(page, report));
    if let Some(probes) = &report.probes {
        parts.add("probes", "Probes", "Probes", |page| probes::write(page, probes));
    }
    parts.add("ledger", "Ledger", "Where the frames are", |page| write_ledger(page, report));
    // A plan has either flows or probes.
    if report.probes.is_none() || !report.streams.is_empty() {
        parts.add("streams", "Streams", "Streams", |page| streams::write_table(page, report));
        parts.add("charts", "Charts", "Stream by stream", |page| streams::write_single(page, report));
    }
    parts.add("caveats", "Caveats", "Caveats", |page| caveats::write(page, &report.caveats));
    parts.add("setup", "Environment", "Environment, calibration and clocks", |page| {
        setup::write_environment(page, report);
    });
    parts.add("plan", "Plan", "Plan and files", |page| write_plan_and_files(page, run));
    shell::render(&title(report), &head(report), &parts, &report.packetrig_version)
}

/// The verdict stands first, because it is what a tab or a list of files shows.
fn title(report: &RunReport) -> String {
    let name = if report.name.is_empty() { String::new() } else { format!("{} – ", report.name) };
    format!("{}: {name}run {} – packetrig", report.verdict.word(), report.run)
}

fn head(report: &RunReport) -> Markup {
    let mut head = Markup::new();
    head.open("div", &[("class", "head-line")]);
    let title = if report.name.is_empty() { format!("Run {}", report.run) } else { report.name.clone() };
    head.element("h1", &[], &title);
    verdict(&mut head, verdict_part::sign_of_verdict(&report.verdict), report.verdict.word(), false);
    head.close("div").open("p", &[("class", "muted")]);
    head.text("Run ").element("code", &[], &report.run.0).text(", started ");
    wall_time(&mut head, report.started_wall_ns);
    head.close("p");
    head
}

fn write_ledger(page: &mut Markup, report: &RunReport) {
    page.open("p", &[])
        .text("Every frame from the plan to the count, from left to right or from top to bottom. ");
    page.text("What leaves the flow is at the place where it left. Places are drawn, not shares: ");
    page.text("an exit grows with the power of ten of its frames, so that a few lost frames are seen.")
        .close("p");
    let flow = LedgerFlow::of(&report.ledger, &report.imbalances, &report.lost);
    page.append(&flow.draw());
    page.open("details", &[]).element("summary", &[], "The same as a table, with the rules that must hold");
    page.append(&tabulate_ledger(&report.ledger, &report.imbalances)).close("details");
}

fn write_plan_and_files(page: &mut Markup, run: RunPage<'_>) {
    if run.document.is_empty() {
        page.element("p", &[("class", "absent")], "The text of the plan is not at hand.");
    } else {
        setup::write_plan(page, "The plan as it was run", run.document);
    }
    page.element("h3", &[], "Files beside this page");
    let has_probes = run.report.probes.is_some();
    let files = FILES.iter().filter(|(name, _)| has_probes || *name != PROBES_FILE);
    setup::write_files(page, files);
}
