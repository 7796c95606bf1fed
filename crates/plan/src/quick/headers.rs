//! Headers of the frames of a plan from flags.

use super::{QuickPlan, SenderStream, constant_pattern_to_json};
use serde_json::{Value, json};

// 02 in the first byte means "locally administered": no manufacturer gives such an address to an interface.
/// MAC address of the only sender.
pub(super) const SENDER_MAC: &str = "02:00:00:00:00:01";
pub(super) const RECEIVER_MAC: &str = "02:00:00:00:00:02";

/// Addresses in a stream's frames.
struct FlowAddresses {
    src_mac: String,
    dst_mac: String,
    src: String,
    dst: String,
}

impl QuickPlan {
    pub(super) fn build_packet_json(&self, stream: &SenderStream<'_>) -> Value {
        let ip_header = if self.ipv6 { "ipv6" } else { "ipv4" };
        let mut packet = if self.hosts.is_some() {
            // The addresses and the VLAN tag come from the emulated hosts.
            vec![json!({"choice": "ethernet", "ethernet": {}}), json!({"choice": ip_header, ip_header: {}})]
        } else {
            self.lower_layer_headers(stream, ip_header)
        };
        // Each stream has its own source port, so that a device which distributes flows by port sees many. The source
        // ports are dynamic ports (RFC 6335, 6); destination port 7 is echo, as in RFC 2544.
        let src_port = 49_152 + stream.n % 16_384;
        packet.push(
            json!({"choice": "udp", "udp": {"src_port": constant_pattern_to_json(src_port), "dst_port": constant_pattern_to_json(7)}}),
        );
        packet.into()
    }

    /// The headers below UDP, for frames that go from port to port without emulated hosts.
    fn lower_layer_headers(&self, stream: &SenderStream<'_>, ip_header: &str) -> Vec<Value> {
        let FlowAddresses { src_mac, dst_mac, src, dst } = self.choose_stream_addresses(stream);
        let mut headers = vec![json!({"choice": "ethernet", "ethernet": {
            "src": constant_pattern_to_json(src_mac), "dst": constant_pattern_to_json(dst_mac)}})];
        if let Some(id) = self.vlan {
            headers.push(json!({"choice": "vlan", "vlan": {"id": constant_pattern_to_json(id)}}));
        }
        // Addresses reserved for benchmarking: 198.18.0.0/15 (RFC 2544, C.2.2) and 2001:2::/48 (RFC 5180).
        headers.push(
            json!({"choice": ip_header, ip_header: {"src": constant_pattern_to_json(src), "dst": constant_pattern_to_json(dst)}}),
        );
        headers
    }

    /// Every sender has its own addresses. Frames to several receivers have the addresses of the first receiver.
    fn choose_stream_addresses(&self, stream: &SenderStream<'_>) -> FlowAddresses {
        // Numbers count from 1: host part 0 would be the address of the network itself.
        let tx = stream.tx + 1;
        let rx = stream.receivers.first().map_or(1, |rx| rx + 1);
        let [.., tx_high, tx_low] = tx.to_be_bytes();
        let [.., rx_high, rx_low] = rx.to_be_bytes();
        let src_mac = if self.has_one_sender_and_receiver_set() {
            SENDER_MAC.to_owned()
        } else {
            format!("02:00:00:01:{tx_high:02x}:{tx_low:02x}")
        };
        let dst_mac = if self.has_one_sender_and_receiver_set() {
            RECEIVER_MAC.to_owned()
        } else {
            format!("02:00:00:02:{rx_high:02x}:{rx_low:02x}")
        };
        let src = if self.ipv6 { format!("2001:2::{tx:x}") } else { format!("198.18.{tx_high}.{tx_low}") };
        let dst =
            if self.ipv6 { format!("2001:2:0:1::{rx:x}") } else { format!("198.19.{rx_high}.{rx_low}") };
        FlowAddresses { src_mac, dst_mac, src, dst }
    }
}
