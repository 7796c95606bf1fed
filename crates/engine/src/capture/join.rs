//! From the files of a ring to one file that is read in order.
//!
//! All files of a recording begin with the same bytes. The oldest keeps them; what follows them in the others is
//! appended to it. In pcapng the statistics that end each part may stand between frames: those that come last count.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Makes one file of `parts`, oldest first, which are gone afterwards. `head` is how many bytes they have in common.
pub(super) fn join(parts: &[PathBuf], head: u64, into: &Path) -> io::Result<()> {
    let Some((oldest, others)) = parts.split_first() else { return Ok(()) };
    if !others.is_empty() {
        let mut all = OpenOptions::new().append(true).open(oldest)?;
        for part in others {
            let mut part_file = File::open(part)?;
            part_file.seek(SeekFrom::Start(head))?;
            io::copy(&mut part_file, &mut all)?;
            fs::remove_file(part)?;
        }
    }
    // Only now: whoever reads an earlier file of that name keeps what he has opened.
    fs::rename(oldest, into)
}
