//! Lists the segments that wait in the stream, and removes the segments that no controller can read.
//!
//! All users of the fleet share the stream, and a node can append to any subject that ends with its name. If
//! a node has used a subject without a valid run, or subjects of more runs than [`MAX_RUNS_PER_NODE`], all
//! its segments are removed.

use super::{ReaderConnection, unanswered_error};
use crate::subject::{self, RESULTS_STREAM};
use async_nats::jetstream::stream::Stream;
use futures_util::{StreamExt, TryStreamExt, stream};
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{NodeName, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of runs of one node with waiting results. Only a faulty or hostile node has more.
const MAX_RUNS_PER_NODE: usize = 1024;
/// Maximum number of requests to remove segments that are in flight at a time.
const MAX_ORDERS_IN_FLIGHT: usize = 16;

/// The contents of the stream.
#[derive(Debug, Default)]
pub(super) struct StreamListing {
    /// Runs with waiting segments, and the readers of each.
    pub(super) runs: BTreeMap<RunId, BTreeSet<String>>,
    /// True if more than half of the stream's limit is used.
    pub(super) is_nearly_full: bool,
    /// Number of segments of each node that were removed because no controller can read them.
    pub(super) removed: BTreeMap<NodeName, u64>,
}

impl ReaderConnection {
    pub(super) async fn list_waiting_segments(&self) -> Result<StreamListing, Error> {
        let stream = self.get_or_create_stream().await?;
        let mut readers = self.list_readers_by_run(&stream).await?;
        let mut subjects =
            stream.info_with_subjects(format!("{RESULTS_STREAM}.>")).await.map_err(unanswered_error)?;
        // Only segments up to this one are removed, because later ones are not in this listing.
        let last = subjects.info.state.last_sequence;
        // A negative value means no limit.
        let room = u64::try_from(subjects.info.config.max_bytes).unwrap_or(u64::MAX);
        let mut listing = StreamListing {
            is_nearly_full: subjects.info.state.bytes > room / 2,
            ..StreamListing::default()
        };
        let mut suspects: BTreeMap<NodeName, usize> = BTreeMap::new();
        while let Some((subject, _)) = subjects.try_next().await.map_err(unanswered_error)? {
            let word = subject.split('.').nth(1).unwrap_or_default();
            let is_run = subject::is_run_word(word);
            if let Some(node) = subject::publishing_node(&subject) {
                let runs = suspects.entry(node).or_default();
                // One subject without a valid run is enough: no correct node uses such a subject.
                *runs = if is_run { runs.saturating_add(1) } else { usize::MAX };
            }
            if is_run && !listing.runs.contains_key(&RunId(word.to_owned())) {
                listing.runs.insert(RunId(word.to_owned()), readers.remove(word).unwrap_or_default());
            }
        }
        suspects.retain(|_, runs| *runs > MAX_RUNS_PER_NODE);
        listing.removed = self.remove_segments_of_nodes(&stream, suspects.into_keys(), last).await;
        Ok(listing)
    }

    /// Removes all segments of these nodes up to the sequence number `last` of the stream. The nodes still have genuine
    /// segments in their spools. Returns the number of removed segments of each node.
    async fn remove_segments_of_nodes(
        &self,
        stream: &Stream,
        nodes: impl Iterator<Item = NodeName>,
        last: u64,
    ) -> BTreeMap<NodeName, u64> {
        let removals = nodes.map(|node| async move {
            let mut removed = 0;
            for subjects in
                [subject::all_segment_subjects(&node.0), subject::malformed_segment_subject(&node.0)]
            {
                // After a failure the segments remain, and the next listing finds and removes them.
                removed += purge_subjects(stream, subjects, last).await.unwrap_or(0);
            }
            (node, removed)
        });
        let removed: Vec<_> = stream::iter(removals).buffered(MAX_ORDERS_IN_FLIGHT).collect().await;
        removed.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Removes the waiting segments of these runs, and returns how many there were.
    pub(super) async fn remove_runs(&self, runs: BTreeSet<String>) -> Result<u64, Error> {
        let stream = &self.get_or_create_stream().await?;
        // Segments that arrive after this point are not removed.
        let last = stream.cached_info().state.last_sequence;
        let removals =
            runs.into_iter().map(|run| purge_subjects(stream, subject::segment_subject(&run, "*"), last));
        let removed: Vec<u64> = stream::iter(removals).buffered(MAX_ORDERS_IN_FLIGHT).try_collect().await?;
        Ok(removed.into_iter().sum())
    }
}

/// Removes the messages on these subjects up to the sequence number `last` of the stream. Returns their number.
async fn purge_subjects(stream: &Stream, subjects: String, last: u64) -> Result<u64, Error> {
    // The server removes the messages below the given number, so the number after `last` is given.
    let removed = stream.purge().filter(subjects).sequence(last.saturating_add(1)).await;
    removed.map(|removed| removed.purged).map_err(unanswered_error)
}
