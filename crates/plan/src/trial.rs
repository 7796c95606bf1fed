//! Documents of trials: the traffic of a plan, or of command-line flags, at another load and for another duration.
//!
//! A trial keeps ports, addresses and the share of each flow. It replaces rates, durations and, if asked, sizes, and it
//! has no captures. So a trial is an ordinary document, and its run is an ordinary run.

mod loads;

pub use loads::LoadedSender;

use crate::document::{self, DocumentNode, DocumentValue};
use crate::model::{Plan, PlanParseOptions};
use crate::problem::PlanProblem;
use crate::{PlanProblems, StreamAmount};
use loads::StreamLoad;
use packetrig_units::{BitRate, FrameSize, Nanos};
use serde_json::{Map, Value, json};

/// Below this many frames per second, whole numbers are too coarse steps: a trial gives its load in
/// bits per second instead.
const MIN_RATE_FOR_WHOLE_FRAMES: f64 = 100_000.0;

/// The traffic that trials of a test send.
#[derive(Clone, Debug)]
pub struct TrialTraffic {
    document: Value,
    reading: PlanParseOptions,
    /// Speed of each port, where it is known.
    speeds: Vec<Option<BitRate>>,
    flows: Vec<FlowLoad>,
    /// Loads of the streams, in the order of the plan.
    streams: Vec<StreamLoad>,
    senders: Vec<LoadedSender>,
}

/// Load of a flow at the rates of the plan.
#[derive(Clone, Copy, Debug, Default)]
struct FlowLoad {
    /// Frames per second of each direction: a flow that is `bidirectional` sends them twice.
    rate: f64,
    directions: u32,
    /// The single size of its frames, if they have one.
    size: Option<FrameSize>,
}

/// Frame size, load and duration of one trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialShape {
    /// Size of all frames, FCS included; `None` keeps the sizes of the plan.
    pub size: Option<FrameSize>,
    /// Frames per second, all flows and directions together.
    pub frames_per_second: f64,
    pub length: TrialAmount,
    /// A second load in frames per second that follows without a pause, and its duration.
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
    /// Reads the traffic of a document. `speeds` returns the speed of each port, where it is known. Refuses flows that
    /// send bursts, have no receiver or are not measured.
    pub fn from_document(
        text: &str,
        reading: PlanParseOptions,
        speeds: &dyn Fn(&Plan) -> Vec<Option<BitRate>>,
    ) -> Result<Self, PlanProblems> {
        let plan = Plan::from_text_with(text, reading)?;
        let refusals: Vec<PlanProblem> = plan.streams.iter().filter_map(find_stream_problem).collect();
        if !refusals.is_empty() {
            return Err(PlanProblems(refusals));
        }
        // The tree is parsed in addition to the plan: a trial changes members of the document, which the
        // plan no longer has.
        let node = document::parse_document(text).map_err(|problem| PlanProblems(vec![*problem]))?;
        let speeds = speeds(&plan);
        // The rates of the plan are the highest load, so they must fit the links before any trial is made.
        let bound = plan.bind_to_links(&speeds)?;
        let mut document = to_json_value(&node);
        // Trials have no captures: hundreds of trials would write hundreds of files.
        document.as_object_mut().and_then(|members| members.remove("captures"));
        let (flows, streams) = (loads::compute_flow_loads(&bound), loads::compute_stream_loads(&bound));
        let senders = loads::loaded_senders(&bound.plan, &streams);
        let mut traffic = Self { document, reading, speeds, flows, streams, senders };
        traffic.record_flow_sizes();
        Ok(traffic)
    }

    /// Frames per second of the plan's own rates, all flows and directions together.
    pub fn full_load(&self) -> f64 {
        self.flows.iter().map(|flow| flow.rate * f64::from(flow.directions)).sum()
    }

    /// Returns the document of a trial as JSON.
    pub fn trial_document(&self, shape: &TrialShape) -> String {
        let mut document = self.document.clone();
        let Some(flows) = document.get_mut("flows").and_then(Value::as_array_mut) else {
            return document.to_string();
        };
        let whole = self.full_load();
        let mut following = Vec::new();
        for (flow, own) in flows.iter_mut().zip(&self.flows) {
            // The share of one direction: a flow in both directions sends its rate twice,
            // and `full_load` includes both.
            let share = own.rate / whole;
            let size = shape.size.or(own.size);
            if let Some(size) = shape.size {
                set_flow_size(flow, size);
            }
            if let Some((load, time)) = shape.then {
                following.push(copy_flow_for_second_load(
                    flow,
                    trial_rate_to_json(load * share, size),
                    &shape.length,
                    time,
                ));
            }
            flow["rate"] = trial_rate_to_json(shape.frames_per_second * share, size);
            flow["duration"] = duration_value(shape.length, share);
        }
        flows.extend(following);
        document.to_string()
    }

    fn record_flow_sizes(&mut self) {
        let flows = self.document.get("flows").and_then(Value::as_array).into_iter().flatten();
        for (flow, own) in flows.zip(&mut self.flows) {
            own.size = fixed_size_or_default(flow.get("size"));
        }
    }
}

/// The reason why a trial cannot send or measure a stream; `None` if it can.
fn find_stream_problem(stream: &crate::Stream) -> Option<PlanProblem> {
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

/// Copies a flow for the second load; the copy begins when the first load ends.
fn copy_flow_for_second_load(flow: &Value, rate: Value, first: &TrialAmount, time: Nanos) -> Value {
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

fn set_flow_size(flow: &mut Value, size: FrameSize) {
    flow["size"] = json!({"choice": "fixed", "fixed": size.bytes()});
}

fn trial_rate_to_json(frames_per_second: f64, size: Option<FrameSize>) -> Value {
    match size {
        Some(size) if frames_per_second < MIN_RATE_FOR_WHOLE_FRAMES => {
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
            // The number is at least one frame: OTG has no flow of 0 frames.
            let packets = saturating_u64((frames as f64 * share).round()).max(1);
            json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}})
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
const fn saturating_u64(value: f64) -> u64 {
    value as u64
}

/// The single frame size of a flow, 64 bytes (OTG's default) if the flow has no `size`. `None` if its sizes vary.
fn fixed_size_or_default(size: Option<&Value>) -> Option<FrameSize> {
    // A trial without a size keeps the size of the document. Only a single size can be converted to bits per second.
    let Some(size) = size else { return Some(FrameSize::new(64)) };
    let bytes = size.get("fixed").map(|fixed| fixed.as_u64().or_else(|| fixed.as_str()?.parse().ok()));
    match (bytes, size.get("choice").and_then(Value::as_str)) {
        (Some(bytes), None | Some("fixed")) => Some(FrameSize::new(u32::try_from(bytes?).ok()?)),
        _ => None,
    }
}

/// The document as JSON. Scalars become numbers or booleans if JSON writes these in the same way. Any other text stays
/// as it is: `1e10` may be a name.
fn to_json_value(node: &DocumentNode<'_>) -> Value {
    match &node.value {
        DocumentValue::Null => Value::Null,
        DocumentValue::Scalar(text) => parse_plain_value(text).unwrap_or_else(|| json!(text)),
        DocumentValue::List(items) => items.iter().map(to_json_value).collect(),
        DocumentValue::Object(members) => {
            let members = members.iter().map(|member| (member.name.to_string(), to_json_value(&member.node)));
            Value::Object(members.collect::<Map<String, Value>>())
        }
    }
}

/// Returns the number or boolean that JSON writes exactly like `text`; `None` for any other text.
fn parse_plain_value(text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(text).ok()?;
    let written = value.to_string();
    ((value.is_number() || value.is_boolean()) && written == text).then_some(value)
}

#[cfg(test)]
mod tests;
