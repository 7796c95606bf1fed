//! Old files go and small ones become large, as their user asks for it on the command line.

use super::made::Made;
use super::{check_sums, packetrig, store};
use packetrig_tests::program;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn flows(arguments: &[&str], directory: &Path) -> Output {
    Command::new(program::binary()).arg("flows").args(arguments).arg(directory).output().unwrap()
}

fn json(arguments: &[&str], directory: &Path) -> Value {
    serde_json::from_str(&packetrig(arguments, directory)).unwrap()
}

/// All files, hidden ones as well.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[test]
fn pruned_directory_has_the_newest_files() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(9000);
    store(directory.path(), &made);
    let before = files_below(directory.path());
    let bytes: u64 = before.iter().map(|file| file.metadata().unwrap().len()).sum();
    let keep = format!("--keep={}B", bytes / 2);
    let planned = json(&["prune", "--dry-run", "--json", &keep], directory.path());
    assert_eq!(files_below(directory.path()), before, "a dry run removes nothing");
    let planned: Vec<&str> =
        planned["would_remove"].as_array().unwrap().iter().map(|one| one["file"].as_str().unwrap()).collect();
    let removed = json(&["prune", "--json", &keep], directory.path());
    assert_eq!(removed["removed"]["files"], planned.len());
    let left = files_below(directory.path());
    let gone: Vec<&str> =
        before.iter().filter(|file| !left.contains(file)).map(|file| file.to_str().unwrap()).collect();
    let mut planned = planned;
    planned.sort_unstable();
    assert_eq!(gone, planned);
    let left_bytes: u64 = left.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(left_bytes <= bytes / 2 && left_bytes > bytes / 4, "{left_bytes} of {bytes}");
    let stats = json(&["stats", "--json"], directory.path());
    let records = made.records.len() as u64 - removed["removed"]["records"].as_u64().unwrap();
    assert_eq!(stats["records"], records);
    assert_eq!(stats["last_ns"], made.last_ns, "the newest stay");
}

#[test]
fn prune_without_a_limit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(flows(&["prune"], directory.path()).status.code(), Some(2));
    assert_eq!(flows(&["prune", "--keep=1GB"], directory.path()).status.code(), Some(2), "no records");
}

#[test]
fn compacted_files_give_the_same_answers() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(9000);
    store(directory.path(), &made);
    let questions = [
        &["top", "--by", "src-ip,dst-port", "--json", "--most", "2000"][..],
        &["show", "--order", "start", "--most", "9000", "--csv"],
    ];
    let ask = || questions.map(|question| packetrig(question, directory.path()));
    let (before, answers) = (files_below(directory.path()), ask());
    let compacted = json(&["compact", "--json"], directory.path());
    // An hour that has only one file keeps it.
    assert!(compacted["joined_files"].as_u64() > Some(2), "{compacted}");
    let after = files_below(directory.path());
    assert!(after.len() < before.len() && after.len() <= 4 + 1, "{after:?}");
    assert_eq!(ask(), answers);
    check_sums(&made, directory.path());
}

/// Killed again and again at any moment, it loses nothing and doubles nothing.
#[test]
fn killed_compaction_loses_and_doubles_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(9000);
    store(directory.path(), &made);
    for milliseconds in (0..40).chain([60, 80, 100]) {
        let mut compaction = Command::new(program::binary())
            .args(["flows", "compact", "--json"])
            .arg(directory.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        compaction.kill().unwrap();
        compaction.wait().unwrap();
        check_sums(&made, directory.path());
    }
    packetrig(&["recover"], directory.path());
    packetrig(&["compact"], directory.path());
    check_sums(&made, directory.path());
    let is_hidden = |file: &&PathBuf| file.file_name().unwrap().to_string_lossy().starts_with('.');
    assert_eq!(files_below(directory.path()).iter().find(is_hidden), None);
}
