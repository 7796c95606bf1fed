//! The ledger as lines for people.

use packetrig_flow::{IgnoredReason, MeterLedger};

/// One account of the ledger, as a line for people.
#[derive(Clone, Copy, Debug)]
pub struct LedgerLine {
    /// Stage of the packets' path through the meter, such as `table`.
    pub place: &'static str,
    pub what: &'static str,
    /// Number of packets; `None` if unknown.
    pub packets: Option<u64>,
    /// True if these packets are missing in the records.
    pub is_loss: bool,
    /// Total to which `packets` is compared: the packets that arrived, or for the export the packets that were offered,
    /// counted once for each output.
    pub of: u64,
}

impl LedgerLine {
    const fn new_count(place: &'static str, what: &'static str, packets: Option<u64>, of: u64) -> Self {
        Self { place, what, packets, is_loss: false, of }
    }

    const fn new_loss(place: &'static str, what: &'static str, packets: Option<u64>, of: u64) -> Self {
        Self { place, what, packets, is_loss: true, of }
    }
}

/// Lists the ledger as lines, from the wire to the collector.
pub fn ledger_lines(ledger: &MeterLedger) -> Vec<LedgerLine> {
    let MeterLedger { capture, packets, export } = ledger;
    // Some drivers count dropped packets as arrived, other drivers do not. With the larger number, every loss
    // is a part of it.
    let counted = capture.delivered + capture.ring_dropped + capture.driver_dropped.unwrap_or(0);
    // Interfaces do not count packets that this machine sent as arrived.
    let arrived = capture.arrived.map_or(counted, |arrived| arrived + capture.sent).max(counted);
    let mut lines = vec![LedgerLine::new_count("capture", "arrived", capture.arrived, arrived)];
    if capture.sent > 0 {
        lines.push(LedgerLine::new_count("capture", "sent by this machine", Some(capture.sent), arrived));
    }
    lines.extend([
        LedgerLine::new_loss("capture", "dropped by the driver", capture.driver_dropped, arrived),
        LedgerLine::new_loss("capture", "dropped, ring full", Some(capture.ring_dropped), arrived),
        LedgerLine::new_count("capture", "delivered", Some(capture.delivered), arrived),
    ]);
    for cause in IgnoredReason::ALL {
        let count = packets.ignored[cause as usize];
        if count > 0 {
            lines.push(LedgerLine::new_count("parse", ignored_name(cause), Some(count), arrived));
        }
    }
    lines.extend([
        LedgerLine::new_count("table", "metered", Some(packets.metered), arrived),
        LedgerLine::new_loss("table", "untracked, table full", Some(packets.untracked), arrived),
        LedgerLine::new_count("table", "in flows not ended yet", Some(packets.live), arrived),
        LedgerLine::new_count("table", "in records", Some(packets.recorded), arrived),
    ]);
    if export.offered.records > 0 {
        // With several outputs, each output is offered every packet, so a loss can be larger than the number
        // of arrived packets.
        let offered = export.offered.packets;
        lines.extend([
            LedgerLine::new_count("export", "offered", Some(offered), offered),
            LedgerLine::new_loss(
                "export",
                "dropped, queue full",
                Some(export.queue_dropped.packets),
                offered,
            ),
            LedgerLine::new_loss("export", "refused by the transport", Some(export.refused.packets), offered),
            LedgerLine::new_count("export", "waiting", Some(export.waiting.packets), offered),
        ]);
        let left = export.left_to_others.packets;
        if left > 0 {
            lines.push(LedgerLine::new_count("export", "left to the active meter", Some(left), offered));
        }
        lines.push(LedgerLine::new_count("export", "sent", Some(export.sent.packets), offered));
    }
    lines
}

const fn ignored_name(cause: IgnoredReason) -> &'static str {
    match cause {
        IgnoredReason::Arp => "ignored: ARP",
        IgnoredReason::NotIp => "ignored: not IP",
        IgnoredReason::ShortLink => "ignored: link header truncated",
        IgnoredReason::ShortIp => "ignored: IP header truncated",
        IgnoredReason::BadIp => "ignored: invalid IP header",
        IgnoredReason::TooDeep => "ignored: too many nested headers",
        IgnoredReason::Sampled => "skipped by sampling",
        IgnoredReason::Elsewhere => "ignored: another meter's share",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::{CaptureCounts, CarriedRecords, ExportCounts};

    #[test]
    fn loss_line_never_exceeds_its_total() {
        let carried = |packets| CarriedRecords { records: 1, packets, bytes: 1 };
        // Two outputs that refuse everything, and a driver that counts what it dropped as not arrived.
        let export = ExportCounts { offered: carried(200), refused: carried(200), ..Default::default() };
        let capture = CaptureCounts {
            arrived: Some(100),
            driver_dropped: Some(300),
            delivered: 100,
            ..CaptureCounts::default()
        };
        let ledger = MeterLedger { capture, export, ..MeterLedger::default() };
        let losses: Vec<LedgerLine> = ledger_lines(&ledger).into_iter().filter(|line| line.is_loss).collect();
        assert!(
            losses.iter().all(|line| line.packets.is_none_or(|packets| packets <= line.of)),
            "{losses:?}"
        );
        assert!(losses.iter().any(|line| line.packets == Some(200) && line.of == 200), "{losses:?}");
    }
}
