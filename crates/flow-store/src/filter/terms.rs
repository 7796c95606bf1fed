//! The terms of filters: one list for the parser, its error messages and the documentation.

use super::condition::ConditionOperand;
use crate::names::NameKind;

/// A term that a condition can begin with.
#[derive(Clone, Copy, Debug)]
pub struct FilterTerm {
    /// Spellings; the first one is preferred.
    pub phrases: &'static [&'static str],
    /// How the term differs from nfdump's.
    pub nfdump: NfdumpRelation,
    /// Description of the tested value, for the documentation; empty if the phrase says it.
    pub meaning: &'static str,
    pub(super) syntax: TermSyntax,
    /// The values that the term tests. The condition holds if one of these values passes its test.
    pub(super) operands: &'static [ConditionOperand],
}

/// How a term of packetrig relates to nfdump's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfdumpRelation {
    Same,
    /// The same, with a difference that is worth knowing.
    SameBut(&'static str),
    /// nfdump has no such term.
    Unknown,
}

/// What may follow the words of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermSyntax {
    /// No operand; the condition holds for every record.
    Everything,
    /// No operand; both addresses are IPv4.
    Version4,
    /// No operand; one of the addresses is IPv6.
    Version6,
    /// A number, a comparison with a number, or a list of numbers.
    Number,
    /// A number as in [`Self::Number`], with the suffixes `k`, `m`, `g` and `t` for powers of a thousand.
    Count,
    /// A length of time: a number of milliseconds, or a number with a unit.
    Time,
    /// A point in time: a date, or a date and time of UTC, or nanoseconds since 1970.
    Moment,
    /// A protocol's name or number, or a list.
    Protocol,
    /// An address, a network, or a list.
    Address,
    /// A MAC address, or a list.
    Mac,
    /// Letters of flags, or a number.
    Flags,
    Word,
    /// A number; the protocol has to be ICMP or ICMPv6.
    Icmp,
    /// No operand; all packets had the same TTL.
    SameTtl,
    /// The name of a field, and optionally a value of the field's kind.
    Field,
    /// Countries as two letters, from a file of names.
    Country,
    /// Numbers of autonomous systems, from a file of names.
    Asn,
    /// Names of autonomous systems, from a file of names.
    AsName,
    /// Names of prefixes, from a file of names.
    Prefix,
    /// Names of interfaces, from a file of names.
    Interface,
    /// Names of services, from a file of names.
    Service,
}

impl TermSyntax {
    /// The kind of names that the term tests; `None` if it tests no names.
    pub(super) const fn name_kind(self) -> Option<NameKind> {
        Some(match self {
            Self::Country => NameKind::Country,
            Self::Asn => NameKind::AsNumber,
            Self::AsName => NameKind::AsName,
            Self::Prefix => NameKind::Prefix,
            Self::Interface => NameKind::Interface,
            Self::Service => NameKind::Service,
            _ => return None,
        })
    }

    /// Examples of operands, for messages.
    pub const fn example_values(self) -> &'static str {
        match self {
            Self::Everything | Self::Version4 | Self::Version6 | Self::SameTtl => "",
            Self::Number | Self::Icmp => "`3`, `> 3`, `in [3 5]`",
            Self::Count => "`100`, `> 10k`, `in [1 2]`",
            Self::Time => "`> 500` (ms), `<= 2s`",
            Self::Moment => "`< 2026-11-21T13:00`, `2026-11-21T13:00:05.010`",
            Self::Protocol => "`tcp`, `17`, `in [tcp udp]`",
            Self::Address => "`198.18.0.1`, `10.0.0.0/8`, `in [198.18.0.1 2001:2::/48]`",
            Self::Mac => "`02:00:00:00:00:01`",
            Self::Flags => "`S`, `SA`, `=S`, `= 18`",
            Self::Word => "`vxlan`",
            Self::Country => "`DE`, `in [DE FR]`",
            Self::Asn => "`64500`, `in [64500 64501]`",
            Self::AsName => "`\"example net\"`, `in [one \"another one\"]`",
            Self::Prefix => "`\"customer a\"`, `in [a b]`",
            Self::Interface => "`uplink`, `in [uplink \"to office\"]`",
            Self::Service => "`https`, `in [ssh domain]`",
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

const PACKETS_COLUMN: &str = "packetDeltaCount";
const OCTETS_COLUMN: &str = "octetDeltaCount";
const ICMP: &str = "icmpTypeCode";
const SOURCE_ADDRESS_COLUMN: &str = "sourceIPv6Address";
const DESTINATION_ADDRESS_COLUMN: &str = "destinationIPv6Address";
const NAT_ADDRESS_COLUMNS: [&str; 2] = ["postNATSourceIPv6Address", "postNATDestinationIPv6Address"];
const MIN_TTL_COLUMN: &str = "minimumTTL";
const MAX_TTL: &str = "maximumTTL";
/// Entries of the label stack, from the outermost one on.
const MPLS: [&str; 3] = ["mplsTopLabelStackSection", "mplsLabelStackSection2", "mplsLabelStackSection3"];

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

use NfdumpRelation::{Same, SameBut, Unknown};

pub const FILTER_TERMS: &[FilterTerm] = terms! {
    "any", Same, Everything, [], "every record";
    "inet" "ipv4", Same, Version4, [], "both addresses are IPv4";
    "inet6" "ipv6", Same, Version6, [], "one of the addresses is IPv6; a record without addresses is neither IPv4 nor IPv6";
    "proto" "protocol", SameBut("nfdump accepts more protocol names; protocol numbers are the same"), Protocol,
        [column("protocolIdentifier")], "the IP protocol";
    "ip" "host" "net", SameBut("nfdump also resolves host names; packetrig takes addresses only"), Address,
        [column(SOURCE_ADDRESS_COLUMN), column(DESTINATION_ADDRESS_COLUMN)], "source or destination";
    "src ip" "src host" "src net", Same, Address, [column(SOURCE_ADDRESS_COLUMN)], "the source: the sender; in a two-way record, the first sender seen";
    "dst ip" "dst host" "dst net", Same, Address, [column(DESTINATION_ADDRESS_COLUMN)], "the destination";
    "port", Same, Number, [column("sourceTransportPort"), column("destinationTransportPort")], "either port";
    "src port", Same, Number, [column("sourceTransportPort")], "";
    "dst port", Same, Number, [column("destinationTransportPort")], "";
    "icmp-type" "icmp type", Same, Icmp, [ConditionOperand::Bits { column: ICMP, shift: 8, mask: 0xff }],
        "the ICMP type; the protocol has to be ICMP or ICMPv6";
    "icmp-code" "icmp code", Same, Icmp, [ConditionOperand::Bits { column: ICMP, shift: 0, mask: 0xff }],
        "the ICMP code; the protocol has to be ICMP or ICMPv6";
    "flags", SameBut("nfdump has no `N` (AE, formerly NS); since 1.7.2, its `not flags AF` means *not both flags*"), Flags, [column("tcpControlBits")],
        "TCP, and all these flags were seen; after `not`: none of them; after `=`: exactly these flags";
    "out flags", Unknown, Flags, [column("reverseTcpControlBits")], "like `flags`, for the packets from destination to source";
    "tos" "src tos", Same, Number, [column("ipClassOfService")], "type of service";
    "dst tos", Same, Number, [column("postIpClassOfService")], "type of service after the packet has passed the exporter";
    "ttl", Same, Number, [column(MIN_TTL_COLUMN), column(MAX_TTL)], "the lowest or the highest TTL";
    "min ttl", Same, Number, [column(MIN_TTL_COLUMN)], "";
    "max ttl", Same, Number, [column(MAX_TTL)], "";
    "ttl equal", Same, SameTtl, [column(MAX_TTL), ConditionOperand::Difference { of: MAX_TTL, less: MIN_TTL_COLUMN }],
        "all packets had the same TTL; a TTL of 0 counts as unknown";
    "first seen", SameBut("nfdump takes local time"), Moment, [column("flowStartNanoseconds")],
        "the time of the first packet; a value with at most three decimals matches a whole millisecond";
    "last seen", SameBut("nfdump takes local time"), Moment, [column("flowEndNanoseconds")], "the time of the last packet";
    "packets" "in packets", Same, Count, [column(PACKETS_COLUMN)], "packets from source to destination";
    "out packets", Same, Count, [column("reversePacketDeltaCount")], "packets from destination to source";
    "bytes" "in bytes", Same, Count, [column(OCTETS_COLUMN)], "bytes of IP packets from source to destination";
    "out bytes", Same, Count, [column("reverseOctetDeltaCount")], "bytes of IP packets from destination to source";
    "duration", SameBut("nfdump takes milliseconds only"), Time, [ConditionOperand::DURATION_MILLIS], "time from the first to the last packet";
    "pps", Same, Count, [ConditionOperand::PerSecond { column: PACKETS_COLUMN, factor: 1 }],
        "packets divided by the duration; 0 if the duration is 0";
    "bps", Same, Count, [ConditionOperand::PerSecond { column: OCTETS_COLUMN, factor: 8 }], "bits divided by the duration; 0 if the duration is 0";
    "bpp", Same, Count, [ConditionOperand::Ratio { of: OCTETS_COLUMN, per: PACKETS_COLUMN }], "average bytes per packet";
    "if", Same, Number, [column("ingressInterface"), column("egressInterface")], "either interface";
    "in if", Same, Number, [column("ingressInterface")], "interface where the flow came in";
    "out if", Same, Number, [column("egressInterface")], "interface where the flow went out";
    "vlan", Same, Number, [column("dot1qVlanId"), column("postVlanId")], "either VLAN";
    "src vlan", Same, Number, [column("dot1qVlanId")], "outermost VLAN";
    "dst vlan", Same, Number, [column("postVlanId")], "VLAN after the packet has passed the exporter";
    "inner vlan", Unknown, Number, [column("dot1qCustomerVlanId")], "the VLAN inside the outermost one";
    "as", Same, Number, [column("bgpSourceAsNumber"), column("bgpDestinationAsNumber")], "either AS";
    "src as", Same, Number, [column("bgpSourceAsNumber")], "";
    "dst as", Same, Number, [column("bgpDestinationAsNumber")], "";
    "next ip" "next net", Same, Address, [column("ipNextHopIPv6Address")], "next hop";
    "bgp next ip" "bgp next net" "bgpnext ip", SameBut("nfdump takes no lists"), Address, [column("bgpNextHopIPv6Address")], "next hop of BGP";
    "exporter ip" "exporter net" "router ip" "router net", SameBut("nfdump takes no lists"), Address, [column("exporterIPv6Address")], "the exporter";
    "observation domain id", Same, Number, [column("observationDomainId")], "observation domain of the exporter";
    "nat ip" "nat net" "xip" "nip" "xnet", Same, Address, [column(NAT_ADDRESS_COLUMNS[0]), column(NAT_ADDRESS_COLUMNS[1])],
        "either address after NAT";
    "src nat ip" "src nat net" "src xip" "src nip" "src xnet", Same, Address, [column(NAT_ADDRESS_COLUMNS[0])], "";
    "dst nat ip" "dst nat net" "dst xip" "dst nip" "dst xnet", Same, Address, [column(NAT_ADDRESS_COLUMNS[1])], "";
    "nat port" "xport" "nport", Same, Number, [column("postNAPTSourceTransportPort"), column("postNAPTDestinationTransportPort")],
        "either port after NAT";
    "src nat port" "src xport" "src nport", Same, Number, [column("postNAPTSourceTransportPort")], "";
    "dst nat port" "dst xport" "dst nport", Same, Number, [column("postNAPTDestinationTransportPort")], "";
    "tun ip" "tun net" "tunip", Same, Address,
        [column("outerSourceIPv6Address"), column("outerDestinationIPv6Address")], "either end of the tunnel";
    "src tun ip" "src tun net" "src tunip", Same, Address, [column("outerSourceIPv6Address")], "";
    "dst tun ip" "dst tun net" "dst tunip", Same, Address, [column("outerDestinationIPv6Address")], "";
    "tunnel", Unknown, Word, [column("tunnelKind")], "`ip`, `gre`, `vxlan`, `gtp-u`, `geneve`";
    "tunnel id", Unknown, Number, [column("layer2SegmentId")], "identifier: VXLAN or Geneve VNI, GTP TEID, or GRE key";
    "mac", SameBut("nfdump also tests the two MAC addresses of packets that have passed the exporter"), Mac,
        [column("sourceMacAddress"), column("destinationMacAddress")], "either MAC address";
    "in mac", Same, Mac, [column("sourceMacAddress"), column("destinationMacAddress")], "either MAC address";
    "in src mac" "src mac", Same, Mac, [column("sourceMacAddress")], "";
    "in dst mac" "dst mac", Same, Mac, [column("destinationMacAddress")], "";
    "mpls label0", SameBut("nfdump 1.7.1 counts labels from 1"), Number, [label(MPLS[0])], "outermost label";
    "mpls label1", Same, Number, [label(MPLS[1])], "";
    "mpls label2", Same, Number, [label(MPLS[2])], "";
    "mpls any", SameBut("nfdump looks at ten labels"), Number, [label(MPLS[0]), label(MPLS[1]), label(MPLS[2])],
        "one of the three stored labels";
    "mpls exp0", Same, Number, [traffic_class(MPLS[0])], "traffic class of the outermost label";
    "mpls exp1", Same, Number, [traffic_class(MPLS[1])], "";
    "mpls exp2", Same, Number, [traffic_class(MPLS[2])], "";
    "country" "geo", SameBut("nfdump needs its own file of countries (`-G`)"), Country,
        [column(SOURCE_ADDRESS_COLUMN), column(DESTINATION_ADDRESS_COLUMN)], "[country](#names) of either end";
    "src country" "src geo", SameBut("see `country`"), Country, [column(SOURCE_ADDRESS_COLUMN)], "";
    "dst country" "dst geo", SameBut("see `country`"), Country, [column(DESTINATION_ADDRESS_COLUMN)], "";
    "nat country" "nat geo", SameBut("see `country`"), Country, [column(NAT_ADDRESS_COLUMNS[0]), column(NAT_ADDRESS_COLUMNS[1])], "country of either address after NAT";
    "src nat country" "src nat geo", SameBut("see `country`"), Country, [column(NAT_ADDRESS_COLUMNS[0])], "";
    "dst nat country" "dst nat geo", SameBut("see `country`"), Country, [column(NAT_ADDRESS_COLUMNS[1])], "";
    "asn", Unknown, Asn, [column(SOURCE_ADDRESS_COLUMN), column(DESTINATION_ADDRESS_COLUMN)], "autonomous system of either address; \
    `as` has the exporter's value";
    "src asn", Unknown, Asn, [column(SOURCE_ADDRESS_COLUMN)], "";
    "dst asn", Unknown, Asn, [column(DESTINATION_ADDRESS_COLUMN)], "";
    "as name", Unknown, AsName, [column(SOURCE_ADDRESS_COLUMN), column(DESTINATION_ADDRESS_COLUMN)], "name of the autonomous system of either address";
    "src as name", Unknown, AsName, [column(SOURCE_ADDRESS_COLUMN)], "";
    "dst as name", Unknown, AsName, [column(DESTINATION_ADDRESS_COLUMN)], "";
    "name", Unknown, Prefix, [column(SOURCE_ADDRESS_COLUMN), column(DESTINATION_ADDRESS_COLUMN)], "name of your prefix that contains either address";
    "src name", Unknown, Prefix, [column(SOURCE_ADDRESS_COLUMN)], "";
    "dst name", Unknown, Prefix, [column(DESTINATION_ADDRESS_COLUMN)], "";
    "if name", Unknown, Interface, [column("ingressInterface"), column("egressInterface")], "name of either interface";
    "in if name", Unknown, Interface, [column("ingressInterface")], "";
    "out if name", Unknown, Interface, [column("egressInterface")], "";
    "service", Unknown, Service, [], "either port belongs to this service";
    "field", Unknown, Field, [], "a field without a column, by its IANA name or `enterprise/number`; without a comparison: the record has the field";
};

/// Terms of nfdump that are not supported, with the reason or a replacement. An `N` at the end stands for any number.
pub const UNSUPPORTED_FILTER_TERMS: &[(&str, &str)] = &[
    ("count", "records are not numbered; use `--most` for the first records"),
    ("cnt", "records are not numbered; use `--most` for the first records"),
    ("ident", "a file does not name its source; use a directory for each source, or `router ip`"),
    ("engine-type", "no column; use `field engineType`"),
    ("engine type", "no column; use `field engineType`"),
    ("engine-id", "no column; use `field engineId`"),
    ("engine id", "no column; use `field engineId`"),
    ("exporter id", "exporters have no numbers here; use `exporter ip` and `observation domain id`"),
    ("exporter sysid", "exporters have no numbers here; use `exporter ip` and `observation domain id`"),
    ("sysid", "exporters have no numbers here; use `exporter ip` and `observation domain id`"),
    ("fwdstat", "no column; use `field forwardingStatus`"),
    ("ethertype", "no column; use `field ethernetType`"),
    ("prev as", "no column; use `field bgpPrevAdjacentAsNumber`"),
    ("next as", "no column; use `field bgpNextAdjacentAsNumber`"),
    ("mask", "no column; use `field sourceIPv4PrefixLength` and similar fields"),
    ("src mask", "no column; use `field sourceIPv4PrefixLength` or `sourceIPv6PrefixLength`"),
    ("dst mask", "no column; use `field destinationIPv4PrefixLength` or `destinationIPv6PrefixLength`"),
    ("out mac", "no column; use `field postSourceMacAddress`, `postDestinationMacAddress`"),
    ("out src mac", "no column; use `field postSourceMacAddress`"),
    ("out dst mac", "no column; use `field postDestinationMacAddress`"),
    ("mpls labelN", "only three labels are stored: `label0` to `label2`"),
    ("mpls expN", "only three labels are stored: `exp0` to `exp2`"),
    (
        "mpls eos",
        "only three labels are stored, so the bottom label of a deeper stack is unknown; use `mpls label0`, `label1` or `label2`",
    ),
    ("flow", "a record belongs to one flow; `flowPart = 0` selects the first record of each flow"),
    ("flows", "a record belongs to one flow; `flowPart = 0` selects the first record of each flow"),
    ("flowdir", "no column; use `field flowDirection`"),
    ("tun proto", "use `tunnel`, which tests the kind of tunnel"),
    ("observation point id", "no column; use `field observationPointId`"),
    ("payload", "records have no payload"),
    ("in payload", "records have no payload"),
    ("out payload", "records have no payload"),
    ("client latency", "no column; the value is stored in `otherFields`"),
    ("server latency", "no column; the value is stored in `otherFields`"),
    ("asa", "no column; use `field firewallEvent`"),
    ("nat event", "no column; use `field natEvent`"),
    ("ingress vrf", "no column; use `field ingressVRFID`"),
    ("egress vrf", "no column; use `field egressVRFID`"),
    ("ingress acl", "no column; the value is stored in `otherFields`"),
    ("egress acl", "no column; the value is stored in `otherFields`"),
    ("nat pblock", "no column; the value is stored in `otherFields`"),
    ("in nat pblock", "no column; the value is stored in `otherFields`"),
    ("pblock", "no column; the value is stored in `otherFields`"),
    ("pf", "records have no fields of a packet filter's log"),
    ("@include", "write `--filter \"$(cat FILE)\"`"),
];

/// The reason why a phrase of nfdump is not supported, if it is one of [`UNSUPPORTED_FILTER_TERMS`].
pub(super) fn reason_if_unsupported(phrase: &str) -> Option<&'static str> {
    let is_called = |name: &str| match name.strip_suffix('N') {
        Some(start) => phrase.strip_prefix(start).is_some_and(|number| number.parse::<u32>().is_ok()),
        None => name == phrase,
    };
    UNSUPPORTED_FILTER_TERMS.iter().find(|(name, _)| is_called(name)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::flow_columns;
    use std::collections::BTreeSet;

    #[test]
    fn every_term_looks_at_columns_that_there_are() {
        for term in FILTER_TERMS {
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
        let terms: String = FILTER_TERMS.iter().map(term_row).collect();
        assert!(page.contains(&terms), "the rows of the page should be:\n{terms}");
        let mut missing = String::new();
        for (phrase, why) in UNSUPPORTED_FILTER_TERMS {
            missing.extend(["| `", phrase, "` | ", why, " |\n"]);
        }
        assert!(page.contains(&missing), "the rows of the page should be:\n{missing}");
    }

    #[test]
    fn no_phrase_means_two_things() {
        let phrases: Vec<_> = FILTER_TERMS.iter().flat_map(|term| term.phrases).collect();
        assert_eq!(phrases.iter().collect::<BTreeSet<_>>().len(), phrases.len());
        for (missing, _) in UNSUPPORTED_FILTER_TERMS {
            assert!(!phrases.contains(&missing), "{missing}");
        }
    }
}
