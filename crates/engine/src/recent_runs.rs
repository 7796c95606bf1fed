//! Remembers the earlier runs of this machine, so that a report can name the run to which a late frame belongs.
//!
//! A file in the runtime directory stores the ids and the tag keys of the last runs. The file is optional: without it,
//! frames of other runs are still recognised, but the report cannot name their run.

use crate::stream::EarlierRun;
use packetrig_sys::runtime_directory;
use packetrig_wire::tag::TagKey;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Maximum number of remembered runs. A frame that may belong to an earlier run is checked with each of their keys.
const MAX_RUNS: usize = 64;
/// Directory name in the runtime directory.
const RECENT_RUNS_DIRECTORY: &str = "recent-runs";

#[derive(Debug, Serialize, Deserialize)]
struct RecentRun {
    run: String,
    key: u64,
}

/// Returns the runs before this one, the latest first. Also stores this run for later runs, if it has an id.
pub(crate) fn list_earlier_runs_and_store_this_one(run: &str, key: TagKey) -> Vec<EarlierRun> {
    let directory = runtime_directory::runtime_path_for(RECENT_RUNS_DIRECTORY);
    list_earlier_runs_and_remember_in(&directory.join("keys.json"), run, key)
}

fn list_earlier_runs_and_remember_in(path: &Path, run: &str, key: TagKey) -> Vec<EarlierRun> {
    // One lock covers reading, changing and writing: without it, the second of two runs that begin at once
    // would overwrite the entry of the first.
    let _held = runtime_directory::lock_file_for_update(path);
    let text = runtime_directory::read_file(path).unwrap_or_default();
    let mut recent: Vec<RecentRun> = serde_json::from_slice(&text).unwrap_or_default();
    // A run that begins again has one entry, the newest.
    recent.retain(|earlier| earlier.run != run);
    let earlier =
        recent.iter().map(|earlier| EarlierRun { name: earlier.run.clone(), key: TagKey(earlier.key) });
    let earlier = earlier.collect();
    if !run.is_empty() {
        recent.insert(0, RecentRun { run: run.to_owned(), key: key.0 });
        recent.truncate(MAX_RUNS);
        let bytes = serde_json::to_vec(&recent).unwrap_or_default();
        // An error is ignored: without the file, frames of this run have no name in later runs.
        drop(runtime_directory::write_file(path, &bytes));
    }
    earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_begin_at_once_are_all_remembered() {
        let place = tempfile::tempdir().expect("a place");
        let path = place.path().join("x/recent/keys.json");
        std::thread::scope(|scope| {
            for number in 0..12_u64 {
                let path = &path;
                scope.spawn(move || {
                    list_earlier_runs_and_remember_in(path, &format!("r{number}"), TagKey(number))
                });
            }
        });
        let known = list_earlier_runs_and_remember_in(&path, "last", TagKey(99));
        assert_eq!(known.len(), 12, "{known:?}");
    }
}
