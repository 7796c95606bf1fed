//! Capacity of links that the kernel shapes, idle and with traffic of others, against what a saturated link lets through.

use crate::lab::tc;
use crate::way::Way;
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_sys::clock;
use packetrig_wire::pattern::keyed_mix;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Of a saturated link's output.
const STRETCHES: usize = 20;
/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 42;
const PAYLOAD: usize = 1472;
const WITHIN: f64 = 0.05;
/// Share of the link that others take.
const OTHERS: f64 = 0.4;
/// Of the cross traffic.
pub(crate) const SHORT: usize = 700;

/// A shaper: what it is called, commands of `tc`, and frames that saturate it for a while.
struct Shaper {
    name: &'static str,
    commands: &'static [&'static str],
    frames: usize,
}

const SHAPERS: [Shaper; 6] = [
    Shaper {
        name: "tbf_1",
        commands: &["qdisc add dev port1 root tbf rate 1mbit burst 1600 limit 100000"],
        frames: 60,
    },
    Shaper {
        name: "tbf_10",
        commands: &["qdisc add dev port1 root tbf rate 10mbit burst 5000 limit 200000"],
        frames: 300,
    },
    Shaper {
        name: "tbf_100",
        commands: &["qdisc add dev port1 root tbf rate 100mbit burst 20000 limit 1000000"],
        frames: 1500,
    },
    Shaper {
        name: "htb_1",
        commands: &[HTB, "class add dev port1 parent 1: classid 1:1 htb rate 1mbit burst 1600 cburst 1600"],
        frames: 60,
    },
    Shaper {
        name: "htb_10",
        commands: &[HTB, "class add dev port1 parent 1: classid 1:1 htb rate 10mbit burst 2000 cburst 2000"],
        frames: 300,
    },
    Shaper {
        name: "htb_100",
        commands: &[
            HTB,
            "class add dev port1 parent 1: classid 1:1 htb rate 100mbit burst 20000 cburst 20000",
        ],
        frames: 1500,
    },
];
const HTB: &str = "qdisc add dev port1 root handle 1: htb default 1";

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let count = if effort.quick { "40" } else { "200" };
    output.say(&format!(
        "## Capacity\n\n`packetrig probe capacity --method pair`, {count} pairs of echo requests, over a router whose far link is shaped; with traffic of others \
         (datagrams of {SHORT} B at distances of chance, {:.0} % of the link) and without. Mbit/s of frames without FCS; the truth is what comes out of the link \
         when more goes in.\n",
        OTHERS * 100.0
    ))?;
    let mut table =
        Table::new(&["link", "others", "came out when saturated", "found", "low", "high", "error"]);
    for shaper in &SHAPERS {
        for busy in [false, true] {
            let (truth, said) = measure(shaper, busy, count)?;
            let figure =
                |name: &str| said.pointer(&format!("/estimate/{name}")).and_then(serde_json::Value::as_f64);
            let error = figure("bits_per_s").map(|found| found / truth - 1.0);
            let mbits =
                |bits: Option<f64>| bits.map_or_else(|| "–".to_owned(), |bits| format!("{:.3}", bits / 1e6));
            let percent =
                error.map_or_else(|| "no answer".to_owned(), |error| format!("{:+.2} %", error * 100.0));
            let others = if busy { "yes" } else { "no" };
            let found = ["bits_per_s", "low", "high"].map(|name| mbits(figure(name)));
            let cells = [shaper.name.to_owned(), others.to_owned(), mbits(Some(truth))];
            table.rows.push([&cells[..], &found[..], &[percent.clone()][..]].concat());
            let name = format!("capacity_{}{}", shaper.name, if busy { "_busy" } else { "" });
            let met: Goal = error.is_some_and(|error| error.abs() <= WITHIN).into();
            output.goal(&name, &percent, "within 5 % of the measured output", &met);
        }
    }
    output.table("capacity", &table)
}

fn measure(shaper: &Shaper, busy: bool, count: &str) -> anyhow::Result<(f64, serde_json::Value)> {
    let way = Way::routed()?;
    for command in shaper.commands {
        tc(way.middle()?, command)?;
    }
    let truth = saturated(&way, shaper.frames)?;
    let far = way.far.to_string();
    let words = ["capacity", &far, "--method", "pair", "--count", count, "--pause", "10ms"];
    let near = way.lab.ports()[0].netns().run_in_namespace(|| UdpSocket::bind("0.0.0.0:0"))??;
    let over = AtomicBool::new(!busy);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| others(&near, (way.far, 9).into(), OTHERS * truth, &over));
        let said = way.probe(&words);
        over.store(true, Ordering::Relaxed);
        said
    })?;
    Ok((truth, said))
}

/// Bits of frames per second that come out when more goes in: the median of [`STRETCHES`], because a machine that stands still for a moment
/// does not make the link slower.
pub(crate) fn saturated(way: &Way, frames: usize) -> anyhow::Result<f64> {
    let [near, far] = [0, 1].map(|host| way.lab.ports()[host].netns());
    let to = SocketAddr::from((way.far, 9000));
    let sink = far.run_in_namespace(|| UdpSocket::bind(to))??;
    sink.set_read_timeout(Some(Duration::from_millis(500)))?;
    let socket = near.run_in_namespace(|| UdpSocket::bind("0.0.0.0:0"))??;
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..frames {
                // What does not fit into the shaper's queue is dropped there.
                drop(socket.send_to(&[0; PAYLOAD], to));
            }
        });
        let mut buffer = [0; 2000];
        while sink.recv(&mut buffer).is_ok() {
            times.push(clock::monotonic_ns());
        }
    });
    // What lay in the bucket is not the link's rate.
    let steady = &times[20.min(times.len() / 2)..];
    let step = (steady.len() / STRETCHES).max(1);
    let ends: Vec<u64> = steady.iter().step_by(step).copied().collect();
    let mut took: Vec<u64> = ends.windows(2).map(|two| (two[1] - two[0]).max(1)).collect();
    took.sort_unstable();
    let median = took.get(took.len() / 2).context("nothing came out of the link")?;
    Ok(step as f64 * (PAYLOAD + HEADERS) as f64 * 8e9 / *median as f64)
}

/// Traffic of others until it is over.
pub(crate) fn others(socket: &UdpSocket, to: SocketAddr, bits_per_s: f64, over: &AtomicBool) {
    let (mut at, mut number) = (clock::monotonic_ns(), 0);
    while !over.load(Ordering::Relaxed) {
        // Nobody listens there: an error comes back now and then.
        drop(socket.send_to(&[0; SHORT], to));
        number += 1;
        let share = ((keyed_mix(3, number) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let wait = -share.ln() * (SHORT + HEADERS) as f64 * 8e9 / bits_per_s;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and far below the age of the machine"
        )]
        let wait = wait as u64;
        at += wait;
        clock::sleep_until_ns(at);
    }
}
