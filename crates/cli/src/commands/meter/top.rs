//! The screen of `--top`: rates, the ledger, and the largest flows of the last second.

use super::show;
use crate::numbers::{format_scaled, per_second};
use crate::table::format_table;
use packetrig_flow::FlowKey;
use packetrig_flow_io::RunningMeter;
use packetrig_flow_io::ledger::LedgerReport;
use packetrig_flow_io::top::{FlowTraffic, TopFlowTable, merge_largest_flows};
use packetrig_units::Nanos;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Largest number of flows on the screen.
const MAX_SHOWN_FLOWS: usize = 20;
/// Escape sequences that move the cursor to the top left corner and clear the screen from there.
const CLEAR_SCREEN_SEQUENCE: &str = "\u{1b}[H\u{1b}[J";

pub(super) struct TopScreen {
    is_terminal: bool,
    last: Option<LedgerReport>,
}

impl TopScreen {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self { is_terminal, last: None }
    }

    /// Text of the screen for this second.
    pub(super) fn draw_screen(&mut self, meter: &RunningMeter, report: &LedgerReport) -> String {
        // `take_flows` empties the boards of the workers, so they show the traffic since the last screen.
        let noted = meter
            .worker_statuses()
            .iter()
            .filter_map(|status| status.board.as_ref())
            .map(TopFlowTable::take_flows);
        let flows = merge_largest_flows(noted, MAX_SHOWN_FLOWS);
        let before = self.last.as_ref().map_or(0, |last| last.elapsed_ns);
        let length = Nanos::new(report.elapsed_ns - before);
        // Files get no escape sequences: in a file, screens follow each other, and a reader would see garbage.
        let clear = if self.is_terminal { CLEAR_SCREEN_SEQUENCE } else { "" };
        let elapsed = Nanos::new(report.elapsed_ns).as_secs_f64();
        let line = show::progress_line(report, self.last.as_ref());
        let rows = flows.iter().map(|flow| flow_row(flow, length));
        let flows = format_table(&["flow", "protocol", "rate", "packets"], rows);
        self.last = Some(report.clone());
        format!("{clear}{elapsed:>7.1} s  {line}\n\n{flows}\n")
    }
}

fn flow_row((key, share): &(FlowKey, FlowTraffic), length: Nanos) -> Vec<String> {
    vec![
        format!(
            "{} <-> {}",
            endpoint_text(key.source, key.source_port),
            endpoint_text(key.destination, key.destination_port)
        ),
        protocol_name(key.protocol),
        format_scaled(per_second(share.bytes, length) * 8.0, "bit/s"),
        format_scaled(per_second(share.packets, length), "packets/s"),
    ]
}

fn endpoint_text(address: [u8; 16], port: u16) -> String {
    let address = Ipv6Addr::from(address);
    let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
    if port == 0 { address.to_string() } else { SocketAddr::new(address, port).to_string() }
}

fn protocol_name(number: u8) -> String {
    let name = match number {
        1 => "ICMP",
        6 => "TCP",
        17 => "UDP",
        47 => "GRE",
        50 => "ESP",
        58 => "ICMPv6",
        132 => "SCTP",
        number => return number.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_written_as_people_do() {
        let mut key = FlowKey { protocol: 17, source_port: 53, ..FlowKey::default() };
        key.source[10..].copy_from_slice(&[0xff, 0xff, 198, 18, 0, 1]);
        key.destination[..2].copy_from_slice(&[0x20, 1]);
        key.destination[15] = 9;
        let shown = flow_row(&(key, FlowTraffic { packets: 2, bytes: 250 }), Nanos::from_secs(2));
        assert_eq!(shown, ["198.18.0.1:53 <-> 2001::9", "UDP", "1 kbit/s", "1 packets/s"]);
    }
}
