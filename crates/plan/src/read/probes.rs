//! `x_probes`, probes from the nodes of a fleet: packetrig's own addition to OTG.

use super::{PortNames, resolve_port_name};
use crate::probes::{self, PlannedProbeMethod, ProbeLineDestination, ProbePlan};
use crate::reader::{DocumentItem, DocumentObject};
use crate::{PlanParseOptions, PlanProblem};
use packetrig_units::{FrameSize, Nanos, clamp_to_u32};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Maximum number of lines of a plan: a mesh of 100 ports has 9900.
const MAX_LINES: usize = 10_000;
/// Maximum number of probes of all lines of a port. Each probe has a record in the memory of its node until the
/// end of the run.
const MAX_PROBES: u64 = 2_000_000;
/// A sender checks its lease (`SendGate`) only before each train. The work between two checks may last at most 10 ms.
const MAX_TRAIN_TIME: Nanos = Nanos::from_millis(10);
/// The UDP port of STAMP (RFC 8762), at which hosts outside the fleet are expected to have their reflectors.
const STAMP_PORT: u16 = 862;
/// The UDP port of the reflectors of a fleet. It needs no privilege, and leaves the port of STAMP
/// to an existing reflector.
const REFLECTOR_PORT: u16 = 18_620;
/// Number of trains that an estimate of a capacity sends before its packet pairs, with longer pauses between them.
const CAPACITY_TRAINS_BEFORE_PAIRS: u32 = 60;
/// An estimate of a capacity needs at least this many packet pairs.
const MIN_ESTIMATE_PAIRS: u32 = 10;
/// A shorter train does not show how the path spreads the probes of a train in time.
const MIN_CAPACITY_TRAIN_PROBES: u32 = 8;
/// The UDP port of the discard service (RFC 863).
const DISCARD_PORT: u16 = 9;

/// The probes of a document, if it has any.
pub(super) fn read_probes(
    config: &DocumentObject<'_>,
    options: PlanParseOptions,
    ports: &PortNames,
) -> Option<ProbePlan> {
    let object = config.read_object("x_probes")?;
    if !options.fleet {
        let message = "a plan with probes needs a fleet, whose nodes send the probes";
        let problem = PlanProblem::error("x_probes", message);
        object.item.add_problem(problem.with_hint("on this machine alone, use `packetrig probe`"));
    }
    for other in ["flows", "devices", "captures"] {
        if config.read_member(other).is_some_and(|item| !item.as_list().is_empty()) {
            object.item.add_item_error(format!("a plan with probes cannot have {other}"));
        }
    }
    let plan = read_probe_plan(&object, ports);
    check_probe_plan(&object, &plan);
    object.refuse_unread_members();
    Some(plan)
}

fn read_probe_plan(object: &DocumentObject<'_>, ports: &PortNames) -> ProbePlan {
    let words = PlannedProbeMethod::ALL.map(|(name, _)| name);
    object.require_member("method");
    let word = object.read_word("method", &words, words[0]);
    let method = PlannedProbeMethod::ALL
        .iter()
        .find(|(name, _)| *name == word)
        .map_or(PlannedProbeMethod::Ping, |m| m.1);
    // A UDP port in the document applies to ports of the plan and to other hosts. The two have different defaults.
    let given = object.read_member("port").and_then(|item| item.as_number(1, 65_535));
    let given = given.and_then(|port| u16::try_from(port).ok());
    let (port, host_port) = match method {
        PlannedProbeMethod::Send => (DISCARD_PORT, DISCARD_PORT),
        PlannedProbeMethod::OneWay
        | PlannedProbeMethod::Stamp
        | PlannedProbeMethod::Ping
        | PlannedProbeMethod::Capacity => (REFLECTOR_PORT, STAMP_PORT),
    };
    let usual = ProbeDefaults::for_method(method);
    let (port, host_port) = (given.unwrap_or(port), given.unwrap_or(host_port));
    let count = clamp_to_u32(object.read_number("count", usual.count, 1, 1_000_000));
    let interval = read_time(object, "interval", Nanos::from_millis(100));
    let wait = read_time(object, "wait", Nanos::from_secs(1));
    let mut lines = read_probe_lines(object, ports, host_port);
    // An estimate of a capacity needs the path for itself. So a turn must be free at both ends of a line, not
    // only at its sender.
    if method.needs_exclusive_turn() {
        probes::assign_probe_line_turns(&mut lines);
    }
    ProbePlan {
        method,
        lines,
        addresses: read_addresses(object, ports),
        port,
        count,
        interval,
        poisson: object.read_flag("poisson", false),
        size: FrameSize::new(clamp_to_u32(object.read_number("size", usual.size, 64, 9_600))),
        train: clamp_to_u32(object.read_number("train", usual.train, 1, 1_000)),
        gap: read_time(object, "gap", Nanos::ZERO),
        wait,
        slot: read_time(object, "slot", default_probe_time_slot(count, interval, wait)),
        mechanism: object.read_member("mechanism").and_then(|item| item.as_text().map(str::to_owned)),
    }
}

/// Defaults of `x_probes` that depend on the method.
struct ProbeDefaults {
    count: u64,
    size: u64,
    train: u64,
}

impl ProbeDefaults {
    const fn for_method(method: PlannedProbeMethod) -> Self {
        match method {
            PlannedProbeMethod::Capacity => Self { count: 50, size: 1_518, train: 50 },
            _ => Self { count: 10, size: 102, train: 1 },
        }
    }
}

/// Time for the first trains of an estimate, for its packet pairs, and for the last answer.
const fn default_probe_time_slot(count: u32, interval: Nanos, wait: Nanos) -> Nanos {
    let trains = count.saturating_add(CAPACITY_TRAINS_BEFORE_PAIRS) as u64;
    Nanos::new(interval.as_u64().saturating_mul(trains).saturating_add(wait.as_u64()))
}

fn read_probe_lines(
    object: &DocumentObject<'_>,
    ports: &PortNames,
    host_port: u16,
) -> Vec<probes::PlannedProbeLine> {
    let from = read_port_list(object, "from", ports);
    let mut to: Vec<ProbeLineDestination> =
        read_port_list(object, "to", ports).into_iter().map(ProbeLineDestination::Port).collect();
    to.extend(
        object
            .read_items("targets")
            .iter()
            .filter_map(|item| read_target(item, host_port))
            .map(ProbeLineDestination::Host),
    );
    if from.is_empty() || to.is_empty() {
        object
            .item
            .add_item_error("probes need ports in `from`, and ports in `to` or addresses in `targets`");
    }
    // The pairs are counted before the lines are made, so that two long lists cannot fill the memory.
    if from.len().saturating_mul(to.len()) > MAX_LINES {
        object.item.add_item_error(format!(
            "`from`, `to` and `targets` give {} x {} pairs; at most {MAX_LINES} are possible",
            from.len(),
            to.len()
        ));
        return Vec::new();
    }
    let lines = probes::make_probe_lines(&from, &to);
    if lines.is_empty() && !from.is_empty() && !to.is_empty() {
        object.item.add_item_error("a port does not probe itself; name another one in `to`");
    }
    lines
}

fn read_port_list(object: &DocumentObject<'_>, list: &'static str, ports: &PortNames) -> Vec<usize> {
    object.read_items(list).iter().filter_map(|item| resolve_port_name(item, ports)).collect()
}

/// Reads an IP address with or without a UDP port; `port` is the default.
fn read_target(item: &DocumentItem<'_>, port: u16) -> Option<SocketAddr> {
    let text = item.as_text()?;
    let alone = text.parse().map(|ip| SocketAddr::new(ip, port));
    // The form with a port comes first: an IPv6 address with brackets and a port is not a plain address.
    text.parse().or(alone).map_err(|_| item.add_item_error(format!("`{text}` is not an IP address"))).ok()
}

fn read_addresses(object: &DocumentObject<'_>, ports: &PortNames) -> BTreeMap<usize, IpAddr> {
    let mut found = BTreeMap::new();
    for item in object.read_items("addresses") {
        let Some(one) = item.as_object() else { continue };
        let port = one.require_member("port").and_then(|item| resolve_port_name(&item, ports));
        let address = one.require_member("address").and_then(|item| parse_text_item(&item));
        if port.is_some_and(|port| found.contains_key(&port)) {
            item.add_item_error("this port has an address already");
        }
        found.extend(port.zip(address));
        one.refuse_unread_members();
    }
    found
}

fn parse_text_item<T: FromStr<Err: Display>>(item: &DocumentItem<'_>) -> Option<T> {
    item.as_text()?.parse().map_err(|error: T::Err| item.add_item_error(error.to_string())).ok()
}

fn read_time(object: &DocumentObject<'_>, name: &'static str, usual: Nanos) -> Nanos {
    object.read_member(name).and_then(|item| parse_text_item(&item)).unwrap_or(usual)
}

/// Checks rules that concern several members together.
fn check_probe_plan(object: &DocumentObject<'_>, plan: &ProbePlan) {
    let item = &object.item;
    if plan.interval == Nanos::ZERO {
        item.add_item_error("`interval` must not be zero");
    }
    if plan.train > 1 && !matches!(plan.method, PlannedProbeMethod::Send | PlannedProbeMethod::Capacity) {
        item.add_item_error("only the methods `send` and `capacity` can have a `train` above 1");
    }
    if plan.method == PlannedProbeMethod::Capacity {
        check_capacity(item, plan);
    } else if object.read_member("slot").is_some() {
        item.add_item_error("only the method `capacity` has a `slot`");
    }
    if plan.train_duration() > MAX_TRAIN_TIME {
        item.add_item_error(format!(
            "a train of {} is too long; at most {MAX_TRAIN_TIME} are possible",
            plan.train_duration()
        ));
    }
    let ends = plan.lines.iter().flat_map(|line| {
        // Reflectors answer only addresses that they know.
        let asker = plan.method.has_reflectors().then_some(line.from);
        let far = if let ProbeLineDestination::Port(port) = line.to { Some(port) } else { None };
        asker.filter(|_| far.is_some()).into_iter().chain(far)
    });
    if ends.into_iter().any(|port| !plan.addresses.contains_key(&port)) {
        item.add_item_error(
            "a port that receives probes, or sends them to another port's reflector, needs its IP address in `addresses`",
        );
    }
    let senders: BTreeSet<usize> = plan.lines.iter().map(|line| line.from).collect();
    // The port with the most lines decides, because each node keeps its own records.
    let most_lines = senders.into_iter().map(|port| plan.count_lines_sent_by(port)).max().unwrap_or(0);
    let first = if plan.method.needs_exclusive_turn() { CAPACITY_TRAINS_BEFORE_PAIRS } else { 0 };
    let trains = u64::from(plan.count.saturating_add(first));
    let probes = trains.saturating_mul(plan.train.into()).saturating_mul(most_lines.into());
    if probes > MAX_PROBES {
        item.add_item_error(format!("a port would send {probes} probes; at most {MAX_PROBES} are possible"));
    }
}

fn check_capacity(item: &DocumentItem<'_>, plan: &ProbePlan) {
    if plan.count < MIN_ESTIMATE_PAIRS || plan.train < MIN_CAPACITY_TRAIN_PROBES {
        item.add_item_error(format!(
            "the method `capacity` needs a `count` of at least {MIN_ESTIMATE_PAIRS} pairs and a `train` of \
            at least {MIN_CAPACITY_TRAIN_PROBES} probes"
        ));
    }
    let least = plan.interval.as_u64().saturating_mul(MIN_ESTIMATE_PAIRS.into());
    if plan.slot.as_u64() <= least {
        item.add_item_error(format!(
            "a `slot` of {} is too short for {MIN_ESTIMATE_PAIRS} pairs, one every {}",
            plan.slot, plan.interval
        ));
    }
    if plan.poisson || plan.gap > Nanos::ZERO {
        item.add_item_error(
            "the method `capacity` computes the departure times of its probes: remove `poisson` and `gap`",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, PlanProblems};

    fn read(probes: &str) -> Result<Plan, PlanProblems> {
        let ports =
            "[{name: a, location: n1/eth0}, {name: b, location: n2/eth0}, {name: c, location: n3/eth0}]";
        let addresses = "[{port: a, address: 198.18.0.1}, {port: b, address: 198.18.0.2}]";
        let text = format!("{{ports: {ports}, x_probes: {{addresses: {addresses}, {probes}}}}}");
        Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
    }

    fn problems(probes: &str) -> String {
        read(probes).unwrap_err().to_string()
    }

    #[test]
    fn a_document_names_who_probes_whom() {
        let plan = read("method: oneway, from: [a, b], to: [a, b], count: 7, interval: 20ms").unwrap();
        let probes = plan.probes.unwrap();
        assert_eq!((probes.method, probes.count, probes.port), (PlannedProbeMethod::OneWay, 7, 18_620));
        let ends: Vec<_> = probes.lines.iter().map(|line| (line.from, probes.target_address(line))).collect();
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(ends, [(0, at("198.18.0.2:18620")), (1, at("198.18.0.1:18620"))]);
        assert_eq!(probes.list_ports_probing(1).collect::<Vec<_>>(), [0]);
        let ping =
            read("method: ping, from: [c], targets: [192.0.2.1, '192.0.2.2:7']").unwrap().probes.unwrap();
        assert_eq!(ping.lines.len(), 2);
        assert_eq!(ping.list_ports_probing(0).count(), 0);
    }

    #[test]
    fn invalid_probes_are_refused_with_path() {
        assert!(problems("method: oneway, from: [a], to: [c]").contains("needs its IP address"));
        assert!(problems("method: oneway, from: [a], to: [a]").contains("does not probe itself"));
        assert!(problems("method: oneway, from: [a], to: [d]").contains("there is no port `d`"));
        assert!(
            problems("method: guess, from: [a], to: [b]")
                .contains("not one of oneway, stamp, ping, send, capacity")
        );
        assert!(problems("from: [a], to: [b]").contains("`method` is missing"));
        assert!(problems("method: ping, from: [a], to: [b], interval: 0ns").contains("must not be zero"));
        assert!(problems("method: ping, from: [a], to: [b], train: 3").contains("only the methods `send`"));
        assert!(problems("method: capacity, from: [a], to: [b], count: 9").contains("at least 10 pairs"));
        assert!(
            problems("method: capacity, from: [a], to: [b], gap: 1us").contains("remove `poisson` and `gap`")
        );
        assert!(problems("method: capacity, from: [a], to: [b], slot: 1s").contains("is too short"));
        assert!(
            problems("method: ping, from: [a], to: [b], slot: 1s").contains("only the method `capacity`")
        );
        assert!(problems("method: send, from: [a], to: [b], train: 3, gap: 6ms").contains("is too long"));
        assert!(problems("method: ping, from: [a], targets: [nowhere]").contains("x_probes.targets[0]"));
        let many = "method: ping, from: [a], to: [b], count: 1000000, interval: 1ms";
        assert!(
            read(many).is_ok()
                && problems(&many.replace("from: [a]", "from: [a], targets: [192.0.2.1, 192.0.2.2]"))
                    .contains("would send")
        );
    }

    #[test]
    fn probes_need_fleet_and_exclude_flows() {
        let text =
            "{ports: [{name: a, location: eth1}], x_probes: {method: ping, from: [a], targets: [192.0.2.1]}}";
        let problems = Plan::from_text(text).unwrap_err();
        assert!(problems.to_string().contains("needs a fleet"), "{problems}");
        let text = "{ports: [{name: a, location: n/eth1}, {name: b, location: n/eth2}], flows: [{name: f, tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}}}], \
            x_probes: {method: ping, from: [a], targets: [192.0.2.1]}}";
        let problems =
            Plan::from_text_with(text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
                .unwrap_err();
        assert!(problems.to_string().contains("cannot have flows"), "{problems}");
    }
}
