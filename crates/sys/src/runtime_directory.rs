//! The directory for files that other packetrig processes of this machine read until the next reboot: `/run/packetrig` for root; for
//! another user `packetrig` in `/run/user/UID` if that user owns it, otherwise `packetrig-UID` in the directory for temporary files; if
//! another user took that name first, `.cache/packetrig/run-BOOT` in the home directory.
//!
//! Both directories, that of packetrig and that of one kind of file in it, are opened without following a link, and are checked before a file
//! is made in them. All later steps use the opened directory: if another user changes its name afterwards, this has no effect.
//!
//! Invariant: a file is made, read or written there only if the directory and the file belong to this user,
//! no other user may write to them, and neither is a symbolic link.

use crate::caps::{ThreadRights, read_outer_user_id};
use crate::clock::boot_id;
use crate::error::ignore_failure;
use crate::process;
use crate::sandbox::find_home_directory;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Environment variable that names another directory for the files.
const RUN_DIRECTORY_VARIABLE: &str = "PACKETRIG_RUN_DIR";
const SYSTEM_RUN_DIRECTORY: &str = "/run/packetrig";
/// Directory in which session managers make a directory for each user.
const USER_RUN_DIRECTORIES: &str = "/run/user";
const RUN_DIRECTORY_NAME: &str = "packetrig";

/// The directory for one kind of file; it may not exist yet.
pub fn runtime_path_for(kind: &str) -> PathBuf {
    runtime_directory().join(kind)
}

/// The directory for files that other packetrig processes of this machine read until the next reboot; it may not
/// exist yet.
pub fn runtime_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os(RUN_DIRECTORY_VARIABLE) {
        return PathBuf::from(directory);
    }
    let rights = ThreadRights::current();
    // Root of a user namespace is an ordinary user outside of it, and cannot write in the system's directory.
    if rights.user == 0 && !rights.in_user_namespace {
        return PathBuf::from(SYSTEM_RUN_DIRECTORY);
    }
    let home = find_home_directory(read_outer_user_id()).zip(boot_id().ok());
    let home =
        home.map(|(home, boot)| home.join(".cache").join(RUN_DIRECTORY_NAME).join(format!("run-{boot}")));
    user_runtime_directory(Path::new(USER_RUN_DIRECTORIES), &std::env::temp_dir(), home, read_outer_user_id())
}

/// Directory of an ordinary user. No other user can remove a directory that a session manager made. The environment is
/// not used, because all processes of a user must agree, also those of `sudo -u` and of services.
fn user_runtime_directory(users: &Path, temporary: &Path, home: Option<PathBuf>, user: u32) -> PathBuf {
    let session = users.join(user.to_string());
    if is_own_directory(&session) {
        return session.join(RUN_DIRECTORY_NAME);
    }
    let shared = temporary.join(format!("{RUN_DIRECTORY_NAME}-{user}"));
    // Once the directory in the home exists, it stays in use: the other user may remove the shared one, and all
    // processes of this user must still agree.
    let in_home = home.filter(|home| {
        is_own_directory(home) || belongs_to_another_user(&shared) && home.ancestors().any(is_own_directory)
    });
    in_home.unwrap_or(shared)
}

fn is_own_directory(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && check_owner(path, &found).is_ok())
}

/// Returns true if a file or directory at `path` belongs to another user.
fn belongs_to_another_user(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() != ThreadRights::current().user)
}

/// Maximum number of bytes of a file that is read. Files of a tap with many interfaces take some kilobytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Maximum number of files that are listed.
const MAX_FILES: usize = 4096;
/// Maximum number of attempts to lock a file, and the pause between two attempts.
const MAX_LOCK_ATTEMPTS: u32 = 100;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of names that are tried for a draft.
const MAX_DRAFT_NAMES: u32 = 1000;
/// Mode bits with which group or others may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Writes a file, and makes its directory if necessary. At any time, readers see the complete old or
/// the complete new file.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = create_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let name = file_name_of(path)?;
    let DraftFile { name: draft, mut file } = create_draft(&directory, name)?;
    let written = file.write_all(bytes).and_then(|()| {
        // Atomic: a reader finds the old or the new file, whole.
        Ok(rustix::fs::renameat(&directory, &draft, &directory, name)?)
    });
    if written.is_err() {
        // Drafts must not fill the disk. If the removal fails, too, the caller gets the first error.
        ignore_failure(rustix::fs::unlinkat(&directory, &draft, AtFlags::empty()));
    }
    written
}

/// A new file that gets its final name when it is complete.
struct DraftFile {
    name: OsString,
    file: File,
}

/// Creates a draft that no other writer has: neither another thread, nor a process of another PID namespace with the same number.
fn create_draft(directory: &OwnedFd, name: &OsStr) -> io::Result<DraftFile> {
    static NEXT_FILE_NUMBER: AtomicU64 = AtomicU64::new(0);
    for _ in 0..MAX_DRAFT_NAMES {
        let number = NEXT_FILE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut draft = name.to_owned();
        draft.push(format!(".{}-{number}", process::current_process_id()));
        match open_file(directory, &draft, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
            // Another process has the draft, or a killed process has left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok(DraftFile { name: draft, file: opened? }),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Reads a regular file that is this user's own and has at most 1 MiB.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let directory = open_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    // NONBLOCK (open_file): a pipe would block the reader before its kind is known.
    let file = open_file(&directory, file_name_of(path)?, OFlags::RDONLY)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > LONGEST_FILE {
        let why = format!("{} is not a regular file of at most 1 MiB", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    // The opened file is checked and not its name, which may belong to another file by now.
    check_owner(path, &found)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lists the names in a directory that is this user's own, at most 4096. None if the directory is another user's
/// or does not exist.
pub fn list_names(directory: &Path) -> Vec<OsString> {
    let listed = open_directory(directory).and_then(|opened| {
        // A second descriptor, because that of `open_directory` is O_PATH and cannot be read.
        let listing = rustix::fs::openat(&opened, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Dir::new(listing)?)
    });
    let entries = listed.into_iter().flatten().flatten();
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    names.filter(|name| name != "." && name != "..").take(MAX_FILES).collect()
}

/// Creates a directory that is this user's own, if necessary. Returns the device number of its file system,
/// and its inode number.
pub fn create_and_identify_directory(directory: &Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::fstat(create_directory(directory)?)?;
    Ok((found.st_dev, found.st_ino))
}

/// Locks a file for a caller that reads, changes and writes it, until the returned handle is dropped. `None`
/// if another process holds the lock for half a second: that process may be stopped.
pub fn lock_file_for_update(path: &Path) -> Option<File> {
    let file = open_lock_file(&update_lock_path(path)).ok()?;
    let is_held = (0..MAX_LOCK_ATTEMPTS).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(LOCK_RETRY_PAUSE);
        }
        file.try_lock().is_ok()
    });
    is_held.then_some(file)
}

/// Returns true if a process has locked a file with [`lock_file_for_update`].
pub fn is_locked_for_update(path: &Path) -> bool {
    // Takes a shared lock for a moment: a process that tries to lock the file in that moment tries again.
    open_existing_lock_file(&update_lock_path(path))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Path of the file that [`lock_file_for_update`] locks for the file at `path`.
pub fn update_lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Opens a file that is to be locked; makes the file and its directory if necessary.
pub(crate) fn open_lock_file(path: &Path) -> io::Result<File> {
    let directory = create_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let file = open_file(&directory, file_name_of(path)?, OFlags::RDWR | OFlags::CREATE)?;
    check_owner(path, &file.metadata()?)?;
    Ok(file)
}

/// Opens an existing lock file, to see whether it is locked.
pub(crate) fn open_existing_lock_file(path: &Path) -> io::Result<File> {
    let directory = open_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    // Checking a lock needs no right to write to the file, which a program in a sandbox may lack.
    let file = open_file(&directory, file_name_of(path)?, OFlags::RDONLY)?;
    check_owner(path, &file.metadata()?)?;
    Ok(file)
}

fn file_name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn open_file(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    // A link could lead to a file that another user has chosen, and opening a pipe would wait for its other end.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?))
}

fn ownership_error(path: &Path) -> io::Error {
    let text = format!(
        "{} must belong to this user alone; correct its owner and mode, or set {RUN_DIRECTORY_VARIABLE} to another directory",
        path.display()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn check_owner(path: &Path, found: &Metadata) -> io::Result<()> {
    if is_own(found.uid(), found.mode()) { Ok(()) } else { Err(ownership_error(path)) }
}

fn is_own(user: u32, mode: u32) -> bool {
    user == ThreadRights::current().user && mode & WRITABLE_BY_OTHERS == 0
}

/// Renames a file within one directory that is this user's own.
pub fn rename_file(from: &Path, to: &Path) -> io::Result<()> {
    let directory = open_directory(from.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok(rustix::fs::renameat(&directory, file_name_of(from)?, &directory, file_name_of(to)?)?)
}

/// Removes a file. It is no error if the file, or its whole directory, is gone already.
pub fn remove_file(path: &Path) -> io::Result<()> {
    let directory = open_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?);
    let removed = directory
        .and_then(|directory| Ok(rustix::fs::unlinkat(&directory, file_name_of(path)?, AtFlags::empty())?));
    match removed {
        // Another process may have removed the file, or the whole directory, in the meantime.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens the directory of one kind of file. Fails unless it and the directory above it are this user's own.
fn open_directory(directory: &Path) -> io::Result<OwnedFd> {
    let base = directory.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let opened = open_own_directory(CWD, base, base)?;
    open_own_directory(opened.as_fd(), Path::new(file_name_of(directory)?), directory)
}

/// Opens the directory as [`open_directory`] does; makes it and the one above it if necessary.
fn create_directory(directory: &Path) -> io::Result<OwnedFd> {
    let base = directory.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Directories above are the system's, or named by this user.
    if let Some(above) = base.parent().filter(|above| !above.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).create(above).map_err(|error| creation_error(directory, error))?;
    }
    make_directory(CWD, base).map_err(|error| creation_error(directory, error))?;
    // The directory is opened and checked even if it existed already: another user may have made it.
    let opened = open_own_directory(CWD, base, base)?;
    let name = Path::new(file_name_of(directory)?);
    make_directory(opened.as_fd(), name).map_err(|error| creation_error(directory, error))?;
    open_own_directory(opened.as_fd(), name, directory)
}

/// Error for a directory that could not be made. If the permission is missing, another user owns the directory above.
fn creation_error(directory: &Path, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::PermissionDenied { ownership_error(directory) } else { error }
}

/// Makes a directory unless something with its name exists. A symbolic link is not followed.
fn make_directory(parent: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory that is this user's own. In a directory where everybody may write, another user may have made it
/// first: such a directory is not used. `path` names it in errors.
fn open_own_directory(parent: BorrowedFd<'_>, name: &Path, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) => opened,
        // A link, or something else that is no directory.
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(ownership_error(path)),
        Err(error) => return Err(error.into()),
    };
    let found = rustix::fs::fstat(&opened)?;
    if is_own(found.st_uid, found.st_mode) { Ok(opened) } else { Err(ownership_error(path)) }
}

#[cfg(test)]
mod tests;
