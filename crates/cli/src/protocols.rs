//! IP protocols as people name them.

/// Those that are met, by IANA's names in lower case.
const NAMES: [(u8, &str); 14] = [
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmpv6"),
    (89, "ospf"),
    (132, "sctp"),
    (136, "udplite"),
];

/// The name of a protocol, or its number.
pub(crate) fn name(number: u8) -> String {
    let named = NAMES.iter().find(|(known, _)| *known == number);
    named.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// The protocol of that name or number.
pub(crate) fn parse(text: &str) -> Result<u8, String> {
    let named = NAMES.iter().find(|(_, name)| text.eq_ignore_ascii_case(name)).map(|(number, _)| *number);
    named.map_or_else(
        || {
            text.parse()
                .map_err(|_| format!("`{text}` is no protocol; write tcp, udp, icmp or a number up to 255"))
        },
        Ok,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for number in 0..=u8::MAX {
            assert_eq!(parse(&name(number)), Ok(number));
        }
        assert_eq!(parse("TCP"), Ok(6));
        assert!(parse("256").is_err() && parse("quic").is_err());
    }
}
