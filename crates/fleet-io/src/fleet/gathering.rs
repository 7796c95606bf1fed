//! Collects the results of ended runs that nodes still have.

use super::collector::CollectorEvent;
use super::{FREE_NODE_CHECK_INTERVAL, FleetExecutor};
use crate::agent::now;
use crate::error::{Error, ignore_failure};
use packetrig_fleet::fabric::{Endpoint as _, Fabric};
use packetrig_fleet::members::UncollectedResult;
use packetrig_fleet::message::MessageBody;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::collections::BTreeSet;

/// Maximum number of sentences about results that could not be stored.
const MAX_TROUBLES: usize = 8;

/// Outcome of collecting results that nodes still had.
#[derive(Debug)]
pub struct RemainingResultsOutcome {
    /// Results that are still on nodes.
    pub left: Vec<UncollectedResult>,
    /// Reasons why results are still on nodes, as far as they are known.
    pub troubles: BTreeSet<String>,
}

impl<F: Fabric> FleetExecutor<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Collects the results of ended runs that nodes still have. Ends when no node has results any more, when no result
    /// has arrived for `timeout`, or when `goes_on` returns false. Calls `on_completed` for each completed report.
    pub fn collect_remaining_results(
        &mut self,
        timeout: Nanos,
        goes_on: &dyn Fn() -> bool,
        on_completed: &mut dyn FnMut(String),
    ) -> Result<RemainingResultsOutcome, Error> {
        let mut until = now() + timeout;
        let mut troubles = BTreeSet::new();
        loop {
            while let Some(news) = self.collector.next_event() {
                let arrival = match news {
                    CollectorEvent::Stored(arrival) => arrival,
                    // The fabric delivers unstored segments again.
                    CollectorEvent::Trouble(text) => {
                        if troubles.len() < MAX_TROUBLES {
                            troubles.insert(text);
                        }
                        continue;
                    }
                    // Refused segments do not come again, so the loop does not wait for them.
                    CollectorEvent::Refused { .. } => continue,
                };
                if let Some(completed) = arrival.completed.clone() {
                    on_completed(completed);
                }
                // A node that misses this message gets it with the next collection.
                ignore_failure(self.endpoint.post_message(&arrival.node, MessageBody::Stored(arrival.mark)));
                // Nodes are sending, so the wait begins anew.
                until = now() + timeout;
            }
            // Hellos list the results that each node still keeps.
            self.ask_all_nodes()?;
            let left: Vec<UncollectedResult> = self.members.iter_uncollected_results().collect();
            if left.is_empty() && self.collector.is_drained() || now() >= until || !goes_on() {
                // Everything is stored now, so earlier faults are resolved.
                if left.is_empty() && self.collector.is_drained() {
                    troubles.clear();
                }
                return Ok(RemainingResultsOutcome { left, troubles });
            }
            clock::sleep_until_ns((now() + FREE_NODE_CHECK_INTERVAL).as_nanos());
        }
    }
}
