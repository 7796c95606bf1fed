//! Converts the command line to the options of a method and the setup of its trials.

mod request;

pub(crate) use request::MethodRequest;

use super::hook::ShellCommands;
use super::show::{self, MethodResultFormat};
use super::traffic::{DeviceTraffic, TrafficRequest};
use super::{
    MethodHead, ResultOutputOptions, TestSetup, begin_test, run_test_and_print_result, trial_runner,
};
use crate::args::{
    BisectArgs, CompareArgs, ConvergenceArgs, LossShareArgs, MethodRunOptions, MethodTraffic, MlrsearchArgs,
    Rfc2544Args, Rfc2544TestName, SizeArg, ThroughputBound,
};
use crate::commands::quick;
use crate::commands::watch::ScreenThread;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::output::{CommandOutput, print_remark};
use crate::page_opener::PageOpener;
use packetrig_method::bisection::{BisectionPlan, SearchResolution};
use packetrig_method::comparison::{
    ComparedLoad, ComparedMeasure, ComparisonOptions, MaximumWorsening, WorseningLimit,
};
use packetrig_method::convergence::ConvergenceOptions;
use packetrig_method::loss_share::LossShareOptions;
use packetrig_method::mlrsearch::{MlrOptions, SearchGoal};
use packetrig_method::rfc2544::{
    LatencyDefinition, MinimumThroughput, Rfc2544Options, Rfc2544Test, SizeMaximum, ThroughputFloor,
};
use packetrig_method::{BisectOptions, Load, MethodOptions, MlrsearchOptions, TrialRequest, TrialWaits};
use packetrig_units::{FrameRate, FrameSize, Rate, Share};
use std::collections::BTreeMap;

impl MethodRequest {
    fn prepare_setup(&self) -> Result<MethodSetup, Error> {
        match self {
            Self::Rfc2544(arguments) => prepare_rfc2544(arguments),
            Self::Mlrsearch(arguments) => prepare_mlrsearch(arguments),
            Self::Bisect(arguments) => prepare_bisection(arguments),
            Self::Convergence(arguments) => prepare_convergence(arguments),
            Self::Compare(arguments) => prepare_comparison(arguments),
            Self::LossShare(arguments) => prepare_loss_share(arguments),
        }
    }
}

/// What the command line says about a method: its options, the traffic of each device, and its shell commands.
struct MethodSetup {
    options: MethodOptions,
    devices: Vec<DeviceTraffic>,
    commands: ShellCommands,
}

pub(crate) fn run_method(request: &MethodRequest, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let (start, traffic, terms) = (request.prepare_setup()?, request.traffic(), request.terms());
    // The remark about frame sizes comes before the output of a dry run, which shows these sizes.
    quick::print_imix_size_remark(
        request.frame_size(),
        traffic.vlan.is_some(),
        traffic.ipv6 || traffic.hosts.has_ipv6(),
    );
    check_method_loads(&start)?;
    if terms.dry_run {
        show::print_dry_run(&start.options, output)?;
        return Ok(CommandExit::Ok);
    }
    if terms.watch {
        ScreenThread::check_terminal()?;
    } else if !terms.quiet {
        print_remark(show::describe_cost(&start.options)?);
    }
    let usage = ResultOutputOptions {
        form: MethodResultFormat::from_terms(terms),
        out: terms.out.as_deref(),
        quiet: terms.quiet,
        watch: terms.watch,
        page: terms.page,
        opener: terms.page.open.then(PageOpener::find_program).transpose()?,
    };
    let store = terms.store.directory.as_deref();
    run_test_and_print_result(
        begin_test(build_method_head(start, traffic, terms), store)?,
        store,
        &usage,
        output,
    )
}

/// Refuses loads before the test that a trial would refuse later. Checks the highest load of each device and size.
fn check_method_loads(start: &MethodSetup) -> Result<(), Error> {
    let mut highest: BTreeMap<(u8, Option<FrameSize>), TrialRequest> = BTreeMap::new();
    for order in start.options.rehearse_lossless()? {
        let known = highest.entry((order.device, order.size)).or_insert_with(|| order.clone());
        // The highest load of a size needs the largest part of the link: if it fits, lower loads fit, too.
        if order.load > known.load {
            *known = order;
        }
    }
    for order in highest.values() {
        let device = start.devices.get(usize::from(order.device)).or_else(|| start.devices.first());
        device.map_or(Ok(()), |device| device.check_trial_shape(&trial_runner::trial_shape(order)))?;
    }
    Ok(())
}

fn build_method_head(start: MethodSetup, traffic: &MethodTraffic, terms: &MethodRunOptions) -> MethodHead {
    let setup = TestSetup {
        documents: start.devices.into_iter().map(|device| device.document.text).collect(),
        link: traffic.link,
        confirmed: terms.confirm.iter().map(ToString::to_string).collect(),
        back_end: terms.back_end.map(Into::into),
        fleet: terms.fleet.fleet_directory.clone(),
        waits_for_nodes: terms.wait_for_nodes,
        commands: start.commands,
    };
    MethodHead::new(terms.name.clone().unwrap_or_default(), start.options, setup)
}

/// Makes the traffic of a test with one device from the command line.
fn build_single_device_traffic(
    arguments: &MethodTraffic,
    terms: &MethodRunOptions,
    size: Option<SizeArg>,
    rate: Option<Rate>,
) -> Result<DeviceTraffic, Error> {
    DeviceTraffic::from_arguments(&TrafficRequest { arguments, fleet: &terms.fleet, size, rate })
}

fn total_load_if_given(
    rate: Option<Rate>,
    traffic: &MethodTraffic,
    terms: &MethodRunOptions,
    size: Option<SizeArg>,
) -> Result<Option<Load>, Error> {
    rate.map(|rate| total_load_at_rate(rate, traffic, terms, size)).transpose()
}

/// Converts the rate of one sender to the total load of all senders. For a plan, a percentage is relative to its rates.
fn total_load_at_rate(
    rate: Rate,
    traffic: &MethodTraffic,
    terms: &MethodRunOptions,
    size: Option<SizeArg>,
) -> Result<Load, Error> {
    if traffic.plan.is_none() {
        let device = build_single_device_traffic(traffic, terms, size, Some(rate))?;
        return Ok(Load::new(device.traffic.full_load()));
    }
    let device = build_single_device_traffic(traffic, terms, size, None)?;
    match rate {
        // For a plan, a share is relative to the plan's own rates.
        Rate::Share(share) => Ok(Load::new(device.traffic.full_load()).scale_by(to_percent(share) / 100.0)),
        _ => device.total_load_at_sender_rate(rate),
    }
}

/// Returns the load for a method that sends only one load. If the load is above `--max-rate`, a load from the user is
/// refused, and the default load is lowered.
fn choose_single_load(device: &DeviceTraffic, rate: Option<Rate>) -> Result<Load, Error> {
    // A load that the user typed is refused and not lowered: a result at another load would answer another question.
    if rate.is_some() {
        device.refuse_load_above_limit(Load::new(device.traffic.full_load()), "--rate")?;
    }
    device.highest_load(None)
}

fn single_device_setup(options: MethodOptions, device: DeviceTraffic) -> MethodSetup {
    MethodSetup { options, devices: vec![device], commands: ShellCommands::default() }
}

fn prepare_rfc2544(arguments: &Rfc2544Args) -> Result<MethodSetup, Error> {
    // The method sets the frame size of each trial; the size here only makes the document complete.
    let size = arguments.size.first().copied().map(SizeArg::Fixed);
    let device =
        build_single_device_traffic(&arguments.traffic, &arguments.terms, size, arguments.traffic.max_rate)?;
    let line = device.total_line_rate()?;
    let mut options =
        if arguments.quick { Rfc2544Options::quick(line) } else { Rfc2544Options::standard(line) };
    options.frame_sizes_bytes = frame_sizes_or_default(&arguments.size, &device)?;
    if !arguments.only.is_empty() {
        options.tests = arguments.only.iter().copied().map(rfc2544_test).collect();
    }
    if options.tests.contains(&Rfc2544Test::Reset) && arguments.reset_command.is_none() {
        return Err(Error::Usage("the test `reset` needs --reset-command".to_owned()));
    }
    limit_method_loads(&mut options, &device)?;
    apply_trial_options(&mut options, arguments);
    if arguments.store_and_forward {
        options.latency_definition = LatencyDefinition::StoreAndForward;
    }
    for bound in &arguments.min_throughput {
        options.criteria.minimum_throughput.push(minimum_throughput(*bound, &device)?);
    }
    options.criteria.maximum_latency_ns = arguments.max_latency;
    options.criteria.maximum_recovery_ns = arguments.max_recovery;
    options.criteria.maximum_reset_ns = arguments.max_reset;
    let commands = ShellCommands { event: arguments.reset_command.clone(), ..ShellCommands::default() };
    Ok(MethodSetup { commands, ..single_device_setup(MethodOptions::Rfc2544(Box::new(options)), device) })
}

/// Returns the frame sizes that the user named, or the standard ones. A standard size that is too small for the headers
/// and the test tag is replaced by the smallest size that is large enough.
fn frame_sizes_or_default(named: &[FrameSize], device: &DeviceTraffic) -> Result<Vec<FrameSize>, Error> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let least = device.smallest_fully_tagged_size()?;
    let mut sizes: Vec<FrameSize> =
        Rfc2544Options::STANDARD_SIZES.iter().map(|size| (*size).max(least)).collect();
    // Several small sizes may have been replaced by the same size.
    sizes.dedup();
    if least > FrameSize::MIN {
        print_remark(format_args!(
            "the smallest frames have {least}, not 64 B: the headers and the test tag need that much"
        ));
    }
    Ok(sizes)
}

fn apply_trial_options(options: &mut Rfc2544Options, arguments: &Rfc2544Args) {
    if let Some(time) = arguments.trial_time {
        options.durations.final_trial_ns = time;
        // Trials of the search are never longer than the trials that confirm its result.
        options.durations.search_trial_ns = options.durations.search_trial_ns.min(time);
        options.durations.loss_trial_ns = time;
        options.durations.latency_trial_ns = time;
    }
    if let Some(time) = arguments.longest_burst {
        options.durations.longest_burst_ns = time;
    }
    match arguments.resolution {
        Some(resolution) => options.resolution_percent = to_percent(resolution.0),
        None if arguments.quick => options.resolution_percent = 1.0,
        None => {}
    }
    if let Some(trials) = arguments.latency_trials {
        options.repetitions.latency = trials;
    }
    if let Some(searches) = arguments.burst_searches {
        options.repetitions.back_to_back = searches;
    }
}

/// Sets the highest load of each frame size, unless it is the line rate.
fn limit_method_loads(options: &mut Rfc2544Options, device: &DeviceTraffic) -> Result<(), Error> {
    for size in &options.frame_sizes_bytes {
        let most = device.highest_load(Some(*size))?;
        // The full line rate is no limit. The two values are computed in different ways, so a
        // rounding difference is ignored.
        if most < options.theoretical_load(*size).scale_by(1.0 - 1e-6) {
            let maximum = SizeMaximum { frame_size_bytes: *size, frames_per_second: most };
            options.maximum_of_sizes.push(maximum);
        }
    }
    Ok(())
}

const fn rfc2544_test(name: Rfc2544TestName) -> Rfc2544Test {
    match name {
        Rfc2544TestName::Throughput => Rfc2544Test::Throughput,
        Rfc2544TestName::Latency => Rfc2544Test::Latency,
        Rfc2544TestName::FrameLoss => Rfc2544Test::FrameLoss,
        Rfc2544TestName::BackToBack => Rfc2544Test::BackToBack,
        Rfc2544TestName::Recovery => Rfc2544Test::Recovery,
        Rfc2544TestName::Reset => Rfc2544Test::Reset,
    }
}

fn minimum_throughput(bound: ThroughputBound, device: &DeviceTraffic) -> Result<MinimumThroughput, Error> {
    let floor = match bound.rate {
        Rate::Frames(_) => ThroughputFloor::FramesPerSecond(device.total_load_at_sender_rate(bound.rate)?),
        Rate::Share(share) => ThroughputFloor::PercentOfLine(to_percent(share)),
        Rate::Bits(_) => {
            return Err(Error::Usage(
                "--min-throughput must be frames/s or percent of the link; write 64=500kpps or 90%".into(),
            ));
        }
    };
    Ok(MinimumThroughput { frame_size_bytes: bound.size, floor })
}

fn prepare_mlrsearch(arguments: &MlrsearchArgs) -> Result<MethodSetup, Error> {
    let device = build_single_device_traffic(
        &arguments.traffic,
        &arguments.terms,
        arguments.frames.size,
        arguments.traffic.max_rate,
    )?;
    let max = device.highest_load(None)?;
    let min =
        total_load_if_given(arguments.min_rate, &arguments.traffic, &arguments.terms, arguments.frames.size)?;
    let goals = if arguments.goal.is_empty() {
        vec![SearchGoal::NDR, SearchGoal::PDR]
    } else {
        arguments.goal.clone()
    };
    let minimum = total_load_if_given(
        arguments.min_throughput,
        &arguments.traffic,
        &arguments.terms,
        arguments.frames.size,
    )?;
    let min = min.unwrap_or_else(|| max.scale_by(0.001));
    let search = MlrOptions { goals, min, max, size: None, warmup: None, fail_fast: false };
    let options = MlrsearchOptions { search, waits: TrialWaits::QUICK, required_frames_per_second: minimum };
    Ok(single_device_setup(MethodOptions::Mlrsearch(options), device))
}

fn prepare_bisection(arguments: &BisectArgs) -> Result<MethodSetup, Error> {
    let device = build_single_device_traffic(
        &arguments.traffic,
        &arguments.terms,
        arguments.frames.size,
        arguments.traffic.max_rate,
    )?;
    let minimum = total_load_if_given(
        arguments.min_throughput,
        &arguments.traffic,
        &arguments.terms,
        arguments.frames.size,
    )?;
    let search = BisectionPlan {
        // A load of zero always passes, so the search has a lower bound from the beginning.
        min: Load::new(0.0),
        max: device.highest_load(None)?,
        resolution: SearchResolution::ShareOfRange(to_percent(arguments.resolution.0) / 100.0),
        tries: arguments.tries,
        accepted_loss: to_percent(arguments.accept_loss.0) / 100.0,
        // No loss is above 1, so without the option every load gets all its tries.
        hopeless_loss: arguments.give_up_at.map_or(1.0, |loss| to_percent(loss.0) / 100.0),
        trial: arguments.time,
        size: None,
    };
    let options = BisectOptions { search, waits: TrialWaits::QUICK, required_frames_per_second: minimum };
    Ok(single_device_setup(MethodOptions::Bisect(options), device))
}

fn prepare_convergence(arguments: &ConvergenceArgs) -> Result<MethodSetup, Error> {
    if arguments.event_at >= arguments.time {
        return Err(Error::Usage("--event-at must be before the end of the trial (--time)".to_owned()));
    }
    let rate = arguments.rate.or_else(|| FrameRate::per_second(10_000).map(Rate::Frames));
    let device =
        build_single_device_traffic(&arguments.traffic, &arguments.terms, arguments.frames.size, rate)?;
    let options = ConvergenceOptions {
        frame_size_bytes: None,
        frames_per_second: choose_single_load(&device, arguments.rate)?,
        trial_ns: arguments.time,
        event_at_ns: arguments.event_at,
        repetitions: arguments.repetitions,
        waits: TrialWaits::QUICK,
        maximum_convergence_ns: arguments.max_outage,
    };
    let commands = ShellCommands {
        event: Some(arguments.event.clone()),
        undo: arguments.undo.clone(),
        ..ShellCommands::default()
    };
    Ok(MethodSetup { commands, ..single_device_setup(MethodOptions::Convergence(options), device) })
}

fn prepare_comparison(arguments: &CompareArgs) -> Result<MethodSetup, Error> {
    let rate = arguments.rate.or_else(|| FrameRate::per_second(1_000).map(Rate::Frames));
    let request = TrafficRequest {
        arguments: &arguments.traffic,
        fleet: &arguments.terms.fleet,
        size: arguments.frames.size,
        rate,
    };
    let first = DeviceTraffic::from_arguments(&request)?;
    let second = match &arguments.plan_b {
        Some(file) => DeviceTraffic::from_document_with_arguments(
            crate::document::PlanText::read_file(file)?,
            &request,
        )?,
        None if arguments.tx_b.is_empty() => DeviceTraffic::from_arguments(&request)?,
        None => DeviceTraffic::between_ports(&request, &arguments.tx_b, &arguments.rx_b)?,
    };
    let maximum_worsening = arguments.max_worse.map_or_else(Vec::new, |worse| {
        let measures = [
            ComparedMeasure::LossPercent,
            ComparedMeasure::ReceivedFramesPerSecond,
            ComparedMeasure::MeanLatencyNs,
        ];
        let limit = WorseningLimit::PercentOfFirst(to_percent(worse.0));
        measures.map(|measure| MaximumWorsening { measure, limit }).to_vec()
    });
    let (of_first, of_second) =
        (choose_single_load(&first, arguments.rate)?, choose_single_load(&second, arguments.rate)?);
    // Both devices get the same load, so the lower one of their two maximum loads counts.
    let load = ComparedLoad {
        frame_size_bytes: None,
        frames_per_second: if of_second < of_first { of_second } else { of_first },
        trial_ns: arguments.time,
    };
    let options = ComparisonOptions {
        loads: vec![load],
        pairs: arguments.pairs,
        // The order of the two devices within a pair is random, so that a slow change in the lab affects both equally.
        seed: identity::random_number(),
        waits: TrialWaits::QUICK,
        maximum_worsening,
    };
    let commands = ShellCommands {
        before: [arguments.set_a.clone(), arguments.set_b.clone()],
        ..ShellCommands::default()
    };
    Ok(MethodSetup { options: MethodOptions::Compare(options), devices: vec![first, second], commands })
}

fn prepare_loss_share(arguments: &LossShareArgs) -> Result<MethodSetup, Error> {
    let rates = arguments.rates.iter();
    let loads = rates
        .map(|rate| total_load_at_rate(*rate, &arguments.traffic, &arguments.terms, arguments.frames.size));
    let loads = loads.collect::<Result<Vec<_>, _>>()?;
    // This rate is only a placeholder: the loads of the runs come from `--rates`.
    let slow = FrameRate::per_second(1_000).map(Rate::Frames);
    let device =
        build_single_device_traffic(&arguments.traffic, &arguments.terms, arguments.frames.size, slow)?;
    for load in &loads {
        refuse_load_above_plan(*load, &arguments.traffic, &device)?;
        device.refuse_load_above_limit(*load, "--rates")?;
    }
    let options = LossShareOptions {
        frames_per_run: arguments.packets,
        runs_per_rate: arguments.repetitions,
        ..LossShareOptions::new(loads)
    };
    Ok(single_device_setup(MethodOptions::LossShare(options), device))
}

fn refuse_load_above_plan(load: Load, traffic: &MethodTraffic, device: &DeviceTraffic) -> Result<(), Error> {
    let of_plan = Load::new(device.traffic.full_load());
    // The same rate may differ by rounding when it is computed in another order.
    if traffic.plan.is_some() && load > of_plan.scale_by(1.0 + 1e-9) {
        let text = format!(
            "--rates asks for {load} from all senders together, but the rates of the plan allow only \
            {of_plan}; lower --rates, or raise the rates of the plan"
        );
        return Err(Error::Usage(text));
    }
    Ok(())
}

fn to_percent(share: Share) -> f64 {
    // A share of 1 is 1e9 billionths, or 100 percent.
    share.billionths() as f64 / 1e7
}

#[cfg(test)]
mod tests;
