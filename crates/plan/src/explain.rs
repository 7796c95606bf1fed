//! Explains in numbers and words what a run of the plan will do, before any frame is sent.

use crate::model::{BoundPlan, MeanSize};
use crate::recording::ReplayTiming;
use crate::{Stream, StreamAmount};
use packetrig_units::{BitRate, FrameRate, Nanos};
use packetrig_wire::header::{AddressRole, FieldDef, FieldNotation, FieldSetting, PacketHeader};
use packetrig_wire::pattern::FieldPattern;
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::TagForm;
use serde::Serialize;
use std::net::{Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, Serialize)]
pub struct PlanExplanation {
    pub streams: Vec<StreamExplanation>,
    pub ports: Vec<PortExplanation>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StreamExplanation {
    pub name: String,
    pub tx: String,
    pub rx: Vec<String>,
    /// The headers of the stream's frames with the values of frame 0, or the file that the frames come from.
    pub headers: String,
    /// The destination MAC address that is not known yet (`headers` does not show it), and the interface that resolves
    /// it, in words. `None` if the frames have their address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits: Option<String>,
    /// Frame sizes of the stream, in words.
    pub sizes: String,
    /// Number of frames of the stream; absent if it sends until stopped.
    pub frames: Option<u64>,
    /// Total bytes, FCS included, computed from the mean size; absent if `frames` is absent.
    pub bytes: Option<u64>,
    /// Frames per second.
    pub frame_rate: FrameRate,
    /// Layer 2 bits per second, FCS included.
    pub l2_rate: BitRate,
    /// Layer 1 bits per second.
    pub l1_rate: BitRate,
    /// Time from the start of the run to the end of the stream: to the end of its last frame's time slot, or to its
    /// time limit. Absent if `frames` is absent.
    pub lasts: Option<Nanos>,
    /// Rate and duration of the stream, in words.
    pub rhythm: String,
    /// Fields that change from frame to frame.
    pub varying: Vec<VaryingField>,
    /// Which test tag the frames carry, in words.
    pub tag: String,
}

/// A field that changes from frame to frame.
#[derive(Clone, Debug, Serialize)]
pub struct VaryingField {
    /// Header and field: `ipv4.src`.
    pub field: String,
    pub how: String,
    /// Number of values before they repeat.
    pub values: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PortExplanation {
    pub name: String,
    pub location: String,
    /// Speed of the link; `None` if it is not known.
    pub speed: Option<BitRate>,
    /// Total layer 1 rate of all streams that the port sends, as if they sent at the same time.
    pub sends_l1: BitRate,
    /// Number of streams that the port sends, and number of streams that it receives.
    pub streams: (usize, usize),
}

pub fn explain_plan(bound: &BoundPlan) -> PlanExplanation {
    let streams = bound.plan.streams.iter().zip(&bound.streams);
    PlanExplanation {
        streams: streams.map(|(stream, schedule)| explain_stream(bound, stream, schedule.timeline)).collect(),
        ports: (0..bound.plan.ports.len()).map(|port| explain_port(bound, port)).collect(),
    }
}

fn explain_port(bound: &BoundPlan, index: usize) -> PortExplanation {
    let port = &bound.plan.ports[index];
    let streams = bound.plan.streams.iter().zip(&bound.streams);
    let received = streams.clone().filter(|(stream, _)| stream.rx.contains(&index)).count();
    let sent = streams.filter(|(stream, _)| stream.tx == index);
    let loads = sent.clone().map(|(stream, b)| stream.l1_rate(b.timeline.rate).bits_per_second());
    // The sum saturates: without a known link speed, nothing limits the rates of the plan.
    let load = loads.fold(0, u64::saturating_add);
    PortExplanation {
        name: port.name.clone(),
        location: port.full_location(),
        speed: bound.speeds[index],
        sends_l1: BitRate::new(load),
        streams: (sent.count(), received),
    }
}

fn explain_stream(
    bound: &BoundPlan,
    stream: &Stream,
    timeline: crate::timeline::StreamTimeline,
) -> StreamExplanation {
    let spec = stream.frames.template().map(packetrig_wire::FrameTemplate::spec);
    let recording = stream.frames.recording();
    // A recording has no template: its frames may all differ, so its file name is shown in place of the headers.
    let headers = spec.map_or(&[][..], |spec| &spec.headers);
    let mean = MeanSize::from(stream.frames.mean_size());
    let total = timeline.total_frames();
    StreamExplanation {
        name: stream.name.clone(),
        tx: bound.plan.ports[stream.tx].name.clone(),
        rx: stream.rx.iter().map(|port| bound.plan.ports[*port].name.clone()).collect(),
        headers: recording.map_or_else(
            || headers.iter().map(summarise_header).collect::<Vec<_>>().join(" / "),
            |recording| format!("as recorded in {}", recording.file.display()),
        ),
        awaits: stream.awaits.map(|awaited| {
            let interface = &bound.plan.interfaces[awaited.interface].name;
            format!("the MAC address of {}, which `{interface}` resolves when the run begins", awaited.ip)
        }),
        sizes: spec.map_or_else(
            || format!("up to {}, {:.1} B on average", stream.frames.largest_frame(), mean.as_f64()),
            |spec| describe_sizes(&spec.size),
        ),
        frames: total,
        bytes: total.and_then(|total| mean.bytes_of_frames(total)),
        frame_rate: timeline.rate,
        l2_rate: stream.l2_rate(timeline.rate),
        l1_rate: stream.l1_rate(timeline.rate),
        lasts: timeline.end_time(),
        rhythm: describe_timing(stream, &timeline),
        varying: headers.iter().flat_map(varying_fields).collect(),
        tag: describe_tag(stream),
    }
}

fn describe_timing(stream: &Stream, timeline: &crate::timeline::StreamTimeline) -> String {
    let rate = timeline.rate;
    match stream.frames.recording().map(|recording| recording.timing) {
        Some(ReplayTiming::Recorded(speed)) => {
            return format!("at {speed} the recorded speed, {rate} on average");
        }
        Some(ReplayTiming::Fastest) => return "as fast as the link allows".to_owned(),
        Some(ReplayTiming::Even) | None => {}
    }
    match stream.duration.amount {
        StreamAmount::Continuous => format!("{rate} until stopped"),
        StreamAmount::Packets(frames) => format!("{frames} frames at {rate}"),
        StreamAmount::Seconds(time) => format!("{rate} for {time}"),
        StreamAmount::Bursts { bursts, packets, .. } => {
            // The configuration may give the pause in bytes; the timeline has it as time.
            let pause = match timeline.shape {
                crate::timeline::SendPattern::Bursts { pause, .. } => pause,
                _ => Nanos::ZERO,
            };
            let count = if bursts == 0 { "endless bursts".to_owned() } else { format!("{bursts} bursts") };
            format!("{count} of {packets} frames at {rate}, with pauses of {pause}")
        }
    }
}

fn describe_sizes(size: &SizePattern) -> String {
    let mean = format!("{:.1} B on average", MeanSize::from(size.mean_size()).as_f64());
    match size {
        SizePattern::Fixed(size) => size.to_string(),
        SizePattern::Increment { start, step, .. } => {
            format!("{start} to {} in steps of {step} B, {mean}", size.max_size())
        }
        SizePattern::Random { min, max, .. } => format!("random from {min} to {max}, {mean}"),
        SizePattern::Weighted(mix) => {
            let shares: Vec<String> = mix.shares().map(|(size, share)| format!("{share} x {size}")).collect();
            format!("mix of {}, {mean}", shares.join(", "))
        }
    }
}

fn describe_tag(stream: &Stream) -> String {
    if !stream.metrics.enable {
        return "none: metrics are off, so the receiver does not count its frames".into();
    }
    let Some(template) = stream.frames.template() else {
        return "at the end of TCP, UDP and echo payloads that have room; the receiver cannot account for other \
            frames"
            .into();
    };
    let size = &template.spec().size;
    // A larger frame has space for at least the same tag, so the smallest and the largest size decide for all sizes
    // between.
    match (template.tag_form(size.min_size()), template.tag_form(size.max_size())) {
        (Some(TagForm::Full), _) => "full: loss, order, corruption and latency of every frame".into(),
        (Some(TagForm::Short), Some(TagForm::Short)) => {
            "short: loss and order of every frame; no room for a send time, so no latency".into()
        }
        (Some(TagForm::Short), _) => {
            "full where it fits, short in the smallest frames, whose latency is not measured".into()
        }
        // The reader of the document refuses such a stream.
        (None, _) => "does not fit".into(),
    }
}

/// A header with its addresses in frame 0: `ipv4 198.18.0.1 > 198.19.0.1`.
fn summarise_header(header: &PacketHeader) -> String {
    // Only the fields by which people recognise a packet are shown: the whole stack must fit on one line.
    let mut fields: Vec<&FieldDef> = header.kind().fields().iter().filter(|field| field.shown).collect();
    // The source comes first, as in a sentence. An Ethernet header begins with the destination.
    fields.sort_by_key(|field| field.form.address_role() != Some(AddressRole::Source));
    let shown: Vec<String> = fields.iter().filter_map(|field| format_first_value(header, field)).collect();
    let name = header.kind().name();
    if shown.is_empty() { name.to_owned() } else { format!("{name} {}", shown.join(" > ")) }
}

/// The value of a field in frame 0, if the document sets it.
fn format_first_value(header: &PacketHeader, field: &FieldDef) -> Option<String> {
    let value = match header.field_setting(field.name)? {
        FieldSetting::Pattern(pattern) => pattern.value_at(0, field.bits),
        FieldSetting::BadChecksum => return None,
    };
    Some(format_value(field.form, value))
}

fn varying_fields(header: &PacketHeader) -> Vec<VaryingField> {
    let name = header.kind().name();
    let fields = header.field_settings().filter_map(|(field, setting)| {
        let FieldSetting::Pattern(pattern) = setting else { return None };
        let how = match pattern {
            FieldPattern::Value(_) => return None,
            FieldPattern::Values(values) => {
                format!(
                    "list of {} values that begins with {}",
                    values.len(),
                    format_value(field.form, values[0])
                )
            }
            FieldPattern::Step { start, step, down, .. } => {
                let direction = if *down { "down" } else { "up" };
                format!("{direction} from {} in steps of {step}", format_value(field.form, *start))
            }
            FieldPattern::Random { min, max, seed, .. } => {
                let min = format_value(field.form, *min);
                let max = format_value(field.form, *max);
                format!("random from {min} to {max}, seed {seed}")
            }
        };
        // A list or a step with a single value does not vary.
        let values = pattern.period();
        (values > 1).then(|| VaryingField { field: format!("{name}.{}", field.name), how, values })
    });
    fields.collect()
}

fn format_value(form: FieldNotation, value: u128) -> String {
    match form {
        FieldNotation::Number | FieldNotation::Checksum => value.to_string(),
        FieldNotation::Mac(_) => {
            // The MAC address is in the last six of the 16 bytes of a u128.
            let bytes = value.to_be_bytes();
            bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
        }
        // An IPv4 field has 32 bits, so the upper bytes of its value are 0.
        FieldNotation::Ipv4(_) => {
            let [.., a, b, c, d] = value.to_be_bytes();
            Ipv4Addr::new(a, b, c, d).to_string()
        }
        FieldNotation::Ipv6(_) => Ipv6Addr::from_bits(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    fn explained(flow: &str) -> PlanExplanation {
        let ports = "ports: [{name: a, location: eth1}, {name: b, location: lab/eth2}]";
        let text =
            format!("{ports}\nflows: [{{name: f, tx_rx: {{port: {{tx_name: a, rx_names: [b]}}}}, {flow}}}]");
        let plan = Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems}"));
        explain_plan(&plan.bind_to_links(&[Some(BitRate::new(1_000_000_000)), None]).unwrap())
    }

    const HEADERS: &str = "packet: [{ethernet: {src: {value: '02:00:00:00:00:01'}}}, {vlan: {id: {value: 7}}}, \
        {ipv4: {src: {value: 198.18.0.1}, dst: {values: [198.19.0.1, 198.19.0.9]}}}, \
        {udp: {src_port: {increment: {start: 5000, step: 2, count: 100}}, dst_port: {random: {min: 1, max: 9, seed: 3, count: 50}}}}]";

    #[test]
    fn explanation_of_immense_load_saturates() {
        let flow = |name| {
            format!(
                "{{name: {name}, tx_rx: {{port: {{tx_name: a, rx_names: [b]}}}}, rate: {{gbps: 18000000000}}}}"
            )
        };
        let ports = "ports: [{name: a, location: eth1}, {name: b, location: lab/eth2}]";
        let text = format!("{ports}\nflows: [{}, {}]", flow("f"), flow("g"));
        let plan = Plan::from_text(&text).unwrap();
        let explained = explain_plan(&plan.bind_to_links(&[None, None]).unwrap());
        assert_eq!(explained.ports[0].sends_l1, BitRate::new(u64::MAX));
    }

    #[test]
    fn explanation_computes_amounts_and_layer_rates() {
        let all =
            explained("size: {fixed: 1000}, rate: {pps: 1000}, duration: {fixed_packets: {packets: 5000}}");
        let stream = &all.streams[0];
        assert_eq!(
            (stream.frames, stream.bytes, stream.lasts),
            (Some(5000), Some(5_000_000), Some(Nanos::from_secs(5)))
        );
        assert_eq!((stream.l2_rate, stream.l1_rate), (BitRate::new(8_000_000), BitRate::new(8_160_000)));
        assert_eq!(stream.rhythm, "5000 frames at 1000 frames/s");
        assert!(stream.tag.starts_with("none"), "{}", stream.tag);
        let (sender, receiver) = (&all.ports[0], &all.ports[1]);
        assert_eq!((sender.sends_l1, sender.streams), (stream.l1_rate, (1, 0)));
        assert_eq!(
            (receiver.location.as_str(), receiver.streams, receiver.speed),
            ("lab/eth2", (0, 1), None)
        );
    }

    #[test]
    fn headers_and_what_varies_in_them_are_said() {
        let stream = explained(&format!("{HEADERS}, size: {{fixed: 128}}")).streams.remove(0);
        let addressed = "ethernet 02:00:00:00:00:01 / vlan 7 / ipv4 198.18.0.1 > 198.19.0.1 / udp 5000 > ";
        assert!(stream.headers.starts_with(addressed), "{}", stream.headers);
        let varying: Vec<_> = stream
            .varying
            .iter()
            .map(|field| (field.field.as_str(), field.how.as_str(), field.values))
            .collect();
        let wanted = [
            ("ipv4.dst", "list of 2 values that begins with 198.19.0.1", 2),
            ("udp.src_port", "up from 5000 in steps of 2", 100),
            ("udp.dst_port", "random from 1 to 9, seed 3", 50),
        ];
        assert_eq!(varying, wanted);
        assert_eq!((stream.frames, stream.lasts), (None, None));
    }

    #[test]
    fn explanation_tells_which_tag_fits() {
        let tag = |size: &str| {
            explained(&format!("{HEADERS}, metrics: {{enable: true}}, size: {size}")).streams.remove(0).tag
        };
        assert!(tag("{fixed: 128}").starts_with("full: "));
        assert!(tag("{fixed: 64}").starts_with("short: "));
        assert!(tag("{increment: {start: 64, end: 128}}").starts_with("full where it fits"));
    }

    #[test]
    fn mixes_and_bursts_are_told_in_words() {
        let flow = "size: {weight_pairs: {predefined: imix}}, rate: {pps: 10}, \
                    duration: {burst: {bursts: 3, packets: 5, inter_burst_gap: {microseconds: 2}}}";
        let stream = explained(flow).streams.remove(0);
        assert_eq!(stream.sizes, "mix of 7 x 64 B, 4 x 570 B, 1 x 1518 B, 353.8 B on average");
        assert_eq!(stream.rhythm, "3 bursts of 5 frames at 10 frames/s, with pauses of 2us");
        assert_eq!(stream.frames, Some(15));
    }
}
