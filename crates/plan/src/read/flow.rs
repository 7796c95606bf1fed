//! Flows: their ends, headers, sizes, payloads and metrics.

use super::ends::{EndpointPair, FlowEndpoints, NamedEndpoints, read_flow_endpoints};
use super::metrics::read_metrics;
use super::packet::{HeaderContext, parse_hex_bytes, read_headers};
use super::pair_headers::{PairHeaders, build_headers_for_pair, direct_recording_to_gateway};
use super::port::read_placeholder;
use super::replay::{self, FrameSourceAndPace};
use super::size::read_size;
use super::timing::{read_duration, read_flow_rate};
use super::{NamedObjectPaths, UNSUPPORTED_TEXT};
use crate::document::TextPosition;
use crate::reader::{DocumentItem, DocumentObject};
use crate::recording::FrameOrigin;
use crate::{
    FlowShare, OtgPause, PlanParseOptions, PlanProblem, Stream, StreamAmount, StreamDuration, WantedMetrics,
};
use packetrig_units::{FrameSize, Rate, Share};
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::{MAX_SHORT_TAG_STREAMS, TagForm};
use packetrig_wire::{Error, FrameSpec, FrameTemplate};
use std::sync::Arc;

// The test tag has room for 65 536 stream numbers (decision 0001).
pub(super) const MAX_STREAMS: usize = 1 << 16;
/// Maximum number of recordings that a run replays: each takes a thread and some MiB.
const MAX_RECORDINGS: usize = 64;

pub(super) fn read_flows<'a>(
    config: &DocumentObject<'a>,
    options: PlanParseOptions,
    known: &NamedEndpoints<'_>,
    names: &mut NamedObjectPaths<'a>,
) -> Vec<Stream> {
    let flows = config.iter_items("flows");
    // Most flows have one stream. A list that grows by doubling would temporarily take three times as much memory.
    let mut streams = Vec::with_capacity(flows.as_ref().map_or(0, ExactSizeIterator::len).min(MAX_STREAMS));
    let mut flow = 0;
    for item in flows.into_iter().flatten() {
        if let Some(gap) = read_flow_placeholder(&item, options, known, streams.len()) {
            // Placeholders keep every index as in the whole plan: messages between nodes name streams by their index.
            streams.extend((0..gap.count).map(|number| placeholder_stream(flow + number, &gap)));
            flow += gap.count;
        } else {
            read_flow(&item, flow, options, known, names, &mut streams);
            flow += 1;
        }
        // The limit is checked in the loop: a document must not fill the memory before it is refused.
        if streams.len() > MAX_STREAMS {
            let message =
                format!("the plan has more than {MAX_STREAMS} streams; a run cannot distinguish more");
            config.item.add_item_error(message);
            return Vec::new();
        }
    }
    if streams.iter().filter(|stream| stream.frames.recording().is_some()).count() > MAX_RECORDINGS {
        config.item.add_item_error(format!("a run replays at most {MAX_RECORDINGS} files at a time"));
    }
    streams
}

fn read_flow<'a>(
    item: &DocumentItem<'a>,
    flow: usize,
    options: PlanParseOptions,
    known: &NamedEndpoints<'_>,
    names: &mut NamedObjectPaths<'a>,
    streams: &mut Vec<Stream>,
) -> Option<()> {
    let object = item.as_object()?;
    let name = names.read_unique_name(&object);
    let end_item = object.require_member("tx_rx");
    let ends = end_item.as_ref().and_then(|item| read_flow_endpoints(item, known));
    let receivers = match &ends {
        Some(FlowEndpoints::Ports(_, rx)) => rx.len(),
        Some(FlowEndpoints::Pairs(_)) => 1,
        None => 0,
    };
    let metrics = read_metrics(&object, receivers);
    // Problems of the schedule are about the rate, so they point at it if the document has one.
    let place = object.read_member("rate").map_or_else(|| item.place(), |rate| rate.place());
    let device = matches!(ends, Some(FlowEndpoints::Pairs(_)));
    let context = HeaderContext { options, flow: flow as u64, header: 0, device };
    let source = match object.read_object("x_replay") {
        Some(replay) => replay::read_source(&object, replay, metrics.enable).map(FlowOrigin::File),
        None => read_flow_origin(&object, context, metrics),
    };
    object.refuse_members(&["egress_packet"], UNSUPPORTED_TEXT);
    object.refuse_unread_members();
    // The flow is refused only here, after all members were read, so that users see the problems of all members.
    let ends = ends?;
    let shared = SharedFlowProperties { place, flow, name, metrics };
    match (ends, source?) {
        (FlowEndpoints::Ports(tx, rx), FlowOrigin::File(source)) => {
            streams.push(shared.make_stream(tx, rx, source));
        }
        (FlowEndpoints::Ports(tx, rx), FlowOrigin::Recipe(FlowRecipe { spec, rate, duration })) => {
            let frames = make_frames(item, spec, metrics, streams)?;
            streams.push(shared.make_stream(tx, rx, FrameSourceAndPace { frames, rate, duration }));
        }
        (FlowEndpoints::Pairs(pairs), FlowOrigin::File(source)) => match pairs.as_slice() {
            [pair] => streams.push(shared.make_replay_stream(item, pair, source, known)?),
            _ => end_item?.add_item_error(
                "a replay needs exactly one sending and one receiving interface, and `bidirectional` must be false",
            ),
        },
        (FlowEndpoints::Pairs(pairs), FlowOrigin::Recipe(recipe)) => {
            shared.push_pair_streams(item, &pairs, &recipe, known, streams)?;
        }
    }
    Some(())
}

/// Flows of other nodes that a placeholder in a part of a plan replaces. Each counts as one stream.
struct FlowPlaceholder {
    count: usize,
    /// The sending port, which is on another node.
    tx: usize,
    frames: FrameOrigin,
}

/// The flows that a placeholder in a part of a plan replaces; `None` if the item is no placeholder.
fn read_flow_placeholder(
    item: &DocumentItem<'_>,
    options: PlanParseOptions,
    known: &NamedEndpoints<'_>,
    streams: usize,
) -> Option<FlowPlaceholder> {
    let object = item.as_object()?;
    // The number is limited to the streams that the plan may still have, so that a placeholder cannot exceed the limit.
    let count = read_placeholder(&object, options, MAX_STREAMS - streams.min(MAX_STREAMS))?;
    let last_port = known.port_count().saturating_sub(1) as u128;
    let tx = object.require_member("tx").and_then(|item| item.as_number(0, last_port));
    object.refuse_unread_members();
    // A refused number is already recorded as an error.
    let tx = tx.and_then(|tx| usize::try_from(tx).ok()).unwrap_or(0);
    // This node never sends these streams: they only keep the numbers of the other streams as they are
    // in the whole plan.
    let size = SizePattern::Fixed(FrameSize::MIN);
    let spec = FrameSpec {
        headers: Vec::new(),
        size,
        payload: PayloadPattern::default(),
        tagged: false,
        routed: false,
    };
    let frames = FrameOrigin::Made(Arc::new(make_template(item, spec)?));
    Some(FlowPlaceholder { count, tx, frames })
}

fn placeholder_stream(flow: usize, gap: &FlowPlaceholder) -> Stream {
    Stream {
        place: TextPosition::default(),
        name: String::new(),
        flow,
        flow_name: String::new(),
        part: FlowShare::WHOLE_FLOW,
        awaits: None,
        tx: gap.tx,
        rx: Vec::new(),
        frames: gap.frames.clone(),
        rate: Rate::Share(Share::WHOLE_LINK),
        duration: StreamDuration { amount: StreamAmount::Continuous, delay: OtgPause::Bytes(0), gap: 12 },
        metrics: WantedMetrics::default(),
    }
}

/// The properties that all streams of a flow share.
struct SharedFlowProperties {
    place: TextPosition,
    flow: usize,
    name: String,
    metrics: WantedMetrics,
}

impl SharedFlowProperties {
    fn make_stream(&self, tx: usize, rx: Vec<usize>, source: FrameSourceAndPace) -> Stream {
        Stream {
            place: self.place,
            name: self.name.clone(),
            flow: self.flow,
            flow_name: self.name.clone(),
            part: FlowShare::WHOLE_FLOW,
            awaits: None,
            tx,
            rx,
            frames: source.frames,
            rate: source.rate,
            duration: source.duration,
            metrics: self.metrics,
        }
    }

    /// Adds a stream for each pair of interfaces.
    fn push_pair_streams(
        &self,
        item: &DocumentItem<'_>,
        pairs: &[EndpointPair],
        recipe: &FlowRecipe,
        known: &NamedEndpoints<'_>,
        streams: &mut Vec<Stream>,
    ) -> Option<()> {
        for pair in pairs {
            let mut stream = self.make_pair_stream(item, pair, recipe, known, streams)?;
            if pairs.len() > 1 {
                let (from, to) = (known.endpoint_name(pair.from), known.endpoint_name(pair.to));
                stream.name = format!("{}: {from} > {to}", self.name);
            }
            streams.push(stream);
            // The caller reports that there are too many streams. Building the remaining pairs would only take memory.
            if streams.len() > MAX_STREAMS {
                break;
            }
        }
        Some(())
    }

    /// Makes the stream of a pair of interfaces. `streams` are the streams before it in the plan.
    fn make_pair_stream(
        &self,
        item: &DocumentItem<'_>,
        pair: &EndpointPair,
        recipe: &FlowRecipe,
        known: &NamedEndpoints<'_>,
        streams: &[Stream],
    ) -> Option<Stream> {
        let found = build_headers_for_pair(&recipe.spec.headers, pair, known);
        let PairHeaders { headers, awaits, routed } =
            found.map_err(|message| item.add_item_error(message)).ok()?;
        let spec = FrameSpec { headers, routed, ..recipe.spec.clone() };
        let frames = make_frames(item, spec, self.metrics, streams)?;
        let source = FrameSourceAndPace { frames, rate: recipe.rate, duration: recipe.duration };
        Some(Stream { part: pair.part, awaits, ..self.make_stream_between(pair, source, known) })
    }

    /// Makes the stream of a recording, from one interface to another.
    fn make_replay_stream(
        &self,
        item: &DocumentItem<'_>,
        pair: &EndpointPair,
        mut source: FrameSourceAndPace,
        known: &NamedEndpoints<'_>,
    ) -> Option<Stream> {
        let mut awaits = None;
        if let FrameOrigin::Recorded(recording) = &mut source.frames {
            let rewrite = &mut Arc::make_mut(recording).rewrite;
            let directed = direct_recording_to_gateway(rewrite, pair, known);
            awaits = directed.map_err(|message| item.add_item_error(message)).ok()?;
        }
        Some(Stream { awaits, ..self.make_stream_between(pair, source, known) })
    }

    fn make_stream_between(
        &self,
        pair: &EndpointPair,
        source: FrameSourceAndPace,
        known: &NamedEndpoints<'_>,
    ) -> Stream {
        let tx = known.interfaces[pair.from.interface].port;
        let rx = known.interfaces[pair.to.interface].port;
        self.make_stream(tx, vec![rx], source)
    }
}

/// The source of a flow's frames and their times.
enum FlowOrigin {
    /// The frames are in a file.
    File(FrameSourceAndPace),
    /// The frames are made from headers, sizes and a payload.
    Recipe(FlowRecipe),
}

struct FlowRecipe {
    spec: FrameSpec,
    rate: Rate,
    duration: StreamDuration,
}

fn read_flow_origin(
    object: &DocumentObject<'_>,
    context: HeaderContext,
    metrics: WantedMetrics,
) -> Option<FlowOrigin> {
    let headers = read_headers(object, context);
    let size = read_size(object, context);
    let payload = read_payload(object);
    let rate = read_flow_rate(object);
    let duration = read_duration(object);
    let spec = FrameSpec { headers, size: size?, payload: payload?, tagged: metrics.enable, routed: false };
    Some(FlowOrigin::Recipe(FlowRecipe { spec, rate: rate?, duration: duration? }))
}

/// Makes the frames of the stream after `streams`. If the stream before it has the same frames, both share one
/// template, because a template can take many times the memory of its flow in the document.
fn make_frames(
    item: &DocumentItem<'_>,
    spec: FrameSpec,
    metrics: WantedMetrics,
    streams: &[Stream],
) -> Option<FrameOrigin> {
    // Only the last stream is compared: flows that differ would make a search through all of them quadratic.
    let last = match streams.last().map(|last| &last.frames) {
        Some(FrameOrigin::Made(template)) if *template.spec() == spec => Some(Arc::clone(template)),
        _ => None,
    };
    let template = if let Some(same) = last { same } else { Arc::new(make_template(item, spec)?) };
    check_tag_room(item, &template, metrics, streams.len());
    Some(FrameOrigin::Made(template))
}

fn make_template(item: &DocumentItem<'_>, spec: FrameSpec) -> Option<FrameTemplate> {
    let is_tagged = spec.tagged;
    match FrameTemplate::new(spec) {
        Ok(template) => Some(template),
        Err(error) => {
            let path = format!("{}.size", item.path);
            let mut problem = PlanProblem::error(path, error.to_string());
            if let Error::TooSmall { needed, .. } = error {
                let needed = needed + if is_tagged { TagForm::Short.bytes() } else { 0 };
                let hint = format!("make the frames {needed} B or larger, or leave out a header");
                problem = problem.with_hint(hint);
            }
            item.add_problem(problem);
            None
        }
    }
}

/// Refuses a measured stream if its smallest frames have no room for a tag: the receiver would count them as lost. If
/// they have room for the short form only, warns, or refuses a stream whose number the short form cannot hold.
fn check_tag_room(item: &DocumentItem<'_>, template: &FrameTemplate, metrics: WantedMetrics, stream: usize) {
    if !metrics.enable {
        return;
    }
    let path = format!("{}.size", item.path);
    let smallest = template.spec().size.min_size();
    let refuse = |form: TagForm, why: &str| {
        let needed = smallest_frame_with_tag(template.header_len(), form);
        let problem = PlanProblem::error(path.clone(), format!("frames of {} B {why}", smallest.bytes()));
        problem.with_hint(format!(
            "make the frames {needed} B or larger; or set `metrics.enable` to false: then nothing is measured"
        ))
    };
    // The smallest size decides: a larger frame has room for at least the same form.
    item.add_problem(match template.tag_form(smallest) {
        Some(TagForm::Full) => return,
        // The short tag has 12 bits for the number of the stream.
        Some(TagForm::Short) if stream < MAX_SHORT_TAG_STREAMS => PlanProblem::warning(
            path,
            "the smallest frames have room for the short test tag only, so their latency is not measured",
        ),
        Some(TagForm::Short) => refuse(
            TagForm::Full,
            "have room for the short test tag only, which distinguishes 4096 streams; this stream \
            has a higher number",
        ),
        None => refuse(
            TagForm::Short,
            "have no room for the test tag, which the receiver needs to \
            recognise them",
        ),
    });
}

/// Bytes of the smallest frame with room for a tag of this form, FCS included.
const fn smallest_frame_with_tag(header_len: usize, form: TagForm) -> usize {
    header_len + form.bytes() + FrameSize::FCS as usize
}

fn read_payload(flow: &DocumentObject<'_>) -> Option<PayloadPattern> {
    let Some(object) = flow.read_object("payload") else { return Some(PayloadPattern::default()) };
    let kinds = ["fixed", "increment_byte", "decrement_byte", "increment_word", "decrement_word"];
    let payload = match object.read_choice(&kinds, "fixed") {
        "fixed" => {
            let fixed = object.chosen_member_object("fixed")?;
            let item = fixed.read_member("pattern");
            let pattern = match &item {
                Some(item) => parse_hex_bytes(item.as_text()?),
                None => Some(vec![0]),
            };
            if pattern.is_none() {
                fixed.item.add_item_error("`pattern` must be an even number of hexadecimal digits");
            }
            let repeat = fixed.read_flag("repeat", true);
            fixed.refuse_unread_members();
            PayloadPattern::Fixed { pattern: pattern?, repeat }
        }
        "decrement_byte" => PayloadPattern::DecrementByte,
        "increment_word" => PayloadPattern::IncrementWord,
        "decrement_word" => PayloadPattern::DecrementWord,
        _ => PayloadPattern::IncrementByte,
    };
    object.refuse_unread_members();
    Some(payload)
}
