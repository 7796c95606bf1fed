//! Looks over the shoulder of nodes and controller: every segment that a node has on its disk, and every one that the
//! controller has stored, byte for byte, before either deletes it.

use crate::rig::{NODES, Rig};
use packetrig_eval::process::pause;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read, read_dir};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// (run and attempt, node, file).
pub(crate) type Name = (String, String, String);

/// What was seen at either end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sights {
    pub(crate) of_nodes: BTreeMap<Name, Vec<u8>>,
    pub(crate) stored: BTreeMap<Name, Vec<u8>>,
    /// Packs that were read.
    packs: BTreeSet<String>,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Comparison {
    /// Segments that nodes had.
    pub(crate) had: usize,
    /// Stored with the same bytes.
    pub(crate) equal: usize,
    /// Stored with other bytes.
    pub(crate) differ: usize,
    /// Neither stored nor at the node any more.
    pub(crate) lost: usize,
    /// Still at the node.
    pub(crate) waiting: usize,
    /// Stored, and gone from the node before it was looked at.
    pub(crate) unseen: usize,
}

/// The looking thread; ends when dropped.
pub(crate) struct Watcher {
    sights: Arc<Mutex<Sights>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    spools: Vec<(String, PathBuf)>,
}

impl Watcher {
    pub(crate) fn start(rig: &Rig) -> anyhow::Result<Self> {
        let spools: Vec<(String, PathBuf)> =
            (1..=NODES).map(|node| (format!("n{node}"), rig.spool(node))).collect();
        let (sights, over) = (Arc::<Mutex<Sights>>::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (sights, over, spools, runs) =
                (Arc::clone(&sights), Arc::clone(&over), spools.clone(), rig.runs());
            std::thread::Builder::new().name("watcher".to_owned()).spawn(move || {
                while !over.load(Ordering::Acquire) {
                    look(&spools, &runs, &mut own(&sights));
                    pause(1);
                }
            })?
        };
        Ok(Self { sights, over, thread: Some(thread), spools })
    }

    /// Segments that still wait at their nodes.
    pub(crate) fn waiting(&self) -> BTreeMap<Name, Vec<u8>> {
        let mut found = BTreeMap::new();
        for (node, spool) in &self.spools {
            of_spool(node, spool, &mut found);
        }
        found
    }

    /// What was seen since this was asked last.
    pub(crate) fn compare(&self) -> Comparison {
        let waiting = self.waiting();
        let Sights { of_nodes, stored, .. } = std::mem::take(&mut *own(&self.sights));
        let mut result = Comparison { had: of_nodes.len(), ..Comparison::default() };
        for (name, bytes) in &of_nodes {
            match stored.get(name) {
                Some(kept) if kept == bytes => result.equal += 1,
                Some(_) => result.differ += 1,
                None if waiting.contains_key(name) => result.waiting += 1,
                None => result.lost += 1,
            }
        }
        result.unseen = stored.keys().filter(|name| !of_nodes.contains_key(*name)).count();
        result
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn own(sights: &Mutex<Sights>) -> MutexGuard<'_, Sights> {
    sights.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries of a directory by name; none if it is not there, or not any more.
fn entries(path: &Path) -> Vec<(String, PathBuf)> {
    let found = read_dir(path).into_iter().flatten().flatten();
    found.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

fn look(spools: &[(String, PathBuf)], runs: &Path, sights: &mut Sights) {
    for (node, spool) in spools {
        of_spool(node, spool, &mut sights.of_nodes);
    }
    // `runs/RUN.partial` while it goes on, `runs/RUN` for what is late, `stray/RUN` for what nobody knows.
    for place in ["runs", "stray"] {
        for (run, directory) in entries(&runs.join(place)) {
            let run = run.trim_end_matches(".partial").to_owned();
            for (file, pack) in entries(&directory.join("segments")) {
                let is_pack = pack.extension().is_some_and(|ending| ending == "pack");
                // Whole or not there, and never changed.
                if is_pack && !file.starts_with('.') && sights.packs.insert(file) {
                    of_pack(&run, &read(&pack).unwrap_or_default(), &mut sights.stored);
                }
            }
        }
    }
}

fn of_spool(node: &str, spool: &Path, into: &mut BTreeMap<Name, Vec<u8>>) {
    for (run, directory) in entries(spool) {
        keep(&directory, |file| (run.clone(), node.to_owned(), file), into);
    }
}

/// What a pack has: for each segment a line with its name and length, and its bytes.
fn of_pack(run: &str, mut bytes: &[u8], into: &mut BTreeMap<Name, Vec<u8>>) {
    while let Some((name, length, rest)) = next_header(bytes) {
        let Some((segment, rest)) = rest.split_at_checked(length) else { return };
        let (part, file) = name.split_once('/').unwrap_or_default();
        let (node, attempt) = part.rsplit_once('.').unwrap_or_default();
        let name = (format!("{run}.{attempt}"), node.to_owned(), file.to_owned());
        into.entry(name).or_insert_with(|| segment.to_vec());
        bytes = rest;
    }
}

fn next_header(bytes: &[u8]) -> Option<(&str, usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (name, length) = std::str::from_utf8(&bytes[..end]).ok()?.rsplit_once(' ')?;
    Some((name, length.parse().ok()?, &bytes[end + 1..]))
}

/// Files are whole or not there; what has a name never changes.
fn keep(directory: &Path, name: impl Fn(String) -> Name, into: &mut BTreeMap<Name, Vec<u8>>) {
    for (file, path) in entries(directory) {
        let is_segment = path.extension().is_some_and(|ending| ending == "seg") && !file.starts_with('.');
        let name = name(file);
        if is_segment
            && !into.contains_key(&name)
            && let Ok(bytes) = read(&path)
        {
            into.insert(name, bytes);
        }
    }
}
