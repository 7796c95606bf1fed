//! A record as a row: the columns that files, sinks and tables share, named as IANA names IPFIX information elements.
//!
//! Each column says which element it is and reads its value from a record. What IANA has no element for has a name in the
//! same style and no number. The order is the order of columns.

use crate::packet::Tunnel;
use crate::record::FlowRecord;

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Its name.
    pub name: &'static str,
    /// Its number at IANA, 0 if it has none.
    pub id: u16,
    /// Whether it is the reverse of that element (RFC 5103).
    pub reverse: bool,
    /// What its values are.
    pub kind: Kind,
    /// Its value in a record.
    pub value: fn(&FlowRecord) -> Value,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of so many bits.
    Unsigned(u8),
    /// Nanoseconds since 1970.
    Time,
    /// An IPv6 address; IPv4 is mapped.
    Address,
    /// A MAC address.
    Mac,
    /// A word.
    Word,
    /// Yes or no.
    Flag,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Unsigned`] and [`Kind::Time`].
    Number(u64),
    /// Of [`Kind::Address`].
    Address([u8; 16]),
    /// Of [`Kind::Mac`].
    Mac([u8; 6]),
    /// Of [`Kind::Word`].
    Word(&'static str),
    /// Of [`Kind::Flag`].
    Flag(bool),
}

macro_rules! elements {
    ($($name:literal $id:literal $kind:expr, $record:ident => $value:expr;)*) => {
        &[$(Element { name: $name, id: $id, reverse: is_reverse($name), kind: $kind, value: |$record| $value }),*]
    };
}

const fn is_reverse(name: &str) -> bool {
    matches!(name.as_bytes(), [b'r', b'e', b'v', b'e', b'r', b's', b'e', ..])
}

const U8: Kind = Kind::Unsigned(8);
const U16: Kind = Kind::Unsigned(16);
const U32: Kind = Kind::Unsigned(32);
const U64: Kind = Kind::Unsigned(64);

/// Every column.
pub const ELEMENTS: &[Element] = elements! {
    "flowStartNanoseconds" 156 Kind::Time, record => Value::Number(record.first_ns());
    "flowEndNanoseconds" 157 Kind::Time, record => Value::Number(record.last_ns());
    "ipVersion" 60 U8, record => number(if record.key.is_ipv4() { 4_u8 } else { 6 });
    "sourceIPv6Address" 27 Kind::Address, record => Value::Address(record.key.source);
    "destinationIPv6Address" 28 Kind::Address, record => Value::Address(record.key.destination);
    "sourceTransportPort" 7 U16, record => number(record.key.source_port);
    "destinationTransportPort" 11 U16, record => number(record.key.destination_port);
    "protocolIdentifier" 4 U8, record => number(record.key.protocol);
    "packetDeltaCount" 2 U64, record => number(record.forward.packets);
    "octetDeltaCount" 1 U64, record => number(record.forward.bytes);
    "layer2OctetDeltaCount" 352 U64, record => number(record.forward.frame_bytes);
    "tcpControlBits" 6 U8, record => number(record.forward.tcp_flags);
    "reversePacketDeltaCount" 2 U64, record => number(record.reverse.packets);
    "reverseOctetDeltaCount" 1 U64, record => number(record.reverse.bytes);
    "reverseLayer2OctetDeltaCount" 352 U64, record => number(record.reverse.frame_bytes);
    "reverseTcpControlBits" 6 U8, record => number(record.reverse.tcp_flags);
    "dot1qVlanId" 243 U16, record => number(record.key.vlan);
    "dot1qCustomerVlanId" 245 U16, record => number(record.key.inner_vlan);
    "tunnelKind" 0 Kind::Word, record => Value::Word(tunnel(record.key.tunnel));
    "layer2SegmentId" 351 U32, record => number(record.key.tunnel_id);
    "outerSourceIPv6Address" 0 Kind::Address, record => Value::Address(record.outer_source);
    "outerDestinationIPv6Address" 0 Kind::Address, record => Value::Address(record.outer_destination);
    "mplsTopLabelStackSection" 70 U32, record => number(record.mpls[0] >> 8);
    "mplsLabelStackSection2" 71 U32, record => number(record.mpls[1] >> 8);
    "mplsLabelStackSection3" 72 U32, record => number(record.mpls[2] >> 8);
    "sourceMacAddress" 56 Kind::Mac, record => Value::Mac(record.source_mac);
    "destinationMacAddress" 80 Kind::Mac, record => Value::Mac(record.destination_mac);
    "minimumTTL" 52 U8, record => number(record.ttl_min);
    "maximumTTL" 53 U8, record => number(record.ttl_max);
    "ipClassOfService" 5 U8, record => number(record.tos);
    "icmpTypeCode" 0 U16, record => number(record.icmp);
    "flowEndReason" 136 U8, record => number(record.end as u8);
    "flowId" 148 U64, record => number(record.flow_id);
    "flowPart" 0 U16, record => number(record.part);
    "samplingInterval" 34 U32, record => number(record.sampling);
    "ingressInterface" 10 U32, record => number(record.input);
    "observedLoss" 0 Kind::Flag, record => Value::Flag(record.loss);
};

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}

/// The word for it.
const fn tunnel(tunnel: Tunnel) -> &'static str {
    match tunnel {
        Tunnel::None => "",
        Tunnel::Ip => "ip",
        Tunnel::Gre => "gre",
        Tunnel::Vxlan => "vxlan",
        Tunnel::Gtp => "gtp-u",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_numbers_are_told_apart() {
        let names: BTreeSet<_> = ELEMENTS.iter().map(|element| element.name).collect();
        assert_eq!(names.len(), ELEMENTS.len());
        let numbers: Vec<_> = ELEMENTS.iter().filter(|element| element.id > 0).collect();
        let set: BTreeSet<_> = numbers.iter().map(|element| (element.id, element.reverse)).collect();
        assert_eq!(set.len(), numbers.len());
    }

    #[test]
    fn values_are_of_their_kind() {
        let record = FlowRecord::default();
        for element in ELEMENTS {
            let fits = match ((element.value)(&record), element.kind) {
                (Value::Number(value), Kind::Unsigned(bits)) => bits == 64 || value >> bits == 0,
                (Value::Number(_), Kind::Time)
                | (Value::Address(_), Kind::Address)
                | (Value::Mac(_), Kind::Mac)
                | (Value::Word(_), Kind::Word)
                | (Value::Flag(_), Kind::Flag) => true,
                _ => false,
            };
            assert!(fits, "{}", element.name);
        }
    }
}
