//! A disk that can stand still: whoever writes to it then waits.

use crate::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A file system in a file, mounted through a loop device; gone with the value.
#[derive(Debug)]
pub struct StillDisk {
    place: PathBuf,
    is_frozen: bool,
    _directory: TempDir,
}

impl StillDisk {
    /// `None` where there are no loop devices or this may not be mounted, which is said.
    pub fn mount() -> Option<Self> {
        if !["mkfs.ext4", "mount", "fsfreeze"].into_iter().all(skip::has_tool) {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (image, place) = (directory.path().join("image"), directory.path().join("disk"));
        std::fs::create_dir(&place).expect("a place to mount");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(512 << 20).expect("a sparse file");
        let is_mounted = done("mkfs.ext4", &["-q", "-F", &image.display().to_string()])
            && done(
                "mount",
                &["-o", "loop,noatime", &image.display().to_string(), &place.display().to_string()],
            );
        if !is_mounted {
            skip::lacking("no loop device can be mounted here");
            return None;
        }
        Some(Self { place, is_frozen: false, _directory: directory })
    }

    pub fn path(&self) -> &Path {
        &self.place
    }

    pub fn freeze(&mut self) {
        assert!(done("fsfreeze", &["-f", &self.place.display().to_string()]), "it cannot be frozen");
        self.is_frozen = true;
    }

    pub fn thaw(&mut self) {
        self.is_frozen = false;
        assert!(done("fsfreeze", &["-u", &self.place.display().to_string()]), "it cannot be thawed");
    }
}

impl Drop for StillDisk {
    fn drop(&mut self) {
        if self.is_frozen {
            self.thaw();
        }
        done("umount", &["-l", &self.place.display().to_string()]);
    }
}

fn done(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
