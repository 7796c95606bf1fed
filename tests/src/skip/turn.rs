//! Who may use the machine: a lock between processes, because each test may be a process of its own.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::PathBuf;

/// Held while a test uses the machine; given back when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _file: File,
}

impl Turn {
    /// Beside others that share.
    pub(super) fn shared() -> Self {
        Self::take(FlockOperation::LockShared)
    }

    /// Beside nobody.
    pub(super) fn alone() -> Self {
        Self::take(FlockOperation::LockExclusive)
    }

    fn take(operation: FlockOperation) -> Self {
        let path = lock_file();
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        flock(&file, operation).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { _file: file }
    }
}

/// Beside the test programs: whoever can build them can write there.
fn lock_file() -> PathBuf {
    let this = std::env::current_exe().expect("a running test has a path");
    this.with_file_name("machine.lock")
}
