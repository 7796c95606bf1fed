//! IP protocols as people type them.

pub(crate) use packetrig_store::flows::protocols::name;
use packetrig_store::flows::protocols::number;

/// The protocol of that name or number.
pub(crate) fn parse(text: &str) -> Result<u8, String> {
    number(text)
        .ok_or_else(|| format!("`{text}` is not a protocol; write tcp, udp, icmp or a number up to 255"))
}
