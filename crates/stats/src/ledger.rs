//! The accounts every frame is in. A ledger is a value: merge it, then ask it to balance.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One account: a place where a frame can be, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// The schedule asked for it (by the time the sender stopped).
    Planned,
    /// Planned, but the run ended before it was built.
    Unsent,
    /// Written into a send buffer.
    Built,
    /// Built, but the kernel refused it.
    Refused,
    /// Given to the kernel, which took it.
    HandedOver,
    /// Taken, but the interface counted it as dropped on transmit.
    TxDropped,
    /// The interface counted it as transmitted.
    OnWire,
    /// The receiving interface counted it as received.
    Arrived,
    /// Arrived, but the interface dropped it.
    RxDropped,
    /// Arrived, but our ring was full.
    RingDropped,
    /// Delivered to us.
    Seen,
    /// Seen, but not a frame of this run.
    Foreign,
    /// Seen, and known by its tag or headers.
    Recognised,
    /// Recognised, first copy.
    Counted,
    /// Recognised, a copy of one counted.
    Duplicate,
    /// Recognised, too late to tell.
    Stale,
    /// Recognised by its headers only: the tag was damaged.
    Unnumbered,
    /// Sent, never counted (per receiver it was meant for).
    Lost,
}

/// Accounts and their counts. An account that was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger {
    counts: BTreeMap<Account, u64>,
}
