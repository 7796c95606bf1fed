//! Loss, copies and reordering as `ping` and `oneprobe` tell them, next to the log of the impaired tap between the hosts.

use crate::way::Way;
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use packetrig_tests::truth::{Told, Truth, Ways};
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Frames of echo requests and their answers, without FCS.
const ECHO: u64 = 98;
const PORT: u16 = 8080;
const SERVED: usize = 300_000;

/// What a tap does to pings, and what of it is compared with which account.
struct Faults {
    account: &'static str,
    deed: &'static str,
    impairments: [&'static str; 4],
}

const PINGED: [Faults; 3] = [
    Faults {
        account: "lost",
        deed: "dropped",
        impairments: ["--impair-ab", "loss=4%", "--impair-ba", "loss=6%"],
    },
    Faults {
        account: "duplicates",
        deed: "copies",
        impairments: ["--impair-ab", "duplicate=5%", "--impair-ba", "delay=1ms"],
    },
    Faults {
        account: "reordered",
        deed: "held_for",
        impairments: ["--impair-ab", "delay=1ms", "--impair-ba", "reorder=5%,reorder-by=1"],
    },
];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let count = if effort.quick { 200 } else { 600 };
    output.say(&format!(
        "## Next to the truth\n\nThrough `packetrig tap --impair … --truth FILE`: {count} echo requests 10 ms apart, and {} pairs of segments to \
         a web server (busybox) 40 ms apart. A probe of `oneprobe` counts where it says something; each is compared with what was done to its own frames.\n",
        count / 2
    ))?;
    let mut table = Table::new(&["by", "what", "probes", "found", "truth", "probes that say something else"]);
    for faults in PINGED {
        ping(&faults, count, &mut table, output)?;
    }
    losses(count / 2, &mut table, output)?;
    order(count / 2, &mut table, output)?;
    output.table("truth", &table)
}

fn row(by: &str, what: &str, figures: [u64; 3], wrong: &str) -> Vec<String> {
    let figures = figures.map(|figure| figure.to_string());
    [&[by.to_owned(), what.to_owned()][..], &figures, &[wrong.to_owned()]].concat()
}

/// A tap between the hosts that writes down what it does.
struct Between(Running);

impl Between {
    fn new(way: &Way, impairments: &[&str]) -> Self {
        let [a, b] = [0, 1].map(|side| way.lab.device_location(side));
        let truth = way.file("truth.jsonl").display().to_string();
        let usual = ["tap", &a, &b, "--no-link-state", "--json", "--seed", "5", "--truth", &truth];
        let mut tap = Running::start(&[&usual[..], impairments].concat(), "");
        tap.await_remark("forwarding");
        Self(tap)
    }

    fn end(mut self) -> anyhow::Result<()> {
        self.0.signal(Signal::TERM);
        let ended = self.0.finish();
        ensure!(ended.code == Some(0), "the tap: {}{}", ended.stdout, ended.stderr);
        Ok(())
    }
}

fn ping(faults: &Faults, count: u32, table: &mut Table, output: &mut Output) -> anyhow::Result<()> {
    let way = Way::apart()?;
    let tap = Between::new(&way, &faults.impairments);
    let (far, number) = (way.far.to_string(), count.to_string());
    let said = way.probe(&["ping", &far, "-c", &number, "-i", "10ms", "-q"])?;
    tap.end()?;
    let counts = &said["targets"][0]["counts"];
    let of = |name: &str| counts[name].as_u64().with_context(|| format!("no {name}: {said}"));
    let (sent, found) = (of("sent")?, of(faults.account)?);
    let truth = Truth::read(&way.file("truth.jsonl"))?;
    let done: u64 = ["a->b", "b->a"].iter().map(|way| truth.count(way, ECHO, faults.deed, 0..u64::MAX)).sum();
    table.rows.push(row("ping", faults.account, [sent, found, done], "–"));
    output.goal(
        &format!("truth_ping_{}", faults.account),
        &format!("{found} of {sent} {}, truth {done}", faults.account),
        "equal",
        &Goal::from(found == done && done > 0),
    );
    Ok(())
}

/// A web server at the second host.
struct Server(Child);

impl Server {
    fn start(way: &Way) -> anyhow::Result<Self> {
        std::fs::write(way.file("large"), vec![b'x'; SERVED])?;
        let mut command = Command::new("busybox");
        command.args(["httpd", "-f", "-p", &format!("{}:{PORT}", way.far), "-h"]).arg(way.file(""));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let netns = way.lab.ports()[1].netns();
        let server = Self(netns.run_in_namespace(|| command.spawn())?.context("busybox")?);
        let end = clock::monotonic_ns() + 10_000_000_000;
        while !netns.run_in_namespace(|| TcpStream::connect((way.far, PORT)).is_ok())? {
            ensure!(clock::monotonic_ns() < end, "busybox does not listen");
            clock::sleep_until_ns(clock::monotonic_ns() + 20_000_000);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A series of `oneprobe` through a tap: what it says, and its probes next to the truth.
fn oneprobe(count: u32, impairments: &[&str]) -> anyhow::Result<(Value, Told)> {
    let way = Way::apart()?;
    let _server = Server::start(&way)?;
    let tap = Between::new(&way, impairments);
    let (outcomes, far, port) = (way.file("outcomes.jsonl"), way.far.to_string(), PORT.to_string());
    let write = outcomes.display().to_string();
    let words = ["oneprobe", &far, "--port", &port, "--path", "/large", "-i", "40ms", "--write", &write];
    let said = way.probe(&[&words[..], &["-c", &count.to_string()]].concat())?;
    tap.end()?;
    let ahead = u64::try_from(clock::measure_realtime_offset().offset_ns)?;
    Ok((said, Told::read(&outcomes, &way.file("truth.jsonl"), ahead)?))
}

fn losses(count: u32, table: &mut Table, output: &mut Output) -> anyhow::Result<()> {
    let (said, told) = oneprobe(count, &["--impair-ab", "loss=4%", "--impair-ba", "loss=7%"])?;
    let (probes, sum, wrong) = told.losses();
    let sides: [fn(Ways) -> u64; 2] = [|ways| ways.there, |ways| ways.back];
    let names = [("lost there", "/report/forward/lost"), ("lost back", "/report/reverse/lost")];
    for ((what, path), side) in names.into_iter().zip(sides) {
        let found = said.pointer(path).and_then(Value::as_u64).with_context(|| path.to_owned())?;
        ensure!(found == side(sum), "{what}: the report says {found}, its probes {}", side(sum));
        let truth: u64 = wrong.iter().map(|one| side(one.truth)).sum();
        let word: u64 = wrong.iter().map(|one| side(one.said)).sum();
        let figures = [probes, found, found + truth - word];
        table.rows.push(row("oneprobe", what, figures, &wrong.len().to_string()));
    }
    for one in &wrong {
        output.say(&format!("Says something else than the truth: `{one:?}`\n"))?;
    }
    output.goal(
        "truth_oneprobe_loss",
        &format!(
            "{} lost there and {} back of {probes} pairs; {} pairs differ",
            sum.there,
            sum.back,
            wrong.len()
        ),
        "0 pairs differ from the truth",
        &Goal::from(wrong.is_empty() && sum.there > 0 && sum.back > 0),
    );
    Ok(())
}

fn order(count: u32, table: &mut Table, output: &mut Output) -> anyhow::Result<()> {
    let (said, told) = oneprobe(count, &["--impair-ab", "reorder=10%,reorder-by=1"])?;
    let number = |path: &str| said.pointer(path).and_then(Value::as_u64).with_context(|| path.to_owned());
    let (there, back, probes) =
        (number("/report/forward/reordered")?, number("/report/reverse/reordered")?, number("/report/told")?);
    // A second segment that is held back overtakes nothing.
    let held = told.held_there();
    table.rows.push(row(
        "oneprobe",
        "overtaken there (truth: held back, either segment)",
        [probes, there, held],
        "–",
    ));
    output.goal(
        "truth_oneprobe_order",
        &format!("{there} overtaken there of {held} held back, {back} overtaken back of 0"),
        "some, no more than were held back, none back",
        &Goal::from(there > 0 && there <= held && back == 0),
    );
    Ok(())
}
