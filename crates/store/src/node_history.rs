//! Histories of nodes as files, for the operator of a fleet.
//!
//! ```text
//! <fleet>/history/<node>.jsonl      the newest entries, one per line
//! <fleet>/history/<node>.old.jsonl  older entries
//! ```
//! Invariant: the entries of a node take at most twice [`MAX_BYTES`], and no space of another node. A line
//! that was cut short, for example on a full disk, is skipped and does not affect other lines.

use crate::Error;
use crate::segments::check_node_directory_name;
use packetrig_fleet::history::NodeEntry;
use packetrig_report::NodeName;
use packetrig_sys::private_files;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Maximum size of the current file in bytes. If more entries would exceed it, the current file first
/// replaces the old one.
const MAX_BYTES: u64 = 128 << 10;

#[derive(Clone, Debug)]
pub struct NodeHistory(PathBuf);

impl NodeHistory {
    /// Uses the history in the `directory` of a fleet. No file or directory is created before the first entry.
    pub fn in_fleet_directory(directory: &Path) -> Self {
        Self(directory.join("history"))
    }

    /// Adds entries about a node. Several processes may do this at the same time.
    pub fn add_entries(&self, node: &NodeName, entries: &[NodeEntry]) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        check_node_directory_name(node)?;
        private_files::create_directories(&self.0).map_err(Error::file("create", &self.0))?;
        // The entries are joined first, so that one write appends all of them.
        let lines: String = entries.iter().filter_map(entry_line).collect();
        let path = self.current_path(node);
        self.append_lines(node, &path, &lines).map_err(Error::file("write", &path))
    }

    fn append_lines(&self, node: &NodeName, path: &Path, lines: &str) -> io::Result<()> {
        // The lock is held until this returns: another process must not rename the file between the check of its
        // length and the write.
        let lock = private_files::open_or_create(&self.0.join("lock"))?;
        lock.lock()?;
        let mut file = private_files::open_to_append(path)?;
        let length = file.metadata()?.len();
        // An empty file is never rotated: an empty file would replace the old entries.
        if length > 0 && length + lines.len() as u64 > MAX_BYTES {
            fs::rename(path, self.older_entries_path(node))?;
            file = private_files::open_to_append(path)?;
        }
        // The line break comes first, because the last line may have been cut short. Readers skip empty
        // lines.
        file.write_all(format!("\n{lines}").as_bytes())
    }

    /// Reads the entries of a node, the oldest first. Lines that are not valid entries are skipped.
    pub fn read_node_entries(&self, node: &NodeName) -> Result<Vec<NodeEntry>, Error> {
        check_node_directory_name(node)?;
        let mut entries = Vec::new();
        // The old file is read first, because its entries are older.
        for path in [self.older_entries_path(node), self.current_path(node)] {
            match fs::read_to_string(&path) {
                Ok(text) => entries
                    .extend(text.lines().filter_map(|line| serde_json::from_str::<NodeEntry>(line).ok())),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file("read", path)(error)),
            }
        }
        Ok(entries)
    }

    /// Lists the nodes that have entries, including nodes that were removed from the fleet.
    pub fn list_nodes(&self) -> Result<Vec<NodeName>, Error> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file("read", &self.0)(error)),
        };
        let mut nodes: Vec<NodeName> =
            entries.filter_map(|entry| node_of_history_file(&entry.ok()?)).collect();
        nodes.sort();
        Ok(nodes)
    }

    fn current_path(&self, node: &NodeName) -> PathBuf {
        self.0.join(format!("{node}.jsonl"))
    }

    fn older_entries_path(&self, node: &NodeName) -> PathBuf {
        self.0.join(format!("{node}.old.jsonl"))
    }
}

fn node_of_history_file(entry: &fs::DirEntry) -> Option<NodeName> {
    let name = entry.file_name().into_string().ok()?;
    // Names of nodes in a fleet have no dots, so a stem with a dot is a file of older entries (`.old`).
    let node = name.strip_suffix(".jsonl").filter(|node| !node.contains('.'))?;
    Some(NodeName(node.to_owned()))
}

fn entry_line(entry: &NodeEntry) -> Option<String> {
    Some(serde_json::to_string(entry).ok()? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::history::NodeEvent;

    fn name(node: &str) -> NodeName {
        NodeName(node.into())
    }

    fn started(at: u64) -> NodeEntry {
        NodeEntry { at, event: NodeEvent::Started { version: "x".repeat(200) } }
    }

    #[test]
    fn full_node_history_keeps_newest_entries() {
        let place = tempfile::tempdir().unwrap();
        let history = NodeHistory::in_fleet_directory(place.path());
        assert!(
            history.list_nodes().unwrap().is_empty()
                && history.read_node_entries(&name("a")).unwrap().is_empty()
        );
        history.add_entries(&name("b"), &[started(1)]).unwrap();
        for at in 0..5000 {
            history.add_entries(&name("a"), &[started(at)]).unwrap();
        }
        let kept: Vec<u64> =
            history.read_node_entries(&name("a")).unwrap().iter().map(|entry| entry.at).collect();
        assert_eq!(kept.last(), Some(&4999));
        assert!(kept.is_sorted() && kept.len() > 500, "{}", kept.len());
        let files = fs::read_dir(place.path().join("history")).unwrap();
        let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < 2 * MAX_BYTES + 1000, "{bytes}");
        assert_eq!(history.read_node_entries(&name("b")).unwrap(), [started(1)]);
        assert_eq!(history.list_nodes().unwrap(), [name("a"), name("b")]);
    }

    #[test]
    fn truncated_history_line_is_skipped() {
        let place = tempfile::tempdir().unwrap();
        let history = NodeHistory::in_fleet_directory(place.path());
        history.add_entries(&name("a"), &[started(1)]).unwrap();
        let file = place.path().join("history/a.jsonl");
        let whole = fs::read(&file).unwrap();
        fs::write(&file, [&whole[..], br#"{"at":2,"event":"sta"#].concat()).unwrap();
        history.add_entries(&name("a"), &[started(3)]).unwrap();
        assert_eq!(history.read_node_entries(&name("a")).unwrap(), [started(1), started(3)]);
        assert!(history.add_entries(&name("../a"), &[started(1)]).is_err());
    }
}
