//! Record of a flow, made when the flow is reported.

use crate::account::ENTERPRISE_NUMBER;
use crate::canonical::{counterpart_type_code, is_icmp};
use crate::export::section::own;
use crate::foreign::ForeignFields;
use crate::history::FlowHistory;
use crate::key::FlowKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One report of a flow. A long flow is reported in several [parts](FlowRecord::part), each with its own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowRecord {
    /// Key of the flow; the source is the end that sent the first packet.
    pub key: FlowKey,
    /// Counts from source to destination.
    pub forward: FlowHalf,
    /// Counts of the other direction; all zero in a one-way record.
    pub reverse: FlowHalf,
    /// Number of the flow. All meters with the same flow-id key give the flow the same number.
    pub flow_id: u64,
    /// Number of earlier records of this flow.
    pub part: u16,
    /// Reason for the report.
    pub end: EndReason,
    /// Smallest time to live seen.
    pub ttl_min: u8,
    pub ttl_max: u8,
    /// Type of service of the first packet.
    pub tos: u8,
    /// For ICMP, type and code of the first packet.
    pub icmp: u16,
    /// MPLS labels of the first packet, outermost first.
    pub mpls: [u32; 3],
    /// Source MAC address of the first packet.
    pub source_mac: [u8; 6],
    /// Destination MAC address of the first packet.
    pub destination_mac: [u8; 6],
    /// Outer source address of the first packet, if it was in a tunnel.
    pub outer_source: [u8; 16],
    /// See `outer_source`.
    pub outer_destination: [u8; 16],
    /// Sampling interval: one of this many packets was metered; 1: all.
    pub sampling: u32,
    /// The kernel's index of the interface through which the flow arrived; 0 if not known.
    pub input: u32,
    /// True if packets were lost before the meter while the flow was active.
    pub loss: bool,
    /// True if packets of the flow were merged before the meter and the meter could not split them: it counted each
    /// merged packet as one.
    pub merged: bool,
    /// Fields that other exporters send and our meter does not; `None` in the records of our meter, so
    /// that they stay small.
    pub foreign: Option<Arc<ForeignFields>>,
    /// History of the flow since it began; absent unless the meter is one of a group.
    pub history: Option<Box<FlowHistory>>,
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHalf {
    pub packets: u64,
    /// Bytes of IP, headers included.
    pub bytes: u64,
    /// Bytes of whole frames, without FCS.
    pub frame_bytes: u64,
    /// Time of the first packet, nanoseconds since 1970; 0 if there was none.
    pub first_ns: u64,
    pub last_ns: u64,
    /// All TCP flags seen: twelve bits of the header, of which our meter reads eight (RFC 9565).
    pub tcp_flags: u16,
}

/// Why a flow was reported; the numbers are those of IPFIX `flowEndReason`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum EndReason {
    /// The flow was silent for the idle timeout.
    #[default]
    Idle = 1,
    /// The flow continues, and is reported in parts.
    Active = 2,
    /// TCP signalled the end of the flow.
    EndOfFlow = 3,
    /// The meter was stopped.
    Forced = 4,
    /// The table was full.
    LackOfResources = 5,
}

impl EndReason {
    /// Returns the reason with this number; `None` for an unknown number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Idle,
            2 => Self::Active,
            3 => Self::EndOfFlow,
            4 => Self::Forced,
            5 => Self::LackOfResources,
            _ => return None,
        })
    }
}

impl FlowRecord {
    /// Returns the packets of both directions together.
    pub const fn packets(&self) -> u64 {
        self.forward.packets.saturating_add(self.reverse.packets)
    }

    /// Returns whether a meter of a group made the record, also after the collector has moved the history
    /// to the other fields.
    pub fn is_of_group(&self) -> bool {
        self.history.is_some()
            || self
                .foreign
                .as_deref()
                .is_some_and(|fields| fields.others.has_element(ENTERPRISE_NUMBER, own::GROUP_ELEMENT))
    }

    /// Returns the IP bytes of both directions together.
    pub const fn bytes(&self) -> u64 {
        self.forward.bytes.saturating_add(self.reverse.bytes)
    }

    /// Returns the time of the first packet of either direction, nanoseconds since 1970.
    pub const fn first_ns(&self) -> u64 {
        match (self.forward.packets, self.reverse.packets) {
            // A direction without packets has time zero, which must not win as the earlier one.
            (_, 0) => self.forward.first_ns,
            (0, _) => self.reverse.first_ns,
            _ if self.forward.first_ns < self.reverse.first_ns => self.forward.first_ns,
            _ => self.reverse.first_ns,
        }
    }

    /// Returns the time of the last packet of either direction, nanoseconds since 1970.
    pub const fn last_ns(&self) -> u64 {
        if self.forward.last_ns > self.reverse.last_ns { self.forward.last_ns } else { self.reverse.last_ns }
    }

    /// Splits a biflow into two one-way records; the second is `None` if no packet came back. For ICMP, the second
    /// direction of a request counts as its reply, and the reverse.
    #[must_use]
    pub fn split_directions(&self) -> (Self, Option<Self>) {
        // A history is of both directions and cannot be split.
        let forward = Self { reverse: FlowHalf::default(), history: None, ..self.clone() };
        // Fields that describe an end are swapped with those of the other end; fields that describe the flow
        // or the meter (number, sampling, input) are copied. TTL and type of service are those of the whole
        // flow: the meter keeps no second set.
        let back = Self {
            key: self.reversed_key(),
            forward: self.reverse,
            reverse: FlowHalf::default(),
            icmp: counterpart_type_code(self.key.protocol, self.icmp),
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            outer_source: self.outer_destination,
            outer_destination: self.outer_source,
            foreign: self.foreign.as_ref().map(|foreign| Arc::new(foreign.opposite_direction())),
            history: None,
            ..self.clone()
        };
        (forward, (self.reverse.packets > 0).then_some(back))
    }

    /// Returns the destination port for outputs. For ICMP, this is type and code of the first packet: the meter's key
    /// has them only if they distinguish flows, and the keys of other exporters have them or zero.
    pub(crate) const fn shown_destination_port(&self) -> u16 {
        if is_icmp(self.key.protocol) { self.icmp } else { self.key.destination_port }
    }

    /// Returns the key of the other direction. Type and code of ICMP are not added if they are not part of this key.
    const fn reversed_key(&self) -> FlowKey {
        let key = self.key.opposite_direction();
        // A key without type and code has destination port 0. Reversing that would read it as an echo reply, type 0,
        // and turn it into a request.
        let has_type = self.key.destination_port == self.icmp;
        let destination_port =
            if is_icmp(key.protocol) && !has_type { self.key.destination_port } else { key.destination_port };
        FlowKey { destination_port, ..key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn icmp(protocol: u8, port: u16, icmp: u16) -> FlowRecord {
        let half = FlowHalf { packets: 1, ..FlowHalf::default() };
        let key = FlowKey {
            source: [1; 16],
            destination: [2; 16],
            destination_port: port,
            protocol,
            ..FlowKey::default()
        };
        FlowRecord { key, forward: half, reverse: half, icmp, ..FlowRecord::default() }
    }

    /// Returns the second direction: the key's ports, and the type and code of its first packet.
    fn back(record: &FlowRecord) -> (u16, u16, u16) {
        let (there, back) = record.split_directions();
        assert_eq!((there.key, there.icmp), (record.key, record.icmp));
        let back = back.expect("something came back");
        assert_eq!((back.key.source, back.key.destination), ([2; 16], [1; 16]));
        (back.key.source_port, back.key.destination_port, back.icmp)
    }

    #[test]
    fn icmp_destination_port_is_its_type_whoever_metered() {
        assert_eq!(icmp(1, 0x0303, 0x0303).shown_destination_port(), 0x0303);
        assert_eq!(icmp(1, 0, 0x0303).shown_destination_port(), 0x0303);
        assert_eq!(icmp(17, 53, 0).shown_destination_port(), 53);
    }

    #[test]
    fn icmp_reverse_half_is_answer_not_swapped_ports() {
        assert_eq!(back(&icmp(1, 0x0800, 0x0800)), (0, 0, 0));
        assert_eq!(back(&icmp(58, 0x8000, 0x8000)), (0, 0x8100, 0x8100));
        // The meter came late: the answer was its first packet.
        assert_eq!(back(&icmp(1, 0x0e00, 0x0e00)), (0, 0x0d00, 0x0d00));
        assert_eq!(back(&icmp(1, 0, 0)), (0, 0x0800, 0x0800));
        // A type that is no question has no answer.
        assert_eq!(back(&icmp(1, 0x0301, 0x0301)), (0, 0x0301, 0x0301));
    }

    #[test]
    fn numbers_are_those_of_their_reasons() {
        let known = (0..=u8::MAX).filter_map(|number| Some((number, EndReason::from_number(number)?)));
        assert!(known.clone().all(|(number, reason)| reason as u8 == number));
        assert_eq!(known.count(), 5);
    }

    #[test]
    fn reverse_key_omits_unkeyed_icmp_type() {
        assert_eq!(back(&icmp(1, 0, 0x0800)), (0, 0, 0));
        assert_eq!(back(&icmp(58, 0, 0x8100)), (0, 0, 0x8000));
    }
}
