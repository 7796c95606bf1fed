//! Documents of trials: the traffic of a plan, or of flags, at another load and for another time.
//!
//! A trial keeps ports, addresses and the share of each flow. It replaces rates, durations and, if asked, sizes. So a trial
//! is an ordinary document, and its run is an ordinary run.

use crate::document::{self, DocumentNode, DocumentValue};
use crate::model::{Plan, ReadOptions};
use crate::problem::PlanProblem;
use crate::{PlanProblems, StreamAmount};
use packetrig_units::{BitRate, FrameSize, Nanos};
use serde_json::{Map, Value, json};

/// Below this many frames per second a whole number of them is too coarse: a trial asks for bits per second instead.
const COARSE: f64 = 100_000.0;

/// The traffic that trials of a test send.
#[derive(Clone, Debug)]
pub struct TrialTraffic {
    document: Value,
    flows: Vec<FlowLoad>,
}

/// A flow at the plan's own rates.
#[derive(Clone, Copy, Debug)]
struct FlowLoad {
    /// Frames per second.
    rate: f64,
    /// The one size of its frames, if they have one.
    size: Option<FrameSize>,
}

/// What one trial sends.
#[derive(Clone, Copy, Debug)]
pub struct TrialShape {
    /// Size of all frames, FCS included; `None` keeps the sizes of the plan.
    pub size: Option<FrameSize>,
    /// Frames per second, all flows together.
    pub frames_per_second: f64,
    pub length: TrialAmount,
    /// Frames per second that follow at once, and for how long.
    pub then: Option<(f64, Nanos)>,
}

/// How much a trial sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialAmount {
    Time(Nanos),
    /// Frames, all flows together.
    Frames(u64),
}

impl TrialTraffic {
    /// The traffic of a document. `speeds` has the speed of each port, where it is known.
    pub fn of_document(
        text: &str,
        reading: ReadOptions,
        speeds: &dyn Fn(&Plan) -> Vec<Option<BitRate>>,
    ) -> Result<Self, PlanProblems> {
        let plan = Plan::read_with(text, reading)?;
        let refusals: Vec<PlanProblem> = plan.streams.iter().filter_map(refusal).collect();
        if !refusals.is_empty() {
            return Err(PlanProblems(refusals));
        }
        let node = document::parse(text).map_err(|problem| PlanProblems(vec![*problem]))?;
        let speeds = speeds(&plan);
        let bound = plan.bind(&speeds)?;
        let mut flows: Vec<FlowLoad> = Vec::new();
        for (stream, timed) in bound.plan.streams.iter().zip(&bound.streams) {
            let rate = timed.timeline.rate.as_f64();
            match flows.get_mut(stream.flow) {
                Some(flow) => flow.rate += rate,
                None => flows.push(FlowLoad { rate, size: None }),
            }
        }
        let mut traffic = Self { document: value_of(&node), flows };
        traffic.note_sizes();
        Ok(traffic)
    }

    /// Frames per second of the plan's own rates, all flows together.
    pub fn full_load(&self) -> f64 {
        self.flows.iter().map(|flow| flow.rate).sum()
    }

    /// The document of a trial.
    pub fn document(&self, shape: &TrialShape) -> String {
        let mut document = self.document.clone();
        let Some(flows) = document.get_mut("flows").and_then(Value::as_array_mut) else {
            return document.to_string();
        };
        let whole = self.full_load();
        let mut following = Vec::new();
        for (flow, own) in flows.iter_mut().zip(&self.flows) {
            let share = own.rate / whole;
            let size = shape.size.or(own.size);
            if let Some(size) = shape.size {
                flow["size"] = json!({"choice": "fixed", "fixed": size.bytes()});
            }
            if let Some((load, time)) = shape.then {
                following.push(follow_up(flow, rate(load * share, size), &shape.length, time));
            }
            flow["rate"] = rate(shape.frames_per_second * share, size);
            flow["duration"] = duration(shape.length, share);
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

/// Why a stream cannot be sent at another load.
fn refusal(stream: &crate::Stream) -> Option<PlanProblem> {
    let why = if matches!(stream.duration.amount, StreamAmount::Bursts { .. }) {
        "sends bursts; a test method needs a constant rate"
    } else if stream.rx.is_empty() {
        "has no receiver, so nothing can be measured"
    } else if !stream.metrics.enable {
        "has `metrics.enable: false`, so nothing can be measured"
    } else {
        return None;
    };
    Some(stream.place.locate(PlanProblem::error(
        format!("$.flows[{}]", stream.flow),
        format!("flow `{}` {why}", stream.flow_name),
    )))
}

/// The flow at the load that follows: it begins when the first one ends.
fn follow_up(flow: &Value, rate: Value, first: &TrialAmount, time: Nanos) -> Value {
    let mut next = flow.clone();
    let name = flow.get("name").and_then(Value::as_str).unwrap_or("stream");
    next["name"] = json!(format!("{name}, then"));
    next["rate"] = rate;
    let delay = match first {
        TrialAmount::Time(time) => time.as_u64(),
        TrialAmount::Frames(_) => 0,
    };
    next["duration"] = json!({"choice": "fixed_seconds", "fixed_seconds": {
        "seconds": time.as_secs_f64(), "delay": {"choice": "nanoseconds", "nanoseconds": delay}}});
    next
}

fn rate(frames_per_second: f64, size: Option<FrameSize>) -> Value {
    match size {
        Some(size) if frames_per_second < COARSE => {
            let bits = (frames_per_second * f64::from(size.bytes()) * 8.0).round() as u64;
            json!({"choice": "bps", "bps": bits})
        }
        _ => json!({"choice": "pps", "pps": (frames_per_second.floor() as u64).max(1)}),
    }
}

fn duration(amount: TrialAmount, share: f64) -> Value {
    match amount {
        TrialAmount::Time(time) => {
            json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": time.as_secs_f64()}})
        }
        TrialAmount::Frames(frames) => {
            let packets = ((frames as f64 * share).round() as u64).max(1);
            json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}})
        }
    }
}

/// OTG's default size is 64 bytes.
fn fixed_size(size: Option<&Value>) -> Option<FrameSize> {
    let Some(size) = size else { return Some(FrameSize::new(64)) };
    let bytes = size.get("fixed").map(|fixed| fixed.as_u64().or_else(|| fixed.as_str()?.parse().ok()));
    match (bytes, size.get("choice").and_then(Value::as_str)) {
        (Some(bytes), None | Some("fixed")) => Some(FrameSize::new(u32::try_from(bytes?).ok()?)),
        _ => None,
    }
}

/// The document as JSON. Scalars that are numbers or booleans in YAML become such.
fn value_of(node: &DocumentNode) -> Value {
    match &node.value {
        DocumentValue::Null => Value::Null,
        DocumentValue::Scalar(text) => serde_json::from_str(text)
            .ok()
            .filter(|value: &Value| value.is_number() || value.is_boolean())
            .unwrap_or_else(|| json!(text)),
        DocumentValue::List(items) => items.iter().map(value_of).collect(),
        DocumentValue::Object(members) => {
            let members = members.iter().map(|(key, _, member)| (key.clone(), value_of(member)));
            Value::Object(members.collect::<Map<String, Value>>())
        }
    }
}
