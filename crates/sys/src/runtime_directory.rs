//! The directory for files that other packetrig processes of this machine read until the next reboot: `/run/packetrig` for
//! root, a directory of the user's own below the directory for temporary files for everybody else.

use packetrig_sys::caps::{Rights, outer_user};
use packetrig_sys::{private_files, process};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names another directory for the files.
const OVERRIDE: &str = "PACKETRIG_RUN_DIR";
const DIRECTORY: &str = "/run/packetrig";

/// The directory for one kind of file; it may not exist yet.
pub(crate) fn path_for(kind: &str) -> PathBuf {
    let usual = || match Rights::current() {
        Rights { user: 0, in_user_namespace: false, .. } => PathBuf::from(DIRECTORY),
        _ => std::env::temp_dir().join(format!("packetrig-{}", outer_user())),
    };
    std::env::var_os(OVERRIDE).map_or_else(usual, PathBuf::from).join(kind)
}

/// Writes a file whole or not at all, because readers may come at any time, and makes its directory.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    create_directory(directory)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", process::own()));
    private_files::write(Path::new(&draft), bytes).and_then(|()| std::fs::rename(&draft, path))
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// In a directory where everybody may create one, another user may have been first: such a directory is not used.
fn create_directory(directory: &Path) -> io::Result<()> {
    let base = directory.parent().unwrap_or(directory);
    private_files::create_directories(directory)?;
    if std::fs::symlink_metadata(base)?.uid() == Rights::current().user {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is not ours", base.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_removed_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x/taps/t.json");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        remove_file(&path).unwrap();
        remove_file(&path).unwrap();
        assert!(!path.exists());
    }
}
