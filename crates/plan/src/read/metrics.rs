//! The measurements that a flow requests.

use super::UNSUPPORTED_TEXT;
use super::timing::parse_decimal;
use crate::WantedMetrics;
use crate::reader::{DocumentItem, DocumentObject};

pub(super) fn read_metrics(flow: &DocumentObject<'_>, receivers: usize) -> WantedMetrics {
    let off = WantedMetrics { enable: false, latency: false, rx_per_tx_thousandths: 1000 };
    let Some(object) = flow.read_object("metrics") else { return off };
    let enable = object.read_flag("enable", false);
    // Loss and time stamps are always measured if metrics are on. The keys are read so that they count as known.
    object.read_flag("loss", false);
    object.read_flag("timestamps", false);
    let latency = object.read_object("latency").is_some_and(|latency| {
        let enable = latency.read_flag("enable", false);
        if latency.read_word("mode", &["store_forward", "cut_through"], "store_forward") == "store_forward" && enable {
            latency.item.add_item_warning("latency is measured from first bit to first bit (cut_through); the time a frame takes on the link is not subtracted");
        }
        latency.refuse_unread_members();
        enable
    });
    let ratio = object.read_object("rx_tx_ratio");
    let ratio = ratio.map_or(1000, |ratio| read_copies_per_frame(ratio, receivers));
    if let Some(tags) = object.read_object("predefined_metric_tags") {
        if tags.read_flag("rx_name", false) {
            tags.item.add_item_error(format!("not supported: {UNSUPPORTED_TEXT}"));
        }
        tags.refuse_unread_members();
    }
    object.refuse_unread_members();
    // Latency needs the send time in the tag, and without metrics frames carry no tag.
    WantedMetrics { enable, latency: latency && enable, rx_per_tx_thousandths: ratio }
}

/// Reads a number of copies in thousandths. Further decimals are rounded.
fn read_thousandths(item: &DocumentItem<'_>) -> Option<u64> {
    let text = item.as_text()?;
    let copies = parse_decimal(text, 3);
    if copies.is_none() {
        item.add_item_error(format!("`{text}` is not a number of copies; write a number like 2 or 1.5"));
    }
    copies
}

fn read_copies_per_frame(ratio: DocumentObject<'_>, receivers: usize) -> u64 {
    let thousandths = if ratio.read_choice(&["value", "rx_count"], "value") == "rx_count" {
        // The object is empty; it is read so that `refuse_unread_members` finds unknown members in it.
        if let Some(inner) = ratio.read_object("rx_count") {
            inner.refuse_unread_members();
        }
        // Each receiver is expected to get every frame.
        receivers as u64 * 1000
    } else {
        ratio.read_member("value").and_then(|item| read_thousandths(&item)).unwrap_or(1000)
    };
    ratio.refuse_unread_members();
    thousandths
}
