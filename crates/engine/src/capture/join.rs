//! Joins the files of a ring into one file that readers can read in order.
//!
//! All files of a recording begin with the same header. The bytes after the headers of the newer files are
//! appended to the oldest file. In pcapng each file ends with statistics, which then stand between frames;
//! readers use the last ones. Invariant: a file under its final name has been synced to the disk, and no frame
//! is removed before it is in another file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Joins `parts`, oldest first, into one file and removes them. `head` is the length of the header with which all parts
/// begin. On failure the frames that were not appended are still in the parts.
pub(super) fn join_capture_parts(parts: &[PathBuf], head: u64, into: &Path) -> io::Result<()> {
    let Some((oldest, others)) = parts.split_first() else { return Ok(()) };
    for part in others {
        append_file_part(part, head, oldest)?;
        fs::remove_file(part)?;
    }
    File::open(oldest)?.sync_all()?;
    // The file is renamed only now: a program that reads an earlier file of that name keeps its open file.
    fs::rename(oldest, into)?;
    into.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn append_file_part(part: &Path, head: u64, all: &Path) -> io::Result<()> {
    let mut all = OpenOptions::new().append(true).open(all)?;
    let before = all.metadata()?.len();
    let mut part = File::open(part)?;
    part.seek(SeekFrom::Start(head))?;
    let copied = io::copy(&mut part, &mut all);
    // The part that was being appended still exists, so cutting loses nothing and a retry can start again.
    if copied.is_err() {
        // A part of the bytes may be in the file, for example on a full disk. They are cut off, so that no partial
        // frame remains.
        all.set_len(before)?;
    }
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_join_keeps_unappended_parts() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let parts = ["1", "2", "missing", "4"].map(path);
        for part in parts.iter().filter(|part| !part.ends_with("missing")) {
            fs::write(part, format!("head{}", part.file_name().unwrap().display())).unwrap();
        }
        join_capture_parts(&parts, 4, &path("all")).unwrap_err();
        assert_eq!(fs::read_to_string(&parts[0]).unwrap(), "head12");
        assert_eq!(fs::read_to_string(&parts[3]).unwrap(), "head4");
        join_capture_parts(&[parts[0].clone(), parts[3].clone()], 4, &path("all")).unwrap();
        assert_eq!(fs::read_to_string(path("all")).unwrap(), "head124");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
