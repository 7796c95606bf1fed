//! Opens a file for private content, but only if no other user can have chosen the file.
//!
//! Invariant: an opened file is checked before it is written, emptied or given another mode.

use super::{FILE_MODE, PERMISSION_BITS};
use crate::error::ignore_failure;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Mode bits with which group or others may write.
const WRITABLE_BY_OTHERS_MODE: u32 = 0o022;
/// Mode bits for any right of group or others.
const OPEN_TO_OTHERS_MODE: u32 = 0o077;
/// Maximum number of symbolic links that are followed, the same as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum number of attempts to open a file that other processes make and remove at the same time.
const MAX_TRIES: usize = 8;

/// Mode in which a private file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOpening {
    Emptied,
    New,
    Append,
    ReadWrite,
}

impl FileOpening {
    fn open_options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        match self {
            Self::Emptied | Self::New => options.write(true),
            Self::Append => options.append(true),
            Self::ReadWrite => options.read(true).write(true),
        };
        options.mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW);
        options
    }
}

/// Opens the file. A new file is private; an existing one must belong to this user, see [`FileUser::check_owner`].
pub(super) fn open_private(path: &Path, opening: FileOpening) -> io::Result<File> {
    let user = FileUser::current();
    if is_process_link(path) && opening != FileOpening::New {
        // O_NOFOLLOW is not set, because `/dev/stdout` and similar names are links.
        return prepare_file(path, opening.open_options().custom_flags(0).open(path)?, opening);
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_TRIES {
        // O_EXCL first: a file that this call makes needs no check of its owner.
        match opening.open_options().create_new(true).open(&path) {
            Ok(file) => return restrict_file_to_owner(&path, &file, true).map(|()| file),
            Err(error) if error.kind() != ErrorKind::AlreadyExists || opening == FileOpening::New => {
                return Err(error);
            }
            Err(_) => {}
        }
        path = follow_links(path, user)?;
        if is_process_link(&path) {
            return open_private(&path, opening);
        }
        match open_existing(&path, opening, user) {
            // The file was removed in the meantime, or a link leads to a file that does not exist yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
    Err(ErrorKind::Interrupted.into())
}

/// Returns true for links to open files of a process: `/dev/stdout` leads to such a link, `/proc/self/fd/1`. A file in
/// a directory that is reached by such a link ([`crate::held_directory`]) is an ordinary file.
fn is_process_link(path: &Path) -> bool {
    let is_in_open_directory =
        path.strip_prefix("/proc/self/fd").is_ok_and(|below| below.components().count() > 1);
    !is_in_open_directory && ["/proc", "/dev/fd"].iter().any(|place| path.starts_with(place))
}

fn open_existing(path: &Path, opening: FileOpening, user: FileUser) -> io::Result<File> {
    // The first check comes before opening: opening a pipe of another user would wait for that user.
    user.check_owner(path, &std::fs::symlink_metadata(path)?)?;
    let file = opening.open_options().open(path)?;
    user.check_owner(path, &file.metadata()?)?;
    prepare_file(path, file, opening)
}

fn prepare_file(path: &Path, file: File, opening: FileOpening) -> io::Result<File> {
    if file.metadata()?.is_file() {
        restrict_file_to_owner(path, &file, false)?;
        if opening == FileOpening::Emptied {
            // The file is truncated only after the checks: O_TRUNC at opening would have emptied any file.
            file.set_len(0)?;
        }
    }
    Ok(file)
}

/// Follows symbolic links to the end. In a directory where other users may write, only links of this user
/// or root are followed.
fn follow_links(mut path: PathBuf, user: FileUser) -> io::Result<PathBuf> {
    for _ in 0..MAX_LINKS {
        if is_process_link(&path) {
            return Ok(path);
        }
        match std::fs::symlink_metadata(&path) {
            Ok(facts) if facts.is_symlink() => user.check_owner(&path, &facts)?,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(path),
        }
        // If a link has replaced the file in the meantime, it has another owner, and the second check refuses
        // it; or it belongs to this user as well.
        let target = std::fs::read_link(&path)?;
        user.check_owner(&path, &std::fs::symlink_metadata(&path)?)?;
        path = parent_or_current_directory(&path).join(target);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn parent_or_current_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The users whose files this process may write.
#[derive(Clone, Copy, Debug)]
struct FileUser {
    own: u32,
    /// The user who became root with sudo.
    invoker: Option<u32>,
}

impl FileUser {
    fn current() -> Self {
        let own = rustix::process::geteuid().as_raw();
        let named = std::env::var("SUDO_UID").ok().and_then(|text| text.parse().ok());
        Self { own, invoker: named.filter(|_| own == 0) }
    }

    fn is_own_user(self, owner: u32) -> bool {
        owner == self.own || self.invoker == Some(owner)
    }

    /// Refuses files that another user may have put there: regular files of other users, except that root may use those
    /// of the directory's owner. In directories where other users may write, it also refuses pipes and sockets of other
    /// users, symbolic links of users other than this one and root, and files with several hard links.
    fn check_owner(self, path: &Path, facts: &Metadata) -> io::Result<()> {
        let kind = facts.file_type();
        if kind.is_block_device() || kind.is_char_device() || kind.is_dir() {
            return Ok(());
        }
        let is_own = self.is_own_user(facts.uid());
        if is_own && !kind.is_symlink() && facts.nlink() <= 1 {
            return Ok(());
        }
        let directory = std::fs::metadata(parent_or_current_directory(path))?;
        let is_shared = directory.mode() & WRITABLE_BY_OTHERS_MODE != 0;
        let is_trusted = if kind.is_symlink() {
            is_own || facts.uid() == 0 || !is_shared
        } else if kind.is_file() {
            // Root may write files of the directory's owner, because no other user can have put them there.
            let is_of_directory = self.own == 0 && facts.uid() == directory.uid();
            !is_shared && (is_own || is_of_directory)
        } else {
            is_own || !is_shared
        };
        if is_trusted { Ok(()) } else { Err(self.ownership_error(path, facts)) }
    }

    fn ownership_error(self, path: &Path, facts: &Metadata) -> io::Error {
        let owner = facts.uid();
        let what = if facts.is_symlink() {
            "and is a symbolic link in a directory where other users may write"
        } else if self.is_own_user(owner) {
            "and has several hard links in a directory where other users may write"
        } else if facts.is_file() {
            "and that user could read the new content"
        } else {
            "and is a pipe or socket in a directory where other users may write"
        };
        let text = format!(
            "{} belongs to user {owner} (packetrig runs as user {}) {what}; remove the file, or name a file in a directory of \
             your own",
            path.display(),
            self.own
        );
        io::Error::new(ErrorKind::PermissionDenied, text)
    }
}

/// Called once if a file could not be made private.
static EXPOSED_FILE_CALLBACK: OnceLock<fn(&Path, &io::Error)> = OnceLock::new();
static IS_EXPOSURE_REPORTED: AtomicBool = AtomicBool::new(false);

/// Sets the function that is called, once in this process, if a file could not be made private: its file
/// system has no modes (FAT), or does not allow changing them (some of NFS). The file is written anyway.
pub fn set_exposed_file_callback(tell: fn(&Path, &io::Error)) {
    // Only the first call sets the function.
    ignore_failure(EXPOSED_FILE_CALLBACK.set(tell));
}

/// Sets the mode of the open file to 0600. If the file system cannot do this, the file is used anyway if it is new, or
/// if only its owner may write to it.
fn restrict_file_to_owner(path: &Path, file: &File, is_new: bool) -> io::Result<()> {
    let mode = file.metadata()?.mode() & PERMISSION_BITS;
    if mode == FILE_MODE {
        return Ok(());
    }
    let Err(error) = file.set_permissions(Permissions::from_mode(FILE_MODE)) else { return Ok(()) };
    if !may_stay_exposed(&error, mode, is_new) {
        return Err(error);
    }
    let is_exposed = mode & OPEN_TO_OTHERS_MODE != 0;
    if is_exposed
        && !IS_EXPOSURE_REPORTED.swap(true, Ordering::Relaxed)
        && let Some(tell) = EXPOSED_FILE_CALLBACK.get()
    {
        tell(path, &error);
    }
    Ok(())
}

/// Returns true if a file is used although its mode could not be changed.
fn may_stay_exposed(error: &io::Error, mode: u32, is_new: bool) -> bool {
    let has_no_modes = matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::ENOTSUP | libc::ENOSYS | libc::EROFS | libc::EINVAL)
    );
    has_no_modes && (is_new || mode & WRITABLE_BY_OTHERS_MODE == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_files::{
        create_file, create_new_private_file, open_or_create, open_to_append, write_file,
    };
    use std::os::unix::fs::{chown, symlink};

    const STRANGER: u32 = 65_534;

    /// A directory like `/tmp`.
    fn shared_directory() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o1777)).unwrap();
        place
    }

    /// Gives a file or link to another user; false where that cannot be done.
    fn give_away(path: &Path) -> bool {
        let given = std::os::unix::fs::lchown(path, Some(STRANGER), None);
        given.inspect_err(|error| println!("skipped: files cannot be given away: {error}")).is_ok()
    }

    fn assert_refused(path: &Path) {
        for open in [create_file, open_to_append, open_or_create] {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains("remove the file"), "{text}");
        }
    }

    #[test]
    fn file_created_by_another_user_is_refused_unchanged() {
        let place = shared_directory();
        let file = place.path().join("x.pcap");
        std::fs::write(&file, "theirs").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        if !give_away(&file) {
            return;
        }
        assert_refused(&file);
        assert!(create_file(&file).unwrap_err().to_string().contains("belongs to user 65534"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & PERMISSION_BITS, 0o666);
        // In a directory of its owner alone nobody else can have put it there: root may write it.
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        assert_refused(&file);
        chown(place.path(), Some(STRANGER), None).unwrap();
        write_file(&file, "root's").unwrap();
    }

    #[test]
    fn foreign_link_or_pipe_in_shared_directory_refused() {
        let place = shared_directory();
        let own = tempfile::tempdir().unwrap();
        let target = own.path().join("target");
        std::fs::write(&target, "keep").unwrap();
        let link = place.path().join("x.pcap");
        symlink(&target, &link).unwrap();
        let pipe = place.path().join("pipe");
        let mode = rustix::fs::Mode::from_bits_truncate(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        if !give_away(&link) || !give_away(&pipe) {
            return;
        }
        assert_refused(&link);
        assert_refused(&pipe);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "keep");
        let dangling = place.path().join("dangling");
        symlink(own.path().join("new"), &dangling).unwrap();
        assert!(give_away(&dangling));
        assert_refused(&dangling);
        assert!(!own.path().join("new").exists());
        // A link of this user that leads to theirs is theirs.
        symlink(&link, own.path().join("chain")).unwrap();
        assert_eq!(create_file(&own.path().join("chain")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn own_links_are_followed_even_to_new_files() {
        let place = shared_directory();
        let directory = tempfile::tempdir().unwrap();
        symlink(directory.path().join("new"), place.path().join("a")).unwrap();
        symlink("a", place.path().join("b")).unwrap();
        write_file(&place.path().join("b"), "1").unwrap();
        write_file(&place.path().join("b"), "2").unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("new")).unwrap(), "2");
        assert_eq!(
            create_new_private_file(&place.path().join("b")).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        symlink("loop", place.path().join("loop")).unwrap();
        assert_eq!(create_file(&place.path().join("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn hard_link_in_shared_directory_is_refused() {
        let place = shared_directory();
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("secret");
        std::fs::write(&file, "keep").unwrap();
        let further = place.path().join("x.pcap");
        if std::fs::hard_link(&file, &further).is_err() {
            return println!("skipped: two file systems");
        }
        assert_refused(&further);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "keep");
        write_file(&file, "mine").unwrap();
    }

    /// The kernel refuses every change of mode there, as a file system without modes does.
    #[test]
    fn unchangeable_file_mode_is_tolerated_and_reported_once() {
        static TOLD: AtomicBool = AtomicBool::new(false);
        set_exposed_file_callback(|path, _| {
            assert!(path.ends_with("comm") && !TOLD.swap(true, Ordering::Relaxed));
        });
        let comm = Path::new("/proc/thread-self/comm");
        let error = std::fs::set_permissions(comm, Permissions::from_mode(FILE_MODE)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        write_file(comm, "private").unwrap();
        write_file(comm, "files").unwrap();
        assert_eq!(std::fs::read_to_string(comm).unwrap(), "files\n");
        assert!(TOLD.load(Ordering::Relaxed));
    }

    #[test]
    fn missing_mode_support_is_accepted_without_other_writers() {
        let error = |number| io::Error::from_raw_os_error(number);
        assert!(may_stay_exposed(&error(libc::EPERM), 0o777, true));
        assert!(may_stay_exposed(&error(libc::ENOTSUP), 0o755, false));
        assert!(!may_stay_exposed(&error(libc::EPERM), 0o775, false), "others may write to it");
        assert!(!may_stay_exposed(&error(libc::EIO), 0o755, true));
    }
}
