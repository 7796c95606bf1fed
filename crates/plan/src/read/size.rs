//! Frame sizes of a flow: a fixed size, a range, or a mix.

use super::packet::HeaderContext;
use super::timing::decimal;
use crate::clamp_to_u32;
use crate::reader::{DocumentItem, DocumentObject};
use packetrig_units::FrameSize;
use packetrig_wire::pattern::mix;
use packetrig_wire::size::{SizeMix, SizePattern};

/// Larger than any frame that a port accepts; the port's own limit is checked when it is known.
const LARGEST: u64 = 16_383;
// OTG allows sizes from 12 bytes in a mix; below 64 they are raised, with a warning.
const SMALLEST: u64 = 12;

/// OTG's named mixes: (size, weight in hundredths).
const IMIX: &[(u32, u32)] = &[(64, 700), (570, 400), (1518, 100)];
const IPSEC_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1418, 1567)];
const TCP_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1518, 1567)];
const IPV6_IMIX: &[(u32, u32)] = &[(60, 5867), (496, 200), (594, 2366), (1518, 1567)];
const STANDARD_IMIX: &[(u32, u32)] = &[(58, 5867), (62, 200), (594, 2366), (1518, 1567)];

fn bytes(object: &DocumentObject<'_>, name: &'static str, default: u64) -> FrameSize {
    let read = object.number(name, default, SMALLEST, LARGEST);
    let size = FrameSize::new(clamp_to_u32(read));
    if size < FrameSize::MIN {
        object.item.warn(format!("`{name}` of {read} bytes is below Ethernet's smallest frame: sent as 64"));
    }
    size.max(FrameSize::MIN)
}

pub(super) fn size(flow: &DocumentObject<'_>, context: HeaderContext) -> Option<SizePattern> {
    let Some(object) = flow.object("size") else { return Some(SizePattern::Fixed(FrameSize::MIN)) };
    let size = match object.choice(&["fixed", "increment", "random", "weight_pairs"], "fixed") {
        "increment" => {
            let steps = object.chosen("increment")?;
            let start = bytes(&steps, "start", 64);
            let end = bytes(&steps, "end", 1518);
            let step = u32::try_from(steps.number("step", 1, 1, LARGEST)).ok()?;
            ordered(&steps, "start", start, "end", end)?;
            steps.close();
            SizePattern::Increment { start, end, step }
        }
        "random" => {
            let range = object.chosen("random")?;
            let min = bytes(&range, "min", 64);
            let max = bytes(&range, "max", 1518);
            ordered(&range, "min", min, "max", max)?;
            range.close();
            // OTG gives sizes no seed. The run's seed is in the report, so the same sizes can be sent again.
            SizePattern::Random { min, max, seed: mix(context.options.seed, context.flow) }
        }
        "weight_pairs" => SizePattern::Weighted(weights(&object.chosen("weight_pairs")?)?),
        _ => SizePattern::Fixed(bytes(&object, "fixed", 64)),
    };
    object.close();
    Some(size)
}

fn ordered(object: &DocumentObject<'_>, low: &str, from: FrameSize, high: &str, to: FrameSize) -> Option<()> {
    if from > to {
        object.item.error(format!("`{low}` ({from}) is above `{high}` ({to})"));
        return None;
    }
    Some(())
}

fn weights(object: &DocumentObject<'_>) -> Option<SizeMix> {
    let mut pairs: Vec<(FrameSize, u32)> = Vec::new();
    if object.choice(&["predefined", "custom"], "predefined") == "custom" {
        for item in object.items("custom") {
            let pair = item.object()?;
            // In hundredths: an absent weight is 1.
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
        // The tables are sorted, so the first size is the smallest.
        if table[0].0 < 64 {
            object.item.warn("sizes below 64 bytes of this mix are sent as 64");
        }
        pairs.extend(table.iter().map(|(size, weight)| (FrameSize::new(*size).max(FrameSize::MIN), *weight)));
    }
    let mix = SizeMix::new(&pairs);
    if mix.is_none() {
        object.item.error("a mix needs at least one size with a weight above zero");
    }
    mix
}

/// A weight with at most two decimals, in hundredths.
fn hundredths(item: &DocumentItem<'_>) -> Option<u32> {
    let text = item.text()?;
    let weight = decimal(text, 2).and_then(|value| u32::try_from(value).ok());
    if weight.is_none() {
        item.error(format!("`{text}` is not a weight: a number from 0 with at most two decimals"));
    }
    weight
}
