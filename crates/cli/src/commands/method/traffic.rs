//! Traffic of a test method: makes an OTG document from flags or reads a plan, and computes the highest load.

use crate::args::{FleetPlace as FleetArgs, MethodTraffic, PortText, QuickPlanFlags, SizeArg};
use crate::commands::{execution, plan, quick};
use crate::document::PlanText;
use crate::error::Error;
use crate::{fleet_place, speeds};
use packetrig_method::Load;
use packetrig_plan::trial::{TrialShape, TrialTraffic};
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_units::{BitRate, Blame, FrameSize, Rate, Share};
use std::collections::BTreeSet;

/// The traffic of one device under test.
pub(super) struct DeviceTraffic {
    pub(super) document: PlanText,
    pub(super) traffic: TrialTraffic,
    plan: Plan,
    speeds: Vec<Option<BitRate>>,
    /// Highest load of each sender, if the user named one (`--max-rate`).
    limit: Option<Rate>,
}

/// What the command line says about the traffic: flags or a plan, the fleet, the frame size and the rate.
pub(super) struct TrafficRequest<'a> {
    pub(super) arguments: &'a MethodTraffic,
    pub(super) fleet: &'a FleetArgs,
    pub(super) size: Option<SizeArg>,
    /// Load of each sender; `None`: as much as its link carries.
    pub(super) rate: Option<Rate>,
}

impl DeviceTraffic {
    /// Makes the traffic from the plan or, without a plan, from the flags.
    pub(super) fn from_arguments(request: &TrafficRequest<'_>) -> Result<Self, Error> {
        let document = match &request.arguments.plan {
            Some(file) => PlanText::read_file(file)?,
            None => document_from_flags(request, &request.arguments.tx, &request.arguments.rx)?,
        };
        Self::from_document_with_arguments(document, request)
    }

    /// Makes the traffic of a document. `--link` and `--max-rate` of the command line apply to it.
    pub(super) fn from_document_with_arguments(
        document: PlanText,
        request: &TrafficRequest<'_>,
    ) -> Result<Self, Error> {
        let traffic = Self::from_document(document, request.fleet, request.arguments.link)?;
        Ok(Self { limit: request.arguments.max_rate, ..traffic })
    }

    /// Makes the traffic from the flags, but between the interfaces `tx` and `rx`: those of the second compared device.
    pub(super) fn between_ports(
        request: &TrafficRequest<'_>,
        tx: &[PortText],
        rx: &[PortText],
    ) -> Result<Self, Error> {
        Self::from_document_with_arguments(document_from_flags(request, tx, rx)?, request)
    }

    /// Makes the traffic of a document. `link` is the speed of ports whose speed the document does not give; without
    /// `link`, the drivers of local ports are asked.
    pub(super) fn from_document(
        document: PlanText,
        fleet: &FleetArgs,
        link: Option<BitRate>,
    ) -> Result<Self, Error> {
        let is_of_fleet = execution::find_fleet(fleet, &document.text)?.is_some();
        let reading = PlanParseOptions { fleet: is_of_fleet, ..PlanParseOptions::default() };
        let plan = plan::read_plan_with(&document, reading)?;
        let speeds = port_speeds(&plan, link, is_of_fleet);
        // For a user's plan, the parser reports an unknown speed with its line. For flags, the error names `--link`.
        if document.is_from_options {
            require_speeds(&plan, &speeds)?;
        }
        let traffic = TrialTraffic::from_document(&document.text, reading, &|_| speeds.clone())
            .map_err(|problems| plan::plan_error(&document, &problems.0, Blame::Plan))?;
        Ok(Self { document, traffic, plan, speeds, limit: None })
    }

    /// Returns the highest load of all senders together that the rates of the document and `--max-rate` permit. `size`
    /// replaces the frame size of the document.
    pub(super) fn highest_load(&self, size: Option<FrameSize>) -> Result<Load, Error> {
        self.traffic
            .highest_load(size, self.limit)
            .map(Load::new)
            .map_err(|problems| self.plan_error(&problems.0))
    }

    /// Returns the smallest frame size that holds the headers and the whole test tag.
    pub(super) fn smallest_fully_tagged_size(&self) -> Result<FrameSize, Error> {
        self.traffic.min_size_with_full_tag().map_err(|problems| self.plan_error(&problems.0))
    }

    /// Returns the total load of all senders at which the busiest sender has this rate.
    pub(super) fn total_load_at_sender_rate(&self, of_sender: Rate) -> Result<Load, Error> {
        self.traffic
            .total_load_for_sender_rate(None, of_sender)
            .map(Load::new)
            .map_err(|problems| self.plan_error(&problems.0))
    }

    /// Refuses a load from the user that is above `--max-rate`. `option` is the option with the load.
    pub(super) fn refuse_load_above_limit(&self, load: Load, option: &str) -> Result<(), Error> {
        let Some(limit) = self.limit else { return Ok(()) };
        let most = self.total_load_at_sender_rate(limit)?;
        if load > most.scale_by(1.0 + RATE_ROUNDING_TOLERANCE) {
            let text = format!(
                "{option} asks for {load} from all senders together, but --max-rate permits only {most}; \
                 change one of them"
            );
            return Err(Error::Usage(text));
        }
        Ok(())
    }

    /// Refuses, before the test begins, a trial whose run would be refused.
    pub(super) fn check_trial_shape(&self, shape: &TrialShape) -> Result<(), Error> {
        self.traffic.check_trial(shape).map_err(|problems| self.plan_error(&problems.0))
    }

    fn plan_error(&self, problems: &[packetrig_plan::PlanProblem]) -> Error {
        plan::plan_error(&self.document, problems, Blame::Plan)
    }

    /// Returns the sum of the link speeds of all sending ports. An unknown speed is an error.
    pub(super) fn total_line_rate(&self) -> Result<BitRate, Error> {
        // Each port counts once, because several streams of a port share its link.
        let senders: BTreeSet<usize> = self.plan.streams.iter().map(|stream| stream.tx).collect();
        let mut sum = 0_u64;
        for port in senders {
            let speed = self.speeds.get(port).copied().flatten();
            let known = speed.ok_or_else(|| unknown_speed_error(&self.plan, port))?;
            sum = sum.saturating_add(known.bits_per_second());
        }
        Ok(BitRate::new(sum))
    }

    /// Returns the fleet that has the ports of the traffic; `None` if the ports are on this machine.
    pub(super) fn find_fleet(&self, arguments: &FleetArgs) -> Result<Option<fleet_place::FleetPlace>, Error> {
        execution::find_fleet(arguments, &self.document.text)
    }
}

/// Relative difference of two rates that is only a rounding error, because they were computed in different ways.
const RATE_ROUNDING_TOLERANCE: f64 = 1e-9;

/// Refuses a plan from flags whose rates need a link speed that is not known. The error names `--link`.
fn require_speeds(plan: &Plan, speeds: &[Option<BitRate>]) -> Result<(), Error> {
    let mut streams = plan.streams.iter().filter(|stream| matches!(stream.rate, Rate::Share(_)));
    match streams.find(|stream| speeds.get(stream.tx).copied().flatten().is_none()) {
        Some(stream) => Err(unknown_speed_error(plan, stream.tx)),
        None => Ok(()),
    }
}

fn unknown_speed_error(plan: &Plan, port: usize) -> Error {
    let location = plan.ports[port].full_location();
    Error::Usage(format!("the link speed of {location} is not known; give it with --link"))
}

fn port_speeds(plan: &Plan, link: Option<BitRate>, is_of_fleet: bool) -> Vec<Option<BitRate>> {
    if link.is_some() {
        // A speed in the plan itself is the speed of one port; `--link` is the speed of all other ports.
        return plan.ports.iter().map(|port| port.speed.or(link)).collect();
    }
    if is_of_fleet {
        // Ports of a fleet are on other machines, and this process cannot query their drivers.
        return plan.ports.iter().map(|port| port.speed).collect();
    }
    speeds::port_speeds(plan)
}

/// Makes an OTG document from flags. Its rate is that of the request; without one, the whole link.
fn document_from_flags(
    request: &TrafficRequest<'_>,
    tx: &[PortText],
    rx: &[PortText],
) -> Result<PlanText, Error> {
    let arguments = request.arguments;
    let flags = QuickPlanFlags {
        tx: tx.to_vec(),
        rx: rx.to_vec(),
        pattern: arguments.pattern,
        size: request.size,
        rate: Some(request.rate.unwrap_or(Rate::Share(Share::WHOLE_LINK))),
        // A trial sets its own length: it never uses the length in the document.
        time: None,
        packets: None,
        continuous: false,
        streams: arguments.streams,
        vlan: arguments.vlan,
        ipv6: arguments.ipv6,
        hosts: arguments.hosts.clone(),
    };
    let has_fleet = fleet_place::is_directory_given(request.fleet)
        || fleet_place::FleetPlace::from_arguments(request.fleet).is_ok_and(|place| place.exists());
    if has_fleet {
        // Only a controller knows how many ports `*all` means, so a test method must name its ports.
        return quick::plan_text_from_flags(&flags, Some(&|_| None));
    }
    quick::plan_text_from_flags(&flags, None)
}
