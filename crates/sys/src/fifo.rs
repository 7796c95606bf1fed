//! Lines from a named pipe, into which another program writes.
//!
//! [`FifoReader`] owns its descriptor, and creates the pipe if there is none. The pipe is open for reading
//! and writing, so that it does not end when the other program closes it.

use crate::Error;
use rustix::fs::{CWD, Mode};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum length of a line. A longer line is dropped.
const MAX_LINE_BYTES: usize = 4096;
const WRITABLE_BY_ALL: u32 = 0o002;

#[derive(Debug)]
pub struct FifoReader {
    path: PathBuf,
    file: File,
    number: u64,
    /// Beginning of a line that has not arrived completely.
    begun: Vec<u8>,
}

impl FifoReader {
    pub fn open_or_create(path: &Path) -> Result<Self, Error> {
        match rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(Error::from_call("mkfifo", path.display().to_string(), errno)),
        }
        let failed = |error: std::io::Error| Error::from_call("open", path.display().to_string(), error);
        // NONBLOCK: `read_lines` must not wait. NOFOLLOW: a symbolic link could lead to another user's pipe.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        if !facts.file_type().is_fifo() {
            return Err(failed(std::io::Error::other("the file is not a named pipe")));
        }
        if facts.mode() & WRITABLE_BY_ALL != 0 {
            return Err(failed(std::io::Error::other(
                "every user can write to this pipe; run `chmod o-w` on it",
            )));
        }
        Ok(Self { path: path.to_owned(), file, number: facts.ino(), begun: Vec::new() })
    }

    /// Opens the pipe again if the path now leads to another pipe: the writing program may have made a new pipe
    /// when it was restarted.
    pub fn reopen_if_replaced(&mut self) -> Result<(), Error> {
        let is_same = std::fs::symlink_metadata(&self.path).is_ok_and(|facts| facts.ino() == self.number);
        if !is_same {
            *self = Self::open_or_create(&self.path)?;
        }
        Ok(())
    }

    /// Calls `take` with each complete line that has arrived, without its newline; does not wait for more. Lines that
    /// are too long or not UTF-8 are dropped.
    pub fn read_lines(&mut self, mut take: impl FnMut(&str)) -> Result<(), Error> {
        let mut bytes = [0; 1024];
        loop {
            match self.file.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(length) => self.split_lines(&bytes[..length], &mut take),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Error::from_call("read", self.path.display().to_string(), error)),
            }
        }
    }

    fn split_lines(&mut self, bytes: &[u8], take: &mut impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            // The rest of an overlong line is not stored, so that the memory stays bounded.
            if self.begun.len() <= MAX_LINE_BYTES {
                self.begun.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                if let Some(line) = line.strip_suffix(b"\n").and_then(|line| str::from_utf8(line).ok())
                    && line.len() <= MAX_LINE_BYTES
                {
                    take(line);
                }
            }
        }
    }
}

impl AsFd for FifoReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lines(reader: &mut FifoReader) -> Vec<String> {
        let mut lines = Vec::new();
        reader.read_lines(|line| lines.push(line.to_owned())).unwrap();
        lines
    }

    fn write(path: &Path, text: &str) {
        OpenOptions::new().write(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn fifo_lines_stay_whole_across_writers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let mut reader = FifoReader::open_or_create(&path).unwrap();
        assert!(lines(&mut reader).is_empty());
        write(&path, "one\ntw");
        assert_eq!(lines(&mut reader), ["one"]);
        write(&path, "o\n");
        assert_eq!(lines(&mut reader), ["two"]);
        write(&path, &"x".repeat(5000));
        write(&path, "\nthree\n");
        assert_eq!(lines(&mut reader), ["three"]);
    }

    #[test]
    fn replaced_fifo_is_reopened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let mut reader = FifoReader::open_or_create(&path).unwrap();
        // Held open, or the new one might get the same number.
        let old = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        reader.reopen_if_replaced().unwrap();
        write(&path, "new\n");
        assert_eq!(lines(&mut reader), ["new"]);
        drop(old);
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plain");
        crate::private_files::write_file(&path, "").unwrap();
        assert!(FifoReader::open_or_create(&path).unwrap_err().to_string().contains("not a named pipe"));
    }
}
