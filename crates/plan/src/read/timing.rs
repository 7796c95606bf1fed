//! Rates and durations of flows, and the decimal numbers that they are written with.

use crate::reader::{DocumentItem, DocumentObject};
use crate::{OtgPause, StreamAmount, StreamDuration};
use packetrig_units::{BitRate, FrameRate, Nanos, Rate, Share};

pub(super) fn read_flow_rate(flow: &DocumentObject<'_>) -> Option<Rate> {
    let Some(object) = flow.read_object("rate") else { return default_rate("pps") };
    let units = ["pps", "bps", "kbps", "mbps", "gbps", "percentage"];
    let unit = object.read_choice(&units, "pps");
    let rate = match object.read_member(unit) {
        Some(item) => read_rate(&item, unit),
        None => default_rate(unit),
    };
    object.refuse_unread_members();
    rate
}

/// OTG's default rate for each unit.
fn default_rate(unit: &str) -> Option<Rate> {
    match unit {
        "pps" => FrameRate::per_second(1000).map(Rate::Frames),
        "percentage" => Some(Rate::Share(Share::WHOLE_LINK)),
        // OTG's defaults of bps, kbps, mbps and gbps are different numbers for the same rate.
        _ => Some(Rate::Bits(BitRate::new(1_000_000_000))),
    }
}

fn read_rate(item: &DocumentItem<'_>, unit: &str) -> Option<Rate> {
    let factor = match unit {
        "percentage" => return read_percentage(item),
        "pps" => {
            return FrameRate::per_second(u64::try_from(item.as_number(1, u64::MAX.into())?).ok()?)
                .map(Rate::Frames);
        }
        "kbps" => 1_000,
        "mbps" => 1_000_000,
        "gbps" => 1_000_000_000,
        _ => 1,
    };
    let value = u64::try_from(item.as_number(1, u64::MAX.into())?).ok()?;
    let bits = value.checked_mul(factor);
    if bits.is_none() {
        item.add_item_error("the rate is higher than any link can carry");
    }
    // OTG's minimum of `bps`. The larger units start above it.
    if bits.is_some_and(|bits| bits < 672) {
        item.add_item_error(
            "the bit rate must be at least 672 bit/s: one frame of the minimum size per second",
        );
        return None;
    }
    bits.map(|bits| Rate::Bits(BitRate::new(bits)))
}

fn read_percentage(item: &DocumentItem<'_>) -> Option<Rate> {
    let text = item.as_text()?;
    // Seven places: one percent is 10^7 billionths.
    let share = parse_decimal(text, 7).filter(|billionths| (1..=1_000_000_000).contains(billionths));
    if share.is_none() {
        item.add_item_error(format!("`{text}` is not a percentage above 0 and up to 100"));
    }
    share.map(Share::from_billionths).map(Rate::Share)
}

pub(super) fn read_duration(flow: &DocumentObject<'_>) -> Option<StreamDuration> {
    // 12 bytes are OTG's default gap, and Ethernet's own.
    let forever = StreamDuration { amount: StreamAmount::Continuous, delay: OtgPause::Bytes(0), gap: 12 };
    let Some(object) = flow.read_object("duration") else { return Some(forever) };
    let choice = object.read_choice(&["continuous", "fixed_packets", "fixed_seconds", "burst"], "continuous");
    let inner = object.chosen_member_object(choice)?;
    let amount = match choice {
        "fixed_packets" => StreamAmount::Packets(inner.read_number("packets", 1, 1, u32::MAX.into())),
        "fixed_seconds" => StreamAmount::Seconds(read_seconds(&inner)?),
        "burst" => StreamAmount::Bursts {
            bursts: inner.read_number("bursts", 0, 0, u32::MAX.into()),
            packets: inner.read_number("packets", 1, 1, u32::MAX.into()),
            between: read_otg_pause(inner.read_object("inter_burst_gap"))?,
        },
        _ => StreamAmount::Continuous,
    };
    let gap_bytes = u32::try_from(inner.read_number("gap", 12, 0, 1 << 20)).ok()?;
    // OTG gives every duration but `burst` a delay.
    let delay =
        if choice == "burst" { OtgPause::Bytes(0) } else { read_otg_pause(inner.read_object("delay"))? };
    if inner.item.path != object.item.path {
        inner.refuse_unread_members();
    }
    object.refuse_unread_members();
    Some(StreamDuration { amount, delay, gap: gap_bytes })
}

fn read_seconds(object: &DocumentObject<'_>) -> Option<Nanos> {
    let Some(item) = object.read_member("seconds") else { return Some(Nanos::from_secs(1)) };
    let text = item.as_text()?;
    let ns = parse_decimal(text, 9).filter(|ns| *ns > 0);
    if ns.is_none() {
        item.add_item_error(format!("`{text}` is not a number of seconds above 0"));
    }
    ns.map(Nanos::new)
}

fn read_otg_pause(object: Option<DocumentObject<'_>>) -> Option<OtgPause> {
    let Some(object) = object else { return Some(OtgPause::Bytes(0)) };
    let choice = object.read_choice(&["bytes", "nanoseconds", "microseconds"], "bytes");
    let item = object.read_member(choice);
    object.refuse_unread_members();
    let Some(item) = item else { return Some(OtgPause::Bytes(0)) };
    let text = item.as_text()?;
    let places = if choice == "microseconds" { 3 } else { 0 };
    let value = parse_decimal(text, places);
    if value.is_none() {
        item.add_item_error(format!("`{text}` is not a number of {choice}"));
    }
    value.map(
        |value| {
            if choice == "bytes" { OtgPause::Bytes(value) } else { OtgPause::Time(Nanos::new(value)) }
        },
    )
}

/// Reads a non-negative decimal number and returns it times 10^`places`, rounded to the nearest integer; exact where a
/// float would not be.
pub(super) fn parse_decimal(text: &str, places: u32) -> Option<u64> {
    // JSON writers may use an exponent: 1e3.
    let mantissa = text.split_once(['e', 'E']).map_or(text, |(mantissa, _)| mantissa);
    let exponent = match text.split_once(['e', 'E']) {
        Some((_, exponent)) => exponent.parse::<i32>().ok()?,
        None => 0,
    };
    // All digits are read as one integer, then shifted: 99.9 is exactly 999 tenths, which no float is.
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    // `parse` accepts `+5`, which JSON does not allow.
    let digits: u128 = if digits.starts_with('+') { None } else { digits.parse().ok() }?;
    let shift = i32::try_from(places).ok()?.checked_sub_unsigned(u32::try_from(fraction.len()).ok()?)?;
    let shift = shift.checked_add(exponent)?;
    let power = 10u128.checked_pow(shift.unsigned_abs())?;
    // Half of the divisor is added first, so the result is rounded to the nearest.
    let value = if shift >= 0 { digits.checked_mul(power)? } else { (digits + power / 2) / power };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_has_no_sign_and_any_exponent() {
        let read = |text| parse_decimal(text, 3);
        assert_eq!(["1.5", "1.5e-1", "15E2"].map(read), [Some(1500), Some(150), Some(1_500_000)]);
        for wrong in ["+5", "1e2147483647", "1.0e-2147483648", "-5", "", ".", "1.+5", "1e"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
