//! A file of records that grows on the disk under a hidden name, row group by row group.
//!
//! Room for its footer is set aside before a row group is written, so a disk that fills up does not keep it from being finished.
//! The file is locked as long as this process writes it; [`super::recover`] finishes one that nobody has locked.
//!
//! Invariant: up to `end` the file has whole blocks.

use super::Error;
use super::encode::Table;
use super::files::{self, ClaimedFile, Partition};
use super::row_group::{EncodedGroup, FileFooter, MAGIC};
use crate::disk;
use packetrig_flow::Carried;
use packetrig_sys::disk::set_aside_beyond;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// See the module.
#[derive(Debug)]
pub(super) struct PartialFile {
    pub(super) table: Table,
    pub(super) partition: Partition,
    /// What the records in it stand for.
    pub(super) carried: Carried,
    /// Number of the row group that was last added, over all files: the least is the longest untouched.
    pub(super) touched: u64,
    claimed: ClaimedFile,
    end: u64,
    footer: Option<FileFooter>,
    /// More than the footer will have.
    footer_bytes: u64,
}

impl PartialFile {
    /// Begins a file with a row group. Where that fails, no file is left.
    pub(super) fn begin(directory: &Path, group: &EncodedGroup) -> Result<Self, Error> {
        let claimed = files::claim(directory, group.table, group.partition)?;
        let mut file = Self {
            table: group.table,
            partition: group.partition,
            carried: Carried::default(),
            touched: 0,
            claimed,
            end: 0,
            footer: None,
            footer_bytes: 0,
        };
        let begun = file.write(&MAGIC).and_then(|()| file.append(group));
        if begun.is_err() {
            // A full disk needs the room; what cannot be removed is found by the next recovery.
            fs::remove_file(&file.claimed.hidden).unwrap_or(());
        }
        begun.map(|()| file)
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.end
    }

    /// Adds a row group, or leaves the file as it was.
    pub(super) fn append(&mut self, group: &EncodedGroup) -> Result<(), Error> {
        let placed = group.at(self.end).map_err(Error::Encode)?;
        let footer_bytes = self.footer_bytes + (placed.block.len() - group.bytes()) as u64;
        let wanted = placed.block.len() as u64 + footer_bytes;
        set_aside_beyond(&self.claimed.file, self.end, wanted).map_err(self.failed("write"))?;
        self.write(&placed.block)?;
        self.footer_bytes = footer_bytes;
        self.carried.add(group.carried);
        match &mut self.footer {
            Some(footer) => footer.add(placed.footer),
            none => *none = Some(placed.footer),
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.claimed.file.write_all_at(bytes, self.end).map_err(self.failed("write"))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        Error::file(what, self.claimed.hidden.clone())
    }

    /// Writes the footer and gives the file its name; says how many bytes it has. It can be tried again.
    pub(super) fn finish(&self) -> Result<u64, Error> {
        let footer = self.footer.as_ref().filter(|footer| footer.groups().len() > 1);
        finish(&self.claimed, self.end, footer)
    }
}

/// Ends a file behind `end`, where its last block ends, with a footer unless that of the block says everything, and gives it its name.
pub(super) fn finish(claimed: &ClaimedFile, end: u64, footer: Option<&FileFooter>) -> Result<u64, Error> {
    let footer = footer.map_or(Ok(Vec::new()), FileFooter::encode).map_err(Error::Encode)?;
    let bytes = end + footer.len() as u64;
    let ClaimedFile { file, hidden, path } = claimed;
    file.write_all_at(&footer, end)
        .and_then(|()| file.set_len(bytes))
        .and_then(|()| file.sync_all())
        .map_err(Error::file("write", hidden))?;
    disk::rename(hidden, path).map_err(Error::file("rename", hidden))?;
    Ok(bytes)
}
