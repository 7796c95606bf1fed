//! What the goals say about trains: the best mechanism against sleeping, and whether the hybrid or the gate is to be the default.

use crate::figures::micros;
use crate::load::Load;
use crate::trains::Turn;
use packetrig_eval::output::{Goal, Output};
use packetrig_eval::plot::{self, Titles};
use packetrig_probe::choice::choose_mechanism;
use packetrig_probe::{ProbeStamp, ReleaseMechanism};
use packetrig_probe_io::release::{DepartedFrame, ReleaseOptions};

/// The sequential sender's p99 error is to be this many times the best one's.
const TIMES: f64 = 10.0;
/// Where the hybrid is within this of the gate, it is the default.
const WITHIN: f64 = 2.0;

/// The truest word of a mechanism on when a frame left.
pub(crate) fn left(gone: &DepartedFrame) -> Option<ProbeStamp> {
    let last = gone.departures.iter().max_by_key(|departure| departure.stage);
    last.map(|departure| departure.stamp).or(gone.released).or(gone.handed_over)
}

/// One sender in one table.
struct Row {
    name: String,
    mechanism: Option<ReleaseMechanism>,
    /// As the program does it unless it is told otherwise.
    usual: bool,
    merges: bool,
    p99: Option<i64>,
}

impl Row {
    /// A mechanism of ours, over the cable that it needs; a stand beside it is none.
    fn is_own_packet(&self) -> bool {
        match self.mechanism {
            None | Some(ReleaseMechanism::Sleep) => false,
            Some(ReleaseMechanism::Live) => true,
            Some(_) => !self.merges,
        }
    }
}

/// All tables.
#[derive(Default)]
pub(crate) struct Trains(Vec<(Load, u64, Vec<Row>)>);

impl Trains {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, load: Load, gap_us: u64, turns: &[Turn]) {
        let row = |turn: &Turn| Row {
            name: turn.name.clone(),
            mechanism: turn.ours.map(|(mechanism, _)| mechanism),
            usual: turn.ours.is_some_and(|(_, options)| {
                options == ReleaseOptions { stamps: options.stamps, ..ReleaseOptions::common() }
            }),
            merges: turn.merging,
            p99: turn.found.between.absolute().permille(990),
        };
        self.0.push((load, gap_us, turns.iter().map(row).collect()));
    }

    /// Plots and goals.
    pub(crate) fn say(&self, output: &mut Output) -> anyhow::Result<()> {
        for (gap_us, name) in [(10, "trains_10"), (1000, "trains_1000")] {
            let title = format!("p99 error of distances in trains, {gap_us} us apart");
            let groups: Vec<(String, Vec<(String, f64)>)> =
                self.0.iter().filter(|(_, gap, _)| *gap == gap_us).map(group).collect();
            let titles = Titles { plot: &title, x: "", y: "microseconds, logarithmic" };
            output.plot(name, &title, &plot::ladder(titles, &groups))?;
        }
        for (load, gap_us, rows) in self.0.iter().filter(|(load, ..)| *load != Load::Idle) {
            best(output, *load, *gap_us, rows);
        }
        self.default(output);
        Ok(())
    }

    /// The rule of the issue: the hybrid, where it is within twice the gate under load.
    fn default(&self, output: &mut Output) {
        let ratios: Vec<f64> = self
            .0
            .iter()
            .filter(|(load, ..)| *load != Load::Idle)
            .filter_map(|(.., rows)| ratio(rows))
            .collect();
        let Some(worst) = ratios.iter().copied().reduce(f64::max) else {
            let why = "spin and gate do not both run here".to_owned();
            return output.goal("default", "nothing", "a default", &Goal::Unsupported(why));
        };
        let default = if worst <= WITHIN { ReleaseMechanism::Spin } else { ReleaseMechanism::Gate };
        let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let usual = choose_mechanism(|_| true, None).0;
        let measured = format!(
            "p99 of spin is {} times the gate's under load, as both usually are: the default should be {default}, it is {usual}",
            all.join(", ")
        );
        let rule = "spin where it is within 2x of the gate, else gate";
        output.goal("default", &measured, rule, &(usual == default).into());
    }
}

fn group((load, _, rows): &(Load, u64, Vec<Row>)) -> (String, Vec<(String, f64)>) {
    let bar = |row: &Row| Some((row.name.clone(), row.p99? as f64 / 1e3));
    (load.name().to_owned(), rows.iter().filter_map(bar).collect())
}

/// p99 of `spin` over that of `gate`, both as they usually are: of four gates one would be lucky.
fn ratio(rows: &[Row]) -> Option<f64> {
    let p99 = |mechanism| {
        let is_it = |row: &&Row| row.mechanism == Some(mechanism) && row.usual && !row.merges;
        rows.iter().find(is_it).and_then(|row| row.p99)
    };
    Some(p99(ReleaseMechanism::Spin)? as f64 / p99(ReleaseMechanism::Gate)?.max(1) as f64)
}

fn best(output: &mut Output, load: Load, gap_us: u64, rows: &[Row]) {
    let sequential = rows.first().and_then(|row| row.p99).unwrap_or(0);
    let ours = rows.iter().filter(|row| row.is_own_packet());
    let Some((name, p99)) = ours.filter_map(|row| Some((&row.name, row.p99?))).min_by_key(|(_, p99)| *p99)
    else {
        return;
    };
    let share = p99 as f64 / sequential.max(1) as f64;
    output.goal(
        &format!("trains_{}_{gap_us}", load.short()),
        &format!(
            "p99 error {} us ({name}), sequential {} us: 1/{:.0}",
            micros(Some(p99)),
            micros(Some(sequential)),
            1.0 / share.max(1e-9)
        ),
        "best mechanism <= 1/10 of the sequential",
        &(share * TIMES <= 1.0).into(),
    );
}
