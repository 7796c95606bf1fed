//! Flows: where from and to, what, how much, how long, what to measure.

use super::metrics::metrics;
use super::packet::{Context, headers, hex_bytes};
use super::replay::{self, Source};
use super::{NO_DEVICES, NOT_YET, Names, port_named};
use crate::reader::{Item, Object};
use crate::recording::Frames;
use crate::{Amount, Duration, Gap, Metrics, Port, Problem, ReadOptions, Stream};
use packetrig_units::{BitRate, FrameRate, FrameSize, Nanos, Rate, Share};
use packetrig_wire::pattern::mix;
use packetrig_wire::payload::Payload;
use packetrig_wire::size::{Mix, SizePattern};
use packetrig_wire::tag::{SHORT_STREAMS, TagForm};
use packetrig_wire::{Error, FrameSpec, Template};
use std::sync::Arc;

const MOST_STREAMS: usize = 1 << 16;
/// Each takes a thread and some MiB.
const MOST_RECORDINGS: usize = 64;
/// Larger than any frame a port takes; the port's own limit is checked when it is known.
const LARGEST: u64 = 16_383;
const SMALLEST: u64 = 12;

/// OTG's named mixes: (size, weight in hundredths).
const IMIX: &[(u32, u32)] = &[(64, 700), (570, 400), (1518, 100)];
const IPSEC_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1418, 1567)];
const TCP_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1518, 1567)];
const IPV6_IMIX: &[(u32, u32)] = &[(60, 5867), (496, 200), (594, 2366), (1518, 1567)];
const STANDARD_IMIX: &[(u32, u32)] = &[(58, 5867), (62, 200), (594, 2366), (1518, 1567)];

pub(super) fn flows(
    config: &Object<'_>,
    options: ReadOptions,
    ports: &[Port],
    names: &mut Names,
) -> Vec<Stream> {
    let items = config.items("flows");
    if items.len() > MOST_STREAMS {
        config.item.error(format!("{} flows; a run can tell {MOST_STREAMS} apart", items.len()));
        return Vec::new();
    }
    let streams: Vec<Stream> = items
        .iter()
        .enumerate()
        .filter_map(|(index, item)| flow(item, Context { options, flow: index as u64 }, ports, names))
        .collect();
    if streams.iter().filter(|stream| stream.frames.recording().is_some()).count() > MOST_RECORDINGS {
        config.item.error(format!("a run replays at most {MOST_RECORDINGS} files at a time"));
    }
    streams
}

fn flow(item: &Item<'_>, context: Context, ports: &[Port], names: &mut Names) -> Option<Stream> {
    let object = item.object()?;
    let name = names.claim(&object);
    let ends = object.require("tx_rx").and_then(|item| tx_rx(&item, ports));
    let receivers = ends.as_ref().map_or(0, |(_, rx)| rx.len());
    let metrics = metrics(&object, receivers);
    let place = object.get("rate").map_or_else(|| item.place(), |rate| rate.place());
    let source = match object.object("x_replay") {
        Some(replay) => replay::source(&object, replay, metrics.enable),
        None => made(item, &object, context, metrics),
    };
    object.refuse(&["egress_packet"], NOT_YET);
    object.close();
    let (Source { frames, rate, duration }, (tx, rx)) = (source?, ends?);
    Some(Stream { place, name, tx, rx, frames, rate, duration, metrics })
}

/// Frames made from headers, sizes and a payload.
fn made(item: &Item<'_>, object: &Object<'_>, context: Context, metrics: Metrics) -> Option<Source> {
    let headers = headers(object, context);
    let size = size(object, context);
    let payload = payload(object);
    let rate = rate(object);
    let duration = duration(object);
    let template =
        template(item, FrameSpec { headers, size: size?, payload: payload?, tagged: metrics.enable })?;
    warn_of_tags(item, &template, metrics, context.flow);
    Some(Source { frames: Frames::Made(Arc::new(template)), rate: rate?, duration: duration? })
}

fn template(item: &Item<'_>, spec: FrameSpec) -> Option<Template> {
    match Template::new(spec) {
        Ok(template) => Some(template),
        Err(error) => {
            let path = format!("{}.size", item.path);
            let mut problem = Problem::error(path, error.to_string());
            if let Error::TooSmall { needed, .. } = error {
                problem = problem.with_hint(format!("make it {needed} or more, or leave a header out"));
            }
            item.note(problem);
            None
        }
    }
}

/// Says what will not be measured because the tag does not fit.
fn warn_of_tags(item: &Item<'_>, template: &Template, metrics: Metrics, flow: u64) {
    let smallest = template.spec().size.min();
    if !metrics.enable {
        return;
    }
    let path = format!("{}.size", item.path);
    let message = match template.tag_form(smallest) {
        Some(TagForm::Full) => return,
        Some(TagForm::Short) if usize::try_from(flow).is_ok_and(|flow| flow < SHORT_STREAMS) => {
            "the smallest frames leave room for the short test tag only: no latency for them"
        }
        Some(TagForm::Short) => {
            "the short test tag tells 4096 flows apart: the smallest frames of this one go untagged"
        }
        None => "the smallest frames leave no room for a test tag: they count as foreign at the receiver",
    };
    item.note(Problem::warning(path, message));
}

fn tx_rx(item: &Item<'_>, ports: &[Port]) -> Option<(usize, Vec<usize>)> {
    let object = item.object()?;
    let choice = object.choice(&["port", "device"], "port");
    if choice == "device" {
        object.item.error(format!("not supported: {NO_DEVICES}"));
        return None;
    }
    let port = object.chosen("port")?;
    object.close();
    let tx = port.require("tx_name").and_then(|item| port_named(&item, ports));
    let mut named = port.items("rx_names");
    // Deprecated, and still what most scripts send.
    named.extend(port.get("rx_name"));
    port.close();
    let mut rx = Vec::new();
    for item in &named {
        match port_named(item, ports) {
            Some(port) if rx.contains(&port) => {
                item.error(format!("port `{}` stands here twice", ports[port].name));
            }
            Some(port) => rx.push(port),
            None => {}
        }
    }
    Some((tx?, rx))
}

fn bytes(object: &Object<'_>, name: &'static str, default: u64) -> FrameSize {
    let read = object.number(name, default, SMALLEST, LARGEST);
    let size = FrameSize::new(u32::try_from(read).unwrap_or(u32::MAX));
    if size < FrameSize::MIN {
        object.item.warn(format!("`{name}` of {read} bytes is below Ethernet's smallest frame: sent as 64"));
    }
    size.max(FrameSize::MIN)
}

fn size(flow: &Object<'_>, context: Context) -> Option<SizePattern> {
    let Some(object) = flow.object("size") else { return Some(SizePattern::Fixed(FrameSize::MIN)) };
    let size = match object.choice(&["fixed", "increment", "random", "weight_pairs"], "fixed") {
        "increment" => {
            let steps = object.chosen("increment")?;
            let (start, end) = (bytes(&steps, "start", 64), bytes(&steps, "end", 1518));
            let step = u32::try_from(steps.number("step", 1, 1, LARGEST)).ok()?;
            ordered(&steps, "start", start, "end", end)?;
            steps.close();
            SizePattern::Increment { start, end, step }
        }
        "random" => {
            let range = object.chosen("random")?;
            let (min, max) = (bytes(&range, "min", 64), bytes(&range, "max", 1518));
            ordered(&range, "min", min, "max", max)?;
            range.close();
            SizePattern::Random { min, max, seed: mix(context.options.seed, context.flow) }
        }
        "weight_pairs" => SizePattern::Weighted(weights(&object.chosen("weight_pairs")?)?),
        _ => SizePattern::Fixed(bytes(&object, "fixed", 64)),
    };
    object.close();
    Some(size)
}

fn ordered(object: &Object<'_>, low: &str, from: FrameSize, high: &str, to: FrameSize) -> Option<()> {
    if from > to {
        object.item.error(format!("`{low}` ({from}) is above `{high}` ({to})"));
        return None;
    }
    Some(())
}

fn weights(object: &Object<'_>) -> Option<Mix> {
    let mut pairs: Vec<(FrameSize, u32)> = Vec::new();
    if object.choice(&["predefined", "custom"], "predefined") == "custom" {
        for item in object.items("custom") {
            let pair = item.object()?;
            let weight = pair.get("weight").map_or(Some(100), |item| hundredths(&item));
            pairs.push((bytes(&pair, "size", 64), weight?));
            pair.close();
        }
    } else {
        let names = ["imix", "ipsec_imix", "ipv6_imix", "standard_imix", "tcp_imix"];
        let table = match object.word("predefined", &names, "imix") {
            "ipsec_imix" => IPSEC_IMIX,
            "ipv6_imix" => IPV6_IMIX,
            "standard_imix" => STANDARD_IMIX,
            "tcp_imix" => TCP_IMIX,
            _ => IMIX,
        };
        if table[0].0 < 64 {
            object.item.warn("sizes below 64 bytes of this mix are sent as 64");
        }
        pairs.extend(table.iter().map(|(size, weight)| (FrameSize::new(*size).max(FrameSize::MIN), *weight)));
    }
    let mix = Mix::new(&pairs);
    if mix.is_none() {
        object.item.error("a mix needs at least one size with a weight above zero");
    }
    mix
}

/// A weight with at most two decimals, in hundredths.
fn hundredths(item: &Item<'_>) -> Option<u32> {
    let text = item.text()?;
    let weight = decimal(text, 2).and_then(|value| u32::try_from(value).ok());
    if weight.is_none() {
        item.error(format!("`{text}` is not a weight: a number from 0 with at most two decimals"));
    }
    weight
}

/// A non-negative decimal number times 10^`places`, rounded to the nearest; exact where a float would not be.
pub(super) fn decimal(text: &str, places: u32) -> Option<u64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let shift = i32::try_from(places).ok()? + exponent - i32::try_from(fraction.len()).ok()?;
    let power = 10u128.checked_pow(shift.unsigned_abs())?;
    let value = if shift >= 0 { digits.checked_mul(power)? } else { (digits + power / 2) / power };
    u64::try_from(value).ok()
}

fn payload(flow: &Object<'_>) -> Option<Payload> {
    let Some(object) = flow.object("payload") else { return Some(Payload::default()) };
    let kinds = ["fixed", "increment_byte", "decrement_byte", "increment_word", "decrement_word"];
    let payload = match object.choice(&kinds, "fixed") {
        "fixed" => {
            let fixed = object.chosen("fixed")?;
            let item = fixed.get("pattern");
            let pattern = match &item {
                Some(item) => hex_bytes(item.text()?),
                None => Some(vec![0]),
            };
            if pattern.is_none() {
                fixed.item.error("`pattern` must be an even number of hexadecimal digits");
            }
            let repeat = fixed.flag("repeat", true);
            fixed.close();
            Payload::Fixed { pattern: pattern?, repeat }
        }
        "decrement_byte" => Payload::DecrementByte,
        "increment_word" => Payload::IncrementWord,
        "decrement_word" => Payload::DecrementWord,
        _ => Payload::IncrementByte,
    };
    object.close();
    Some(payload)
}

pub(super) fn rate(flow: &Object<'_>) -> Option<Rate> {
    let Some(object) = flow.object("rate") else { return usual_rate("pps") };
    let units = ["pps", "bps", "kbps", "mbps", "gbps", "percentage"];
    let unit = object.choice(&units, "pps");
    let rate = match object.get(unit) {
        Some(item) => read_rate(&item, unit),
        None => usual_rate(unit),
    };
    object.close();
    rate
}

/// OTG's default for each unit.
fn usual_rate(unit: &str) -> Option<Rate> {
    match unit {
        "pps" => FrameRate::per_second(1000).map(Rate::Frames),
        "percentage" => Some(Rate::Share(Share::WHOLE)),
        _ => Some(Rate::Bits(BitRate::new(1_000_000_000))),
    }
}

fn read_rate(item: &Item<'_>, unit: &str) -> Option<Rate> {
    let factor = match unit {
        "percentage" => return percentage(item),
        "pps" => {
            return FrameRate::per_second(u64::try_from(item.number(1, u64::MAX.into())?).ok()?)
                .map(Rate::Frames);
        }
        "kbps" => 1_000,
        "mbps" => 1_000_000,
        "gbps" => 1_000_000_000,
        _ => 1,
    };
    let value = u64::try_from(item.number(1, u64::MAX.into())?).ok()?;
    let bits = value.checked_mul(factor);
    if bits.is_none() {
        item.error("the rate is beyond all links");
    }
    if bits.is_some_and(|bits| bits < 672) {
        item.error("the least bit rate is 672 bit/s: one smallest frame a second");
        return None;
    }
    bits.map(|bits| Rate::Bits(BitRate::new(bits)))
}

fn percentage(item: &Item<'_>) -> Option<Rate> {
    let text = item.text()?;
    let share = decimal(text, 7).filter(|billionths| (1..=1_000_000_000).contains(billionths));
    if share.is_none() {
        item.error(format!("`{text}` is not a percentage above 0 and up to 100"));
    }
    share.map(Share::from_billionths).map(Rate::Share)
}

fn duration(flow: &Object<'_>) -> Option<Duration> {
    let forever = Duration { amount: Amount::Continuous, delay: Gap::Bytes(0), gap: 12 };
    let Some(object) = flow.object("duration") else { return Some(forever) };
    let choice = object.choice(&["continuous", "fixed_packets", "fixed_seconds", "burst"], "continuous");
    let inner = object.chosen(choice)?;
    let amount = match choice {
        "fixed_packets" => Amount::Packets(inner.number("packets", 1, 1, u32::MAX.into())),
        "fixed_seconds" => Amount::Seconds(seconds(&inner)?),
        "burst" => Amount::Bursts {
            bursts: inner.number("bursts", 0, 0, u32::MAX.into()),
            packets: inner.number("packets", 1, 1, u32::MAX.into()),
            between: gap(inner.object("inter_burst_gap"))?,
        },
        _ => Amount::Continuous,
    };
    let gap_bytes = u32::try_from(inner.number("gap", 12, 0, 1 << 20)).ok()?;
    let delay = if choice == "burst" { Gap::Bytes(0) } else { gap(inner.object("delay"))? };
    if inner.item.path != object.item.path {
        inner.close();
    }
    object.close();
    Some(Duration { amount, delay, gap: gap_bytes })
}

fn seconds(object: &Object<'_>) -> Option<Nanos> {
    let Some(item) = object.get("seconds") else { return Some(Nanos::from_secs(1)) };
    let text = item.text()?;
    let ns = decimal(text, 9).filter(|ns| *ns > 0);
    if ns.is_none() {
        item.error(format!("`{text}` is not a number of seconds above 0"));
    }
    ns.map(Nanos::new)
}

fn gap(object: Option<Object<'_>>) -> Option<Gap> {
    let Some(object) = object else { return Some(Gap::Bytes(0)) };
    let choice = object.choice(&["bytes", "nanoseconds", "microseconds"], "bytes");
    let item = object.get(choice);
    object.close();
    let Some(item) = item else { return Some(Gap::Bytes(0)) };
    let text = item.text()?;
    let places = if choice == "microseconds" { 3 } else { 0 };
    let value = decimal(text, places);
    if value.is_none() {
        item.error(format!("`{text}` is not a number of {choice}"));
    }
    value.map(|value| if choice == "bytes" { Gap::Bytes(value) } else { Gap::Time(Nanos::new(value)) })
}
