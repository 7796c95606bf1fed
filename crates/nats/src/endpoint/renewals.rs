//! Renewals of leases: their own connection, with a subscription for each node.
//!
//! The server keeps the unread messages of a connection in one buffer for all senders. If one node fills that
//! buffer, the renewals of all other nodes wait, and their leases expire. So only renewals and their answers use this
//! connection, and a node that sends far too many renewals is ignored for a while. The connection is then opened again,
//! because the server discards the buffer of the old one.
//!
//! Invariant: a node that floods its subject delays the leases of other nodes by at most one reconnection.

use super::listening::ListeningTaskContext;
use super::place::EndpointState;
use super::quota::NodeQuota;
use crate::runtime::SharedRuntime;
use crate::subject;
use async_nats::{Message, Subscriber};
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::monotonic_ns;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Maximum number of renewals of one node in a burst. A lease of two seconds needs at least two renewals a second.
const MAX_RENEWAL_BURST: u64 = 256;
const MAX_RENEWAL_BURST_BYTES: u64 = 128 << 10;
/// Number of renewals per second that a node may send in the long term.
const RENEWALS_PER_SECOND: u64 = 64;
const RENEWAL_BYTES_PER_SECOND: u64 = 32 << 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Time for which a flooding node is ignored the first time. It doubles each time.
const FIRST_MUTE_TIME: Duration = Duration::from_secs(5);
const MAX_MUTE_TIME: Duration = Duration::from_mins(5);
/// Pause before a subscription is tried again.
const SUBSCRIPTION_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The queue of the renewals of all nodes.
#[derive(Clone, Debug)]
pub(super) struct RenewalQueue {
    pub(super) renewals: Sender<Message>,
    pub(super) quota: NodeQuota,
}

/// The controller's subscriptions, one for each node that it leads.
#[derive(Debug)]
pub(super) struct RenewalSubscriptions {
    listener: ListeningTaskContext,
    queue: RenewalQueue,
    tasks: BTreeMap<NodeName, JoinHandle<()>>,
}

impl Drop for RenewalSubscriptions {
    fn drop(&mut self) {
        for task in self.tasks.values() {
            task.abort();
        }
    }
}

impl RenewalSubscriptions {
    pub(super) const fn new(listener: ListeningTaskContext, queue: RenewalQueue) -> Self {
        Self { listener, queue, tasks: BTreeMap::new() }
    }

    /// Begins to receive the lease renewals of a node.
    pub(super) fn listen_to(&mut self, node: &NodeName, runtime: &SharedRuntime) {
        if self.tasks.contains_key(node) {
            return;
        }
        let task = run_renewal_task(self.listener.clone(), self.queue.clone(), node.clone());
        if let Some(task) = runtime.spawn(task) {
            self.tasks.insert(node.clone(), task);
        }
    }
}

impl RenewalSubscriptions {
    /// Ends the subscriptions for nodes that renew their leases at another controller from now on.
    pub(super) fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        for task in nodes.iter().filter_map(|node| self.tasks.remove(node)) {
            task.abort();
        }
    }
}

async fn run_renewal_task(listener: ListeningTaskContext, queue: RenewalQueue, node: NodeName) {
    let at = subject::renewal_subject(&node.0);
    let mut muted = FIRST_MUTE_TIME;
    loop {
        let Ok(mut subscriber) = listener.own.leases.subscribe(at.clone()).await else {
            tokio::time::sleep(SUBSCRIPTION_RETRY_PAUSE).await;
            continue;
        };
        let Some(count) = queue_until_flooded(&listener, &queue, &mut subscriber).await else { return };
        unsubscribe_and_reconnect(&listener.own, &mut subscriber).await;
        listener.own.troubles.add_failure(Error::NotPermitted(format!(
            "{at}: node {node} sent {count} renewals, far more than a lease needs; its renewals are ignored for {} s",
            muted.as_secs()
        )));
        tokio::time::sleep(muted).await;
        // A node that floods again gets a longer pause each time.
        muted = MAX_MUTE_TIME.min(2 * muted);
    }
}

/// Queues the renewals of a node until the node sends too many. Returns the number of renewals that the node sent;
/// `None` if the endpoint closes.
async fn queue_until_flooded(
    listener: &ListeningTaskContext,
    queue: &RenewalQueue,
    subscriber: &mut Subscriber,
) -> Option<u64> {
    let mut budget = RenewalRateLimiter::full_at(monotonic_ns());
    let mut count = 0;
    while let Some(message) = subscriber.next().await {
        count += 1;
        // The renewal is counted before its seal is checked, because forged renewals fill the server's buffer, too.
        if !budget.try_spend_renewal(message.length as u64, monotonic_ns()) {
            return Some(count);
        }
        if !listener.admits_message(&message) {
            continue;
        }
        if !queue.quota.reserve_quota(&message) {
            listener.count_dropped_letter(&message);
        } else if queue.renewals.send(message).is_err() {
            return None;
        }
    }
    None
}

/// Ends the subscription and discards the messages that the server still buffers for the connection.
async fn unsubscribe_and_reconnect(own: &EndpointState, subscriber: &mut Subscriber) {
    // A connection that is down has no buffer at the server, and dropping the subscription ends it.
    drop(subscriber.unsubscribe().await);
    drop(own.leases.force_reconnect().await);
}

/// Token bucket for the renewals of one node. Each renewal costs one token, and as many bytes as it is long.
#[derive(Debug)]
struct RenewalRateLimiter {
    renewals: u64,
    bytes: u64,
    filled_ns: u64,
}

impl RenewalRateLimiter {
    const fn full_at(now_ns: u64) -> Self {
        Self { renewals: MAX_RENEWAL_BURST, bytes: MAX_RENEWAL_BURST_BYTES, filled_ns: now_ns }
    }

    /// Takes one renewal with this number of bytes from the bucket. Returns false if the bucket
    /// does not contain enough.
    fn try_spend_renewal(&mut self, bytes: u64, now_ns: u64) -> bool {
        // Only whole seconds refill the bucket. The lost fractions make the budget a little smaller than the constants
        // say, but a lease needs far less.
        let seconds = now_ns.saturating_sub(self.filled_ns) / SECOND_NS;
        if seconds > 0 {
            self.renewals = MAX_RENEWAL_BURST
                .min(self.renewals.saturating_add(seconds.saturating_mul(RENEWALS_PER_SECOND)));
            self.bytes = MAX_RENEWAL_BURST_BYTES
                .min(self.bytes.saturating_add(seconds.saturating_mul(RENEWAL_BYTES_PER_SECOND)));
            self.filled_ns = now_ns;
        }
        if self.renewals == 0 || self.bytes < bytes {
            return false;
        }
        self.renewals -= 1;
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_budget_allows_steady_and_refuses_flood() {
        let mut steady = RenewalRateLimiter::full_at(0);
        assert!((0..10_000).all(|number| steady.try_spend_renewal(400, number * SECOND_NS / 20)));
        let mut flood = RenewalRateLimiter::full_at(0);
        assert_eq!((0..10_000).filter(|_| flood.try_spend_renewal(400, 1)).count() as u64, MAX_RENEWAL_BURST);
        assert!(flood.try_spend_renewal(400, 2 * SECOND_NS), "later there is room again");
        assert!(
            !RenewalRateLimiter::full_at(0).try_spend_renewal(MAX_RENEWAL_BURST_BYTES + 1, 0),
            "too long to be a renewal"
        );
    }
}
