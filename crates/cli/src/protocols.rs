//! IP protocols, as users type them.

pub(crate) use packetrig_store::flows::protocols::name;
use packetrig_store::flows::protocols::number;

/// Parses the name or number of a protocol.
pub(crate) fn parse(text: &str) -> Result<u8, String> {
    number(text)
        .ok_or_else(|| format!("`{text}` is not a protocol; write tcp, udp, icmp or a number up to 255"))
}
