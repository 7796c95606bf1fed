//! Whose packets are answered by what: each flow of packets that left belongs to one client.
//!
//! Invariant: a client is named only for a flow of which the release mechanism was given a packet of its own lately.

use packetrig_probe::service::{ClientId, PacketEnds, PacketFlow};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An answer that comes later is nobody's.
pub(super) const ANSWERED_WITHIN: Nanos = Nanos::from_secs(60);
/// Flows at a time, of all clients.
const MOST: usize = 65_536;
/// Flows that are over are looked for at most this often.
const FORGOTTEN_EVERY: Nanos = Nanos::from_secs(1);

/// A flow of packets, as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentFlow {
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    pub(super) flow: PacketFlow,
}

impl From<&PacketEnds> for SentFlow {
    fn from(ends: &PacketEnds) -> Self {
        Self { source: ends.source, target: ends.target, flow: ends.flow }
    }
}

/// Whose flow it is, and when its last packet left.
#[derive(Clone, Copy, Debug)]
struct FlowOwner {
    client: ClientId,
    sent_at: MonoTime,
}

#[derive(Debug, Default)]
struct KnownFlows {
    owners: BTreeMap<SentFlow, FlowOwner>,
    forgotten_at: MonoTime,
}

#[derive(Debug, Default)]
pub(super) struct SentFlows {
    known: Mutex<KnownFlows>,
}

impl SentFlows {
    fn lock(&self) -> MutexGuard<'_, KnownFlows> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a packet leaves. A flow that is another client's stays that client's.
    pub(super) fn note(&self, client: ClientId, flow: SentFlow, now: MonoTime) {
        let mut known = self.lock();
        if known.owners.len() >= MOST && now.since(known.forgotten_at) >= FORGOTTEN_EVERY {
            known.forgotten_at = now;
            known.owners.retain(|_, owner| now.since(owner.sent_at) < ANSWERED_WITHIN);
        }
        let has_room = known.owners.len() < MOST;
        match known.owners.get_mut(&flow) {
            Some(owner) if owner.client == client => owner.sent_at = now,
            Some(owner) if now.since(owner.sent_at) < ANSWERED_WITHIN => {}
            Some(owner) => *owner = FlowOwner { client, sent_at: now },
            None if has_room => {
                known.owners.insert(flow, FlowOwner { client, sent_at: now });
            }
            None => {}
        }
    }

    /// The client whose packet of this flow left within this time.
    pub(super) fn owner(&self, flow: &SentFlow, within: Nanos, now: MonoTime) -> Option<ClientId> {
        let known = self.lock();
        let owner =
            known.owners.get(flow).filter(|owner| now.since(owner.sent_at) < within.min(ANSWERED_WITHIN))?;
        Some(owner.client)
    }

    pub(super) fn remove_client(&self, client: ClientId) {
        self.lock().owners.retain(|_, owner| owner.client != client);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().owners.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_one_owner_until_it_is_over() {
        let ip = "127.0.0.1".parse().unwrap();
        let flow = SentFlow { source: ip, target: ip, flow: PacketFlow::Icmp { identifier: 7 } };
        let at = |s: u64| MonoTime::from_nanos(s * 1_000_000_000);
        let flows = SentFlows::default();
        flows.note(ClientId(1), flow, at(10));
        flows.note(ClientId(2), flow, at(20));
        let owner = |within, now| flows.owner(&flow, Nanos::from_secs(within), at(now));
        assert_eq!((owner(60, 21), owner(10, 21)), (Some(ClientId(1)), None));
        flows.note(ClientId(2), flow, at(71));
        assert_eq!((owner(60, 72), owner(600, 140)), (Some(ClientId(2)), None));
        flows.remove_client(ClientId(2));
        assert!(flows.is_empty());
    }
}
