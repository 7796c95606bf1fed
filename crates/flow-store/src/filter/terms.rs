//! The terms of filters: one list for the parser, its messages and the book.

use super::condition::ConditionOperand;

/// A term that a condition can begin with.
#[derive(Clone, Copy, Debug)]
pub struct FilterTerm {
    /// Spellings; the first one is preferred.
    pub phrases: &'static [&'static str],
    /// Difference from nfdump's form.
    pub nfdump: NfdumpForm,
    /// Description of the tested value, for the book.
    pub meaning: &'static str,
    pub(super) syntax: TermSyntax,
    /// The values that it tests. The condition holds if one of them passes.
    pub(super) operands: &'static [ConditionOperand],
}

/// Relation of a term to nfdump's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfdumpForm {
    Same,
    /// The same, with a difference that is worth knowing.
    SameBut(&'static str),
    /// nfdump has no such term.
    Unknown,
}

/// Syntax behind the words of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermSyntax {
    /// Nothing follows; the condition holds for every record.
    Everything,
    /// Nothing follows; both addresses are IPv4.
    Version4,
    /// Nothing follows; one of the addresses is not IPv4.
    Version6,
    /// A number, a comparison with one, or a list.
    Number,
    /// A number as in [`Self::Number`], with the suffixes `k`, `m`, `g` and `t` for powers of a thousand.
    Count,
    /// A time in milliseconds, or with its unit.
    Time,
    /// A protocol's name or number, or a list.
    Protocol,
    /// An address, a network, or a list.
    Address,
    /// A MAC address, or a list.
    Mac,
    /// Letters of flags, or a number.
    Flags,
    Word,
    /// A number; the protocol has to be ICMP.
    Icmp,
    /// The name of a field, then a value as its kind requires.
    Field,
}

impl TermSyntax {
    /// Examples, for messages.
    pub const fn example_values(self) -> &'static str {
        match self {
            Self::Everything | Self::Version4 | Self::Version6 => "",
            Self::Number | Self::Icmp => "`3`, `> 3`, `in [3 5]`",
            Self::Count => "`100`, `> 10k`, `in [1 2]`",
            Self::Time => "`> 500` (ms), `<= 2s`",
            Self::Protocol => "`tcp`, `17`, `in [tcp udp]`",
            Self::Address => "`198.18.0.1`, `10.0.0.0/8`, `2001:2::/48`, `in [198.18.0.1 10.0.0.0/8]`",
            Self::Mac => "`02:00:00:00:00:01`",
            Self::Flags => "`S`, `SA`, `= 18`",
            Self::Word => "`vxlan`",
            Self::Field => "`ingressVRFID = 5`, `9/8232`, `applicationName in [dns http]`",
        }
    }
}

const fn column(name: &'static str) -> ConditionOperand {
    ConditionOperand::Column(name)
}

// An MPLS label stack entry has 20 bits of label, 3 of traffic class and the bottom-of-stack bit (RFC 3032, section 2.1); columns
// have these three bytes without the TTL.
const fn label(column: &'static str) -> ConditionOperand {
    ConditionOperand::Bits { column, shift: 4, mask: 0xf_ffff }
}

const fn traffic_class(column: &'static str) -> ConditionOperand {
    ConditionOperand::Bits { column, shift: 1, mask: 7 }
}

const PACKETS: &str = "packetDeltaCount";
const OCTETS: &str = "octetDeltaCount";
const ICMP: &str = "icmpTypeCode";

macro_rules! terms {
    ($($($phrase:literal)+, $nfdump:expr, $syntax:ident, [$($operand:expr),*], $meaning:literal;)*) => {
        &[$(FilterTerm {
            phrases: &[$($phrase),+],
            nfdump: $nfdump,
            meaning: $meaning,
            syntax: TermSyntax::$syntax,
            operands: &[$($operand),*],
        }),*]
    };
}

use NfdumpForm::{Same, SameBut, Unknown};

pub const TERMS: &[FilterTerm] = terms! {
    "any", Same, Everything, [], "every record";
    "inet" "ipv4", Same, Version4, [], "both addresses are IPv4";
    "inet6" "ipv6", Same, Version6, [], "the addresses are not IPv4";
    "proto" "protocol", SameBut("nfdump knows more names; numbers are the same"), Protocol,
        [column("protocolIdentifier")], "the protocol in IP";
    "ip" "host" "net", SameBut("nfdump also asks DNS for names; we take addresses only"), Address,
        [column("sourceIPv6Address"), column("destinationIPv6Address")], "either end";
    "src ip" "src host" "src net", Same, Address, [column("sourceIPv6Address")], "the end that sent, or was seen first";
    "dst ip" "dst host" "dst net", Same, Address, [column("destinationIPv6Address")], "the other end";
    "port", Same, Number, [column("sourceTransportPort"), column("destinationTransportPort")], "either port";
    "src port", Same, Number, [column("sourceTransportPort")], "";
    "dst port", Same, Number, [column("destinationTransportPort")], "";
    "icmp-type", Same, Icmp, [ConditionOperand::Bits { column: ICMP, shift: 8, mask: 0xff }],
        "the type; the protocol has to be ICMP or ICMPv6";
    "icmp-code", Same, Icmp, [ConditionOperand::Bits { column: ICMP, shift: 0, mask: 0xff }],
        "the code; the protocol has to be ICMP or ICMPv6";
    "flags", SameBut("nfdump has no `E` (ECE), `C` (CWR) and `N` (AE, once NS)"), Flags, [column("tcpControlBits")],
        "TCP, and all these flags were seen; after `not`: none of them";
    "out flags", Unknown, Flags, [column("reverseTcpControlBits")], "the same on the way back";
    "tos" "src tos", Same, Number, [column("ipClassOfService")], "type of service";
    "dst tos", Same, Number, [column("postIpClassOfService")], "type of service behind the exporter";
    "packets" "in packets", Same, Count, [column(PACKETS)], "packets from source to destination";
    "out packets", Same, Count, [column("reversePacketDeltaCount")], "packets on the way back";
    "bytes" "in bytes", Same, Count, [column(OCTETS)], "bytes of IP from source to destination";
    "out bytes", Same, Count, [column("reverseOctetDeltaCount")], "bytes on the way back";
    "duration", SameBut("nfdump takes milliseconds only"), Time, [ConditionOperand::DURATION_MILLIS], "from the first to the last packet";
    "pps", Same, Count, [ConditionOperand::PerSecond { column: PACKETS, factor: 1 }],
        "packets by duration; 0 where that is 0";
    "bps", Same, Count, [ConditionOperand::PerSecond { column: OCTETS, factor: 8 }], "bits by duration; 0 where that is 0";
    "bpp", Same, Count, [ConditionOperand::Ratio { of: OCTETS, per: PACKETS }], "bytes of a packet on average";
    "if", Same, Number, [column("ingressInterface"), column("egressInterface")], "either interface";
    "in if", Same, Number, [column("ingressInterface")], "where it came in";
    "out if", Same, Number, [column("egressInterface")], "where it went out";
    "vlan", Same, Number, [column("dot1qVlanId"), column("postVlanId")], "either VLAN";
    "src vlan", Same, Number, [column("dot1qVlanId")], "outermost VLAN";
    "dst vlan", Same, Number, [column("postVlanId")], "VLAN behind the exporter";
    "inner vlan", Unknown, Number, [column("dot1qCustomerVlanId")], "the VLAN inside the outermost";
    "as", SameBut("nfdump 1.7.1 asks for a database of countries"), Number, [column("bgpSourceAsNumber"), column("bgpDestinationAsNumber")], "either AS";
    "src as", SameBut("nfdump 1.7.1 asks for a database of countries"), Number, [column("bgpSourceAsNumber")], "";
    "dst as", SameBut("nfdump 1.7.1 asks for a database of countries"), Number, [column("bgpDestinationAsNumber")], "";
    "next ip", SameBut("nfdump takes no networks and lists"), Address, [column("ipNextHopIPv6Address")], "next hop";
    "bgpnext ip", SameBut("nfdump takes no networks and lists"), Address, [column("bgpNextHopIPv6Address")], "next hop of BGP";
    "router ip", SameBut("nfdump takes no networks and lists"), Address, [column("exporterIPv6Address")], "the exporter";
    "observation domain id", Same, Number, [column("observationDomainId")], "of the exporter";
    "xip" "nip" "xnet", Same, Address, [column("postNATSourceIPv6Address"), column("postNATDestinationIPv6Address")],
        "either address behind NAT";
    "src xip" "src nip" "src xnet", Same, Address, [column("postNATSourceIPv6Address")], "";
    "dst xip" "dst nip" "dst xnet", Same, Address, [column("postNATDestinationIPv6Address")], "";
    "xport" "nport", Same, Number, [column("postNAPTSourceTransportPort"), column("postNAPTDestinationTransportPort")],
        "either port behind NAT";
    "src xport" "src nport", Same, Number, [column("postNAPTSourceTransportPort")], "";
    "dst xport" "dst nport", Same, Number, [column("postNAPTDestinationTransportPort")], "";
    "tunip", SameBut("nfdump takes no networks and lists"), Address,
        [column("outerSourceIPv6Address"), column("outerDestinationIPv6Address")], "either end of the tunnel";
    "src tunip", SameBut("nfdump takes no networks and lists"), Address, [column("outerSourceIPv6Address")], "";
    "dst tunip", SameBut("nfdump takes no networks and lists"), Address, [column("outerDestinationIPv6Address")], "";
    "tunnel", Unknown, Word, [column("tunnelKind")], "`ip`, `gre`, `vxlan`, `gtp-u`";
    "tunnel id", Unknown, Number, [column("layer2SegmentId")], "VXLAN network, GTP tunnel, GRE key";
    "mac", SameBut("nfdump also looks at the two MAC addresses behind the exporter"), Mac,
        [column("sourceMacAddress"), column("destinationMacAddress")], "either MAC address";
    "in src mac" "src mac", Same, Mac, [column("sourceMacAddress")], "";
    "in dst mac" "dst mac", Same, Mac, [column("destinationMacAddress")], "";
    "mpls label1", SameBut("nfdump 1.7.1 compares 12 of the 20 bits"), Number, [label("mplsTopLabelStackSection")], "outermost label";
    "mpls label2", Same, Number, [label("mplsLabelStackSection2")], "";
    "mpls label3", Same, Number, [label("mplsLabelStackSection3")], "";
    "mpls exp1", Same, Number, [traffic_class("mplsTopLabelStackSection")], "its traffic class";
    "mpls exp2", Same, Number, [traffic_class("mplsLabelStackSection2")], "";
    "mpls exp3", Same, Number, [traffic_class("mplsLabelStackSection3")], "";
    "field", Unknown, Field, [], "a field without a column, by its name at IANA or `enterprise/number`; alone: the record has it";
};

/// Terms of nfdump that are not supported, by their first words, with the reason or a replacement.
pub const MISSING: &[(&str, &str)] = &[
    ("count", "records have no numbers of their own; `--most` takes the first"),
    ("ident", "files have no name of their source; use a directory for each, or `router ip`"),
    ("geo", "no database of countries"),
    ("src geo", "no database of countries"),
    ("dst geo", "no database of countries"),
    ("engine-type", "no column; use `field engineType`"),
    ("engine-id", "no column; use `field engineId`"),
    ("sysid", "exporters have no numbers here; use `router ip` and `observation domain id`"),
    ("prev as", "no column; use `field bgpPrevAdjacentAsNumber`"),
    ("next as", "no column; use `field bgpNextAdjacentAsNumber`"),
    ("mask", "no column; use `field sourceIPv4PrefixLength` and its like"),
    ("src mask", "no column; use `field sourceIPv4PrefixLength` or `sourceIPv6PrefixLength`"),
    ("dst mask", "no column; use `field destinationIPv4PrefixLength` or `destinationIPv6PrefixLength`"),
    ("out mac", "no column; use `field postSourceMacAddress`, `postDestinationMacAddress`"),
    ("out src mac", "no column; use `field postSourceMacAddress`"),
    ("out dst mac", "no column; use `field postDestinationMacAddress`"),
    ("mpls label4", "three labels are kept"),
    ("mpls eos", "three labels are kept; use `mplsTopLabelStackSection`"),
    ("flow", "a record is of one flow; `flowPart = 0` leaves the first of each"),
    ("flows", "a record is of one flow; `flowPart = 0` leaves the first of each"),
    ("flowdir", "no column; use `field flowDirection`"),
    ("tun proto", "use `tunnel`, which knows the kind"),
    ("observation point id", "no column; use `field observationPointId`"),
    ("payload", "records have no payload"),
    ("client latency", "no column; in `otherFields`"),
    ("server latency", "no column; in `otherFields`"),
    ("asa", "no column; use `field firewallEvent`"),
    ("nat event", "no column; use `field natEvent`"),
    ("ingress", "no column; use `field ingressVRFID`"),
    ("egress", "no column; use `field egressVRFID`"),
    ("pblock", "no column; in `otherFields`"),
    ("@include", "write `--filter \"$(cat FILE)\"`"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::flow_columns;
    use std::collections::BTreeSet;

    #[test]
    fn every_term_looks_at_columns_that_there_are() {
        for term in TERMS {
            for name in term.operands.iter().flat_map(|operand| operand.needed_columns()) {
                assert!(
                    flow_columns().iter().any(|column| column.name == name),
                    "{}: {name}",
                    term.phrases[0]
                );
            }
        }
    }

    fn term_row(term: &FilterTerm) -> String {
        let phrases: Vec<_> = term.phrases.iter().map(|phrase| format!("`{phrase}`")).collect();
        let nfdump = match term.nfdump {
            Same => "the same",
            SameBut(but) => but,
            Unknown => "has none",
        };
        format!(
            "| {} | {nfdump} | {} | {} |\n",
            phrases.join(", "),
            term.syntax.example_values(),
            term.meaning
        )
    }

    /// The page's tables are made of the lists: on a difference, the right rows are in the message.
    #[test]
    fn the_page_lists_exactly_the_terms_there_are() {
        let page = include_str!("../../../../docs/book/flow-questions.md");
        let terms: String = TERMS.iter().map(term_row).collect();
        assert!(page.contains(&terms), "the rows of the page should be:\n{terms}");
        let mut missing = String::new();
        for (phrase, why) in MISSING {
            missing.extend(["| `", phrase, "` | ", why, " |\n"]);
        }
        assert!(page.contains(&missing), "the rows of the page should be:\n{missing}");
    }

    #[test]
    fn no_phrase_means_two_things() {
        let phrases: Vec<_> = TERMS.iter().flat_map(|term| term.phrases).collect();
        assert_eq!(phrases.iter().collect::<BTreeSet<_>>().len(), phrases.len());
        for (missing, _) in MISSING {
            assert!(!phrases.contains(&missing), "{missing}");
        }
    }
}
