//! Names and numbers of IP protocols, as users type them.

use packetrig_flow_store::protocols::parse_protocol_number;
pub(crate) use packetrig_flow_store::protocols::protocol_name;

/// Parses the name or number of a protocol.
pub(crate) fn parse_protocol(text: &str) -> Result<u8, String> {
    parse_protocol_number(text)
        .ok_or_else(|| format!("`{text}` is not a protocol; write tcp, udp, icmp or a number up to 255"))
}
