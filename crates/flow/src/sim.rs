//! SIM, summaries of information: an item for every packet, and one for every new flow, in datagrams that are filled
//! as far as possible.
//!
//! ```text
//!  0        1        2        3        4        5        6        7
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! |      'S' 'I' 'M'         | version|     length      |      items      |  header, 32 bytes
//! |          exporter                 |        datagram sequence          |
//! |                           event sequence                              |
//! |                             base time                                 |
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! |  kind 1|  bytes of the IP packet  |  time - base, ns (signed)         |  packet, 16 bytes
//! |                              flow id                                  |
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! |  kind 2|           0              |     bytes of the IP packet        |  packet, 24 bytes: what does not
//! |                               time                                    |  fit the short form
//! |                              flow id                                  |
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! |  kind 3|protocol| tunnel |   0    |      VLAN       |   inner VLAN    |  new flow: kind 3 of IPv4, 40 bytes;
//! |            tunnel id              |   source port   |destination port |  kind 4 of IPv6, 64 bytes with
//! |                              flow id                                  |  addresses of 16 bytes
//! |                               time                                    |
//! |         source address            |        destination address        |
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! |  kind 5|   0    |     values      |                 0                 |  ledger, 16 + 8 * values bytes: the
//! |                               time                                    |  values of `LEDGER_ACCOUNTS` by
//! |                             value ...                                 |  number, all ones: not known
//! +--------+--------+--------+--------+--------+--------+--------+--------+
//! ```
//! Everything is big-endian, times are nanoseconds since 1970. `length` is that of the datagram, header
//! included, so a stream or a file holds datagrams one after the other. `datagram sequence` counts datagrams
//! before this one, `event sequence` packets and new flows before this one, so the number of missing events
//! between two datagrams is exact. Ledgers are items, not events.
//!
//! Invariant: every event given to the encoder is in exactly one finished datagram, or in the datagram that
//! is not full yet.

mod decode;
mod encode;

use crate::key::FlowKey;

pub use decode::{SimDatagram, SimDecoder, SimError, SimItem};
pub use encode::{SimEncoder, SimOptions};

/// A packet or a new flow to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimEvent {
    /// A flow was opened; reported before its first packet.
    Flow {
        flow_id: u64,
        /// Key of the flow, in the direction of its first packet.
        key: FlowKey,
        /// Time at which the flow was opened, nanoseconds since 1970.
        at_ns: u64,
    },
    Packet {
        /// Number of the packet's flow.
        flow_id: u64,
        /// Length of the IP packet.
        bytes: u32,
        /// Time of the packet, nanoseconds since 1970.
        at_ns: u64,
    },
}

// A standby keeps one event for each packet of the last seconds: see docs/book/meter-group.md.
const _: () = assert!(size_of::<SimEvent>() == 64, "one line of cache");

/// First bytes of a datagram.
pub const SIM_DATAGRAM_MAGIC: [u8; 3] = *b"SIM";
/// The version of the layout.
pub const VERSION: u8 = 1;
/// The usual UDP port.
pub const SIM_PORT: u16 = 4738;
/// Length of a datagram's header, in bytes.
pub const HEADER: usize = 32;
/// UDP payload of an IPv4 packet of 1500 bytes.
pub const MAX_PAYLOAD_V4: usize = 1500 - 20 - 8;
/// UDP payload of an IPv6 packet of 1500 bytes.
pub const MAX_PAYLOAD_V6: usize = 1500 - 40 - 8;

/// Kinds of items and their lengths in bytes.
pub mod item {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ItemLayout {
        pub kind: u8,
        pub length: usize,
    }

    /// A packet, the short form.
    pub const PACKET_ITEM_LAYOUT: ItemLayout = ItemLayout { kind: 1, length: 16 };
    /// A packet, the long form.
    pub const LONG_PACKET_ITEM_LAYOUT: ItemLayout = ItemLayout { kind: 2, length: 24 };
    /// A new flow of IPv4.
    pub const FLOW_V4_ITEM_LAYOUT: ItemLayout = ItemLayout { kind: 3, length: 40 };
    /// A new flow of IPv6.
    pub const FLOW_V6_ITEM_LAYOUT: ItemLayout = ItemLayout { kind: 4, length: 64 };
    /// A ledger; the length is without its values.
    pub const LEDGER_ITEM_LAYOUT: ItemLayout = ItemLayout { kind: 5, length: 16 };
}

#[cfg(test)]
mod tests;
