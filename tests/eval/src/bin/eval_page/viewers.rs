//! What twenty viewers at ten events a second cost the server, and whether they disturb the run.
//!
//! One run has two equal streams. Windows take turns: in one kind of window nobody looks and the stream `voice` sends, in the other all
//! look and the other stream sends. So the report of the one run says how late the frames of both kinds of windows left.

use anyhow::Context;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_sys::clock;
use packetrig_tests::served_lab::{Events, ServedLab};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const VIEWERS: usize = 20;
/// Of one processor, in percent.
const WANTED: f64 = 5.0;
const PORT: u16 = 18_932;
/// The stream that sends while nobody looks, and the one that sends while all do.
const STREAMS: [&str; 2] = ["voice", "<b>video</b>"];

/// What was measured in the windows of one kind.
#[derive(Default)]
struct Windows {
    /// Processor time of the server in percent of one processor.
    load: Vec<f64>,
}

pub(super) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, seconds) = if effort.quick { (3, 3) } else { (20, 5) };
    output.say(&format!(
        "## Viewers\n\n{VIEWERS} viewers of `/api/v1/events?rate=10` beside a stream of 500 frames/s. Windows of {seconds} s without \
         and with viewers take turns, {rounds} of each. Processor time is that of the server (`/proc/PID/stat`), the cost is that \
         of a window with viewers minus that of the window before. In windows without viewers one stream of the run sends, in \
         windows with viewers an equal one; their errors are from the report of that one run.\n"
    ))?;
    let mut rig = ServedLab::start(PORT).context("a lab needs rights")?;
    rig.post("/config", &rig.configuration());
    let [mut alone, mut watched] = <[Windows; 2]>::default();
    let mut costs = Vec::new();
    let mut events = 0;
    for _ in 0..rounds {
        let without = window(&mut rig, STREAMS[0], seconds);
        let viewers = Viewers::start(&rig);
        let with = window(&mut rig, STREAMS[1], seconds);
        events += viewers.end();
        alone.load.push(without);
        watched.load.push(with);
        costs.push(with - without);
    }
    let report = finish(&rig)?;
    let read =
        |name| SendErrors::of(&report, name).with_context(|| format!("no send errors of {name} in {report}"));
    let errors = [read(STREAMS[0])?, read(STREAMS[1])?];
    output.table("viewers", &table_of([&alone, &watched], &errors))?;
    let per_second = events as f64 / (rounds * seconds * VIEWERS as u64) as f64;
    output.say(&format!("Each viewer received {per_second:.1} events/s.\n"))?;
    let cost = median(&costs).unwrap_or_default();
    output.goal(
        "viewers.cost",
        &format!("{cost:.2} % of a processor for {VIEWERS} viewers at {per_second:.1} events/s"),
        "< 5 %",
        &(cost < WANTED).into(),
    );
    let [alone, watched] = errors.map(|error| error.p99 / 1e3);
    let ratio = watched / alone.max(0.001);
    output.goal(
        "viewers.send errors",
        &format!("p99 {ratio:.2} times that without viewers ({watched:.1} and {alone:.1} us)"),
        "none measurable (at most 1.25 times)",
        &(ratio <= 1.25).into(),
    );
    Ok(())
}

fn table_of(windows: [&Windows; 2], errors: &[SendErrors; 2]) -> Table {
    let head =
        ["window", "load, % of a processor", "send error p50, us", "p99, us", "most, us", "late frames"];
    let mut table = Table::new(&head);
    for ((what, windows), error) in ["no viewer", "20 viewers"].into_iter().zip(windows).zip(errors) {
        let mut row = vec![what.to_owned(), format!("{:.2}", median(&windows.load).unwrap_or_default())];
        row.extend([error.p50, error.p99, error.max].map(|ns| format!("{:.1}", ns / 1e3)));
        row.push(error.late.to_string());
        table.rows.push(row);
    }
    table
}

/// Processor time of the server in percent of one processor while a stream sends.
fn window(rig: &mut ServedLab, stream: &str, seconds: u64) -> f64 {
    rig.post("/api/v1/streams", &json!({ "change": "resume", "streams": [stream] }));
    clock::sleep_until_ns(clock::monotonic_ns() + 500_000_000);
    let (before, start) = (rig.server.processor_seconds(), clock::monotonic_ns());
    clock::sleep_until_ns(start + seconds * 1_000_000_000);
    let (after, end) = (rig.server.processor_seconds(), clock::monotonic_ns());
    rig.post("/api/v1/streams", &json!({ "change": "pause", "streams": [stream] }));
    (after - before) * 1e11 / (end - start) as f64
}

/// Ends the run; its report.
fn finish(rig: &ServedLab) -> anyhow::Result<Value> {
    rig.post("/api/v1/streams", &json!({ "change": "stop" }));
    rig.post("/config", &json!({}));
    let runs =
        rig.await_get("/api/v1/runs", |runs| runs["results"].as_array().is_some_and(|rows| !rows.is_empty()));
    let id = runs["results"][0]["id"].as_str().context("a run has an id")?;
    Ok(rig.get(&format!("/api/v1/runs/{id}")))
}

/// Nanoseconds.
struct SendErrors {
    p50: f64,
    p99: f64,
    max: f64,
    late: u64,
}

impl SendErrors {
    fn of(report: &Value, stream: &str) -> Option<Self> {
        let row = report["streams"].as_array()?.iter().find(|row| row["name"] == stream)?;
        let error = &row["sent"]["send_error"];
        Some(Self {
            p50: error["p50"].as_f64()?,
            p99: error["p99"].as_f64()?,
            max: error["max"].as_f64()?,
            late: row["sent"]["late"].as_u64()?,
        })
    }
}

/// Clients that read all events and do nothing with them.
struct Viewers {
    stop: Arc<AtomicBool>,
    events: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Viewers {
    fn start(rig: &ServedLab) -> Self {
        let (stop, events) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..VIEWERS).map(|_| {
            let (stop, events) = (Arc::clone(&stop), Arc::clone(&events));
            let mut follower: Events = rig.follow("?rate=10&history=false");
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) && follower.skip_event() {
                    events.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, events, threads }
    }

    /// How many events all of them received.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // One that panicked has said so, and its events count.
            drop(thread.join());
        }
        self.events.load(Ordering::Relaxed)
    }
}
