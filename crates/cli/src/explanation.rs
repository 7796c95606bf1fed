//! Renders a [`PlanExplanation`], the frames that a plan will send, as text for people.

use crate::numbers::{format_count, format_percent};
use crate::output::TextStyle;
use packetrig_plan::explain::{PlanExplanation, PortExplanation, StreamExplanation};

/// Largest number of streams that are explained one by one; the JSON output has all streams.
const MAX_EXPLAINED_STREAMS: usize = 50;

/// Renders the streams, then the ports, then the ports whose link speed is assumed.
pub(crate) fn render_explanation(
    explanation: &PlanExplanation,
    assumed: &[String],
    style: TextStyle,
) -> String {
    let mut text: String = explanation
        .streams
        .iter()
        .take(MAX_EXPLAINED_STREAMS)
        .map(|stream| format_stream(stream, style))
        .collect();
    if let Some(more) = explanation.streams.len().checked_sub(MAX_EXPLAINED_STREAMS).filter(|more| *more > 0)
    {
        text.extend([format!("… and {more} more streams (`--json` explains all)\n")]);
    }
    // The ports come after the streams, because the load of a port is the sum of its streams' loads.
    text.extend(explanation.ports.iter().map(format_port));
    text.extend(
        assumed
            .iter()
            .map(|port| format!("port {port} does not report its link speed: 10 Gbit/s is assumed\n")),
    );
    text
}

fn format_stream(stream: &StreamExplanation, style: TextStyle) -> String {
    let to = if stream.rx.is_empty() { "no receiver".to_owned() } else { stream.rx.join(", ") };
    let mut text = format!("{}: {} -> {to}\n", style.bold(&format!("stream {}", stream.name)), stream.tx);
    let mut lines = vec![format_labelled_line("headers", &stream.headers)];
    lines.extend(stream.awaits.as_ref().map(|awaits| format_labelled_line("awaits", awaits)));
    lines.push(format_labelled_line("size", &stream.sizes));
    lines.push(format_labelled_line("sends", &format!("{}{}", stream.rhythm, format_total(stream))));
    lines.push(format_labelled_line(
        "load",
        &format!("{} at layer 2, {} at layer 1", stream.l2_rate, stream.l1_rate),
    ));
    for field in &stream.varying {
        let how = format!("{} {} ({} values)", field.field, field.how, format_count(field.values));
        lines.push(format_labelled_line("varies", &how));
    }
    lines.push(format_labelled_line("tag", &stream.tag));
    text.extend(lines);
    text.push('\n');
    text
}

fn format_labelled_line(name: &str, value: &str) -> String {
    format!("  {name:<8} {value}\n")
}

fn format_total(stream: &StreamExplanation) -> String {
    match (stream.frames, stream.bytes, stream.lasts) {
        (Some(frames), Some(bytes), Some(time)) => {
            format!(": {} frames, {} bytes, {time}", format_count(frames), format_count(bytes))
        }
        // A stream without an end has no totals.
        _ => String::new(),
    }
}

fn format_port(port: &PortExplanation) -> String {
    let (sends, receives) = port.streams;
    // The share is that of layer 1, because preambles and inter-frame gaps take time on the link, too.
    let share = port.speed.map_or_else(
        || "of a link of unknown speed".to_owned(),
        |speed| {
            let share = format_percent(port.sends_l1.bits_per_second(), speed.bits_per_second());
            format!("of {speed} ({share})")
        },
    );
    let load = if sends == 0 { String::new() } else { format!(", {} at layer 1 {share}", port.sends_l1) };
    format!("port {} ({}): sends {sends}, receives {receives} streams{load}\n", port.name, port.location)
}
