//! `packetrig test calibrate`: the rig measures itself, on a cable without a device under test.
//!
//! For each back end and frame size, a bisection finds the highest rate at which no frame is lost and none stays
//! unsent. A rate must pass `--repeats` trials. Far below that rate, the command measures the least latency and the
//! error of send times. Trials are ordinary runs. The limits go into the catalogue, for later runs on this kernel.

use super::execution::{self, open_catalogue};
use super::is_interrupted;
use crate::args::{BackEndName, CalibrateArgs as Arguments};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::numbers::{format_count, format_time_or_dash};
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use packetrig_fleet_io::RunOptions;
use packetrig_method::bisection::{Bisection, BisectionOptions};
use packetrig_plan::quick::{QuickLength, QuickPattern, QuickPlan, QuickSize};
use packetrig_report::{AcceptanceCriteria, RunId, RunReport};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::{clock, kernel, private_files, signal, userns};
use packetrig_testkit::{Lab, PortConnection};
use packetrig_units::{FrameRate, FrameSize, Nanos, Rate, Ratio};

/// Frames per second of the first trial: more than any rig on ordinary kernels sends, so the trial shows the maximum.
const FIRST_TRIAL_FRAME_RATE: u64 = 40_000_000;
/// The link speed in the plans of trials: the fastest that a plan can name, so that no trial is limited by it.
const FASTEST_LINK_SPEED: &str = "speed_400_gbps";
const FASTEST_LINK_BITS_PER_SECOND: u64 = 400_000_000_000;
/// Preamble and inter-frame gap: a frame of N bytes occupies the link for N + 20 bytes.
const INTER_FRAME_OVERHEAD_BYTES: u64 = 20;
/// Frames per second of the trial that measures latency: far below every limit.
const SLOW_FRAME_RATE: u64 = 1_000;
/// The search ends when its bounds differ by at most this many per mille.
const SEARCH_WIDTH_PERMILLE: u32 = 20;
/// The search begins at this percentage of the rate that the first trial reached: the rig cannot send faster.
const SEARCH_START_PERCENT: u64 = 102;

/// Back end, frame size and rate of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TrialLoad {
    back_end: BackEnd,
    size: u32,
    frames_per_second: u64,
}

#[derive(Clone, Debug)]
struct CalibrationTrial {
    load: TrialLoad,
    sent: u64,
    unsent: u64,
    lost: u64,
}

impl CalibrationTrial {
    fn has_passed(&self) -> bool {
        self.lost == 0 && self.unsent == 0 && self.sent > 0
    }
}

pub(crate) fn run_calibration(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    if let Some(tx) = arguments.tx.as_ref().filter(|tx| arguments.rx.as_ref() == Some(*tx)) {
        return Err(Error::Usage(format!("{tx} is both --tx and --rx; give the two ends of a cable")));
    }
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    // The argument parser accepts --tx and --rx only together.
    let _lab = if arguments.tx.is_some() {
        None
    } else {
        // unshare(2): only a process with one thread may change its user namespace, and no thread has been started yet.
        userns::enter_lab()?;
        Some(Lab::build_named("", &["a", "b"], PortConnection::Cable)?)
    };
    let tx = arguments.tx.as_ref().map_or_else(|| "a/eth0".to_owned(), ToString::to_string);
    let rx = arguments.rx.as_ref().map_or_else(|| "b/eth0".to_owned(), ToString::to_string);
    signal::record_end_signals()?;
    let mut calibrator = Calibrator { arguments, tx, rx, trials: Vec::new() };
    let mut limits = Vec::new();
    for back_end in choose_back_ends(&arguments.back_end) {
        for size in &arguments.size {
            let Some(limit) = calibrator.find_rig_limit(back_end, *size)? else {
                return Ok(CommandExit::Interrupted);
            };
            // Each limit is stored at once, so that an interruption does not lose the limits found before.
            catalogue.store_limit(&limit)?;
            limits.push(limit);
        }
    }
    output.write_text(format_limits_table(&limits));
    output.write_text(format_trials_table(&calibrator.trials));
    if let Some(file) = &arguments.trials {
        private_files::write_file(file, format_trials_csv(&calibrator.trials))
            .map_err(|source| Error::Write { what: format!("to {}", file.display()), source })?;
    }
    Ok(CommandExit::Ok)
}

/// The back ends on the command line; if there are none, all back ends that work on this machine.
fn choose_back_ends(asked: &[BackEndName]) -> Vec<BackEnd> {
    if !asked.is_empty() {
        return asked.iter().copied().map(Into::into).collect();
    }
    match packetrig_sys::xdp::bpf_obstacle() {
        None => vec![BackEnd::Packet, BackEnd::AfXdp, BackEnd::Xdp],
        Some(why) => {
            print_remark(format_args!("calibrate: back end packet only, because {why}"));
            vec![BackEnd::Packet]
        }
    }
}

struct Calibrator<'a> {
    arguments: &'a Arguments,
    tx: String,
    rx: String,
    trials: Vec<CalibrationTrial>,
}

impl Calibrator<'_> {
    /// Measures the limits of a back end at one frame size. `None` if the user interrupted the search before its end.
    fn find_rig_limit(&mut self, back_end: BackEnd, size: u32) -> Result<Option<RigLimit>, Error> {
        print_remark(format_args!("calibrate: back end {}, {size} B", back_end.name()));
        // Latency is measured far below every limit: near a limit, frames wait in queues, and the latency depends on
        // the load and not on the rig.
        let slow = self.run_trial(back_end, size, SLOW_FRAME_RATE)?;
        // One trial far above every limit shows how fast the rig sends at all. Without it, the first steps of the bisection
        // would be trials at rates that cannot pass.
        let fastest = self.run_trial(back_end, size, first_trial_frame_rate(size))?;
        if is_interrupted() {
            return Ok(None);
        }
        let reached = fastest.streams[0].sent.as_ref().and_then(|sent| sent.rate);
        let reached = reached.map_or(0, |rate| rate.frames_milli / 1000);
        let mut search = self.new_zero_loss_search(reached);
        while let Some(load) = search.next_value().filter(|load| *load > 0) {
            self.run_trial(back_end, size, load)?;
            if is_interrupted() {
                return Ok(None);
            }
            let has_passed = self.trials.last().is_some_and(CalibrationTrial::has_passed);
            // The search expects a loss ratio. A calibration accepts no loss, so a failed trial counts as total loss.
            search.on_loss(if has_passed { 0.0 } else { 1.0 }, false);
        }
        // The plan of a trial has exactly one stream.
        let stream = &slow.streams[0];
        // The back end `xdp` sends frames that are too long for live frames through AF_XDP. The limit is stored for
        // the back end that really ran.
        let ran = slow.ports.first().map_or(back_end, |port| port.info.back_end);
        Ok(Some(RigLimit {
            back_end: ran,
            driver: slow.ports.first().map(|port| port.info.driver.clone()).unwrap_or_default(),
            size,
            // The rate is 0 if no load passed its trials.
            frames_per_second: search.bounds().lower.unwrap_or(0),
            latency_floor: stream.latency.as_ref().map(|latency| latency.min),
            send_error_p99: stream.sent.as_ref().and_then(|sent| sent.send_error).map(|error| error.p99),
            clock_reading: measure_clock_reading(),
            kernel: kernel::kernel_release_name(),
            measured_wall_ns: clock::wall_clock_ns(),
        }))
    }

    /// Returns a search in which each load must pass all its trials. Loss is not always repeatable: if one passed trial
    /// were enough, the search would end at a load that is too high.
    fn new_zero_loss_search(&self, reached: u64) -> Bisection<u64> {
        Bisection::new(BisectionOptions {
            relative_resolution_permille: SEARCH_WIDTH_PERMILLE,
            passes: self.arguments.repeats,
            ..BisectionOptions::without_retries(0, reached * SEARCH_START_PERCENT / 100, 1)
        })
    }

    fn run_trial(&mut self, back_end: BackEnd, size: u32, asked: u64) -> Result<RunReport, Error> {
        let started = clock::wall_clock_ns();
        let options = RunOptions {
            run: RunId(identity::run_id(started, identity::random_number())),
            name: "calibrate".into(),
            started_wall_ns: started,
            // Limits of earlier calibrations must not influence this one, so there are none.
            terms: SharedRunOptions {
                tag_key: identity::random_number(),
                // The seed is the same for all trials, so that trials of one load send the same frames.
                seed: 1,
                back_end: Some(back_end),
                ..SharedRunOptions::default()
            },
            confirmed: self.arguments.confirm.iter().map(ToString::to_string).collect(),
            capture_dir: None,
            drain: execution::DEFAULT_DRAIN_TIME,
            criteria: AcceptanceCriteria::default(),
        };
        let document = trial_document(&self.tx, &self.rx, size, asked, self.arguments.time)?;
        let report = packetrig_fleet_io::run_local(&document, options, &is_interrupted, &mut |_| {})?;
        let stream = &report.streams[0];
        let sent = stream.sent.as_ref().map_or(0, |sent| sent.frames);
        let unsent = stream.sent.as_ref().map_or(0, |sent| sent.unsent);
        // Without a count of losses, nothing shows that a frame arrived, so all sent frames count as lost.
        let lost = stream.loss.as_ref().map_or(sent, |loss| loss.lost);
        let load = TrialLoad { back_end, size, frames_per_second: asked };
        self.trials.push(CalibrationTrial { load, sent, unsent, lost });
        Ok(report)
    }
}

/// Returns the plan of a trial: one stream from `tx` to `rx`, with `pps` frames per second.
fn trial_document(tx: &str, rx: &str, size: u32, pps: u64, time: Nanos) -> Result<String, Error> {
    let rate =
        FrameRate::per_second(pps).ok_or_else(|| Error::Usage("a trial needs a rate above zero".into()))?;
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
        hosts: None,
    };
    let mut document = quick.to_document();
    // Trials search the limit of the rig, not of the link between the two interfaces.
    document["layer1"] =
        serde_json::json!([{"name": "any", "port_names": ["tx", "rx"], "speed": FASTEST_LINK_SPEED}]);
    Ok(document.to_string())
}

/// Frames per second of the first trial. A plan that asks more than its link can carry would be refused.
fn first_trial_frame_rate(size: u32) -> u64 {
    FIRST_TRIAL_FRAME_RATE
        .min(FASTEST_LINK_BITS_PER_SECOND / 8 / (u64::from(size) + INTER_FRAME_OVERHEAD_BYTES))
}

/// Mean cost of one reading of the clock.
fn measure_clock_reading() -> Nanos {
    const CLOCK_READINGS: u64 = 10_000;
    let start = clock::monotonic_ns();
    for _ in 0..CLOCK_READINGS {
        // `black_box` keeps the compiler from removing readings whose value nobody uses.
        std::hint::black_box(clock::monotonic_ns());
    }
    Nanos::new((clock::monotonic_ns() - start) / CLOCK_READINGS)
}

fn format_limits_table(limits: &[RigLimit]) -> String {
    let rows = limits.iter().map(|limit| {
        vec![
            limit.back_end.name().to_owned(),
            limit.driver.clone(),
            format!("{} B", limit.size),
            format_count(limit.frames_per_second),
            format_time_or_dash(limit.latency_floor),
            format_time_or_dash(limit.send_error_p99),
            format_time_or_dash(Some(limit.clock_reading)),
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
    format!("This rig's own limits\n{}", format_table(&head, rows))
}

/// Table of the trials by back end, size and rate, with the share of trials that lost frames or left some unsent.
fn format_trials_table(trials: &[CalibrationTrial]) -> String {
    let mut loads: Vec<TrialLoad> = trials.iter().map(|trial| trial.load).collect();
    // The rows are sorted by back end, size and rate, so that the reader sees where passing rates end.
    loads.sort_unstable();
    loads.dedup();
    let rows = loads.into_iter().map(|load| {
        let same: Vec<&CalibrationTrial> = trials.iter().filter(|trial| trial.load == load).collect();
        let failed = same.iter().filter(|trial| !trial.has_passed()).count() as u64;
        vec![
            load.back_end.name().to_owned(),
            format!("{} B", load.size),
            format_count(load.frames_per_second),
            same.len().to_string(),
            Ratio::new(failed, same.len() as u64).to_string(),
            format_count(same.iter().map(|trial| trial.lost).sum()),
            format_count(same.iter().map(|trial| trial.unsent).sum()),
        ]
    });
    let head = ["back end", "size", "frames/s", "trials", "with lost or unsent frames", "lost", "unsent"];
    format!("\nTrials\n{}", format_table(&head, rows))
}

fn format_trials_csv(trials: &[CalibrationTrial]) -> String {
    let rows = trials.iter().map(|trial| {
        let CalibrationTrial { load: TrialLoad { back_end, size, frames_per_second }, sent, unsent, lost } =
            trial;
        format!("{},{size},{frames_per_second},{sent},{unsent},{lost}\n", back_end.name())
    });
    std::iter::once("back_end,size,frames_per_second,sent,unsent,lost\n".to_owned()).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_plan::{Plan, PlanParseOptions};

    #[test]
    fn first_trial_plan_fits_link_at_every_size() {
        for size in [64, 128, 512, 1500, 1518, 4096, 9000] {
            let text = trial_document(
                "a/eth0",
                "b/eth0",
                size,
                first_trial_frame_rate(size),
                Nanos::from_millis(100),
            );
            let plan = Plan::from_text_with(
                &text.unwrap(),
                PlanParseOptions { seed: 1, ..PlanParseOptions::default() },
            )
            .unwrap();
            let speeds: Vec<_> = plan.ports.iter().map(|port| port.speed).collect();
            assert!(speeds.iter().all(Option::is_some));
            plan.bind_to_links(&speeds).unwrap_or_else(|problems| panic!("{size} B: {problems}"));
        }
    }
}
