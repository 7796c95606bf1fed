//! From the moment a configuration is sent until its first frame arrives at the far interface: configure, start, frame.
//! The arrival is the kernel's stamp, taken by a socket of our own.

use crate::http::Http;
use crate::server::{Server, pause};
use anyhow::ensure;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_eval::{Effort, median};
use packetrig_sys::clock;
use packetrig_sys::packet::{RxOptions, RxRing};

/// Frames of a configuration that never come are waited for so long.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Milliseconds of one trial, all from the sending of the configuration.
#[derive(Clone, Copy)]
struct Trial {
    configured: f64,
    started: f64,
    first_frame: f64,
}

/// Numbers of flows, and what their first frame may take, ms.
const GOALS: [(u16, f64); 3] = [(1, 50.0), (256, f64::INFINITY), (4096, 2000.0)];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trials = if effort.quick { 5 } else { 25 };
    output.say(&format!(
        "## From configuration to first frame\n\nMilliseconds from the sending of `set_config` on an open connection \
         (HTTP) until it was answered, until `start` was answered, and until the first frame arrived at the far interface \
         by the kernel's stamp. {trials} trials each, without a configuration before and in place of one of as many flows \
         whose traffic is running.\n"
    ))?;
    let mut table = Table::new(&[
        "flows",
        "before",
        "configured, median",
        "started, median",
        "first frame, median",
        "first frame, worst",
    ]);
    let server = Server::start()?;
    let mut groups = Vec::new();
    for (flows, limit) in GOALS {
        let mut medians = Vec::new();
        for (before, replaces) in [("nothing", false), ("a configuration", true)] {
            let trials = series(&server, flows, replaces, trials)?;
            let of = |what: fn(&Trial) -> f64| trials.iter().map(what).collect::<Vec<f64>>();
            let middle = |what| median(&of(what)).unwrap_or_default();
            let worst = of(|trial| trial.first_frame).into_iter().fold(0.0, f64::max);
            let first = middle(|trial| trial.first_frame);
            let figures = [middle(|t| t.configured), middle(|t| t.started), first, worst];
            let cells = figures.map(|figure| format!("{figure:.1}"));
            table.rows.push([flows.to_string(), before.to_owned()].into_iter().chain(cells).collect());
            medians.push(first);
            if limit.is_finite() {
                let how = if replaces { "replacing" } else { "fresh" };
                output.goal(
                    &format!("first_frame_{flows}_{how}"),
                    &format!("{first:.1} ms (worst {worst:.1} ms)"),
                    &format!("< {limit:.0} ms"),
                    &(first < limit).into(),
                );
            }
        }
        groups.push((format!("{flows} flows"), medians));
    }
    output.table("latency", &table)?;
    let titles = Titles { plot: "From set_config to the first frame", x: "", y: "milliseconds, median" };
    let names = ["nothing before", "replacing"];
    output.plot("latency", titles.plot, &plot::bars(titles, &names, &groups))
}

fn series(server: &Server, flows: u16, replaces: bool, trials: u16) -> anyhow::Result<Vec<Trial>> {
    let mut client = server.client()?;
    let port = &server.lab.ports()[1];
    // About 100 000 frames per second at most, and a first frame of each soon.
    let pps = if flows == 1 { 1000 } else { 10 };
    let mut done = Vec::new();
    // The first is not counted.
    for mark in 0..=trials {
        if replaces {
            client.set_config(&server.config(flows, pps, u16::MAX))?;
            client.transmit("start")?;
            pause(50);
        } else {
            client.set_config("{}")?;
        }
        let ring = RxRing::open_on_interface(port.netns(), port.link.index, "witness", RxOptions::default())?;
        // The kernel switches stamping on a little later.
        pause(20);
        let trial = trial(&mut client, ring, &server.config(flows, pps, mark), mark)?;
        if mark > 0 {
            done.push(trial);
        }
    }
    client.set_config("{}")?;
    Ok(done)
}

fn trial(client: &mut Http, mut ring: RxRing, config: &str, mark: u16) -> anyhow::Result<Trial> {
    let begun = clock::wall_clock_ns();
    let since = |at: u64| at.saturating_sub(begun) as f64 / 1e6;
    client.set_config(config)?;
    let configured = since(clock::wall_clock_ns());
    client.transmit("start")?;
    let started = since(clock::wall_clock_ns());
    let [high, low] = mark.to_be_bytes();
    let destination = [2, 0, 0, 1, high, low];
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    let mut first = None;
    while first.is_none() {
        ensure!(clock::monotonic_ns() < deadline, "no frame of configuration {mark} arrived");
        ring.wait_for_frames(10_000_000)?;
        ring.receive_frames(4096, &mut |frame| {
            if frame.bytes.starts_with(&destination) {
                first = first.or(Some(frame.realtime_ns));
            }
        });
    }
    Ok(Trial { configured, started, first_frame: first.map(since).unwrap_or_default() })
}
