//! `packetrig demo`: an ordinary run in a lab that exists only for this process.
//!
//! Transmitter and receiver are ports in network namespaces, with the device under test between them. Everything else is an
//! ordinary run. The kernel removes the lab with the process, however it ends.

use super::execution::{self, ExecutionRequest, ResultFormat};
use crate::args::{DemoArgs as Arguments, DemoBackEnd, DemoDevice};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::faults::FaultCounts;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_remark};
use packetrig_plan::Plan;
use packetrig_sys::userns::{self, EnteredLab};
use packetrig_testkit::device::{DeviceReport, FaultPlan, FaultRule, FrameFault, RulePositions};
use packetrig_testkit::{Lab, PortConnection};
use packetrig_units::Nanos;

/// The plan, with placeholders for the values that depend on the lab and the user.
const DEMO_PLAN_TEMPLATE: &str = include_str!("demo.yaml");
/// Names of the ports' namespaces, as they appear in the plan and the report.
const DEMO_PORT_NAMES: [&str; 2] = ["tx", "rx"];
/// A held-back frame leaves after this many later frames, so that later frames of the slowest stream overtake it, too.
const FRAMES_SENT_BEFORE_HELD_FRAME: u32 = 60;
/// The byte to damage, counted from the end of the frame: in the payload, before the test tag.
const DAMAGED_BYTE_OFFSET_FROM_END: usize = 17;

pub(crate) fn run_demo(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let faults = arguments.faults.unwrap_or_default();
    if faults != FaultCounts::default() && arguments.device != DemoDevice::Reference {
        return Err(Error::Usage(
            "--faults needs --device reference: the kernel bridge cannot make faults".into(),
        ));
    }
    // unshare(2): only a process with one thread may change its user namespace, and no thread has been started yet.
    let entered = userns::enter_lab()?;
    let document = build_demo_plan(arguments.time);
    let middle = demo_port_connection(arguments, faults, &document);
    announce_demo(arguments, entered);
    let mut lab = Lab::build_named("", &DEMO_PORT_NAMES, middle)?;
    // A veth receives redirected frames only while its peer has an XDP program or GRO.
    if matches!(arguments.back_end, Some(DemoBackEnd::Xdp | DemoBackEnd::AfXdp)) {
        lab.enable_live_frames()?;
    }
    // This is an ordinary run on the lab: the demo must show what a user will see.
    let exit = execution::execute_request(&execution_request(arguments, document), output)?;
    // The device is read after the run, so that its report includes every frame of the run.
    let report = lab.stop_device()?;
    if arguments.device == DemoDevice::Reference && !arguments.json {
        output.write_text(describe_device_report(&report));
    }
    Ok(exit)
}

fn announce_demo(arguments: &Arguments, entered: EnteredLab) {
    let device = match arguments.device {
        DemoDevice::Bridge => "a bridge of the Linux kernel",
        DemoDevice::Reference => "packetrig's reference device",
    };
    let rights = if entered.user_namespace {
        "as an ordinary user, in a user namespace"
    } else {
        "as root, in namespaces of its own"
    };
    print_remark(format_args!("demo: tx/eth0 -> {device} -> rx/eth0, {rights}"));
    match arguments.back_end {
        Some(DemoBackEnd::Packet) => print_remark("demo: back end packet, because you asked for it"),
        Some(DemoBackEnd::Xdp) => print_remark("demo: back end xdp, because you asked for it"),
        Some(DemoBackEnd::AfXdp) => print_remark("demo: back end af-xdp, because you asked for it"),
        None => print_remark(
            "demo: back end packet, because AF_PACKET rings work on virtual cables without any rights on the machine",
        ),
    }
}

/// Returns the plan for this lab, with the placeholders replaced.
fn build_demo_plan(time: Nanos) -> PlanText {
    let text = DEMO_PLAN_TEMPLATE
        .replace("@TX@", &format!("{}/eth0", DEMO_PORT_NAMES[0]))
        .replace("@RX@", &format!("{}/eth0", DEMO_PORT_NAMES[1]))
        .replace("@SECONDS@", &decimal_seconds(time));
    PlanText { name: "the demo's plan".into(), text, is_from_options: true }
}

/// Seconds as a decimal number without rounding: 1.5 s is `1.500000000`.
fn decimal_seconds(time: Nanos) -> String {
    let ns = time.as_u64();
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn demo_port_connection(arguments: &Arguments, faults: FaultCounts, document: &PlanText) -> PortConnection {
    match arguments.device {
        DemoDevice::Bridge => PortConnection::Bridge,
        DemoDevice::Reference => {
            PortConnection::Reference(fault_plan(faults, arguments.seed, planned_frames(document)))
        }
    }
}

/// Number of frames that the plan sends in total; 0 if the plan has errors. The positions of faults depend on it.
fn planned_frames(document: &PlanText) -> u64 {
    let bound = Plan::from_text(&document.text).and_then(|plan| {
        // The demo's plan has absolute rates, so the number of frames does not depend on a link speed.
        let speeds = vec![None; plan.ports.len()];
        plan.bind_to_links(&speeds)
    });
    // A plan with errors needs no positions of faults: the run refuses it and prints its problems.
    bound.map_or(0, |bound| bound.streams.iter().filter_map(|stream| stream.timeline.total_frames()).sum())
}

/// Plans exactly as many faults as requested, at positions that the seed selects among the frames from the transmitter.
/// A delay applies to all of these frames.
fn fault_plan(faults: FaultCounts, seed: u64, frames: u64) -> FaultPlan {
    // The last tenth has no faults: a frame held back there would wait for later frames that never come, and
    // would count as lost.
    let among = 0..frames - frames / 10;
    let ordered = [
        (faults.drop, FrameFault::Drop),
        (faults.duplicate, FrameFault::Duplicate { copies: 1 }),
        (faults.reorder, FrameFault::HoldBack { frames: FRAMES_SENT_BEFORE_HELD_FRAME }),
        (faults.corrupt, FrameFault::Corrupt { from_end: DAMAGED_BYTE_OFFSET_FROM_END, mask: 1 }),
    ];
    let mut rules: Vec<FaultRule> = ordered
        .into_iter()
        .zip(1..)
        .filter(|((count, _), _)| *count > 0)
        .map(|((count, fault), salt)| {
            // Each kind of fault has its own seed. With the same seed, all kinds would hit the same frames.
            let select =
                RulePositions::draw_positions(seed.wrapping_add(salt), u64::from(count), among.clone());
            FaultRule::new(select, fault).for_port(0)
        })
        .collect();
    if faults.delay > Nanos::ZERO {
        rules.push(FaultRule::new(RulePositions::All, FrameFault::Delay(faults.delay)).for_port(0));
    }
    FaultPlan { seed, rules, ..FaultPlan::without_faults() }
}

fn execution_request(arguments: &Arguments, document: PlanText) -> ExecutionRequest {
    let mut request = ExecutionRequest::new(document);
    request.name = Some("demo".into());
    request.out.clone_from(&arguments.keep_files);
    request.capture = arguments.capture;
    // On virtual cables no other back end is faster. The demo must show the same on every machine, with or
    // without a calibration.
    request.back_end = Some(arguments.back_end.unwrap_or(DemoBackEnd::Packet).into());
    request.format = ResultFormat::from_flags(arguments.json, false);
    request
}

/// Describes the faults that the device reports, for comparison with the result of the run.
fn describe_device_report(report: &DeviceReport) -> String {
    let truth = report.truth(0, 0);
    let accounts = truth.expected_counts();
    format!(
        "\nThe reference device reports: {} frames received, {} dropped, {} copies made, {} delayed behind later frames, \
         {} damaged, {} lost by a fault of the device program\n",
        format_count(accounts.sent),
        format_count(truth.dropped.len() as u64),
        format_count(accounts.duplicates),
        format_count(truth.held.len() as u64),
        format_count(truth.corrupted.len() as u64),
        format_count(report.own_losses)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_plan_is_valid_for_any_duration() {
        for time in [Nanos::from_secs(10), Nanos::from_millis(1_500), Nanos::new(1)] {
            let document = build_demo_plan(time);
            let plan = Plan::from_text(&document.text).unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!((plan.ports.len(), plan.streams.len()), (2, 4));
            assert_eq!(plan.warnings, []);
        }
        assert!(planned_frames(&build_demo_plan(Nanos::from_secs(1))) > 10_000);
    }

    #[test]
    fn fault_plan_has_requested_counts() {
        let faults: FaultCounts = "drop=10,duplicate=5,reorder=3,corrupt=2,delay=50us".parse().unwrap();
        let plan = fault_plan(faults, 7, 100_000);
        let planned = |wanted: &dyn Fn(&FrameFault) -> bool| {
            let mut course = plan.start_key_rules(0, 0);
            (0..100_000).filter(|_| course.next_faults(&plan).any(wanted)).count()
        };
        assert_eq!(planned(&|fault| *fault == FrameFault::Drop), 10);
        assert_eq!(planned(&|fault| matches!(fault, FrameFault::Duplicate { .. })), 5);
        assert_eq!(planned(&|fault| matches!(fault, FrameFault::HoldBack { .. })), 3);
        assert_eq!(planned(&|fault| matches!(fault, FrameFault::Corrupt { .. })), 2);
        assert_eq!(planned(&|fault| matches!(fault, FrameFault::Delay(_))), 100_000);
        assert_eq!(plan.start_key_rules(1, 0).next_faults(&plan).count(), 0, "the way back is faultless");
    }

    #[test]
    fn times_are_written_without_rounding() {
        assert_eq!(decimal_seconds(Nanos::from_millis(1_500)), "1.500000000");
        assert_eq!(decimal_seconds(Nanos::new(1)), "0.000000001");
    }
}
