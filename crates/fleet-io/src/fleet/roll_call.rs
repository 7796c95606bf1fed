//! Finds out which nodes are present, and measures the round-trip times of messages to them.
//!
//! Invariant: a round trip is measured only with an answer to the current call. A hello for an earlier call, or
//! without a call, only shows that the node is present.

use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::members::{FleetMembers, NodePresence, SUSPECT_AFTER};
use packetrig_fleet::message::{MessageBody, MessageEnvelope, Nonce};
use packetrig_report::NodeName;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Longest wait for a node that should be present: a round trip of a second, and the time that the
/// node needs to answer.
const ROLL_CALL_TIMEOUT: Nanos = Nanos::from_secs(2);

/// Maximum number of waiting messages that are read at once, because nodes may keep sending.
const MAX_WAITING: usize = 100_000;

/// Round trips to the nodes that have answered, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    trips: BTreeMap<NodeName, Nanos>,
    /// Nodes that answered an earlier call. The next call waits for them, too.
    answered: BTreeSet<NodeName>,
}

impl RoundTrips {
    /// Sends a roll call to all nodes, and waits until all expected nodes have answered, or [`ROLL_CALL_TIMEOUT`] is
    /// over. Expected are the `enrolled` nodes, nodes that answered before, and nodes with a recent hello.
    pub(super) fn ask_all_nodes<E: Endpoint>(
        &mut self,
        endpoint: &mut E,
        members: &mut FleetMembers,
        enrolled: &BTreeSet<NodeName>,
    ) -> Result<(), Error> {
        // Older hellos are read first, so that the answers to this call do not wait behind them in a long queue.
        read_waiting_hellos(endpoint, members);
        let mut expected = enrolled.clone();
        expected.append(&mut self.answered);
        let here = members.iter().filter(|(_, member)| member.presence_at(now()) != NodePresence::Lost);
        expected.extend(here.map(|(name, _)| name.clone()));
        let asked = now();
        // Each call has another time of the monotonic clock as its nonce, so an answer to an earlier call is
        // recognised.
        let call = Nonce(asked.as_nanos());
        endpoint.post_to_all_nodes(MessageBody::RollCall(call))?;
        while !expected.is_empty() && now() < asked + ROLL_CALL_TIMEOUT {
            let Some(envelope) = endpoint.receive_message((asked + ROLL_CALL_TIMEOUT).since(now())) else {
                break;
            };
            let MessageEnvelope { from, body: MessageBody::Hello(hello) } = envelope else { continue };
            if hello.answers == Some(call) {
                expected.remove(&from);
                self.trips.insert(from.clone(), now().since(asked));
                self.answered.insert(from.clone());
            }
            // A hello for another call also proves that the node is present.
            members.on_hello(&from, *hello, now());
        }
        Ok(())
    }

    /// Returns the longest round trip to any of `nodes` that has answered; 0 if none has.
    pub(super) fn longest_round_trip<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeName>) -> Nanos {
        nodes.into_iter().filter_map(|node| self.trips.get(node)).copied().max().unwrap_or_default()
    }
}

/// Reads the waiting hellos. Each was sent at an unknown earlier time, so its node counts only as possibly lost.
fn read_waiting_hellos<E: Endpoint>(endpoint: &mut E, members: &mut FleetMembers) {
    let heard = now() - SUSPECT_AFTER;
    for _ in 0..MAX_WAITING {
        let Some(envelope) = endpoint.receive_message(Nanos::ZERO) else { return };
        if let MessageBody::Hello(hello) = envelope.body {
            members.on_hello(&envelope.from, *hello, heard);
        }
    }
}
