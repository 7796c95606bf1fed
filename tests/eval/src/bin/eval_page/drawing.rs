//! What a browser loads of the live page, and when it has drawn something.

use anyhow::{Context, ensure};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_tests::browser::Browser;
use packetrig_tests::served_lab::ServedLab;
use serde_json::json;
use std::io::Write as _;
use std::process::{Command, Stdio};

const WANTED_KB: f64 = 300.0;
const PORT: u16 = 18_931;

pub(super) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## First drawing\n\nThe live page of a run in progress in a headless Chromium on the same machine, each time in a browser \
         without a cache. `first paint` is the browser's first contentful paint; `ledger` is when the drawing of the places of losses \
         is there. Both are milliseconds since the navigation began. Bytes are those of all files that the page loads, each \
         compressed by `gzip -9`.\n",
    )?;
    let rig = ServedLab::start(PORT).context("a lab needs rights")?;
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &json!({ "change": "start" }));
    let rounds = if effort.quick { 3 } else { 10 };
    let (mut paints, mut ledgers, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut browser = Browser::start().context("no Chromium is installed")?;
        browser.open_address(&format!("{}/ui/", rig.origin()));
        browser.await_true("document.querySelector('svg.ledger')");
        let ledger = browser.evaluate("performance.now()").as_f64().context("a time")?;
        let paint =
            browser.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null");
        paints.extend(paint.as_f64());
        ledgers.push(ledger);
        files = files_of(&browser, &rig);
    }
    ensure!(!files.is_empty(), "the page has loaded no files");
    let mut table = Table::new(&["file", "bytes", "compressed"]);
    let (mut bytes, mut compressed) = (0, 0);
    for file in &files {
        let text = rig.request("GET", file, "");
        let small = gzip(text.as_bytes())?;
        (bytes, compressed) = (bytes + text.len(), compressed + small);
        table.rows.push(vec![file.clone(), text.len().to_string(), small.to_string()]);
    }
    output.table("files", &table)?;
    let (paint, ledger) = (median(&paints).unwrap_or(f64::NAN), median(&ledgers).unwrap_or(f64::NAN));
    output.say(&format!(
        "First paint after {paint:.0} ms, the ledger after {ledger:.0} ms at most (middle of {rounds}); {bytes} B in {} files.\n",
        files.len()
    ))?;
    let kb = compressed as f64 / 1000.0;
    output.goal("bytes", &format!("{kb:.1} kB compressed"), "under 300 kB", &(kb < WANTED_KB).into());
    Ok(())
}

/// Paths of the page's own files; what the API answers is no file.
fn files_of(browser: &Browser, rig: &ServedLab) -> Vec<String> {
    let origin = rig.origin();
    let own =
        browser.requested().into_iter().filter_map(|address| Some(address.strip_prefix(&origin)?.to_owned()));
    let mut files: Vec<String> = own.filter(|path| path.starts_with("/ui/")).collect();
    files.sort();
    files.dedup();
    files
}

/// How long `gzip -9` makes it.
fn gzip(bytes: &[u8]) -> anyhow::Result<usize> {
    let mut child =
        Command::new("gzip").args(["-9", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("its input")?;
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output()?;
    ensure!(writer.join().is_ok_and(|written| written.is_ok()) && output.status.success(), "gzip failed");
    Ok(output.stdout.len())
}
