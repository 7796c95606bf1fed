//! What is free of links that the kernel shapes, through our own reflector, beside traffic of others of a known rate.
//!
//! The router is on the processors that probe: `gate` would keep its timers off them, so `spin` lets probes go.

use crate::capacity::{SHORT, others, saturated};
use crate::lab::tc;
use crate::way::Way;
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_tests::program::Running;
use serde_json::Value;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shaper: what it is called, the command of `tc`, and frames that saturate it for a while.
const SHAPERS: [(&str, &str, usize); 3] = [
    ("tbf_10", "qdisc add dev port1 root tbf rate 10mbit burst 1600 limit 200000", 300),
    ("tbf_10_bucket", "qdisc add dev port1 root tbf rate 10mbit burst 9000 limit 200000", 300),
    ("tbf_50", "qdisc add dev port1 root tbf rate 50mbit burst 2000 limit 400000", 800),
];
/// Shares of the link that others take.
const OTHERS: [f64; 3] = [0.0, 0.3, 0.6];
/// Methods, with pairs, chirps or streams of a rate: in full, and in short.
const METHODS: [(&str, &str, &str); 3] =
    [("pathload", "12", "6"), ("pathchirp", "30", "15"), ("spruce", "100", "30")];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(&format!(
        "## Available\n\n`packetrig probe available`, over a router whose far link is shaped, to `packetrig probe reflect`; traffic of others are \
         datagrams of {SHORT} B at distances of chance. Mbit/s of frames without FCS; the truth is what comes out of the saturated link less what others send. The \
         error is in parts of the link. No goal is named for it.\n"
    ))?;
    let mut table =
        Table::new(&["link", "others", "method", "truth", "found", "low", "high", "error", "probes"]);
    for (name, command, frames) in SHAPERS {
        for share in OTHERS {
            for (method, full, quick) in METHODS {
                let count = if effort.quick { quick } else { full };
                let (link, said) = measure(command, frames, share, &["--method", method, "--count", count])?;
                let truth = (1.0 - share) * link;
                let cells = [name.to_owned(), format!("{:.0} %", share * 100.0), method.to_owned()];
                table.rows.push([&cells[..], &figures(truth, link, &said)[..]].concat());
            }
        }
    }
    output.table("available", &table)
}

/// Truth, estimate, its bounds, its error, and what it took; or why there is none.
fn figures(truth: f64, link: f64, said: &Value) -> Vec<String> {
    let mbits = |bits: f64| format!("{:.3}", bits / 1e6);
    let figure = |name: &str| said.pointer(&format!("/estimate/{name}")).and_then(Value::as_f64);
    let reason = said.pointer("/no_answer/detail/reason").and_then(Value::as_str).unwrap_or("no answer");
    let found = ["bits_per_s", "low", "high"].map(|name| figure(name).map_or_else(|| "–".to_owned(), mbits));
    let error = figure("bits_per_s").map(|rate| format!("{:+.1} %", (rate - truth) / link * 100.0));
    let mut cells = vec![mbits(truth)];
    cells.extend(found);
    cells.extend([error.unwrap_or_else(|| reason.to_owned()), said["probes"].to_string()]);
    cells
}

/// Bits that come out of the saturated link, and what the program says of it while others send their share.
fn measure(command: &str, frames: usize, share: f64, words: &[&str]) -> anyhow::Result<(f64, Value)> {
    let way = Way::routed()?;
    tc(way.middle()?, command)?;
    let link = saturated(&way, frames)?;
    let (far, netns) = (way.far.to_string(), way.lab.ports()[1].namespace().to_owned());
    let listen = format!("{far}:862");
    let mut reflector =
        Running::start(&["probe", "reflect", &listen, "--netns", &netns, "--allow", "198.18.0.0/15"], "");
    reflector.await_remark("listening");
    let usual = ["available", &far, "--reflector", "862"];
    let near = way.lab.ports()[0].netns().run_in_namespace(|| UdpSocket::bind("0.0.0.0:0"))??;
    let over = AtomicBool::new(share <= 0.0);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| others(&near, (way.far, 9).into(), share * link, &over));
        let said = way.probe(&[&usual[..], words].concat());
        over.store(true, Ordering::Relaxed);
        said
    });
    Ok((link, said.with_context(|| command.to_owned())?))
}
