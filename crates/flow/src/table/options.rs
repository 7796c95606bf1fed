//! Options of the flow table: the fields of a key, the timeouts, and the behaviour of a full table.

use crate::history::RecordOriginMark;
use packetrig_units::Nanos;

/// Options of a flow table.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct TableOptions {
    /// Maximum number of flows that the table holds; fixed.
    pub capacity: u32,
    /// A flow that continues is reported this often.
    pub active: Nanos,
    /// A flow that is silent for this long has ended.
    pub idle: Nanos,
    /// Time for which a TCP flow is kept after its end, for late packets.
    pub grace: Nanos,
    /// True if both directions are one flow.
    pub biflow: bool,
    /// True if type and code of ICMP distinguish flows. If both directions are one flow, a reply is in the flow of its
    /// request either way.
    pub icmp_in_key: bool,
    /// True if VLAN identifiers distinguish flows.
    pub vlan_in_key: bool,
    /// True if the kind and number of the tunnel distinguish flows.
    pub tunnel_in_key: bool,
    /// Secret of the table's hash: random, new for every process.
    pub hash_key: [u64; 2],
    /// Key of the flow numbers: meters with the same key give a flow the same number.
    pub flow_id_key: [u64; 2],
    /// Sampling interval of the packets that are given to the table; for the records only.
    pub sampling: u32,
    /// What happens to a new flow if the table is full.
    pub when_full: FullTableReaction,
    /// Group, number and interface of the meter if it is one of a group; then records contain the history of
    /// their flows. Needs [biflow](Self::biflow).
    pub group: Option<RecordOriginMark>,
    /// True if the source shows the traffic from its beginning, as a file does. Then the first packet of a flow that
    /// the table sees is the first packet of that flow.
    pub begins_with_all: bool,
}

/// What happens to a new flow if the table is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullTableReaction {
    /// The table ends the flow that has been silent longest.
    #[default]
    Evict,
    /// The packets of the new flow are counted as untracked.
    Refuse,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            active: Nanos::from_secs(300),
            idle: Nanos::from_secs(30),
            grace: Nanos::from_secs(1),
            biflow: true,
            icmp_in_key: true,
            vlan_in_key: true,
            tunnel_in_key: true,
            hash_key: [0; 2],
            flow_id_key: [0; 2],
            sampling: 1,
            when_full: FullTableReaction::Evict,
            group: None,
            begins_with_all: false,
        }
    }
}
