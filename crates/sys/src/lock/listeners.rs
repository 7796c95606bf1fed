//! Finds the sockets that listen at an abstract name, or at that name with a suffix, as the kernel reports them
//! (`SOCK_DIAG`, as used by `ss -x`).
//!
//! Invariant: a socket of this user or root is found, whatever other users do. If the kernel does not report the
//! sockets, a name that may be held counts as held.

use crate::netlink::NetlinkConversation;
use crate::{Error, netns::NetNs};
use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NETLINK_SOCK_DIAG: isize = 4;
const FAMILY_UNIX: u8 = 1;
const STATE_LISTEN: u32 = 10;
/// `UDIAG_SHOW_NAME | UDIAG_SHOW_UID`; the second since Linux 5.3.
const UDIAG_SHOW_NAME_AND_UID: u32 = 0x1 | 0x40;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_USER: u16 = 7;
/// Bytes of `struct unix_diag_req` and `struct unix_diag_msg`.
const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 16;
/// Separates a name from a suffix. A holder listens at the name with a suffix if another socket has the name.
const NAME_ADDITION_SEPARATOR: u8 = b'+';
/// Maximum number of suffixes that are tried.
const MAX_ADDITIONS: u32 = 64;

/// Another process that holds a name, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockNameHolder {
    Nobody,
    /// A process of this user or root holds the name; with its process number if that can be found.
    Trusted(Option<i32>),
}

/// Listens at the name, or at the name with a suffix if another socket has the name.
pub(super) fn listen_at_name(name: &str) -> io::Result<UnixListener> {
    let mut bound = listen_at(name);
    for number in 0..MAX_ADDITIONS {
        if !bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
        // The name includes the number of the process, so that two holders of one user do not collide.
        bound = listen_at(&format!(
            "{name}{}{}-{number}",
            char::from(NAME_ADDITION_SEPARATOR),
            std::process::id()
        ));
    }
    bound
}

fn listen_at(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Finds a holder of the name other than `own`, the listener of this process.
pub(super) fn find_holder(netns: &NetNs, name: &str, own: &UnixListener) -> Result<LockNameHolder, Error> {
    let own = rustix::fs::fstat(own).map_err(|errno| Error::from_call("fstat", name, errno))?.st_ino;
    // The own listener is recognised by its inode, because it has the same name and the same user.
    let others =
        query_listeners(netns, name).map(|all| all.into_iter().filter(|one| u64::from(one.inode) != own));
    let Ok(mut others) = others else {
        // A connection to the name shows its holder instead. If the socket of this process answers, no other
        // process holds the name.
        return netns.run_in_namespace(|| probe_listener(name, std::process::id()));
    };
    let found = others.find(NameListener::is_trusted);
    found.map_or(Ok(LockNameHolder::Nobody), |found| {
        netns.run_in_namespace(|| LockNameHolder::Trusted(find_listening_process(&found.name)))
    })
}

/// Returns true if this user or root listens at the name.
pub(super) fn has_live_listener(netns: &NetNs, name: &str) -> Result<bool, Error> {
    match query_listeners(netns, name) {
        Ok(all) => Ok(all.iter().any(NameListener::is_trusted)),
        Err(_) => Ok(netns.run_in_namespace(|| probe_listener(name, 0))? != LockNameHolder::Nobody),
    }
}

/// A socket that listens at an abstract name.
#[derive(Clone, Debug, Default)]
struct NameListener {
    /// Name without the zero byte that makes it abstract.
    name: Vec<u8>,
    user: Option<u32>,
    inode: u32,
}

impl NameListener {
    fn is_trusted(&self) -> bool {
        self.user.is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
    }

    /// Returns true if the listener has the name, or the name with a suffix.
    fn has_name(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == NAME_ADDITION_SEPARATOR))
    }
}

/// Asks the kernel for all sockets that listen at the name; an error if the kernel does not report their users.
fn query_listeners(netns: &NetNs, name: &str) -> io::Result<Vec<NameListener>> {
    let mut found = Vec::new();
    let mut is_whole = true;
    let conversation = NetlinkConversation::open_in(netns, NETLINK_SOCK_DIAG);
    let mut conversation = conversation.map_err(|_| io::ErrorKind::Unsupported)?;
    conversation.request_answers(UnixDiagMessage::Request, NLM_F_DUMP, &mut |message| {
        if let UnixDiagMessage::Answer(listener) = message
            && listener.has_name(name)
        {
            is_whole &= listener.user.is_some();
            found.push(listener);
        }
    })?;
    // Kernels before Linux 5.3 do not report the user: such answers cannot be used.
    if is_whole { Ok(found) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Finds the process that listens at a name; `None` if it cannot be reached, for example because its queue is full.
fn find_listening_process(name: &[u8]) -> Option<i32> {
    let socket = connect_to(name).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(socket.as_fd()).ok()?;
    Some(credentials.pid.as_raw_nonzero().get())
}

fn connect_to(name: &[u8]) -> Result<OwnedFd, Errno> {
    // If another user has filled the listener's queue, `connect` would block.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address).map(|()| socket)
}

/// Finds the holder by connecting to the name, for kernels that do not report the users of listeners. A full queue counts as
/// held, every other error as free.
fn probe_listener(name: &str, own: u32) -> LockNameHolder {
    let socket = match connect_to(name.as_bytes()) {
        Ok(socket) => socket,
        // A full queue shows that a process listens, but not which one. So the name counts as held, which is
        // the safe answer.
        Err(Errno::AGAIN) => return LockNameHolder::Trusted(None),
        // Usually the connection is refused, because no process listens at the name.
        Err(_) => return LockNameHolder::Nobody,
    };
    let Ok(peer) = rustix::net::sockopt::socket_peercred(socket.as_fd()) else {
        return LockNameHolder::Nobody;
    };
    let is_trusted = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    let process = peer.pid.as_raw_nonzero().get();
    if is_trusted && process.cast_unsigned() != own {
        LockNameHolder::Trusted(Some(process))
    } else {
        LockNameHolder::Nobody
    }
}

/// The messages of `SOCK_DIAG` for Unix sockets that listen.
#[derive(Clone, Debug)]
enum UnixDiagMessage {
    Request,
    Answer(NameListener),
}

impl NetlinkSerializable for UnixDiagMessage {
    fn message_type(&self) -> u16 {
        SOCK_DIAG_BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST_BYTES
    }

    /// `struct unix_diag_req`: family, protocol, states at 4, inode at 8, what to show at 12, a cookie.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        buffer[0] = FAMILY_UNIX;
        buffer[4..8].copy_from_slice(&(1_u32 << STATE_LISTEN).to_ne_bytes());
        buffer[12..16].copy_from_slice(&UDIAG_SHOW_NAME_AND_UID.to_ne_bytes());
    }
}

impl NetlinkDeserializable for UnixDiagMessage {
    type Error = DecodeError;

    /// `struct unix_diag_msg`: family, type, state, a byte, the inode at 4, a cookie; then attributes.
    fn deserialize(_header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Self::Error> {
        let Some(mut rest) = payload.get(ANSWER_BYTES..) else {
            return Err(DecodeError::from("an answer about a socket is too short"));
        };
        let mut listener = NameListener { inode: read_number(&payload[4..8]), ..NameListener::default() };
        while let [low, high, kind_low, kind_high, ..] = *rest {
            // The length includes the four bytes of the attribute's own header.
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some(value) = rest.get(4..length) else { break };
            match u16::from_ne_bytes([kind_low, kind_high]) {
                // Only an abstract name begins with a zero byte; a path in the file system does not.
                ATTRIBUTE_NAME => listener.name = value.strip_prefix(&[0]).unwrap_or_default().to_vec(),
                ATTRIBUTE_USER => listener.user = Some(read_number(value)),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(Self::Answer(listener))
    }
}

fn read_number(bytes: &[u8]) -> u32 {
    // No user has the largest number, so a listener with an attribute of another length is not trusted.
    bytes.try_into().map_or(u32::MAX, u32::from_ne_bytes)
}
