//! Documents of trials: the traffic of a plan, or of flags, at another load and for another duration.
//!
//! A trial keeps ports, addresses and the share of each flow. It replaces rates, durations and, if asked, sizes. So a trial
//! is an ordinary document, and its run is an ordinary run.

mod loads;

pub use loads::LoadedSender;

use crate::document::{self, DocumentNode, DocumentValue};
use crate::model::{Plan, ReadOptions};
use crate::problem::PlanProblem;
use crate::{PlanProblems, StreamAmount};
use loads::StreamLoad;
use packetrig_units::{BitRate, FrameSize, Nanos};
use serde_json::{Map, Value, json};

/// Below this many frames per second a whole number of them is too coarse: a trial asks for bits per second instead.
const COARSE: f64 = 100_000.0;

/// The traffic that trials of a test send.
#[derive(Clone, Debug)]
pub struct TrialTraffic {
    document: Value,
    reading: ReadOptions,
    /// Speed of each port, where it is known.
    speeds: Vec<Option<BitRate>>,
    flows: Vec<FlowLoad>,
    /// Loads of the streams, in the order of the plan.
    streams: Vec<StreamLoad>,
    senders: Vec<LoadedSender>,
}

/// A flow at the plan's own rates.
#[derive(Clone, Copy, Debug, Default)]
struct FlowLoad {
    /// Frames per second of each direction: a flow that is `bidirectional` sends them twice.
    rate: f64,
    directions: u32,
    /// The single size of its frames, if they have one.
    size: Option<FrameSize>,
}

/// The traffic of one trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialShape {
    /// Size of all frames, FCS included; `None` keeps the sizes of the plan.
    pub size: Option<FrameSize>,
    /// Frames per second, all flows and directions together.
    pub frames_per_second: f64,
    pub length: TrialAmount,
    /// A second load in frames per second that follows at once, and its duration.
    pub then: Option<(f64, Nanos)>,
}

/// The length of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialAmount {
    Time(Nanos),
    /// Frames, all flows and directions together.
    Frames(u64),
}

impl TrialTraffic {
    /// The traffic of a document. `speeds` returns the speed of each port, where it is known.
    pub fn from_document(
        text: &str,
        reading: ReadOptions,
        speeds: &dyn Fn(&Plan) -> Vec<Option<BitRate>>,
    ) -> Result<Self, PlanProblems> {
        let plan = Plan::from_text_with(text, reading)?;
        let refusals: Vec<PlanProblem> = plan.streams.iter().filter_map(stream_refusal).collect();
        if !refusals.is_empty() {
            return Err(PlanProblems(refusals));
        }
        // The tree as well as the plan: a trial changes members of the document, which the plan no longer has.
        let node = document::parse_document(text).map_err(|problem| PlanProblems(vec![*problem]))?;
        let speeds = speeds(&plan);
        // The rates of the plan are the highest load, so they must fit the links before any trial is made.
        let bound = plan.bind_to_links(&speeds)?;
        let mut document = value_of(&node);
        // Hundreds of trials would write hundreds of files.
        document.as_object_mut().and_then(|members| members.remove("captures"));
        let (flows, streams) = (loads::flow_loads(&bound), loads::stream_loads(&bound));
        let senders = loads::loaded_senders(&bound.plan, &streams);
        let mut traffic = Self { document, reading, speeds, flows, streams, senders };
        traffic.note_sizes();
        Ok(traffic)
    }

    /// Frames per second of the plan's own rates, all flows and directions together.
    pub fn full_load(&self) -> f64 {
        self.flows.iter().map(|flow| flow.rate * f64::from(flow.directions)).sum()
    }

    /// The document of a trial.
    pub fn trial_document(&self, shape: &TrialShape) -> String {
        let mut document = self.document.clone();
        let Some(flows) = document.get_mut("flows").and_then(Value::as_array_mut) else {
            return document.to_string();
        };
        let whole = self.full_load();
        let mut following = Vec::new();
        for (flow, own) in flows.iter_mut().zip(&self.flows) {
            // One direction's share: a flow in both directions sends its rate twice, and `full_load` has both.
            let share = own.rate / whole;
            let size = shape.size.or(own.size);
            if let Some(size) = shape.size {
                set_size(flow, size);
            }
            if let Some((load, time)) = shape.then {
                following.push(follow_up(flow, rate_value(load * share, size), &shape.length, time));
            }
            flow["rate"] = rate_value(shape.frames_per_second * share, size);
            flow["duration"] = duration_value(shape.length, share);
        }
        flows.extend(following);
        document.to_string()
    }

    fn note_sizes(&mut self) {
        let flows = self.document.get("flows").and_then(Value::as_array).into_iter().flatten();
        for (flow, own) in flows.zip(&mut self.flows) {
            own.size = fixed_size(flow.get("size"));
        }
    }
}

/// The reason why a stream cannot be sent at another load.
fn stream_refusal(stream: &crate::Stream) -> Option<PlanProblem> {
    // A burst has two rates, its own and the mean. A load that is scaled could mean either.
    let why = if matches!(stream.duration.amount, StreamAmount::Bursts { .. }) {
        "sends bursts; a test method needs a constant rate"
    } else if stream.rx.is_empty() {
        "has no receiver, so nothing can be measured"
    } else if !stream.metrics.enable {
        "has `metrics.enable: false`, so nothing can be measured"
    } else {
        return None;
    };
    Some(stream.place.locate_problem(PlanProblem::error(
        format!("$.flows[{}]", stream.flow),
        format!("flow `{}` {why}", stream.flow_name),
    )))
}

/// The flow at the second load: it begins when the first one ends.
fn follow_up(flow: &Value, rate: Value, first: &TrialAmount, time: Nanos) -> Value {
    let mut next = flow.clone();
    let name = flow.get("name").and_then(Value::as_str).unwrap_or("stream");
    next["name"] = json!(format!("{name}, then"));
    next["rate"] = rate;
    // Only the recovery test has a second load, and its trials have a fixed time.
    let delay = match first {
        TrialAmount::Time(time) => time.as_u64(),
        TrialAmount::Frames(_) => 0,
    };
    next["duration"] = json!({"choice": "fixed_seconds", "fixed_seconds": {
        "seconds": time.as_secs_f64(), "delay": {"choice": "nanoseconds", "nanoseconds": delay}}});
    next
}

fn set_size(flow: &mut Value, size: FrameSize) {
    flow["size"] = json!({"choice": "fixed", "fixed": size.bytes()});
}

fn rate_value(frames_per_second: f64, size: Option<FrameSize>) -> Value {
    match size {
        Some(size) if frames_per_second < COARSE => {
            let bits = saturating_u64((frames_per_second * f64::from(size.bytes()) * 8.0).round());
            json!({"choice": "bps", "bps": bits})
        }
        _ => json!({"choice": "pps", "pps": saturating_u64(frames_per_second).max(1)}),
    }
}

fn duration_value(amount: TrialAmount, share: f64) -> Value {
    match amount {
        TrialAmount::Time(time) => {
            json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": time.as_secs_f64()}})
        }
        TrialAmount::Frames(frames) => {
            // At least one frame: OTG has no flow of 0 frames.
            let packets = saturating_u64((frames as f64 * share).round()).max(1);
            json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}})
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
const fn saturating_u64(value: f64) -> u64 {
    value as u64
}

/// OTG's default size is 64 bytes.
fn fixed_size(size: Option<&Value>) -> Option<FrameSize> {
    // A trial without a size keeps that of the document. Only a single size can be turned into bits per second.
    let Some(size) = size else { return Some(FrameSize::new(64)) };
    let bytes = size.get("fixed").map(|fixed| fixed.as_u64().or_else(|| fixed.as_str()?.parse().ok()));
    match (bytes, size.get("choice").and_then(Value::as_str)) {
        (Some(bytes), None | Some("fixed")) => Some(FrameSize::new(u32::try_from(bytes?).ok()?)),
        _ => None,
    }
}

/// The document as JSON. Scalars that are numbers or booleans in YAML become JSON numbers and booleans.
fn value_of(node: &DocumentNode<'_>) -> Value {
    match &node.value {
        DocumentValue::Null => Value::Null,
        DocumentValue::Scalar(text) => serde_json::from_str(text)
            .ok()
            .filter(|value: &Value| value.is_number() || value.is_boolean())
            .unwrap_or_else(|| json!(text)),
        DocumentValue::List(items) => items.iter().map(value_of).collect(),
        DocumentValue::Object(members) => {
            let members = members.iter().map(|member| (member.name.to_string(), value_of(&member.node)));
            Value::Object(members.collect::<Map<String, Value>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quick::{QuickLength, QuickPattern, QuickPlan, QuickSize};
    use packetrig_units::{FrameRate, Rate};
    use proptest::prelude::*;

    const GIGABIT: BitRate = BitRate::new(1_000_000_000);

    fn traffic(text: &str) -> Result<TrialTraffic, PlanProblems> {
        TrialTraffic::from_document(text, ReadOptions::default(), &|plan| {
            vec![Some(GIGABIT); plan.ports.len()]
        })
    }

    fn quick(streams: u32) -> TrialTraffic {
        let quick = QuickPlan {
            tx: vec!["a/eth0".to_owned()],
            rx: vec!["b/eth0".to_owned()],
            pattern: QuickPattern::ToAll,
            size: QuickSize::Fixed(FrameSize::new(128)),
            rate: Rate::Frames(FrameRate::per_second(1_000).unwrap()),
            length: QuickLength::Time(Nanos::from_secs(1)),
            streams,
            vlan: None,
            ipv6: false,
            hosts: None,
        };
        traffic(&quick.to_yaml()).unwrap()
    }

    fn shape(frames_per_second: f64, length: TrialAmount) -> TrialShape {
        TrialShape { size: None, frames_per_second, length, then: None }
    }

    fn bound(document: &str) -> crate::BoundPlan {
        let plan = Plan::from_text(document).unwrap();
        let speeds = vec![Some(GIGABIT); plan.ports.len()];
        plan.bind_to_links(&speeds).unwrap()
    }

    #[test]
    fn a_trial_keeps_the_proportion_of_the_flows() {
        let text = r"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
flows:
- {name: one, tx_rx: {port: {tx_name: a, rx_names: [b]}}, size: {fixed: 100}, rate: {pps: 3000}, metrics: {enable: true}}
- {name: two, tx_rx: {port: {tx_name: a, rx_names: [b]}}, size: {fixed: 100}, rate: {bps: 800000}, metrics: {enable: true}}
";
        let traffic = traffic(text).unwrap();
        assert!((traffic.full_load() - 4_000.0).abs() < 1e-6, "{}", traffic.full_load());
        let document = traffic.trial_document(&shape(40_000.0, TrialAmount::Time(Nanos::from_secs(2))));
        let totals: Vec<_> =
            bound(&document).streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).collect();
        assert_eq!(totals, [60_000, 20_000]);
    }

    const BOTH_WAYS: &str = r#"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
devices:
- {name: d, ethernets: [
    {name: e, connection: {port_name: a}, mac: "02:00:00:00:00:01", ipv4_addresses: [{name: a4, address: 198.18.0.2, gateway: 0.0.0.0}]},
    {name: f, connection: {port_name: b}, mac: "02:00:00:00:00:02", ipv4_addresses: [{name: b4, address: 198.18.0.3, gateway: 0.0.0.0}]}]}
flows:
- {name: f1, tx_rx: {device: {tx_names: [a4], rx_names: [b4], bidirectional: true}}, size: {fixed: 100}, rate: {pps: 2000},
   packet: [{ethernet: {}}, {ipv4: {}}, {udp: {}}], metrics: {enable: true}}
"#;

    #[test]
    fn both_directions_together_are_the_load() {
        let traffic = traffic(BOTH_WAYS).unwrap();
        assert!((traffic.full_load() - 4_000.0).abs() < 1e-6, "{}", traffic.full_load());
        for length in [TrialAmount::Time(Nanos::from_secs(1)), TrialAmount::Frames(3_000)] {
            let document = traffic.trial_document(&shape(3_000.0, length));
            let bound = bound(&document);
            let totals: Vec<_> =
                bound.streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).collect();
            assert_eq!(totals, [1_500, 1_500]);
        }
        let wanted = ["a", "b"].map(|name| LoadedSender { name: name.to_owned(), share: 0.5 });
        assert_eq!(traffic.senders(), wanted);
    }

    #[test]
    fn highest_load_respects_document_and_sender_rates() {
        let traffic = traffic(BOTH_WAYS).unwrap();
        let highest = |size: Option<u32>, rate: Option<&str>, wanted: f64| {
            let limit = rate.map(|rate| rate.parse().unwrap());
            let found = traffic.highest_load(size.map(FrameSize::new), limit).unwrap();
            assert!((found - wanted).abs() < 1.0, "{size:?} {rate:?}: {found} frames/s, not {wanted}");
        };
        highest(None, None, 4_000.0);
        highest(Some(1500), None, 4_000.0);
        highest(None, Some("1500pps"), 3_000.0);
        highest(None, Some("9kpps"), 4_000.0);
        // 1000 frames of 100 bytes each way; of 1000 bytes, 100.
        highest(None, Some("800kbit/s"), 2_000.0);
        highest(Some(1000), Some("800kbit/s"), 200.0);
        // 0.1 % of a gigabit are 1041.7 frames of 120 bytes on the line.
        highest(None, Some("0.1%"), 2_083.3);
        let load = traffic.load_at(None, "9kpps".parse().unwrap()).unwrap();
        assert!((load - 18_000.0).abs() < 1.0, "{load}");
    }

    #[test]
    fn trial_problems_have_no_document_position() {
        let order = TrialShape { size: Some(FrameSize::new(1518)), ..shape(1e9, TrialAmount::Frames(5)) };
        let problems = traffic(BOTH_WAYS).unwrap().check_trial(&order).unwrap_err();
        assert!(problems.0.iter().all(|problem| problem.position.is_none() && problem.span.is_none()));
        assert!(problems.to_string().contains("its link has 1.000 Gbit/s"), "{problems}");
    }

    #[test]
    fn following_load_begins_when_first_ends() {
        let then = Some((500.0, Nanos::from_secs(3)));
        let length = TrialAmount::Time(Nanos::from_secs(2));
        let document = quick(1).trial_document(&TrialShape { then, ..shape(2_000.0, length) });
        let bound = bound(&document);
        let times: Vec<_> = bound
            .streams
            .iter()
            .map(|stream| {
                (
                    stream.timeline.due_time(0),
                    stream.timeline.end_time().unwrap(),
                    stream.timeline.total_frames(),
                )
            })
            .collect();
        let seconds = Nanos::from_secs;
        assert_eq!(times, [(seconds(0), seconds(2), Some(4_000)), (seconds(2), seconds(5), Some(1_500))]);
    }

    #[test]
    fn trials_capture_nothing() {
        let text = r"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
flows: [{name: f, tx_rx: {port: {tx_name: a, rx_names: [b]}}, rate: {pps: 10}, metrics: {enable: true}}]
captures: [{name: c, port_names: [b]}]
";
        assert_eq!(Plan::from_text(text).unwrap().captures.len(), 1);
        let document = traffic(text).unwrap().trial_document(&shape(10.0, TrialAmount::Frames(5)));
        assert!(Plan::from_text(&document).unwrap().captures.is_empty());
    }

    #[test]
    fn unscalable_flows_are_refused_by_name() {
        let flow = |more: &str| {
            format!(
                "ports: [{{name: a, location: eth1}}, {{name: b, location: eth2}}]\nflows:\n- {{name: f, tx_rx: {{port: \
                 {{tx_name: a, rx_names: [b]}}}}, metrics: {{enable: true}}, {more}}}"
            )
        };
        let burst = flow("duration: {burst: {packets: 5}}, rate: {pps: 10}");
        let error = traffic(&burst).unwrap_err();
        assert!(error.0[0].message.contains("flow `f` sends bursts"), "{error}");
        assert!(traffic(&flow("rate: {pps: 10}")).is_ok());
    }

    proptest! {
        #[test]
        fn trial_sends_ordered_frame_count(load in 1.0f64..1_000_000.0, streams in 1u32..5, size in 64u32..1518, ms in 100u64..5_000) {
            let mut order = shape(load, TrialAmount::Time(Nanos::from_millis(ms)));
            order.size = Some(FrameSize::new(size));
            prop_assume!(load * f64::from(size + 20) * 8.0 < 0.99e9 && load / f64::from(streams) >= 2.0);
            let document = quick(streams).trial_document(&order);
            let sent: u64 = bound(&document).streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).sum();
            let wanted = load * ms as f64 / 1000.0;
            // A frame per stream for the slots at the edges, and a thousandth for rates in whole units.
            let tolerance = f64::from(streams) + wanted * 1e-3;
            prop_assert!((sent as f64 - wanted).abs() <= tolerance, "{sent} frames for {wanted}");
        }

        #[test]
        fn bursts_have_as_many_frames_as_ordered(frames in 1u64..100_000) {
            let document = quick(1).trial_document(&shape(800_000.0, TrialAmount::Frames(frames)));
            prop_assert_eq!(bound(&document).streams[0].timeline.total_frames(), Some(frames));
        }
    }
}
