//! Subscriptions of a controller that is one among several: for each node that it listens to, one for letters
//! and one for telemetry.
//!
//! Invariant: after `listen_to` returns, the server handles the subscriptions before any message that is posted later.

use super::listening::{ListeningTaskContext, MessageQueueSenders, run_letter_task, run_telemetry_task};
use crate::runtime::SharedRuntime;
use crate::subject;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::NodeName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Time within which the send queue of the connection must have space for the subscriptions.
const SUBSCRIPTION_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Nodes from which an endpoint accepts messages. Clones share the set.
#[derive(Clone, Debug, Default)]
pub(super) struct AcceptedNodes(Option<Arc<Mutex<BTreeSet<NodeName>>>>);

impl AcceptedNodes {
    /// Accepts all nodes, unless `name` is one controller among several.
    pub(super) fn for_endpoint(name: &NodeName) -> Self {
        let hears_everybody = !name.is_controller() || *name == NodeName::controller();
        Self((!hears_everybody).then(Arc::default))
    }

    fn lock_nodes(nodes: &Mutex<BTreeSet<NodeName>>) -> MutexGuard<'_, BTreeSet<NodeName>> {
        nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn includes_all_nodes(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn contains(&self, node: &NodeName) -> bool {
        self.0.as_ref().is_none_or(|nodes| Self::lock_nodes(nodes).contains(node))
    }
}

#[derive(Debug)]
pub(super) struct NodeSubscriptions {
    listener: ListeningTaskContext,
    feeds: MessageQueueSenders,
    tasks: BTreeMap<NodeName, [JoinHandle<()>; 2]>,
}

impl Drop for NodeSubscriptions {
    fn drop(&mut self) {
        for task in self.tasks.values().flatten() {
            task.abort();
        }
    }
}

impl NodeSubscriptions {
    pub(super) const fn new(listener: ListeningTaskContext, feeds: MessageQueueSenders) -> Self {
        Self { listener, feeds, tasks: BTreeMap::new() }
    }

    pub(super) const fn covers_all_nodes(&self) -> bool {
        self.listener.heard.includes_all_nodes()
    }

    /// Subscribes to the given nodes that have no subscription yet.
    pub(super) fn listen_to(&mut self, nodes: &[NodeName], runtime: &SharedRuntime) -> Result<(), Error> {
        let Some(heard) = &self.listener.heard.0 else { return Ok(()) };
        let fresh: Vec<NodeName> =
            nodes.iter().filter(|node| !self.tasks.contains_key(*node)).cloned().collect();
        // The set is extended before the subscriptions: a letter may come at once, and `admits_message` checks
        // whether its sender is in the set.
        AcceptedNodes::lock_nodes(heard).extend(fresh.iter().cloned());
        let subscribing = subscribe_to_nodes(self.listener.clone(), self.feeds.clone(), fresh);
        let subscribed = runtime.run_with_timeout(SUBSCRIPTION_WRITE_TIMEOUT, subscribing);
        let refused = "the queue of messages to the server is full";
        self.tasks.extend(subscribed.unwrap_or_else(|| Err(Error::Down(refused.to_owned())))?);
        Ok(())
    }

    pub(super) fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        if let Some(heard) = &self.listener.heard.0 {
            // Changes the set first, so that messages that the tasks still read are not queued.
            AcceptedNodes::lock_nodes(heard).retain(|node| !nodes.contains(node));
        }
        for task in nodes.iter().filter_map(|node| self.tasks.remove(node)).flatten() {
            task.abort();
        }
    }
}

async fn subscribe_to_nodes(
    listener: ListeningTaskContext,
    feeds: MessageQueueSenders,
    nodes: Vec<NodeName>,
) -> Result<Vec<(NodeName, [JoinHandle<()>; 2])>, Error> {
    let mut tasks = Vec::new();
    for node in nodes {
        let name = subject::node_subject_token(&node)?;
        let letters = listener.own.subscribe_to(&subject::letter_subject(name)).await?;
        let telemetry = listener.own.subscribe_to(&subject::telemetry_subjects(name)).await?;
        let letters = tokio::spawn(run_letter_task(listener.clone(), letters, feeds.clone()));
        let telemetry = tokio::spawn(run_telemetry_task(listener.clone(), telemetry, feeds.clone()));
        tasks.push((node, [letters, telemetry]));
    }
    Ok(tasks)
}
