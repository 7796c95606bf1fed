//! Unix sockets of type SOCK_SEQPACKET: whole messages between programs of one machine, and the identity of the other end.
//!
//! A [`SeqpacketListener`] owns its socket and the socket's name in the file system, which it removes when dropped. A
//! [`SeqpacketStream`] owns its socket. Only connecting, and functions that take a time limit, may wait.

use crate::packet::socket::{call_error, length_of};
use crate::{Error, clock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of connections that wait to be accepted.
const LISTEN_BACKLOG: i32 = 64;

/// Time to wait for a listener that does not accept connections, for example because its process is stopped.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The process at the other end of a connection, as the kernel noted it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    pub user: u32,
    pub process: i32,
}

/// Result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedMessage {
    /// A message of this length; it is truncated if the buffer is shorter.
    Message(usize),
    /// No message waits in the socket.
    Nothing,
    /// The other end has closed the connection.
    Closed,
}

/// Users that may connect to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAccess {
    OwnUser,
    /// Every user; the caller checks [`SeqpacketStream::peer_process`].
    AllUsers,
}

#[derive(Debug)]
pub struct SeqpacketListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl SeqpacketListener {
    /// Listens at a path. A socket without a listener is replaced; one that is in use is an error. The
    /// directory must be one in which no other user can replace the socket.
    pub fn listen_at(path: &Path, access: SocketAccess) -> Result<Self, Error> {
        let object = path.display().to_string();
        check_directory(path, &object)?;
        let address = SocketAddrUnix::new(path).map_err(call_error("bind", &object))?;
        if let Ok(facts) = std::fs::symlink_metadata(path) {
            // Only a connection shows whether a process listens there.
            if SeqpacketStream::connect_to(path).is_ok() {
                return Err(Error::Busy { object, holder: None });
            }
            if !facts.file_type().is_socket() {
                return Err(Error::from_call("bind", object, Errno::EXIST));
            }
            std::fs::remove_file(path).map_err(|error| Error::from_call("unlink", object.clone(), error))?;
        }
        let socket = open_socket(&object)?;
        // The mode of the unbound socket becomes the mode of its name: so the name is never open to other users.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(call_error("fchmod", &object))?;
        rustix::net::bind(&socket, &address).map_err(call_error("bind", &object))?;
        let listener = Self { socket, path: path.to_owned() };
        if access == SocketAccess::AllUsers {
            // The mode is changed by name: in this directory no other user can have put another file there.
            let mode = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(path, mode)
                .map_err(|error| Error::from_call("chmod", object.clone(), error))?;
        }
        rustix::net::listen(&listener.socket, LISTEN_BACKLOG).map_err(call_error("listen", &object))?;
        Ok(listener)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection, at most `within_ns`. `None` if there is none by then, or a signal ended the wait.
    pub fn accept_connection_within(&self, within_ns: u64) -> Result<Option<SeqpacketStream>, Error> {
        let object = || self.path.display().to_string();
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut polled, Some(&clock::to_timespec(within_ns))) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(Error::from_call("poll", object(), errno)),
        }
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(SeqpacketStream { socket })),
            // The peer may have given up in the meantime.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(Error::from_call("accept", object(), errno)),
        }
    }
}

impl Drop for SeqpacketListener {
    fn drop(&mut self) {
        // A leftover name does no harm: the next listener replaces it.
        drop(std::fs::remove_file(&self.path));
    }
}

#[derive(Debug)]
pub struct SeqpacketStream {
    socket: OwnedFd,
}

impl SeqpacketStream {
    /// Connects to the listener at a path. While the listener's queue of connections is full, this waits for
    /// five seconds at most.
    pub fn connect_to(path: &Path) -> Result<Self, Error> {
        let object = path.display().to_string();
        let address = SocketAddrUnix::new(path).map_err(call_error("connect", &object))?;
        let socket = open_socket(&object)?;
        // On a Unix socket, the timeout for sending also limits how long `connect` waits.
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))
            .map_err(call_error("setsockopt(SO_SNDTIMEO)", &object))?;
        rustix::net::connect(&socket, &address).map_err(call_error("connect", &object))?;
        set_socket_timeout(&socket, Timeout::Send, None)
            .map_err(call_error("setsockopt(SO_SNDTIMEO)", &object))?;
        Ok(Self { socket })
    }

    pub fn peer_process(&self) -> Result<PeerProcess, Error> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = length_of::<libc::ucred>();
        // SAFETY: the pointers refer to a live structure and to its length; the kernel writes within that length.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if done != 0 {
            return Err(Error::last_os_error("getsockopt(SO_PEERCRED)", "a connection"));
        }
        // A process of another PID namespace has the number 0.
        Ok(PeerProcess { user: found.uid, process: found.pid })
    }

    /// Sends a whole message, or returns `false` if there is no space for it now.
    pub fn send_message(&self, message: &[u8]) -> Result<bool, Error> {
        loop {
            match rustix::net::send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::from_call("send", "a connection", errno)),
            }
        }
    }

    /// Receives a message if one waits. The length is that of the whole message, even if the buffer is shorter.
    pub fn receive_message(&self, buffer: &mut [u8]) -> Result<ReceivedMessage, Error> {
        loop {
            return match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
            {
                Ok((_, 0)) => Ok(ReceivedMessage::Closed),
                Ok((_, length)) => Ok(ReceivedMessage::Message(length)),
                Err(Errno::AGAIN) => Ok(ReceivedMessage::Nothing),
                // The peer closed without reading all of our messages. The messages that it sent are still
                // available after this error.
                Err(Errno::CONNRESET | Errno::INTR) => continue,
                Err(errno) => Err(Error::from_call("recv", "a connection", errno)),
            };
        }
    }

    /// Waits until a message can be received, or sent if `to_send`, at most `within_ns`.
    pub fn wait_until_ready(&self, to_send: bool, within_ns: u64) -> Result<(), Error> {
        let events = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        self.poll_socket(events, within_ns).map(drop)
    }

    /// Waits until a message can be sent, at most `within_ns`.
    pub fn wait_for_room(&self, within_ns: u64) -> Result<(), Error> {
        self.poll_socket(PollFlags::OUT, within_ns).map(drop)
    }

    /// Waits at most `within_ns`, or until the other end closes the connection, or a message can be sent if `to_send`.
    /// Messages that arrive do not end the wait. Returns true if the connection is still open.
    pub fn wait_without_reading(&self, to_send: bool, within_ns: u64) -> Result<bool, Error> {
        let events = if to_send { PollFlags::OUT } else { PollFlags::empty() };
        Ok(!self.poll_socket(events, within_ns)?.contains(PollFlags::HUP))
    }

    fn poll_socket(&self, events: PollFlags, within_ns: u64) -> Result<PollFlags, Error> {
        let mut polled = [PollFd::new(&self.socket, events)];
        match poll(&mut polled, Some(&clock::to_timespec(within_ns))) {
            Ok(_) => Ok(polled[0].revents()),
            Err(Errno::INTR) => Ok(PollFlags::empty()),
            Err(errno) => Err(Error::from_call("poll", "a connection", errno)),
        }
    }
}

/// Checks that no other user can replace the socket. A directory that others may write to must be sticky, as /tmp is.
fn check_directory(path: &Path, object: &str) -> Result<(), Error> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY_MODE: u32 = 0o1000;
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let facts = std::fs::metadata(parent)
        .map_err(|error| Error::from_call("stat", parent.display().to_string(), error))?;
    let own = rustix::process::geteuid().as_raw();
    let is_ours = facts.uid() == own || facts.uid() == 0;
    if is_ours && (facts.mode() & WRITABLE_BY_OTHERS == 0 || facts.mode() & STICKY_MODE != 0) {
        return Ok(());
    }
    let source = std::io::Error::new(
        std::io::ErrorKind::PermissionDenied,
        "another user could replace the socket; choose a directory that only root or this user can write to",
    );
    Err(Error::from_call("bind", object, source))
}

fn open_socket(object: &str) -> Result<OwnedFd, Error> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(call_error("socket", object))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn messages_stay_apart_and_the_peer_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = SeqpacketListener::listen_at(&path, SocketAccess::OwnUser).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let client = SeqpacketStream::connect_to(&path).unwrap();
        let server = listener.accept_connection_within(SECOND).unwrap().unwrap();
        assert_eq!(server.peer_process().unwrap().process, i32::try_from(std::process::id()).unwrap());
        assert!(client.send_message(b"one").unwrap() && client.send_message(b"three").unwrap());
        let mut buffer = [0; 4];
        assert_eq!(server.receive_message(&mut buffer).unwrap(), ReceivedMessage::Message(3));
        assert_eq!(
            server.receive_message(&mut buffer).unwrap(),
            ReceivedMessage::Message(5),
            "it says that it was cut"
        );
        assert_eq!(server.receive_message(&mut buffer).unwrap(), ReceivedMessage::Nothing);
        drop(client);
        server.wait_until_ready(false, SECOND).unwrap();
        assert_eq!(server.receive_message(&mut buffer).unwrap(), ReceivedMessage::Closed);
    }

    #[test]
    fn message_sent_before_close_is_received() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = SeqpacketListener::listen_at(&path, SocketAccess::OwnUser).unwrap();
        let client = SeqpacketStream::connect_to(&path).unwrap();
        assert!(client.send_message(b"hello").unwrap());
        let server = listener.accept_connection_within(SECOND).unwrap().unwrap();
        assert!(server.send_message(b"refused").unwrap());
        drop(server);
        let mut buffer = [0; 9];
        assert_eq!(client.receive_message(&mut buffer).unwrap(), ReceivedMessage::Message(7));
        assert_eq!(client.receive_message(&mut buffer).unwrap(), ReceivedMessage::Closed);
    }

    #[test]
    fn socket_directory_writable_by_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for (mode, is_fine) in [(0o777, false), (0o770, false), (0o1777, true), (0o755, true)] {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let bound = SeqpacketListener::listen_at(&path, SocketAccess::AllUsers);
            assert_eq!(bound.is_ok(), is_fine, "{mode:o}");
        }
    }

    #[test]
    fn closed_connection_is_noticed_without_reading_messages() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = SeqpacketListener::listen_at(&path, SocketAccess::OwnUser).unwrap();
        let client = SeqpacketStream::connect_to(&path).unwrap();
        let server = listener.accept_connection_within(SECOND).unwrap().unwrap();
        assert!(client.send_message(b"one").unwrap());
        assert!(
            server.wait_without_reading(false, 1).unwrap()
                && server.wait_without_reading(true, SECOND).unwrap()
        );
        drop(client);
        assert!(!server.wait_without_reading(false, SECOND).unwrap());
        assert_eq!(
            server.receive_message(&mut [0; 4]).unwrap(),
            ReceivedMessage::Message(3),
            "it is still there"
        );
    }

    #[test]
    fn full_connection_refuses_message_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = SeqpacketListener::listen_at(&path, SocketAccess::AllUsers).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        let client = SeqpacketStream::connect_to(&path).unwrap();
        let sent = (0..10_000).take_while(|_| client.send_message(&[0; 1_000]).unwrap()).count();
        assert!(sent > 0 && sent < 10_000, "{sent}");
        let server = listener.accept_connection_within(SECOND).unwrap().unwrap();
        let mut buffer = [0; 2_000];
        let mut received = 0;
        while server.receive_message(&mut buffer).unwrap() == ReceivedMessage::Message(1_000) {
            received += 1;
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn used_socket_is_busy_and_stale_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = SeqpacketListener::listen_at(&path, SocketAccess::OwnUser).unwrap();
        let second = SeqpacketListener::listen_at(&path, SocketAccess::OwnUser);
        assert!(matches!(second, Err(Error::Busy { .. })));
        std::fs::hard_link(&path, directory.path().join("left")).unwrap();
        drop(listener);
        assert!(!path.exists());
        SeqpacketListener::listen_at(&directory.path().join("left"), SocketAccess::OwnUser).unwrap();
        std::fs::write(&path, b"not a socket").unwrap();
        assert!(SeqpacketListener::listen_at(&path, SocketAccess::OwnUser).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"not a socket");
    }
}
