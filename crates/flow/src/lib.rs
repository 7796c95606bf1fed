//! The part of the flow meter that does no input or output: it parses packets, finds their flows, counts, and writes
//! and reads flow records.
//!
//! ```text
//!  frame -> parse -> Packet -> table -> FlowRecord -> export (IPFIX, NetFlow, SIM) -> bytes
//!             |                  |          ^
//!          Ignored            Counts        +--------- collect <---------------------- bytes
//! ```
//! This crate opens no file or socket, starts no thread and reads no clock: the caller gives it
//! bytes, records and times.
//!
//! Invariant: every packet is metered, untracked because the table was full, or ignored for one cause
//! ([`PacketCounts`]). Every metered packet is in the table or in exactly one record.
#![forbid(unsafe_code)]

pub mod account;
mod canonical;
pub mod collect;
mod counts;
pub mod element;
pub mod export;
mod foreign;
pub mod group;
pub mod hash;
mod history;
pub mod iana;
mod key;
mod ledger;
mod losses;
mod membership;
mod narrow;
mod packet;
pub mod parse;
mod record;
pub mod sim;
pub mod table;

pub use counts::{CountImbalance, PacketCounts};
pub use foreign::{ForeignFields, MAX_OTHER_BYTES, OtherFields, REVERSE_ENTERPRISE, field_kind, field_name};
pub use hash::flow_id;
pub use history::{
    CountTotals, CountedPacketSpan, DirectionHistory, FlowHistory, Landmark, LandmarkKind,
    MAX_RECORD_LANDMARKS, MAX_STORED_PLACES, RecordOriginMark, StoredPackets, StoredPlace,
};
pub use key::FlowKey;
pub use ledger::{CaptureCounts, CarriedRecords, ExportCounts, MeterLedger};
pub use losses::{LossCause, RecordLosses};
pub use membership::GroupMembership;
pub use packet::{IPV4_MAPPED_PREFIX, IgnoredReason, PacketInfo, TunnelKind, flags};
pub use record::{EndReason, FlowHalf, FlowRecord};
pub use table::{FlowEventReceiver, FlowTable, FullTableReaction, MemoryHints, TableOptions};
