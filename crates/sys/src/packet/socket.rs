//! AF_PACKET sockets and their options.
//!
//! The caller owns the descriptor that [`open_packet_socket`] returns.

use crate::{Error, netns::NetNs, pcap::ClassicInsn};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const MISSING_RIGHTS_TEXT: &str = "needs CAP_NET_RAW: run as root, or grant the capabilities once, as root: setcap cap_net_raw,cap_net_admin+ep \"$(command -v packetrig)\"";
/// `AF_PACKET`, in the type of the field `sll_family`.
const AF_PACKET_FAMILY: u16 = 17;
const _: () = assert!(AF_PACKET_FAMILY as i32 == libc::AF_PACKET);

/// Length of a small structure as the C library's `socklen_t`.
pub(crate) const fn length_of<T>() -> libc::socklen_t {
    assert!(size_of::<T>() < 4096);
    #[expect(clippy::cast_possible_truncation, reason = "below 4096, by the assertion")]
    let length = size_of::<T>() as libc::socklen_t;
    length
}

/// Opens a raw packet socket that receives nothing until it is bound.
pub(super) fn open_packet_socket(netns: &NetNs, object: &str) -> Result<OwnedFd, Error> {
    let opened = netns.run_in_namespace(|| {
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)
    })?;
    opened.map_err(|errno| {
        Error::from_call("socket(AF_PACKET)", object, errno).with_rights(MISSING_RIGHTS_TEXT)
    })
}

/// Returns a function that turns the error number of a call on this object into an [`Error`].
pub(crate) fn call_error(call: &'static str, object: &str) -> impl Fn(Errno) -> Error {
    move |errno| Error::from_call(call, object, errno)
}

/// Binds to an interface; `protocol` 0 receives nothing.
pub(super) fn bind_interface(socket: &OwnedFd, index: u32, protocol: i32, object: &str) -> Result<(), Error> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = AF_PACKET_FAMILY;
    // The kernel expects the protocol in network byte order.
    address.sll_protocol =
        u16::try_from(protocol).map_err(|_| Error::from_call("bind", object, Errno::INVAL))?.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| Error::from_call("bind", object, Errno::INVAL))?;
    let length = length_of::<libc::sockaddr_ll>();
    // SAFETY: the address is a live, initialised sockaddr_ll of the length given, and is only read.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(()) } else { Err(Error::last_os_error("bind", object)) }
}

/// Returns true if the socket is still bound to the interface with this index, and has had no error since the last check.
/// The kernel unbinds the socket when the interface is removed, even if another one gets the same index.
pub(super) fn is_socket_usable(socket: &OwnedFd, index: u32, object: &str) -> Result<bool, Error> {
    if take_error(socket).is_err() {
        return Ok(false);
    }
    // SAFETY: sockaddr_ll is plain data for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = length_of::<libc::sockaddr_ll>();
    let out = (&raw mut address).cast();
    // SAFETY: both pointers are to live values of ours, and the kernel writes no more than `length` bytes, of plain numbers.
    let got = unsafe { libc::getsockname(socket.as_raw_fd(), out, &raw mut length) };
    if got != 0 {
        return Err(Error::last_os_error("getsockname", object));
    }
    Ok(u32::try_from(address.sll_ifindex) == Ok(index))
}

/// Sets an option to a plain C value.
pub(crate) fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> rustix::io::Result<()> {
    // SAFETY: the pointer refers to a live value of the given length, and is only read; the kernel checks the
    // length of the option.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            length_of::<T>(),
        )
    };
    if set == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Attaches a filter: the kernel drops frames that do not pass `program`. An empty program changes nothing.
/// The kernel checks the program.
pub(crate) fn attach_filter(socket: &OwnedFd, program: &[ClassicInsn]) -> rustix::io::Result<()> {
    if program.is_empty() {
        return Ok(());
    }
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    // The instructions have the layout of `sock_filter`; the kernel copies them and writes nothing.
    let request = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &request)
}

/// Reads an option that is a plain C value. An older kernel may write only its beginning; the rest stays as in `value`.
pub(crate) fn get_option<T: Copy>(
    socket: &OwnedFd,
    level: i32,
    option: i32,
    mut value: T,
) -> rustix::io::Result<T> {
    let mut length = length_of::<T>();
    let out = (&raw mut value).cast();
    // SAFETY: both pointers are to live values of ours, and the kernel writes no more than `length` bytes, of plain numbers.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, out, &raw mut length) };
    if got == 0 { Ok(value) } else { Err(last_errno()) }
}

/// Reads and resets the statistics of a TPACKET_V3 ring.
pub(super) fn take_statistics(socket: &OwnedFd) -> rustix::io::Result<libc::tpacket_stats_v3> {
    let none = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    get_option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, none)
}

/// Returns the pending error of the socket, and clears it.
pub(super) fn take_error(socket: &OwnedFd) -> rustix::io::Result<()> {
    rustix::net::sockopt::socket_error(socket.as_fd())?
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
