//! Files and directories that only their owner may read: 0600 and 0700, whatever the umask is.
//!
//! Captures, results, keys, spools and logs may hold private data, so every crate makes its files with these functions;
//! `xtask layers` finds crates that do not. An existing regular file gets mode 0600 as well, because its new content is
//! as private. A file that another user may have put there is refused. Devices, pipes and existing directories keep
//! their modes, because the user named them.
//!
//! [`restrict_new_files_to_owner`] does the same for files that libraries and children make (SQLite, `nats-server`).

mod opening;

pub use opening::set_exposed_file_callback;

use crate::error::ignore_failure;
use opening::{FileOpening, open_private};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

pub const FILE_MODE: u32 = 0o600;
pub const DIRECTORY_MODE: u32 = 0o700;
const PERMISSION_BITS: u32 = 0o7777;

/// Sets the umask: from now on, new files of this process and of its children are private, unless they are
/// made public on purpose.
pub fn restrict_new_files_to_owner() {
    rustix::process::umask(Mode::from_bits_truncate(0o077));
}

/// Creates the file, or empties the existing one.
pub fn create_file(path: &Path) -> io::Result<File> {
    open_private(path, FileOpening::Emptied)
}

/// Creates the file; an error if it exists already.
pub fn create_new_private_file(path: &Path) -> io::Result<File> {
    open_private(path, FileOpening::New)
}

/// Opens the file for writing at its end, making it if there is none.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    open_private(path, FileOpening::Append)
}

/// Opens the file for reading and writing without emptying it, making it if there is none.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    open_private(path, FileOpening::ReadWrite)
}

/// Makes the file with these bytes, or replaces the content of the existing one.
pub fn write_file(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    create_file(path)?.write_all(bytes.as_ref())
}

/// Reason why a file with a secret is not read.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    #[error("its mode gives rights to other users; run `chmod 600` on it")]
    Exposed,
    #[error("it belongs to user {0}, who can change it; run `chown` on it")]
    Foreign(u32),
}

/// Reads a text file of at most `most` bytes that only this user and root may read or write.
pub fn read_secret_file(path: &Path, most: u64) -> Result<String, SecretFileError> {
    let file = File::open(path)?;
    // These are facts of the open file, not of the path: so the checked file is the file that is read.
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(SecretFileError::NotRegular);
    }
    if facts.mode() & 0o077 != 0 {
        return Err(SecretFileError::Exposed);
    }
    if facts.uid() != rustix::process::geteuid().as_raw() && facts.uid() != 0 {
        return Err(SecretFileError::Foreign(facts.uid()));
    }
    let mut text = String::new();
    // One byte more than allowed is read, to notice a longer file: a truncated secret must not be used.
    if file.take(most + 1).read_to_string(&mut text)? as u64 > most {
        return Err(SecretFileError::TooLong(most));
    }
    Ok(text)
}

/// Gives the file this content. Readers find the complete old or the complete new content, even after a power cut; when this returns,
/// the new content is permanent. If several processes replace the file at once, the content of one of them stays.
pub fn replace_file(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    static NEXT_DRAFT_NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut draft = path.as_os_str().to_owned();
    // Two threads of this process must not share a draft.
    let number = NEXT_DRAFT_NUMBER.fetch_add(1, Ordering::Relaxed);
    draft.push(format!(".{}-{number}.new", std::process::id()));
    let draft = Path::new(&draft);
    if let Err(error) = write_file_durably(draft, bytes.as_ref()).and_then(|()| fs::rename(draft, path)) {
        // A draft takes disk space that other files may need. If its removal fails, too, the caller
        // gets the first error.
        ignore_failure(fs::remove_file(draft));
        return Err(error);
    }
    // The new name survives a power cut only when the directory is on the disk, too.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// Writes the file and waits until the disk has it.
fn write_file_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the directory; an error if there is one.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Makes the directory and all missing directories above it.
pub fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).recursive(true).create(path)
}

/// Makes a directory that everybody may read, such as `/run/netns`, and all missing directories above it.
pub fn create_public_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().mode(0o755).recursive(true).create(path)?;
    // The umask may have taken some of these rights away.
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Removes the rights of other users on a file or directory that an earlier version of packetrig made. A symbolic
/// link is left alone.
pub fn restrict_path_to_owner(path: &Path) -> io::Result<()> {
    let facts = fs::symlink_metadata(path)?;
    let wanted = if facts.is_dir() { DIRECTORY_MODE } else { FILE_MODE };
    if facts.is_symlink() || facts.permissions().mode() & PERMISSION_BITS & !wanted == 0 {
        return Ok(());
    }
    // The descriptor is used, because a sandbox refuses a change by path. NONBLOCK: opening a pipe would wait
    // for its other end.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    opened.set_permissions(Permissions::from_mode(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & PERMISSION_BITS
    }

    #[test]
    fn concurrently_replaced_file_is_always_whole() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("state.json");
        replace_file(&file, [b'0'; 5000]).unwrap();
        std::thread::scope(|scope| {
            for letter in *b"123" {
                let file = &file;
                scope.spawn(move || (0..20).try_for_each(|_| replace_file(file, [letter; 5000])).unwrap());
            }
            for _ in 0..200 {
                let found = fs::read(&file).unwrap();
                assert!(found.len() == 5000 && found.iter().all(|byte| *byte == found[0]));
            }
        });
        assert_eq!(
            (fs::read_dir(base.path()).unwrap().count(), mode(&file)),
            (1, 0o600),
            "no drafts are left"
        );
        replace_file(&base.path().join("absent/state"), "x").unwrap_err();
        fs::create_dir(base.path().join("d")).unwrap();
        replace_file(&base.path().join("d"), "x").unwrap_err();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2, "of a failure, too");
    }

    #[test]
    fn written_files_and_directories_become_private() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b");
        create_directories(&deep).unwrap();
        create_directories(&deep).unwrap();
        create_directory(&deep).unwrap_err();
        let file = deep.join("f");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        write_file(&file, "new").unwrap();
        open_to_append(&file).unwrap().write_all(b"er").unwrap();
        create_new_private_file(&file).unwrap_err();
        drop(open_or_create(&file).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        let modes = [base.path().join("a"), deep.clone(), file].map(|path| mode(&path));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
        drop(create_new_private_file(&deep.join("g")).unwrap());
        assert_eq!(mode(&deep.join("g")), 0o600);
    }

    #[test]
    fn secret_is_read_from_private_regular_file_only() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("key");
        fs::write(&file, "secret").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read_secret_file(&file, 100), Err(SecretFileError::Exposed)));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret_file(&file, 100).unwrap(), "secret");
        assert_eq!(read_secret_file(&file, 6).unwrap(), "secret");
        assert!(matches!(read_secret_file(&file, 5), Err(SecretFileError::TooLong(5))));
        // Others may read the directory, but that is not its fault.
        fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(read_secret_file(base.path(), 100), Err(SecretFileError::NotRegular)));
    }

    #[test]
    fn tightening_removes_open_permissions_but_skips_links() {
        let base = tempfile::tempdir().unwrap();
        let (file, link) = (base.path().join("f"), base.path().join("l"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        restrict_path_to_owner(&link).unwrap();
        assert_eq!(mode(&file), 0o644);
        restrict_path_to_owner(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        restrict_path_to_owner(&file).unwrap();
        assert_eq!(mode(&file), 0o400, "nothing is given");
    }

    #[test]
    fn a_device_stays_as_it_is() {
        let before = mode(Path::new("/dev/null"));
        write_file(Path::new("/dev/null"), "x").unwrap();
        assert_eq!(mode(Path::new("/dev/null")), before);
    }

    #[test]
    fn a_public_directory_is_public() {
        let base = tempfile::tempdir().unwrap();
        let public = base.path().join("netns");
        create_public_directories(&public).unwrap();
        create_public_directories(&public).unwrap();
        assert_eq!(mode(&public), 0o755);
    }
}
