//! The table of R2: sizes and numbers of flows; whole frames, trimmed ones and unified headers; beside softflowd and nfpcapd.

use crate::cores;
use crate::peers::{self, Tool};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_eval::traffic::{Form, Traffic};
use std::io::Write as _;

const SIZES: [usize; 4] = [64, 128, 256, 512];
const BITS: [u32; 3] = [11, 18, 21];
/// Millions of packets per second and core, by number of flows, at any size.
const WANTED: [(u32, f64); 3] = [(11, 25.0), (18, 20.0), (21, 15.0)];
const BETTER: f64 = 5.0;

/// What was measured for one size and number of flows.
struct Point {
    size: usize,
    bits: u32,
    /// Full, trimmed, unified; two workers on full frames.
    ours: [f64; 4],
    /// The whole program on a file.
    program: Option<f64>,
    peers: [Option<f64>; 2],
}

impl Point {
    fn best_peer(&self) -> Option<f64> {
        self.peers.into_iter().flatten().reduce(f64::max)
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let sizes = if effort.quick { &[64, 512][..] } else { &SIZES };
    let mut points = Vec::new();
    for &bits in &BITS {
        for &size in sizes {
            let point = point(size, bits, effort)?;
            // It takes minutes, and is told here as it comes.
            writeln!(std::io::stderr(), "2^{bits} flows, {size} B: {}", cells(&point).join(", "))?;
            points.push(point);
        }
    }
    output.say(
        "## Packets per second (R2)\n\nIPv4 and UDP. Ours: from a frame in memory to an updated flow, biflows, timeouts on, every \
         flow's timer ringing in each round; millions of packets per second of one core's time, the best round. \"Two\" is \
         the sum of two workers at once. The programs read the same capture file, of 2^21 packets; theirs is their \
         processor time too, start and end included.\n",
    )?;
    output.table("rate", &table(&points))?;
    draw(&points, output)?;
    goals(&points, output);
    Ok(())
}

fn point(size: usize, bits: u32, effort: Effort) -> anyhow::Result<Point> {
    let mut ours = [0.0; 4];
    let full = Traffic::new(size, bits, Form::Full);
    ours[0] = cores::rate(&full, Form::Full, bits, effort)?;
    ours[3] = cores::together(2, &full, Form::Full, bits, effort)?;
    let (program, peers) = programs(&full, bits)?;
    drop(full);
    for (at, form) in [(1, Form::Trimmed), (2, Form::Unified)] {
        ours[at] = cores::rate(&Traffic::new(size, bits, form), form, bits, effort)?;
    }
    Ok(Point { size, bits, ours, program, peers })
}

fn programs(full: &Traffic, bits: u32) -> anyhow::Result<(Option<f64>, [Option<f64>; 2])> {
    let files = tempfile::tempdir_in("/var/tmp")?;
    let file = files.path().join("frames.pcap");
    full.write(&file)?;
    let flows = 1 << bits;
    let [softflowd, nfpcapd] = Tool::PEERS.map(|tool| peers::rate(tool, &file, flows));
    // A table's own memory is taken at the start: what a file of few flows does not need is not asked for.
    let ours = peers::rate(Tool::Ours, &file, flows)?;
    Ok((ours, [softflowd?, nfpcapd?]))
}

fn table(points: &[Point]) -> Table {
    let [softflowd, nfpcapd] = Tool::PEERS.map(Tool::name);
    let mut table = Table::new(&[
        "flows",
        "size",
        "full",
        "trimmed",
        "unified",
        "two",
        Tool::Ours.name(),
        softflowd,
        nfpcapd,
        "full : best peer",
    ]);
    for point in points {
        let mut row = vec![format!("2^{}", point.bits), format!("{} B", point.size)];
        row.extend(cells(point));
        row.push(
            point.best_peer().map_or_else(|| "-".to_owned(), |peer| format!("{:.1}x", point.ours[0] / peer)),
        );
        table.rows.push(row);
    }
    table
}

/// The rates of a point.
fn cells(point: &Point) -> Vec<String> {
    let other = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
    let programs = [point.program, point.peers[0], point.peers[1]].map(other);
    point.ours.map(|rate| format!("{rate:.1}")).into_iter().chain(programs).collect()
}

fn draw(points: &[Point], output: &mut Output) -> anyhow::Result<()> {
    let names = ["full", "trimmed", "unified", "softflowd", "nfpcapd"];
    let groups: Vec<(String, Vec<f64>)> = points
        .iter()
        .map(|point| {
            let [full, trimmed, unified, _] = point.ours;
            let [softflowd, nfpcapd] = point.peers.map(Option::unwrap_or_default);
            (format!("2^{} {}", point.bits, point.size), vec![full, trimmed, unified, softflowd, nfpcapd])
        })
        .collect();
    let titles =
        Titles { plot: "Packets per second and core", x: "flows, bytes of a frame", y: "million packets/s" };
    output.plot("rate", titles.plot, &plot::bars(titles, &names, &groups))
}

fn goals(points: &[Point], output: &mut Output) {
    for (bits, wanted) in WANTED {
        for (way, what) in [(0, ""), (1, "_trimmed")] {
            let rates = points.iter().filter(|point| point.bits == bits).map(|point| point.ours[way]);
            let least = rates.fold(f64::MAX, f64::min);
            output.goal(
                &format!("rate_2_{bits}{what}"),
                &format!("{least:.1} M packets/s and core at the worst size"),
                &format!(">= {wanted:.0} M"),
                &(least >= wanted).into(),
            );
        }
    }
    let wanted = format!(">= {BETTER}x");
    for (what, rate) in [
        ("peers", (|point| Some(point.ours[0])) as fn(&Point) -> Option<f64>),
        ("peers_same_file", |point| point.program),
    ] {
        let ratios = points.iter().filter_map(|point| Some((rate(point)? / point.best_peer()?, point)));
        match ratios.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((least, point)) => {
                let at =
                    format!("{least:.1}x the best peer at least (2^{} flows, {} B)", point.bits, point.size);
                output.goal(what, &at, &wanted, &(least >= BETTER).into());
            }
            None => output.goal(
                what,
                "-",
                &wanted,
                &Goal::Unsupported("the program or its peers are not installed".into()),
            ),
        }
    }
}
