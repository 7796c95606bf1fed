//! Names of IP protocols.

/// Common protocols, with their usual names in lower case. If a number has two names, the first is shown.
const PROTOCOL_NAMES: [(u8, &str); 22] = [
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (8, "egp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (46, "rsvp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmpv6"),
    (58, "icmp6"),
    (88, "eigrp"),
    (89, "ospf"),
    (103, "pim"),
    (112, "vrrp"),
    (115, "l2tp"),
    (132, "sctp"),
    (136, "udplite"),
    (137, "mpls-in-ip"),
];

/// The name of a protocol; its number as text if it has no name here.
pub fn protocol_name(number: u8) -> String {
    let named = PROTOCOL_NAMES.iter().find(|(known, _)| *known == number);
    named.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// Finds the number of a protocol from its name or its number as text; `None` if the text is neither.
pub fn parse_protocol_number(text: &str) -> Option<u8> {
    let named =
        PROTOCOL_NAMES.iter().find(|(_, name)| text.eq_ignore_ascii_case(name)).map(|(number, _)| *number);
    named.or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for known in 0..=u8::MAX {
            assert_eq!(parse_protocol_number(&protocol_name(known)), Some(known));
        }
        assert_eq!((parse_protocol_number("TCP"), parse_protocol_number("icmp6")), (Some(6), Some(58)));
        assert_eq!((parse_protocol_number("256"), parse_protocol_number("quic")), (None, None));
    }
}
