//! A private lab: namespaces in which an ordinary user may create interfaces.
//!
//! This module owns nothing: the calling process enters the namespaces and stays there until it ends, and everything
//! made inside ends with it. [`enter_lab`] must be called before the process has a second thread.

use crate::{
    Error, UnsupportedFeature, caps::ThreadRights, link::NamespaceLinks, netns, netns::NetNs, private_files,
};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Result of [`enter_lab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EnteredLab {
    /// A user namespace was needed, because the caller is an ordinary user.
    pub user_namespace: bool,
}

/// Moves the process into network and mount namespaces of its own, with an empty `/run/netns` and the loopback interface
/// up. An ordinary user gets a user namespace first, in which it is root.
pub fn enter_lab() -> Result<EnteredLab, Error> {
    let rights = ThreadRights::current();
    let user_namespace = !(rights.has_capability("CAP_SYS_ADMIN") && rights.has_capability("CAP_NET_ADMIN"));
    if user_namespace {
        enter_user_namespace()?;
    }
    unshare_process(UnshareFlags::NEWNS | UnshareFlags::NEWNET, "mount and network namespaces")?;
    // Mounts made here must not affect the rest of the machine.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| Error::from_call("mount(private)", "/", errno))?;
    let directory = Path::new(netns::NETNS_DIRECTORY);
    if user_namespace && !directory.exists() {
        // /run belongs to the machine's root user, which has no user number here, so no file can be made in
        // it: a new /run covers it.
        mount_tmpfs("/run")?;
    }
    private_files::create_public_directories(directory)
        .map_err(|error| Error::from_call("mkdir", netns::NETNS_DIRECTORY, error))?;
    mount_tmpfs(netns::NETNS_DIRECTORY)?;
    bring_up_loopback()?;
    Ok(EnteredLab { user_namespace })
}

fn enter_user_namespace() -> Result<(), Error> {
    // The numbers are read before: inside, both are the overflow number until the maps are written.
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    unshare_process(UnshareFlags::NEWUSER, "a user namespace")?;
    // The kernel accepts an ordinary user's group map only once setgroups is given up (user_namespaces(7)).
    write_proc_self_file("/proc/self/setgroups", "deny")?;
    write_proc_self_file("/proc/self/uid_map", &format!("0 {user} 1"))?;
    write_proc_self_file("/proc/self/gid_map", &format!("0 {group} 1"))
}

/// Writes a file of this process's own directory in `/proc`.
fn write_proc_self_file(path: &str, text: &str) -> Result<(), Error> {
    let opened = File::options().write(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| lab_error(path, &error))
}

fn unshare_process(flags: UnshareFlags, what: &'static str) -> Result<(), Error> {
    // SAFETY: the flags do not include the descriptor table, so no descriptor of another thread changes.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|errno| match errno {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS | rustix::io::Errno::NOSPC => {
            lab_error(what, &errno.into())
        }
        // The kernel's answer to a process with several threads.
        rustix::io::Errno::INVAL => {
            Error::from_call("unshare", format!("{what} in a process with several threads"), errno)
        }
        errno => Error::from_call("unshare", what, errno),
    })
}

/// Finds the setting of this machine that prevents ordinary users from using [`enter_lab`]; `None` if there is none.
/// Other obstacles, such as the seccomp filter of a container, show only when [`enter_lab`] is called.
pub fn lab_obstacle() -> Option<UnsupportedFeature> {
    USER_NAMESPACE_SETTINGS.iter().find_map(|(path, forbidding, cure)| {
        let found = std::fs::read_to_string(path).ok()?;
        (found.trim() == *forbidding).then(|| UnsupportedFeature {
            feature: "a private lab for ordinary users",
            needs: (*cure).into(),
            found: format!("{path} is {forbidding}"),
        })
    })
}

/// File of a setting, the value that forbids user namespaces, and the remedy.
const USER_NAMESPACE_SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "`sysctl kernel.unprivileged_userns_clone=1`, or root",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or root",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "`sysctl user.max_user_namespaces=10000`, or root"),
];

/// Error for a refused namespace, with the setting to change, if a setting of this machine forbids user namespaces.
fn lab_error(what: &str, error: &std::io::Error) -> Error {
    let known = lab_obstacle();
    let refusal = known.unwrap_or_else(|| UnsupportedFeature {
        feature: "a private lab",
        needs: "root, or a kernel and a sandbox that allow user, mount and network namespaces".into(),
        found: format!("{what}: {error}"),
    });
    refusal.into()
}

fn mount_tmpfs(path: &str) -> Result<(), Error> {
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755"))
        .map_err(|errno| Error::from_call("mount(tmpfs)", path, errno))
}

fn bring_up_loopback() -> Result<(), Error> {
    let mut links = NamespaceLinks::open_in(&NetNs::current()?)?;
    let loopback = links.find_link_by_name("lo")?;
    links.switch_interface(loopback.index, true)
}
