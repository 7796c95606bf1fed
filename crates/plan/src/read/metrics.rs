//! The measurements that a flow requests.

use super::NOT_YET;
use super::timing::decimal;
use crate::WantedMetrics;
use crate::reader::DocumentObject;

pub(super) fn metrics(flow: &DocumentObject<'_>, receivers: usize) -> WantedMetrics {
    let off = WantedMetrics { enable: false, latency: false, rx_per_tx_thousandths: 1000 };
    let Some(object) = flow.object("metrics") else { return off };
    let enable = object.flag("enable", false);
    // Loss and time stamps are always measured if metrics are on. The keys are read so that they count as known.
    object.flag("loss", false);
    object.flag("timestamps", false);
    let latency = object.object("latency").is_some_and(|latency| {
        let enable = latency.flag("enable", false);
        if latency.word("mode", &["store_forward", "cut_through"], "store_forward") == "store_forward" && enable {
            latency.item.warn("latency is measured from first bit to first bit (cut_through); the time a frame takes on the link is not subtracted");
        }
        latency.close();
        enable
    });
    let ratio = object.object("rx_tx_ratio").map_or(1000, |ratio| expected(ratio, receivers));
    if let Some(tags) = object.object("predefined_metric_tags") {
        if tags.flag("rx_name", false) {
            tags.item.error(format!("not supported: {NOT_YET}"));
        }
        tags.close();
    }
    object.close();
    // Latency needs the send time in the tag, and without metrics frames carry no tag.
    WantedMetrics { enable, latency: latency && enable, rx_per_tx_thousandths: ratio }
}

fn expected(ratio: DocumentObject<'_>, receivers: usize) -> u64 {
    let thousandths = if ratio.choice(&["value", "rx_count"], "value") == "rx_count" {
        // The object is empty; it is read so that `close` finds unknown members in it.
        if let Some(inner) = ratio.object("rx_count") {
            inner.close();
        }
        receivers as u64 * 1000
    } else {
        ratio.get("value").and_then(|item| decimal(item.text()?, 3)).unwrap_or(1000)
    };
    ratio.close();
    thousandths
}
