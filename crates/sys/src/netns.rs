//! Network namespaces: opening, making, entering and finding them.
//!
//! A [`NetNs`] owns one descriptor that keeps its namespace alive. Only new threads, which end there, enter a
//! namespace, so no existing thread is moved to another namespace. If the calling thread is inside already, it does the
//! work itself. Sockets made inside stay in that namespace wherever they are used.
//!
//! Entering takes CAP_SYS_ADMIN. A program that gives this capability up calls [`start_resident_threads`] before: one thread
//! then stays in each namespace, and starts the threads for later work there.

use crate::resident::ResidentThread;
use crate::{Error, private_files};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::thread::JoinHandle;

/// Directory of named namespaces, shared with `ip netns`.
pub const NETNS_DIRECTORY: &str = "/run/netns";
/// Maximum number of namespaces in the list of [`NetNs::list_visible_namespaces`].
const MAX_VISIBLE: usize = 1024;
const MISSING_RIGHTS_TEXT: &str = "needs CAP_SYS_ADMIN: run as root";
const CREATED_LATER_TEXT: &str =
    "this program dropped CAP_SYS_ADMIN before the namespace was made or named; restart the program";
/// Maximum number of namespaces with a thread that stays there.
const MAX_RESIDENTS: usize = 256;

/// Threads that stay in a namespace, by the namespace's inode, which is not used again while the thread is there.
static RESIDENT_THREADS: RwLock<Vec<(u64, ResidentThread)>> = RwLock::new(Vec::new());
/// File system type of namespace descriptors (`linux/magic.h`).
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
const CALLER_NETNS_PATH: &str = "/proc/thread-self/ns/net";

#[derive(Debug)]
pub struct NetNs {
    file: File,
    label: String,
}

impl NetNs {
    /// Opens the namespace of the calling thread.
    pub fn current() -> Result<Self, Error> {
        let file = File::open(CALLER_NETNS_PATH)
            .map_err(|error| Error::from_call("open", CALLER_NETNS_PATH, error))?;
        Ok(Self { file, label: "the current namespace".into() })
    }

    /// Opens the namespace of that name in `/run/netns`.
    pub fn open_named_namespace(name: &str) -> Result<Self, Error> {
        let path = namespace_path(name)?;
        let file = File::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing_namespace(name),
            _ => Error::from_call("open", path.display().to_string(), error),
        })?;
        let opened = Self { file, label: name.to_owned() };
        // A deleted namespace may have left a plain file, which opens, too.
        if opened.is_namespace() { Ok(opened) } else { Err(missing_namespace(name)) }
    }

    /// Another handle on the same namespace.
    pub fn duplicate(&self) -> Result<Self, Error> {
        let file =
            self.file.try_clone().map_err(|error| Error::from_call("dup", self.label.clone(), error))?;
        Ok(Self { file, label: self.label.clone() })
    }

    /// Opens the namespace of that name, or the calling thread's for `None`.
    pub fn open_named_or_current_namespace(name: Option<&str>) -> Result<Self, Error> {
        name.map_or_else(Self::current, Self::open_named_namespace)
    }

    /// Creates a namespace without a name; it ends with the last descriptor, socket or thread in it.
    pub fn create_unnamed_namespace() -> Result<Self, Error> {
        // `unshare` moves the calling thread permanently, so it runs on a thread that ends.
        run_in_new_thread(|| {
            unshare_network()?;
            Self::current().map(|current| Self { label: "an unnamed namespace".into(), ..current })
        })
    }

    /// Creates a namespace that other programs find by name, as `ip netns add` does. It stays until
    /// [`delete_named_namespace`].
    pub fn create_named_namespace(name: &str) -> Result<Self, Error> {
        let path = namespace_path(name)?;
        private_files::create_public_directories(Path::new(NETNS_DIRECTORY))
            .map_err(|error| Error::from_call("mkdir", NETNS_DIRECTORY, error))?;
        let object = path.display().to_string();
        // Creating the file fails if the name is taken: two namespaces must not get the same name.
        private_files::create_new_private_file(&path).map_err(|error| {
            Error::from_call("create", object.clone(), error).with_rights(MISSING_RIGHTS_TEXT)
        })?;
        let mounted = run_in_new_thread(|| {
            unshare_network()?;
            // The mount keeps the namespace alive without a process or descriptor (ip-netns(8)).
            rustix::mount::mount_bind(CALLER_NETNS_PATH, &path).map_err(|errno| {
                Error::from_call("mount", object.clone(), errno).with_rights(MISSING_RIGHTS_TEXT)
            })
        });
        let opened = mounted.and_then(|()| Self::open_named_namespace(name));
        if opened.is_err() {
            // No namespace is mounted on the file: it would only make the next attempt fail.
            drop(std::fs::remove_file(&path));
        }
        opened
    }

    /// Runs `work` inside this namespace, on a separate thread unless the caller's thread is inside already. The result
    /// of `work`, for example a socket, may be used in any namespace. A panic of `work` continues in the caller.
    pub fn run_in_namespace<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        // The usual case. It needs no thread and no rights.
        if self.is_calling_thread_inside()? {
            return Ok(work());
        }
        let inode = self.inode()?;
        let residents = RESIDENT_THREADS.read().unwrap_or_else(PoisonError::into_inner);
        // CAP_SYS_ADMIN may have been given up. A thread that stayed in the namespace needs no right: the
        // threads that it starts inherit the namespace.
        if let Some((_, resident)) = residents.iter().find(|(namespace, _)| *namespace == inode) {
            return resident.run_job(work);
        }
        // The lock is released before `work` runs: the work may take long, and other threads may have to change the list.
        drop(residents);
        run_in_new_thread(|| {
            self.enter_namespace()?;
            Ok(work())
        })
    }

    /// Starts a thread that does `work` in this namespace.
    pub fn spawn_in_namespace<T: Send + 'static>(
        &self,
        name: String,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<JoinHandle<Result<T, Error>>, Error> {
        let inside = self.duplicate()?;
        let thread = std::thread::Builder::new().name(name.clone());
        // A thread that is started in the namespace need not enter it.
        let started = if self.has_resident_thread()? {
            self.run_in_namespace(|| thread.spawn(move || inside.enter_and_run(work)))?
        } else {
            thread.spawn(move || inside.enter_and_run(work))
        };
        started.map_err(|error| Error::from_call("spawn", name, error))
    }

    /// Enters this namespace and does `work`. The calling thread must end afterwards.
    fn enter_and_run<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.enter_namespace()?;
        work()
    }

    fn has_resident_thread(&self) -> Result<bool, Error> {
        let inode = self.inode()?;
        let residents = RESIDENT_THREADS.read().unwrap_or_else(PoisonError::into_inner);
        Ok(residents.iter().any(|(namespace, _)| *namespace == inode))
    }

    /// Moves the calling thread into this namespace. Only for threads that are about to end.
    fn enter_namespace(&self) -> Result<(), Error> {
        // `setns` needs rights even for the namespace in which the thread already is; an ordinary user has none.
        if self.is_calling_thread_inside()? {
            return Ok(());
        }
        rustix::thread::move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| {
                let has_kept = !RESIDENT_THREADS.read().unwrap_or_else(PoisonError::into_inner).is_empty();
                let cure = if has_kept { CREATED_LATER_TEXT } else { MISSING_RIGHTS_TEXT };
                Error::from_call("setns", self.label.clone(), errno).with_rights(cure)
            })
    }

    /// Returns true if the calling thread is in this namespace.
    fn is_calling_thread_inside(&self) -> Result<bool, Error> {
        let callers = std::fs::metadata(CALLER_NETNS_PATH)
            .map_err(|error| Error::from_call("stat", CALLER_NETNS_PATH, error))?;
        // All namespaces are files of one file system, so the inode number alone distinguishes them.
        Ok(callers.ino() == self.inode()?)
    }

    /// The namespace's number: two handles with the same number are the same namespace.
    pub fn inode(&self) -> Result<u64, Error> {
        let metadata =
            self.file.metadata().map_err(|error| Error::from_call("stat", self.label.clone(), error))?;
        Ok(metadata.ino())
    }

    /// The kernel's number for this namespace, which it never uses twice before a reboot, unlike [`Self::inode`].
    /// `None` before Linux 5.14.
    pub fn cookie(&self) -> Result<Option<u64>, Error> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType};
        let opened = self.run_in_namespace(|| {
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        })?;
        let socket = opened.map_err(|errno| Error::from_call("socket", self.label.clone(), errno))?;
        // The cookie can only be read from a socket that is in the namespace.
        Ok(crate::packet::socket::get_option(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0_u64).ok())
    }

    /// Finds the namespace with that inode number among the caller's, the named ones, and that of `process`.
    pub fn find_namespace_by_inode(inode: u64, process: Option<u32>) -> Option<Self> {
        // The sources come in the order of their cost. The iterator is lazy, so most searches end at the first one.
        let candidates = std::iter::once_with(|| Self::current().ok())
            .chain(list_named_namespaces().into_iter().map(|name| Self::open_named_namespace(&name).ok()))
            .chain(process.map(|process| Self::namespace_of_process(process).ok()));
        candidates.flatten().find(|netns| netns.inode().is_ok_and(|found| found == inode))
    }

    /// Lists the namespaces that this process can find, each once and at most 1024: the caller's, those with a name,
    /// and those of other processes.
    pub fn list_visible_namespaces() -> Vec<Self> {
        let named = list_named_namespaces().into_iter().map(|name| Self::open_named_namespace(&name).ok());
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for netns in std::iter::once_with(|| Self::current().ok()).chain(named).flatten() {
            if netns.inode().is_ok_and(|inode| seen.insert(inode)) {
                all.push(netns);
            }
        }
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            // Nearly all processes are in a namespace that is in the list already. Opening only the other namespaces is
            // three times as fast.
            let inode = std::fs::metadata(netns_path_of_process(process)).map(|found| found.ino());
            if inode.is_ok_and(|inode| !seen.contains(&inode))
                && let Ok(netns) = Self::namespace_of_process(process)
                && netns.inode().is_ok_and(|inode| seen.insert(inode))
            {
                all.push(netns);
            }
        }
        all.truncate(MAX_VISIBLE);
        all
    }

    /// Opens the namespace of a process.
    fn namespace_of_process(process: u32) -> Result<Self, Error> {
        let path = netns_path_of_process(process);
        let file = File::open(&path).map_err(|error| Error::from_call("open", path, error))?;
        Ok(Self { file, label: format!("the namespace of process {process}") })
    }

    /// Finds the name of the namespace in `/run/netns`; `None` if it is the caller's own, or has no name.
    pub fn find_namespace_name(&self) -> Option<String> {
        let inode = self.inode().ok()?;
        if self.is_calling_thread_inside().unwrap_or(false) {
            return None;
        }
        list_named_namespaces().into_iter().find(|name| {
            Self::open_named_namespace(name).is_ok_and(|named| named.inode().ok() == Some(inode))
        })
    }

    /// The name of the namespace, or words that describe it.
    pub fn label(&self) -> &str {
        &self.label
    }

    fn is_namespace(&self) -> bool {
        rustix::fs::fstatfs(&self.file).is_ok_and(|fs| fs.f_type == NSFS_MAGIC)
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Removes the name, as `ip netns delete` does; the namespace ends when nothing uses it any more.
pub fn delete_named_namespace(name: &str) -> Result<(), Error> {
    let path = namespace_path(name)?;
    let object = path.display().to_string();
    match rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH) {
        // EINVAL: a plain file on which nothing is mounted any more.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(rustix::io::Errno::NOENT) => return Err(missing_namespace(name)),
        Err(errno) => return Err(Error::from_call("umount", object, errno).with_rights(MISSING_RIGHTS_TEXT)),
    }
    std::fs::remove_file(&path).map_err(|error| Error::from_call("unlink", object, error))
}

/// Starts a thread that stays in each of these namespaces, so that later work in them needs no rights. A namespace that
/// cannot be entered is left out; work in it reports the reason.
pub fn start_resident_threads(names: &[String]) {
    for name in names.iter().take(MAX_RESIDENTS) {
        let Ok(netns) = NetNs::open_named_namespace(name) else { continue };
        let Ok(inode) = netns.inode() else { continue };
        // In case of doubt, the namespace is left out. Work in it then reports the reason.
        if netns.has_resident_thread().unwrap_or(true) || netns.is_calling_thread_inside().unwrap_or(true) {
            continue;
        }
        if let Ok(resident) = ResidentThread::start_thread_in(&netns, "netns") {
            RESIDENT_THREADS.write().unwrap_or_else(PoisonError::into_inner).push((inode, resident));
        }
    }
}

/// Lists the names of the namespaces in `/run/netns`, in order.
pub fn list_named_namespaces() -> Vec<String> {
    let entries = std::fs::read_dir(NETNS_DIRECTORY).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn namespace_path(name: &str) -> Result<PathBuf, Error> {
    // A name is one component of a path: no other file may be reached by it.
    let fits =
        !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.contains(['/', '\0']);
    if fits { Ok(Path::new(NETNS_DIRECTORY).join(name)) } else { Err(missing_namespace(name)) }
}

fn netns_path_of_process(process: u32) -> String {
    format!("/proc/{process}/ns/net")
}

fn missing_namespace(name: &str) -> Error {
    Error::Missing {
        what: "network namespace",
        name: name.to_owned(),
        remedy: "`ip netns list` lists the namespaces, `ip netns add` makes one",
    }
}

fn unshare_network() -> Result<(), Error> {
    // SAFETY: only CLONE_NEWNET is passed: the descriptor table stays shared, so no descriptor of another
    // thread is closed or replaced.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|errno| {
        Error::from_call("unshare", "a network namespace", errno).with_rights(MISSING_RIGHTS_TEXT)
    })
}

fn run_in_new_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_namespace_is_entered_and_is_itself() {
        let here = NetNs::current().unwrap();
        let inode = here.inode().unwrap();
        // Takes no rights: nothing has to be entered.
        assert_eq!(here.run_in_namespace(|| NetNs::current().unwrap().inode().unwrap()).unwrap(), inode);
    }

    #[test]
    fn the_caller_stays_where_it_was() {
        let before = NetNs::current().unwrap().inode().unwrap();
        match NetNs::create_unnamed_namespace() {
            Ok(made) => {
                let inside = made.run_in_namespace(|| NetNs::current().unwrap().inode().unwrap()).unwrap();
                assert_eq!(inside, made.inode().unwrap());
                assert_ne!(inside, before);
            }
            Err(error) => assert!(error.is_permission_error(), "{error}"),
        }
        assert_eq!(NetNs::current().unwrap().inode().unwrap(), before);
    }

    #[test]
    fn namespace_is_found_by_inode() {
        let here = NetNs::current().unwrap();
        assert_eq!(here.find_namespace_name(), None);
        let found = NetNs::find_namespace_by_inode(here.inode().unwrap(), None).unwrap();
        assert_eq!(found.inode().unwrap(), here.inode().unwrap());
        assert!(NetNs::find_namespace_by_inode(1, Some(std::process::id())).is_none());
        assert_eq!(
            NetNs::namespace_of_process(std::process::id()).unwrap().inode().unwrap(),
            here.inode().unwrap()
        );
    }

    #[test]
    fn two_namespaces_have_two_cookies() {
        let here = NetNs::current().unwrap();
        assert_eq!(here.cookie().unwrap(), here.duplicate().unwrap().cookie().unwrap());
        match NetNs::create_unnamed_namespace() {
            Ok(there) if here.cookie().unwrap().is_some() => {
                assert_ne!(there.cookie().unwrap(), here.cookie().unwrap());
            }
            Ok(_) => {}
            Err(error) => assert!(error.is_permission_error(), "{error}"),
        }
    }

    #[test]
    fn unknown_or_invalid_namespace_name_is_missing() {
        for name in ["no-such-namespace-here", "", ".", "..", "../self/ns/net", "a/b"] {
            assert!(matches!(NetNs::open_named_namespace(name), Err(Error::Missing { .. })), "{name}");
        }
    }

    #[test]
    fn named_namespace_is_found_until_deleted() {
        let name = format!("sys-netns-{}", std::process::id());
        let made = match NetNs::create_named_namespace(&name) {
            Ok(made) => made,
            Err(error) => return assert!(error.is_permission_error(), "{error}"),
        };
        assert_eq!(NetNs::open_named_namespace(&name).unwrap().inode().unwrap(), made.inode().unwrap());
        assert!(list_named_namespaces().contains(&name));
        assert_eq!(made.find_namespace_name().as_deref(), Some(name.as_str()));
        let found = NetNs::find_namespace_by_inode(made.inode().unwrap(), None).unwrap();
        assert_eq!((found.inode().unwrap(), found.label()), (made.inode().unwrap(), name.as_str()));
        assert!(NetNs::create_named_namespace(&name).is_err());
        delete_named_namespace(&name).unwrap();
        assert!(matches!(NetNs::open_named_namespace(&name), Err(Error::Missing { .. })));
    }
}
