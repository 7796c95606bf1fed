//! Locks on names: in a network namespace, at most one process holds a name.
//!
//! A [`NameLock`] is a lock on a file of the [runtime directory](crate::runtime_directory), where no other user can
//! make or lock one. It also owns a socket that listens at an abstract name, which shows the lock to processes with
//! another runtime directory. Every user can listen at such a name, so a socket counts only if the kernel reports this
//! user or root as its owner. If another user has the name, the holder listens at the name with a suffix. The kernel
//! lists the sockets without a connection, so a holder is found even if another user has filled its queue of
//! connections. The kernel frees the lock and the socket when the process closes them or dies.

mod listeners;

use crate::runtime_directory::{self, open_existing_lock_file, open_lock_file};
use crate::{Error, netns::NetNs, process};
use listeners::{LockNameHolder, find_holder, listen_at_name};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Directory of the lock files below the runtime directory.
const LOCKS_DIRECTORY: &str = "locks";
/// Maximum number of attempts to lock a file. An attempt fails if the last holder removes the file at the same time.
const MAX_TRIES: usize = 16;

/// A lock on a name. Dropping it releases the name.
#[derive(Debug)]
pub struct NameLock {
    /// Shows other processes that the name is held; no connection is accepted.
    _listener: UnixListener,
    file: LockFile,
}

/// A locked file of this user. Dropping it removes the file. The kernel frees the lock of a process that dies.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // The file is removed while it is locked: a process that has opened it in the meantime locks a file
        // without a name, and tries again. A file that cannot be removed stays, unlocked.
        drop(std::fs::remove_file(&self.path));
    }
}

impl NameLock {
    /// Locks `name` in `netns`. If another process holds it, the error is [`Error::Busy`] with `object` and, if it can
    /// be read, the number of that process.
    pub fn acquire_name(netns: &NetNs, name: &str, object: &str) -> Result<Self, Error> {
        let path = lock_file_path(netns, name)?;
        let locked = LockFile::try_lock_at(&path)
            .map_err(|error| Error::from_call("lock", path.display().to_string(), error))?;
        // The number in the file is a hint for the message. Only the lock itself decides.
        let Some(file) = locked else {
            return Err(Error::Busy { object: object.to_owned(), holder: read_lock_holder(&path) });
        };
        // The socket is for processes with another runtime directory.
        let bound = netns.run_in_namespace(|| listen_at_name(name))?;
        let listener = bound.map_err(|error| Error::from_call("lock", object, error))?;
        // The check comes after binding: of two processes that start at once, at least one then sees the other.
        match find_holder(netns, name, &listener)? {
            LockNameHolder::Nobody => Ok(Self { _listener: listener, file }),
            LockNameHolder::Trusted(holder) => Err(Error::Busy { object: object.to_owned(), holder }),
        }
    }

    /// Path of the lock file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Returns true if a process holds `name` in `netns`. Unlike [`NameLock::acquire_name`], this does not prevent other
/// processes from locking the name afterwards.
pub fn is_name_held(netns: &NetNs, name: &str) -> Result<bool, Error> {
    // A file that cannot be opened shows no holder. Then only the listeners count.
    let is_locked = open_existing_lock_file(&lock_file_path(netns, name)?).is_ok_and(|file| is_locked(&file));
    Ok(is_locked || listeners::has_live_listener(netns, name)?)
}

/// Returns true if a process has locked a file of this user. A file that does not exist is not locked.
pub fn is_file_locked(path: &Path) -> std::io::Result<bool> {
    match open_existing_lock_file(path) {
        Ok(file) => Ok(is_locked(&file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Path of the lock file for a name in a namespace.
fn lock_file_path(netns: &NetNs, name: &str) -> Result<PathBuf, Error> {
    // A later namespace may get the same number; the locks of the earlier one are gone by then.
    let namespace = netns.inode()?;
    // Names contain slashes; a file name must not.
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(runtime_directory::runtime_path_for(LOCKS_DIRECTORY).join(format!("{namespace}-{name}")))
}

impl LockFile {
    /// Locks the file, and creates it if necessary; `None` if another process has locked it.
    pub fn try_lock_at(path: &Path) -> std::io::Result<Option<Self>> {
        for _ in 0..MAX_TRIES {
            let mut file = open_lock_file(path)?;
            if !try_lock_file(&file)? {
                return Ok(None);
            }
            // The last holder may have removed the file after it was opened here: then the lock is on a file
            // that no other process finds.
            let own = file.metadata()?;
            let is_same = std::fs::symlink_metadata(path)
                .is_ok_and(|found| found.dev() == own.dev() && found.ino() == own.ino());
            if is_same {
                // If the last holder was killed, its number is still in the file.
                file.set_len(0)?;
                write!(file, "{}", process::current_process_id())?;
                return Ok(Some(Self { path: path.to_owned(), _file: file }));
            }
        }
        Err(std::io::ErrorKind::Interrupted.into())
    }
}

/// Reads the process number that the holder wrote into the file.
fn read_lock_holder(path: &Path) -> Option<i32> {
    let mut text = String::new();
    // A process number has far fewer than 16 digits. The limit keeps a file with other content from filling the memory.
    open_existing_lock_file(path).ok()?.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Exclusive lock on a whole file. It belongs to the open file description (`F_OFD_SETLK`), so it also excludes other
/// threads of this process. A classic POSIX lock would belong to the whole process.
const fn whole_file_lock() -> libc::flock {
    // A length of 0 is the whole file, whatever it grows to. The kernel requires `l_pid` to be 0 for these locks.
    libc::flock { l_type: F_WRLCK, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 }
}

/// `F_WRLCK`, in the type of the field `l_type`.
const F_WRLCK: libc::c_short = 1;

/// Locks the file; false if another open file has the lock.
fn try_lock_file(file: &File) -> std::io::Result<bool> {
    let lock = whole_file_lock();
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel only reads the structure.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    // POSIX allows either error number for a lock that is already held.
    let is_taken = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    if is_taken { Ok(false) } else { Err(error) }
}

fn is_locked(file: &File) -> bool {
    let mut lock = whole_file_lock();
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes only the structure,
    // which no other code uses.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    // The kernel answers with the lock that is in the way, or with `F_UNLCK` if there is none.
    done == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    use std::os::fd::OwnedFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    #[test]
    fn name_lock_is_exclusive_and_names_holder() {
        let netns = NetNs::current().unwrap();
        let name = format!("sys-lock-test-{}", std::process::id());
        let held = NameLock::acquire_name(&netns, &name, "eth1").unwrap();
        let Err(Error::Busy { object, holder }) = NameLock::acquire_name(&netns, &name, "eth1") else {
            panic!("two holders")
        };
        assert_eq!(object, "eth1");
        assert!(is_name_held(&netns, &name).unwrap());
        assert_eq!(holder, i32::try_from(std::process::id()).ok());
        drop(held);
        assert!(!is_name_held(&netns, &name).unwrap());
        NameLock::acquire_name(&netns, &name, "eth1").unwrap();
    }

    #[test]
    fn name_lock_is_separate_per_namespace() {
        let here = NetNs::current().unwrap();
        let there = match NetNs::create_unnamed_namespace() {
            Ok(there) => there,
            Err(error) => return assert!(error.is_permission_error(), "{error}"),
        };
        let name = format!("sys-lock-apart-{}", std::process::id());
        let _first = NameLock::acquire_name(&here, &name, "eth1").unwrap();
        let _second = NameLock::acquire_name(&there, &name, "eth1").unwrap();
    }

    #[test]
    fn fileless_socket_counts_as_lock_holder() {
        let netns = NetNs::current().unwrap();
        let name = format!("sys-lock-elsewhere-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let busy = NameLock::acquire_name(&netns, &name, "eth1").unwrap_err();
        assert!(matches!(busy, Error::Busy { holder: Some(_), .. }), "{busy}");
        drop(listener);
        NameLock::acquire_name(&netns, &name, "eth1").unwrap();
    }

    /// A listener at a name, and clients that fill its queue.
    fn full_queue(name: &str) -> Vec<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let mut sockets = vec![open()];
        rustix::net::bind(&sockets[0], &address).unwrap();
        rustix::net::listen(&sockets[0], 1).unwrap();
        sockets.extend((0..8).map(|_| open()));
        let refused = sockets[1..].iter().filter(|socket| connect(socket, &address).is_err()).count();
        assert!(refused > 0, "the queue has an end");
        sockets
    }

    #[test]
    fn full_queue_neither_hides_nor_blocks_lock_holder() {
        let netns = NetNs::current().unwrap();
        let name = format!("sys-lock-full-{}", std::process::id());
        // A holder that keeps its files elsewhere, whose queue somebody has filled.
        let elsewhere = full_queue(&name);
        assert!(is_name_held(&netns, &name).unwrap());
        let busy = NameLock::acquire_name(&netns, &name, "eth1").unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        drop(elsewhere);
        let held = NameLock::acquire_name(&netns, &name, "eth1").unwrap();
        let path = held.path().to_owned();
        drop(held);
        assert!(!is_name_held(&netns, &name).unwrap() && !path.exists());
    }

    const SQUATTER: &str = "PACKETRIG_TEST_SQUATTER";

    /// Listens at a name until its input ends.
    #[test]
    #[ignore = "run by another test"]
    fn squatter() {
        let name = std::env::var(SQUATTER).unwrap();
        let _sockets = full_queue(&name);
        println!("listens");
        std::io::stdin().read_to_string(&mut String::new()).unwrap();
    }

    #[test]
    fn another_user_cannot_keep_a_name() {
        use std::io::{BufRead, BufReader};
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        let netns = NetNs::current().unwrap();
        let name = format!("sys-lock-squatted-{}", std::process::id());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "lock::tests::squatter", "--nocapture", "--include-ignored"]);
        command.env(SQUATTER, &name).uid(65_534).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut squatter = match command.spawn() {
            Ok(squatter) => squatter,
            Err(error) => return println!("skipped: no other user here: {error}"),
        };
        let mut lines = BufReader::new(squatter.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("listens")));
        assert!(!is_name_held(&netns, &name).unwrap());
        let held = NameLock::acquire_name(&netns, &name, "eth1").unwrap();
        assert!(is_name_held(&netns, &name).unwrap());
        assert!(matches!(NameLock::acquire_name(&netns, &name, "eth1"), Err(Error::Busy { .. })));
        // A process that keeps files elsewhere sees the holder, too, although the name is another user's.
        assert!(listeners::has_live_listener(&netns, &name).unwrap());
        drop(held);
        assert!(!listeners::has_live_listener(&netns, &name).unwrap());
        drop(squatter.stdin.take());
        assert!(squatter.wait().unwrap().success());
    }
}
