//! Key that identifies the flow of a packet.

use crate::canonical::{CanonicalKey, counterpart_type_code, is_icmp, request_type_code};
use crate::packet::{IPV4_MAPPED_PREFIX, PacketInfo, TunnelKind};
use serde::{Deserialize, Serialize};

/// Identity of a flow in one direction, from source to destination. In a canonical key, the source
/// is the lower endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowKey {
    /// Source address; IPv4 is mapped.
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: u16,
    /// Destination port; for ICMP, type and code if they distinguish flows, else 0.
    pub destination_port: u16,
    pub protocol: u8,
    /// Kind of tunnel that carries the flow.
    pub tunnel: TunnelKind,
    pub vlan: u16,
    /// The VLAN tag inside the outermost one.
    pub inner_vlan: u16,
    /// Number of the tunnel.
    pub tunnel_id: u32,
}

impl FlowKey {
    /// Returns the key of a packet's flow, in the direction of the packet.
    pub const fn from_packet(packet: &PacketInfo) -> Self {
        Self {
            source: packet.source,
            destination: packet.destination,
            source_port: packet.source_port,
            destination_port: packet.destination_port,
            protocol: packet.protocol,
            tunnel: packet.tunnel,
            vlan: packet.vlan,
            inner_vlan: packet.inner_vlan,
            tunnel_id: packet.tunnel_id,
        }
    }

    /// Returns the key of the opposite direction. An ICMP request becomes its reply, and a reply its request.
    #[must_use]
    pub const fn opposite_direction(self) -> Self {
        let mut reversed = Self { source: self.destination, destination: self.source, ..self };
        if is_icmp(self.protocol) {
            // ICMP has no ports. Type and code stand in the place of the destination port and stay there: swapped with
            // the source port they would leave the key, and request and reply would be two flows.
            reversed.destination_port = counterpart_type_code(self.protocol, self.destination_port);
        } else {
            reversed.source_port = self.destination_port;
            reversed.destination_port = self.source_port;
        }
        reversed
    }

    /// Returns the key that is the same for both directions: its source is the lower endpoint, and an ICMP reply has
    /// the type and code of its request.
    #[must_use]
    pub fn to_canonical(self) -> Self {
        let canonical = CanonicalKey { flipped: false, ..CanonicalKey::from_key(&self) };
        canonical.to_flow_key(request_type_code(self.protocol, self.destination_port))
    }

    /// Returns whether both addresses are IPv4. Both must be, because an IPv6 address does not fit into four bytes.
    pub fn is_ipv4(&self) -> bool {
        self.source.starts_with(&IPV4_MAPPED_PREFIX) && self.destination.starts_with(&IPV4_MAPPED_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_key_is_ipv4_with_two_mapped_addresses() {
        let mut mapped = [7; 16];
        mapped[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        let key = |source, destination| FlowKey { source, destination, ..FlowKey::default() };
        assert!(key(mapped, mapped).is_ipv4());
        for (source, destination) in [(mapped, [7; 16]), ([7; 16], mapped), ([7; 16], [7; 16])] {
            assert!(!key(source, destination).is_ipv4());
        }
    }
}
