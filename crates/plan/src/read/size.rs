//! Frame sizes of a flow: a fixed size, a range, or a mix.

use super::packet::HeaderContext;
use super::timing::parse_decimal;
use crate::reader::{DocumentItem, DocumentObject};
use packetrig_units::{FrameSize, clamp_to_u32};
use packetrig_wire::pattern::keyed_mix;
use packetrig_wire::size::{SizeMix, SizePattern};

/// More than the largest MTU that a document can set; the port's own limit is checked when it is known.
const MAX_FRAME_BYTES: u64 = 16_383;
// Sizes from 12 bytes are accepted. Sizes below 64 are raised to 64, with a warning.
const MIN_MIX_FRAME_BYTES: u64 = 12;

/// OTG's named mixes: (size, weight in hundredths).
const IMIX_WEIGHTS: &[(u32, u32)] = &[(64, 700), (570, 400), (1518, 100)];
const IPSEC_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1418, 1567)];
const TCP_IMIX: &[(u32, u32)] = &[(90, 5867), (92, 200), (594, 2366), (1518, 1567)];
const IPV6_IMIX: &[(u32, u32)] = &[(60, 5867), (496, 200), (594, 2366), (1518, 1567)];
const STANDARD_IMIX: &[(u32, u32)] = &[(58, 5867), (62, 200), (594, 2366), (1518, 1567)];

fn read_frame_size(object: &DocumentObject<'_>, name: &'static str, default: u64) -> FrameSize {
    let read = object.read_number(name, default, MIN_MIX_FRAME_BYTES, MAX_FRAME_BYTES);
    let size = FrameSize::new(clamp_to_u32(read));
    if size < FrameSize::MIN {
        object.item.add_item_warning(format!(
            "`{name}` of {read} bytes is below Ethernet's minimum: the frame is sent with 64 bytes"
        ));
    }
    size.max(FrameSize::MIN)
}

pub(super) fn read_size(flow: &DocumentObject<'_>, context: HeaderContext) -> Option<SizePattern> {
    let Some(object) = flow.read_object("size") else { return Some(SizePattern::Fixed(FrameSize::MIN)) };
    let size = match object.read_choice(&["fixed", "increment", "random", "weight_pairs"], "fixed") {
        "increment" => {
            let steps = object.chosen_member_object("increment")?;
            let start = read_frame_size(&steps, "start", 64);
            let end = read_frame_size(&steps, "end", 1518);
            let step = u32::try_from(steps.read_number("step", 1, 1, MAX_FRAME_BYTES)).ok()?;
            check_size_order(&steps, "start", start, "end", end)?;
            steps.refuse_unread_members();
            SizePattern::Increment { start, end, step }
        }
        "random" => {
            let range = object.chosen_member_object("random")?;
            let min = read_frame_size(&range, "min", 64);
            let max = read_frame_size(&range, "max", 1518);
            check_size_order(&range, "min", min, "max", max)?;
            range.refuse_unread_members();
            // OTG gives sizes no seed. The run's seed is in the report, so the same sizes can be sent again.
            // The flow is part of the draw, so that two flows of a run have different sizes.
            SizePattern::Random { min, max, seed: keyed_mix(context.options.seed, context.flow) }
        }
        "weight_pairs" => SizePattern::Weighted(read_weights(&object.chosen_member_object("weight_pairs")?)?),
        _ => SizePattern::Fixed(read_frame_size(&object, "fixed", 64)),
    };
    object.refuse_unread_members();
    Some(size)
}

fn check_size_order(
    object: &DocumentObject<'_>,
    low: &str,
    from: FrameSize,
    high: &str,
    to: FrameSize,
) -> Option<()> {
    if from > to {
        object.item.add_item_error(format!("`{low}` ({from}) is above `{high}` ({to})"));
        return None;
    }
    Some(())
}

fn read_weights(object: &DocumentObject<'_>) -> Option<SizeMix> {
    let mut pairs: Vec<(FrameSize, u32)> = Vec::new();
    if object.read_choice(&["predefined", "custom"], "predefined") == "custom" {
        for item in object.iter_items("custom").into_iter().flatten() {
            let pair = item.as_object()?;
            // The value is in hundredths: an absent weight is 1.
            let weight = pair.read_member("weight").map_or(Some(100), |item| read_hundredths(&item));
            pairs.push((read_frame_size(&pair, "size", 64), weight?));
            pair.refuse_unread_members();
        }
    } else {
        let names = ["imix", "ipsec_imix", "ipv6_imix", "standard_imix", "tcp_imix"];
        let table = match object.read_word("predefined", &names, "imix") {
            "ipsec_imix" => IPSEC_IMIX,
            "ipv6_imix" => IPV6_IMIX,
            "standard_imix" => STANDARD_IMIX,
            "tcp_imix" => TCP_IMIX,
            _ => IMIX_WEIGHTS,
        };
        // The tables are sorted, so the first size is the smallest.
        if table[0].0 < 64 {
            let message = "frames of this mix that are smaller than 64 bytes are sent with 64 bytes";
            object.item.add_item_warning(message);
        }
        pairs.extend(table.iter().map(|(size, weight)| (FrameSize::new(*size).max(FrameSize::MIN), *weight)));
    }
    let mix = SizeMix::new(&pairs);
    if mix.is_none() {
        object.item.add_item_error("a mix needs at least one size with a weight above zero");
    }
    mix
}

/// A weight in hundredths. Further decimals are rounded.
fn read_hundredths(item: &DocumentItem<'_>) -> Option<u32> {
    let text = item.as_text()?;
    let weight = parse_decimal(text, 2).and_then(|value| u32::try_from(value).ok());
    if weight.is_none() {
        item.add_item_error(format!("`{text}` is not a weight; write a number from 0 to 42949672"));
    }
    weight
}
