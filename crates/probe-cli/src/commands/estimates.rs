//! `packetrig probe capacity` and `packetrig probe available`: send trains to a target and estimate a
//! rate from the answers.

use super::setup::ProbeSetup;
use super::{bounds, mechanism};
use crate::RecordFiles;
use crate::args::{
    AvailableArgs, AvailableMethod, CapacityArgs, CapacityMethod, EstimatingArgs, ProbeTarget,
};
use crate::error::Error;
use packetrig_probe::ProbeRecord;
use packetrig_probe::estimate::{
    ChirpEstimator, FleetShape, NoEstimateReason, PairEstimator, PairSelection, PathloadEstimator,
    RateEstimate, RateEstimator, SpruceEstimator, TrainEstimator, TrainShape,
};
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::method::{DatagramMethod, EchoMethod, ProbeMethod};
use packetrig_probe::session::sender::{StampSender, StampSenderSettings};
use packetrig_probe::session::time::TimeFormat;
use packetrig_probe_io::circumstances;
use packetrig_probe_io::trains::{MeasuredArrival, TrainSender, TrainSeriesEndReason};
use packetrig_program::exit::CommandExit;
use packetrig_program::is_interrupted;
use packetrig_program::numbers::{format_count, format_scaled};
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_sys::{clock, signal};
use packetrig_units::clamp_to_u32;
use serde_json::json;

/// Maximum number of fleets of streams for one Pathload estimate.
// The limit ends the search on paths with a varying available bandwidth, where it might otherwise never end.
const MAX_PATHLOAD_FLEETS: usize = 30;

#[derive(Clone, Copy)]
enum TrainTarget {
    Echo,
    Udp(u16),
    Reflector(u16),
}

/// What `capacity` or `available` measures, to which target, with which options.
struct EstimateRequest<'a> {
    what: &'static str,
    target: &'a ProbeTarget,
    whom: TrainTarget,
    flags: &'a EstimatingArgs,
    files: RecordFiles,
    /// Number of probes in the longest train, if the flags do not state it.
    longest: u32,
}

pub(super) fn estimate_capacity(
    arguments: &CapacityArgs,
    files: RecordFiles,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let whom = match (arguments.udp, arguments.reflector) {
        (_, Some(port)) => TrainTarget::Reflector(port),
        (Some(port), None) => TrainTarget::Udp(port),
        (None, None) => TrainTarget::Echo,
    };
    let inquiry = EstimateRequest {
        what: "capacity",
        target: &arguments.target,
        whom,
        flags: &arguments.common,
        files,
        longest: 50,
    };
    let count = arguments.count as usize;
    inquiry.run_estimate(output, |shape| capacity_rate_estimator(arguments.method, count, shape))
}

pub(super) fn estimate_available_bandwidth(
    arguments: &AvailableArgs,
    files: RecordFiles,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // Answers can wait in queues as probes can: without timestamps from the target, the queues of the two
    // directions cannot be told apart.
    let Some(port) = arguments.reflector else {
        return Err(Error::Usage(format!(
            "the available bandwidth to {0} cannot be measured without a reflector, because answers may wait \
                in queues on their way back; run `packetrig probe reflect` on {0} and use --reflector PORT",
            arguments.target
        )));
    };
    let inquiry = EstimateRequest {
        what: "available",
        target: &arguments.target,
        whom: TrainTarget::Reflector(port),
        flags: &arguments.common,
        files,
        longest: 100,
    };
    inquiry.run_estimate(output, |shape| available_rate_estimator(arguments, shape))
}

fn capacity_rate_estimator(
    method: CapacityMethod,
    count: usize,
    shape: TrainShape,
) -> Box<dyn RateEstimator> {
    match method {
        CapacityMethod::Pair => Box::new(PairEstimator::new(PairSelection::Mode, count, shape)),
        CapacityMethod::Capprobe => Box::new(PairEstimator::new(PairSelection::LeastDelay, count, shape)),
        CapacityMethod::Train => Box::new(TrainEstimator::new(count, shape)),
    }
}

fn available_rate_estimator(arguments: &AvailableArgs, shape: TrainShape) -> Box<dyn RateEstimator> {
    match arguments.method {
        AvailableMethod::Pathload => {
            let fleets = FleetShape {
                probes: shape.longest,
                streams: repetition_count_or_default(arguments, 12),
                most: MAX_PATHLOAD_FLEETS,
            };
            Box::new(PathloadEstimator::new(fleets, shape))
        }
        AvailableMethod::Pathchirp => {
            Box::new(ChirpEstimator::new(repetition_count_or_default(arguments, 30), shape))
        }
        AvailableMethod::Spruce => {
            let known = arguments.capacity.map(|rate| rate.bits_per_second() as f64);
            Box::new(SpruceEstimator::new(
                known,
                repetition_count_or_default(arguments, 100),
                shape,
                clock::wall_clock_ns(),
            ))
        }
    }
}

fn repetition_count_or_default(arguments: &AvailableArgs, usual: usize) -> usize {
    arguments.count.map_or(usual, |count| count as usize)
}

impl EstimateRequest<'_> {
    fn run_estimate(
        &self,
        output: &mut CommandOutput,
        estimator: impl FnOnce(TrainShape) -> Box<dyn RateEstimator>,
    ) -> Result<CommandExit, Error> {
        // The file names are checked before any probe is sent: with a format that cannot be written, the
        // result would be lost.
        self.files.check_table_files(&self.flags.write)?;
        let choose = mechanism::choose_mechanism_for_trains;
        bounds::print_resolved_addresses([self.target]);
        let setup = ProbeSetup::new(&self.flags.bounds, &self.flags.outlet, self.target.address, choose)?;
        let mut header = setup.build_probe_header()?;
        signal::record_end_signals()?;
        // A reflector reports when the probes arrived there. For other targets, only the arrival of their
        // answers here is known.
        let arrival = if matches!(self.whom, TrainTarget::Reflector(_)) {
            MeasuredArrival::Far
        } else {
            MeasuredArrival::Near
        };
        let shape = self.train_shape(&setup);
        // All answers to a train can arrive before any of them is read, because the thread that reads them is
        // still busy with sending the train. So the listener needs room for that many frames.
        let listener = setup.open_listener(shape.longest)?;
        let method = self.probe_method(&setup);
        let dispatcher = setup.open_dispatcher()?;
        let mut trains = TrainSender::new(&setup.way, method, dispatcher, listener, arrival);
        let mut estimator = estimator(shape);
        let end = trains.run_estimator(estimator.as_mut(), &is_interrupted, &mut |_| {})?;
        header.clock_after = circumstances::measure_clock_offset();
        // The records are written for every reason why the series ended: they are useful even without an
        // estimate.
        self.write_records(&header, trains.records())?;
        // After too many losses, no estimate is given, whatever the estimator would compute from the
        // remaining probes.
        let lost = match end {
            TrainSeriesEndReason::Done => None,
            TrainSeriesEndReason::Stopped => return Ok(CommandExit::Interrupted),
            TrainSeriesEndReason::Prohibited => {
                print_remark(format_args!("{}: stopped: a host on the path forbids these probes", self.what));
                return Ok(CommandExit::Inconclusive);
            }
            TrainSeriesEndReason::Lossy => Some(trains.loss_share()),
        };
        let answer =
            lost.map_or_else(|| estimator.estimate_rate(), |share| Err(NoEstimateReason::Loss { share }));
        self.print_answer(&trains, &answer, &setup.chosen.why, output)?;
        Ok(if answer.is_ok() { CommandExit::Ok } else { CommandExit::Inconclusive })
    }

    /// Writes the records of all probes, including probes that the estimator does not use.
    fn write_records(&self, header: &ProbeHeader, records: &[ProbeRecord]) -> Result<(), Error> {
        let header = ProbeHeader { probes: records.len() as u64, ..header.clone() };
        for file in &self.flags.write {
            // The frames themselves are not stored; `check_table_files` has refused the formats that need
            // them.
            self.files.write_file(file, &header, records, &mut |_, _| {})?;
        }
        Ok(())
    }

    fn train_shape(&self, setup: &ProbeSetup) -> TrainShape {
        let longest_frame = setup.way.longest_frame() as u64;
        let requested = self.flags.trains.size.kernel_len() as u64;
        TrainShape {
            length: clamp_to_u32(requested.min(longest_frame)),
            // For the limits of the target, a train is one burst, so a longer train would be refused.
            longest: self.flags.trains.longest.unwrap_or(self.longest).min(setup.limits().burst),
            pause: self.flags.trains.pause,
        }
    }

    fn probe_method(&self, setup: &ProbeSetup) -> Box<dyn ProbeMethod> {
        let ends = setup.way.ends;
        let own = setup.own_port();
        let about = setup.permit.about.clone();
        match self.whom {
            TrainTarget::Echo => Box::new(EchoMethod::new(ends, own, about)),
            TrainTarget::Udp(port) => Box::new(DatagramMethod::new(ends, own, port, about)),
            TrainTarget::Reflector(port) => Box::new(StampSender::new(
                ends,
                StampSenderSettings {
                    ports: (own, port),
                    key: None,
                    format: TimeFormat::Ptp,
                    number: own,
                    realtime_offset_ns: clock::measure_realtime_offset().offset_ns,
                    // Rates are computed from differences of timestamps, in which a constant offset between
                    // the two clocks cancels out.
                    synchronised_ns: None,
                    // Trains use only the arrival time at the reflector, not the time at which the reflection
                    // left.
                    follow_up: false,
                },
            )),
        }
    }

    fn print_answer(
        &self,
        trains: &TrainSender<'_>,
        answer: &Result<RateEstimate, NoEstimateReason>,
        why: &str,
        output: &mut CommandOutput,
    ) -> Result<(), Error> {
        let way = if trains.arrival == MeasuredArrival::Far { "there" } else { "there_and_back" };
        if self.flags.json {
            output.write_json(&json!({
                "target": self.target.address,
                "what": self.what,
                "way": way,
                "mechanism": trains.dispatcher.mechanism(),
                "why": why,
                "probes": trains.records().len(),
                "estimate": answer.as_ref().ok(),
                "packet_bits_per_s": answer.as_ref().ok().map(RateEstimate::packet_bits_per_s),
                "no_answer": answer.as_ref().err().map(|none| json!({ "why": none.to_string(), "detail": none })),
            }))?;
            return Ok(());
        }
        match answer {
            Ok(estimate) => output.write_text(self.estimate_text(estimate, trains, why)),
            // The reason is printed as a remark on standard error. Standard output stays empty, so that a
            // script cannot mistake the text for a rate.
            Err(none) => print_remark(format_args!("{}: no estimate: {none}", self.what)),
        }
        Ok(())
    }

    fn estimate_text(&self, estimate: &RateEstimate, trains: &TrainSender<'_>, why: &str) -> String {
        let way = match trains.arrival {
            MeasuredArrival::Far => "of the forward direction",
            MeasuredArrival::Near => "of the narrower direction",
        };
        let quality = &estimate.quality;
        // In JSON it is a key, in a sentence a noun.
        let what = if self.what == "available" { "available bandwidth" } else { self.what };
        let mut lines = vec![format!(
            "{what} {way} to {}: {} of frames ({} to {}), {} of IP packets",
            self.target,
            format_bit_rate(estimate.bits_per_s),
            format_bit_rate(estimate.low),
            format_bit_rate(estimate.high),
            format_bit_rate(estimate.packet_bits_per_s())
        )];
        // Only the methods for capacity look for trains that agree.
        let agree = if self.what == "capacity" {
            format!(", of which {:.0} % agree", quality.share * 100.0)
        } else {
            String::new()
        };
        lines.push(format!(
            "method {}: {} trains sent, {} used{agree}; spread {:.1} %, timestamp error \
                {:.2} %, {} primers before each train; released by {} ({why})",
            estimate.method,
            format_count(quality.trains as u64),
            format_count(quality.used as u64),
            quality.spread * 100.0,
            quality.stamps * 100.0,
            quality.primers,
            trains.dispatcher.mechanism()
        ));
        for mode in &quality.modes {
            let (percent, rate) = (mode.share * 100.0, format_bit_rate(mode.center));
            lines.push(format!("another {percent:.0} % of the pairs give {rate}"));
        }
        lines.push(format!("discarded: {}", quality.discarded.to_text()));
        lines.join("\n") + "\n"
    }
}

fn format_bit_rate(bits: f64) -> String {
    format_scaled(bits, "bit/s")
}
