//! One holder per name and network namespace.
//!
//! A [`Lock`] owns a listening socket with an abstract name. The kernel keeps such names per network namespace and frees
//! them when the owner closes or dies, so nothing is ever left behind. Who holds it is asked of the kernel.

use crate::{Error, netns::NetNs};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// A held name; dropping it gives it back.
#[derive(Debug)]
pub struct Lock {
    _listener: UnixListener,
}

impl Lock {
    /// Takes `name` in `netns`; [`Error::Busy`] names `object` and the process that holds it.
    pub fn take(netns: &NetNs, name: &str, object: &str) -> Result<Self, Error> {
        let failed = |error| Error::call("lock", object, error);
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        match netns.run_in(|| UnixListener::bind_addr(&address))? {
            Ok(listener) => Ok(Self { _listener: listener }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let holder = netns.run_in(|| holder(&address))?;
                Err(Error::Busy { object: object.to_owned(), holder })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// Whether somebody holds `name` in `netns`. Unlike [`Lock::take`] this keeps nobody from taking it meanwhile.
pub fn is_held(netns: &NetNs, name: &str) -> Result<bool, Error> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let failed = |errno| Error::call("look at lock", name, errno);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    // A connection waits in the listener's queue until the holder ends; a full queue must not stop the caller.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = netns.run_in(|| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    })?;
    match connected {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

/// The process that listens there; `None` if it has just gone, or lives in another process namespace.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok()?;
    Some(credentials.pid.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_holder_who_is_named_and_is_free_again_afterwards() {
        let netns = NetNs::current().unwrap();
        let name = format!("sys-lock-test-{}", std::process::id());
        let held = Lock::take(&netns, &name, "eth1").unwrap();
        let Err(Error::Busy { object, holder }) = Lock::take(&netns, &name, "eth1") else {
            panic!("two holders")
        };
        assert_eq!(object, "eth1");
        assert!(is_held(&netns, &name).unwrap());
        assert_eq!(holder, i32::try_from(std::process::id()).ok());
        drop(held);
        assert!(!is_held(&netns, &name).unwrap());
        Lock::take(&netns, &name, "eth1").unwrap();
    }

    #[test]
    fn the_same_name_in_another_namespace_is_another_lock() {
        let here = NetNs::current().unwrap();
        let there = match NetNs::create() {
            Ok(there) => there,
            Err(error) => return assert!(error.is_permission(), "{error}"),
        };
        let name = format!("sys-lock-apart-{}", std::process::id());
        let _first = Lock::take(&here, &name, "eth1").unwrap();
        let _second = Lock::take(&there, &name, "eth1").unwrap();
    }
}
