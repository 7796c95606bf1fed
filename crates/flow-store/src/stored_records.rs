//! Converts stored rows back into records, so that they can be sent again.
//!
//! Two kinds of values are left out: fields without a column (`otherFields`), and the histories of
//! groups of meters.

use super::columns::flow_columns;
use super::filter::FlowFilter;
use super::scan::{RowChunk, map_records};
use super::{Error, RecordExporter};
use packetrig_flow::element::tunnel_by_name;
use packetrig_flow::{EndReason, FlowHalf, FlowKey, FlowRecord, ForeignFields, TunnelKind};
use packetrig_units::{clamp_to_u8, clamp_to_u16, clamp_to_u32};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// A record and the exporter that it came from.
pub type StoredRecord = (FlowRecord, RecordExporter);

/// Calls `each` with the records that a filter selects, a list at a time, in the order of files and
/// rows, until `each` stops.
pub fn for_each_record(
    files: &[PathBuf],
    filter: &FlowFilter,
    each: &mut dyn FnMut(Vec<StoredRecord>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let names: Vec<&'static str> =
        flow_columns().iter().map(|column| column.name).filter(|name| *name != "otherFields").collect();
    let make = |chunk: &RowChunk, rows: &[usize]| -> Vec<StoredRecord> {
        rows.iter().map(|row| StoredRow { chunk, row: *row }.to_stored_record()).collect()
    };
    map_records(files, filter, &names, make, each)
}

struct StoredRow<'a> {
    chunk: &'a RowChunk,
    row: usize,
}

impl StoredRow<'_> {
    fn column_u64(&self, name: &str) -> u64 {
        self.chunk.column(name).number_at(self.row)
    }

    fn column_u8(&self, name: &str) -> u8 {
        clamp_to_u8(self.column_u64(name))
    }

    fn column_u16(&self, name: &str) -> u16 {
        clamp_to_u16(self.column_u64(name))
    }

    fn column_u32(&self, name: &str) -> u32 {
        clamp_to_u32(self.column_u64(name))
    }

    fn column_address(&self, name: &str) -> [u8; 16] {
        self.chunk.column(name).address_at(self.row)
    }

    fn column_mac(&self, name: &str) -> [u8; 6] {
        self.chunk.column(name).mac_at(self.row)
    }

    fn to_stored_record(&self) -> StoredRecord {
        let first_ns = self.column_u64("flowStartNanoseconds");
        let last_ns = self.column_u64("flowEndNanoseconds");
        let forward = FlowHalf {
            packets: self.column_u64("packetDeltaCount"),
            bytes: self.column_u64("octetDeltaCount"),
            frame_bytes: self.column_u64("layer2OctetDeltaCount"),
            tcp_flags: self.column_u16("tcpControlBits"),
            first_ns,
            last_ns,
        };
        let reverse = FlowHalf {
            packets: self.column_u64("reversePacketDeltaCount"),
            bytes: self.column_u64("reverseOctetDeltaCount"),
            frame_bytes: self.column_u64("reverseLayer2OctetDeltaCount"),
            tcp_flags: self.column_u16("reverseTcpControlBits"),
            first_ns,
            last_ns,
        };
        // A direction without packets has no times.
        let with_packets = |half: FlowHalf| if half.packets > 0 { half } else { FlowHalf::default() };
        let routes = self.routed_fields();
        let mut record = FlowRecord {
            key: self.flow_key(),
            forward: if reverse.packets > 0 { with_packets(forward) } else { forward },
            reverse: with_packets(reverse),
            flow_id: self.column_u64("flowId"),
            part: self.column_u16("flowPart"),
            end: EndReason::from_number(self.column_u8("flowEndReason")).unwrap_or_default(),
            ttl_min: self.column_u8("minimumTTL"),
            ttl_max: self.column_u8("maximumTTL"),
            tos: self.column_u8("ipClassOfService"),
            icmp: self.column_u16("icmpTypeCode"),
            // The columns have label stack entries without the TTL byte.
            mpls: ["mplsTopLabelStackSection", "mplsLabelStackSection2", "mplsLabelStackSection3"]
                .map(|name| self.column_u32(name) << 8),
            source_mac: self.column_mac("sourceMacAddress"),
            destination_mac: self.column_mac("destinationMacAddress"),
            outer_source: self.column_address("outerSourceIPv6Address"),
            outer_destination: self.column_address("outerDestinationIPv6Address"),
            sampling: self.column_u32("samplingInterval"),
            input: self.column_u32("ingressInterface"),
            loss: self.column_u64("observedLoss") > 0,
            merged: self.column_u64("observedMerge") > 0,
            ..FlowRecord::default()
        };
        record.foreign = (routes != ForeignFields::default()).then(|| Arc::new(routes));
        let maker = RecordExporter {
            exporter: self.column_address("exporterIPv6Address"),
            domain: self.column_u32("observationDomainId"),
        };
        (record, maker)
    }

    fn flow_key(&self) -> FlowKey {
        let tunnel = self.chunk.column("tunnelKind").word_at(self.row);
        FlowKey {
            source: self.column_address("sourceIPv6Address"),
            destination: self.column_address("destinationIPv6Address"),
            source_port: self.column_u16("sourceTransportPort"),
            destination_port: self.column_u16("destinationTransportPort"),
            protocol: self.column_u8("protocolIdentifier"),
            tunnel: tunnel_by_name(tunnel).unwrap_or(TunnelKind::None),
            vlan: self.column_u16("dot1qVlanId"),
            inner_vlan: self.column_u16("dot1qCustomerVlanId"),
            tunnel_id: self.column_u32("layer2SegmentId"),
        }
    }

    fn routed_fields(&self) -> ForeignFields {
        ForeignFields {
            output: self.column_u32("egressInterface"),
            source_as: self.column_u32("bgpSourceAsNumber"),
            destination_as: self.column_u32("bgpDestinationAsNumber"),
            next_hop: self.column_address("ipNextHopIPv6Address"),
            bgp_next_hop: self.column_address("bgpNextHopIPv6Address"),
            post_vlan: self.column_u16("postVlanId"),
            post_tos: self.column_u8("postIpClassOfService"),
            nat_source: self.column_address("postNATSourceIPv6Address"),
            nat_destination: self.column_address("postNATDestinationIPv6Address"),
            nat_source_port: self.column_u16("postNAPTSourceTransportPort"),
            nat_destination_port: self.column_u16("postNAPTDestinationTransportPort"),
            ..ForeignFields::default()
        }
    }
}
