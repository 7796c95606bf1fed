//! Divides the load of a trial among flows, directions and senders, and limits it.

use super::{FlowLoad, TrialTraffic, set_flow_size};
use crate::model::{BoundPlan, MeanSize, Plan};
use crate::{PlanProblem, PlanProblems};
use packetrig_units::{FrameRate, FrameSize, Rate, Share};
use packetrig_wire::tag::TagForm;

/// Load of a stream at the rates of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamLoad {
    /// Index of the port that sends it.
    pub(super) tx: usize,
    /// Frames per second.
    pub(super) rate: f64,
}

/// A sending port, and its share of every load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedSender {
    /// Name of the port in the plan.
    pub name: String,
    /// Share of the load, from 0 to 1.
    pub share: f64,
}

/// Computes the load of each flow of a plan. The streams of one direction divide the flow's rate; each direction
/// has the whole rate.
pub(super) fn compute_flow_loads(bound: &BoundPlan) -> Vec<FlowLoad> {
    let mut flows: Vec<FlowLoad> = Vec::new();
    for (stream, timed) in bound.plan.streams.iter().zip(&bound.streams) {
        if flows.len() <= stream.flow {
            flows.resize(stream.flow + 1, FlowLoad::default());
        }
        let flow = &mut flows[stream.flow];
        // Every stream has 1/of of the rate, so the rate of the flow follows from any of its streams.
        flow.rate = timed.timeline.rate.as_f64() * stream.part.of as f64;
        // Each direction has exactly one stream with part index 0.
        flow.directions += u32::from(stream.part.index == 0);
    }
    flows
}

/// Returns the sending ports with their shares of the load, in the order of the plan.
pub(super) fn loaded_senders(plan: &Plan, streams: &[StreamLoad]) -> Vec<LoadedSender> {
    let whole: f64 = streams.iter().map(|stream| stream.rate).sum();
    let ports = plan.ports.iter().enumerate().map(|(port, named)| {
        let own = streams.iter().filter(|stream| stream.tx == port);
        (&named.name, own.map(|stream| stream.rate).sum::<f64>())
    });
    let sending = ports.filter(|(_, rate)| *rate > 0.0);
    sending.map(|(name, rate)| LoadedSender { name: name.clone(), share: rate / whole }).collect()
}

pub(super) fn compute_stream_loads(bound: &BoundPlan) -> Vec<StreamLoad> {
    let streams = bound.plan.streams.iter().zip(&bound.streams);
    streams.map(|(stream, timed)| StreamLoad { tx: stream.tx, rate: timed.timeline.rate.as_f64() }).collect()
}

impl TrialTraffic {
    /// The sending ports with their shares of the load, in the order of the plan.
    pub fn senders(&self) -> &[LoadedSender] {
        &self.senders
    }

    /// The highest total load of all senders, in frames per second, at which no flow exceeds its rate in the document
    /// and no sender exceeds `of_sender`. With `size`, for frames of that size.
    pub fn highest_load(
        &self,
        size: Option<FrameSize>,
        of_sender: Option<Rate>,
    ) -> Result<f64, PlanProblems> {
        let bound = self.bind_with_size(size)?;
        let whole = self.full_load();
        let own = self.streams.iter().zip(&bound.streams);
        let of_document = own
            // The stream that reaches its own rate first limits all streams, because their proportions stay the same.
            .map(|(stream, timed)| timed.timeline.rate.as_f64() * whole / stream.rate)
            .fold(f64::INFINITY, f64::min);
        let most = of_sender.map(|rate| self.total_load_on_bound_plan(&bound, rate)).transpose()?;
        Ok(most.map_or(of_document, |most| most.min(of_document)))
    }

    /// The total load of all senders, in frames per second, at which the sender with the largest share has this rate.
    /// With `size`, for frames of that size.
    pub fn total_load_for_sender_rate(
        &self,
        size: Option<FrameSize>,
        of_sender: Rate,
    ) -> Result<f64, PlanProblems> {
        self.total_load_on_bound_plan(&self.bind_with_size(size)?, of_sender)
    }

    fn total_load_on_bound_plan(&self, bound: &BoundPlan, of_sender: Rate) -> Result<f64, PlanProblems> {
        let mut least = f64::INFINITY;
        for port in 0..bound.plan.ports.len() {
            if let Some(load) = self.total_load_for_port_rate(bound, port, of_sender)? {
                least = least.min(load);
            }
        }
        Ok(least)
    }

    /// The total load of all senders, in frames per second, at which this port has the rate; `None`
    /// if it sends nothing.
    fn total_load_for_port_rate(
        &self,
        bound: &BoundPlan,
        port: usize,
        rate: Rate,
    ) -> Result<Option<f64>, PlanProblems> {
        let whole = self.full_load();
        let streams = self.streams.iter().zip(&bound.plan.streams).filter(|(stream, _)| stream.tx == port);
        // Amounts that one frame of the total load adds to this port: frames, bits of layer 2 and bits of layer 1.
        let (mut frames, mut bits, mut line_bits) = (0.0, 0.0, 0.0);
        for (stream, planned) in streams {
            let share = stream.rate / whole;
            let bytes = MeanSize::from(planned.frames.mean_size()).as_f64();
            frames += share;
            bits += share * bytes * 8.0;
            line_bits += share * (bytes + f64::from(FrameSize::LAYER1_OVERHEAD_BYTES)) * 8.0;
        }
        if frames <= 0.0 {
            return Ok(None);
        }
        Ok(Some(match rate {
            Rate::Frames(rate) => FrameRate::as_f64(rate) / frames,
            Rate::Bits(rate) => rate.bits_per_second() as f64 / bits,
            Rate::Share(share) => {
                let speed = bound.speeds[port].ok_or_else(|| unknown_speed_error(&bound.plan, port))?;
                speed.bits_per_second() as f64 * share_as_fraction(share) / line_bits
            }
        }))
    }

    /// The smallest size at which the frames of all flows have room for their headers and the whole test tag.
    pub fn min_size_with_full_tag(&self) -> Result<FrameSize, PlanProblems> {
        let largest = FrameSize::new(MAX_MIN_FRAME_BYTES);
        // Invalid sizes count as too small. The binary search narrows the range between a size that is too small
        // and one that fits.
        let (mut too_small, mut fits) = (FrameSize::MIN.bytes() - 1, largest.bytes());
        let fits_at = |bytes: u32| {
            self.bind_with_size(Some(FrameSize::new(bytes))).is_ok_and(|bound| has_room_for_tags(&bound.plan))
        };
        // The common case comes first: it costs one reading of the document instead of about ten.
        if fits_at(FrameSize::MIN.bytes()) {
            return Ok(FrameSize::MIN);
        }
        if !fits_at(fits) {
            // Not even the largest size fits. If the reason is another problem of the plan, that problem is returned,
            // otherwise the minimum size of Ethernet.
            return self.bind_with_size(Some(largest)).map(|_| FrameSize::MIN);
        }
        // Invariant: `fits` has room, and `too_small` has not.
        while fits - too_small > 1 {
            let middle = too_small.midpoint(fits);
            if fits_at(middle) { fits = middle } else { too_small = middle }
        }
        Ok(FrameSize::new(fits))
    }

    /// The plan at its own rates, with frames of this size; `None` keeps the sizes of the plan.
    fn bind_with_size(&self, size: Option<FrameSize>) -> Result<BoundPlan, PlanProblems> {
        let mut document = self.document.clone();
        let flows = document.get_mut("flows").and_then(serde_json::Value::as_array_mut).into_iter().flatten();
        if let Some(size) = size {
            flows.for_each(|flow| set_flow_size(flow, size));
        }
        self.bind_document(&document.to_string())
    }

    /// Reads and binds the document of a trial, as its run will do. Problems have no positions in the text, because the
    /// user has never seen this text.
    pub fn check_trial(&self, shape: &super::TrialShape) -> Result<(), PlanProblems> {
        self.bind_document(&self.trial_document(shape)).map(drop)
    }

    fn bind_document(&self, text: &str) -> Result<BoundPlan, PlanProblems> {
        let plan = Plan::from_text_with(text, self.reading).map_err(PlanProblems::without_line_numbers)?;
        plan.bind_to_links(&self.speeds).map_err(PlanProblems::without_line_numbers)
    }
}

/// The largest size that the search for the smallest size tries. Only unusually long headers need more.
const MAX_MIN_FRAME_BYTES: u32 = 512;

fn has_room_for_tags(plan: &Plan) -> bool {
    let templates =
        plan.streams.iter().filter(|stream| stream.metrics.enable).filter_map(|it| it.frames.template());
    templates
        .into_iter()
        .all(|template| template.tag_form(template.spec().size.min_size()) == Some(TagForm::Full))
}

fn unknown_speed_error(plan: &Plan, port: usize) -> PlanProblems {
    let message = format!(
        "the link speed of port `{}` is not known; set the port's `speed` in `layer1`",
        plan.ports[port].name
    );
    PlanProblems(vec![PlanProblem::error(format!("ports[{port}]"), message)])
}

fn share_as_fraction(share: Share) -> f64 {
    share.billionths() as f64 / 1e9
}
