//! `packetrig test calibrate`: the rig measures itself, on a cable without a device under test.
//!
//! For each back end and frame size: the highest rate at which nothing is lost and nothing stays unsent, by bisection, each
//! rate as often as asked; and, far below it, the least latency and the error of send times. Trials are runs like any
//! other. What is found is kept in the catalogue, for later runs on this kernel.

use super::execution::{self, open_catalogue};
use crate::args::{BackEndName, CalibrateArgs as Arguments};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::numbers::{count, time};
use crate::output::{CommandOutput, remark};
use crate::table::table;
use packetrig_fleet::RunId;
use packetrig_fleet::report::{AcceptanceCriteria, RunReport};
use packetrig_node::RunOptions;
use packetrig_plan::quick::{QuickLength, QuickPattern, QuickPlan, QuickSize};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::BackEnd;
use packetrig_stats::search::ZeroLoss;
use packetrig_sys::{clock, kernel, private_files, signal, userns};
use packetrig_testkit::{Lab, Middle};
use packetrig_units::{FrameRate, FrameSize, Nanos, Rate, Ratio};

/// Faster than any rig on ordinary kernels: the first trial finds what is possible at all.
const AS_FAST_AS_IT_GOES: u64 = 40_000_000;
/// The link of the trials' plans, the fastest there is.
const LINK: &str = "speed_400_gbps";
const LINK_BITS: u64 = 400_000_000_000;
/// Preamble and gap, which a frame takes on a link beyond its own bytes.
const BETWEEN_FRAMES: u64 = 20;
/// A rate far from every limit.
const SLOW: u64 = 1_000;
/// The search ends within two percent.
const WIDTH: u64 = 20;
/// Above the rate that was reached there is nothing to find.
const ABOVE_REACHED: u64 = 102;

#[derive(Clone, Debug)]
struct CalibrationTrial {
    back_end: BackEnd,
    size: u32,
    asked: u64,
    sent: u64,
    unsent: u64,
    lost: u64,
}

impl CalibrationTrial {
    fn passed(&self) -> bool {
        self.lost == 0 && self.unsent == 0 && self.sent > 0
    }
}

pub(crate) fn perform(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    let ends = arguments.tx.as_ref().zip(arguments.rx.as_ref());
    let _lab = if ends.is_some() {
        None
    } else {
        // Nothing has started a thread yet: only a process with one thread may change its user namespace.
        userns::enter_lab()?;
        Some(Lab::build("", &["a", "b"], Middle::Cable)?)
    };
    let in_lab = || ("a/eth0".to_owned(), "b/eth0".to_owned());
    let (tx, rx) = ends.map_or_else(in_lab, |(tx, rx)| (tx.to_string(), rx.to_string()));
    signal::latch()?;
    let mut bench = TrialBench { arguments, tx, rx, trials: Vec::new() };
    let mut limits = Vec::new();
    for back_end in back_ends(&arguments.back_end) {
        for size in &arguments.size {
            if signal::received().is_some() {
                return Ok(CommandExit::Interrupted);
            }
            let limit = bench.limit(back_end, *size)?;
            catalogue.keep_limit(&limit)?;
            limits.push(limit);
        }
    }
    output.text(show(&limits));
    output.text(show_rates(&bench.trials));
    if let Some(file) = &arguments.trials {
        let what = || format!("to {}", file.display());
        private_files::write(file, csv(&bench.trials))
            .map_err(|source| Error::Write { what: what(), source })?;
    }
    Ok(CommandExit::Ok)
}

/// Those asked for, or all that can be measured here.
fn back_ends(asked: &[BackEndName]) -> Vec<BackEnd> {
    if !asked.is_empty() {
        return asked.iter().copied().map(Into::into).collect();
    }
    match packetrig_sys::xdp::obstacle() {
        None => vec![BackEnd::Packet, BackEnd::AfXdp, BackEnd::Xdp],
        Some(why) => {
            remark(format_args!("calibrate: back end packet only, because {why}"));
            vec![BackEnd::Packet]
        }
    }
}

struct TrialBench<'a> {
    arguments: &'a Arguments,
    tx: String,
    rx: String,
    trials: Vec<CalibrationTrial>,
}

impl TrialBench<'_> {
    fn limit(&mut self, back_end: BackEnd, size: u32) -> Result<RigLimit, Error> {
        remark(format_args!("calibrate: back end {}, {size} B", back_end.name()));
        let slow = self.trial(back_end, size, SLOW)?;
        let fastest = self.trial(back_end, size, as_fast_as_it_goes(size))?;
        let reached = fastest.streams[0].sent.as_ref().and_then(|sent| sent.rate);
        let reached = reached.map_or(0, |rate| rate.frames_milli / 1000);
        let mut search = ZeroLoss::new(reached * ABOVE_REACHED / 100, WIDTH, self.arguments.repeats);
        while let Some(load) = search.load() {
            if signal::received().is_some() {
                break;
            }
            self.trial(back_end, size, load)?;
            search.tell(self.trials.last().is_some_and(CalibrationTrial::passed));
        }
        let stream = &slow.streams[0];
        // Frames too long for live ones were sent through AF_XDP: that is what was measured.
        let ran = slow.ports.first().map_or(back_end, |port| port.info.back_end);
        Ok(RigLimit {
            back_end: ran,
            driver: slow.ports.first().map(|port| port.info.driver.clone()).unwrap_or_default(),
            size,
            frames_per_second: search.found(),
            latency_floor: stream.latency.as_ref().map(|latency| latency.min),
            send_error_p99: stream.sent.as_ref().and_then(|sent| sent.send_error).map(|error| error.p99),
            clock_reading: clock_reading(),
            kernel: kernel::release(),
            measured_wall_ns: clock::wall_clock_ns(),
        })
    }

    fn trial(&mut self, back_end: BackEnd, size: u32, asked: u64) -> Result<RunReport, Error> {
        let started = clock::wall_clock_ns();
        let options = RunOptions {
            run: RunId(identity::run_id(started, identity::entropy())),
            name: "calibrate".into(),
            started_wall_ns: started,
            tag_key: identity::entropy(),
            seed: 1,
            confirmed: self.arguments.confirm.iter().map(ToString::to_string).collect(),
            capture_dir: None,
            capture_all: false,
            steered: false,
            back_end: Some(back_end),
            limits: Vec::new(),
            drain: execution::DRAIN,
            criteria: AcceptanceCriteria::default(),
        };
        let stop = || signal::received().is_some();
        let document = document((&self.tx, &self.rx), size, asked, self.arguments.time)?;
        let report = packetrig_node::run_local(&document, options, &stop, &mut |_| {})?;
        let stream = &report.streams[0];
        let (sent, unsent) = stream.sent.as_ref().map_or((0, 0), |sent| (sent.frames, sent.unsent));
        let lost = stream.loss.as_ref().map_or(sent, |loss| loss.lost);
        self.trials.push(CalibrationTrial { back_end, size, asked, sent, unsent, lost });
        Ok(report)
    }
}

/// The plan of a trial.
fn document((tx, rx): (&str, &str), size: u32, pps: u64, time: Nanos) -> Result<String, Error> {
    let rate = FrameRate::per_second(pps).ok_or_else(|| Error::Usage("a trial needs a rate above zero".into()))?;
    let quick = QuickPlan {
        tx: vec![tx.to_owned()],
        pattern: QuickPattern::ToAll,
        rx: vec![rx.to_owned()],
        size: QuickSize::Fixed(FrameSize::new(size)),
        rate: Rate::Frames(rate),
        length: QuickLength::Time(time),
        streams: 1,
        vlan: None,
        ipv6: false,
    };
    let mut document = quick.document();
    // The limit sought is the rig's, not a link's.
    document["layer1"] = serde_json::json!([{"name": "any", "port_names": ["tx", "rx"], "speed": LINK}]);
    Ok(document.to_string())
}

/// Frames per second of the first trial: what a plan may ask of its link.
fn as_fast_as_it_goes(size: u32) -> u64 {
    AS_FAST_AS_IT_GOES.min(LINK_BITS / 8 / (u64::from(size) + BETWEEN_FRAMES))
}

/// Mean cost of one reading of the clock.
fn clock_reading() -> Nanos {
    const READINGS: u64 = 10_000;
    let start = clock::monotonic_ns();
    for _ in 0..READINGS {
        std::hint::black_box(clock::monotonic_ns());
    }
    Nanos::new((clock::monotonic_ns() - start) / READINGS)
}

fn show(limits: &[RigLimit]) -> String {
    let rows = limits.iter().map(|limit| {
        vec![
            limit.back_end.name().to_owned(),
            limit.driver.clone(),
            format!("{} B", limit.size),
            count(limit.frames_per_second),
            time(limit.latency_floor),
            time(limit.send_error_p99),
            time(Some(limit.clock_reading)),
        ]
    });
    let head = [
        "back end",
        "driver",
        "size",
        "zero-loss frames/s",
        "latency floor",
        "send error p99",
        "clock reading",
    ];
    format!("This rig's own limits\n{}", table(&head, rows))
}

/// Share of trials with any loss, by rate.
fn show_rates(trials: &[CalibrationTrial]) -> String {
    let mut keys: Vec<(BackEnd, u32, u64)> =
        trials.iter().map(|trial| (trial.back_end, trial.size, trial.asked)).collect();
    keys.sort_unstable();
    keys.dedup();
    let rows = keys.into_iter().map(|key| {
        let same: Vec<&CalibrationTrial> =
            trials.iter().filter(|trial| (trial.back_end, trial.size, trial.asked) == key).collect();
        let failed = same.iter().filter(|trial| !trial.passed()).count() as u64;
        let sum = |of: fn(&CalibrationTrial) -> u64| same.iter().map(|trial| of(trial)).sum::<u64>();
        vec![
            key.0.name().to_owned(),
            format!("{} B", key.1),
            count(key.2),
            same.len().to_string(),
            Ratio::new(failed, same.len() as u64).to_string(),
            count(sum(|trial| trial.lost)),
            count(sum(|trial| trial.unsent)),
        ]
    });
    let head = ["back end", "size", "frames/s", "trials", "with loss or unsent", "lost", "unsent"];
    format!("\nTrials\n{}", table(&head, rows))
}

fn csv(trials: &[CalibrationTrial]) -> String {
    let rows = trials.iter().map(|trial| {
        let CalibrationTrial { back_end, size, asked, sent, unsent, lost } = trial;
        format!("{},{size},{asked},{sent},{unsent},{lost}\n", back_end.name())
    });
    std::iter::once("back_end,size,frames_per_second,sent,unsent,lost\n".to_owned()).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_plan::{Plan, ReadOptions};

    #[test]
    fn the_first_trial_of_every_size_is_a_plan_its_link_can_carry() {
        for size in [64, 128, 512, 1500, 1518, 4096, 9000] {
            let text =
                document(("a/eth0", "b/eth0"), size, as_fast_as_it_goes(size), Nanos::from_millis(100));
            let plan =
                Plan::read_with(&text.unwrap(), ReadOptions { seed: 1, ..ReadOptions::default() }).unwrap();
            let speeds: Vec<_> = plan.ports.iter().map(|port| port.speed).collect();
            assert!(speeds.iter().all(Option::is_some));
            plan.bind(&speeds).unwrap_or_else(|problems| panic!("{size} B: {problems}"));
        }
    }
}
