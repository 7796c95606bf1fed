//! The AF_XDP socket: registers its memory, maps its rings, and binds to a queue of an interface.

use super::ring::{RingLayout, XskRing};
use super::slots::{FrameSlots, SlotShape, TxCounts};
use crate::area::SharedArea;
use crate::convert::checked_usize;
use crate::error::ignore_failure;
use crate::link::NamespaceLinks;
use crate::packet::socket::{call_error, get_option, length_of, set_option};
use crate::{Error, UnsupportedFeature, clock, kernel, netns::NetNs};
use packetrig_units::clamp_to_u32;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const MISSING_RIGHTS_TEXT: &str = "needs CAP_NET_RAW: run as root";
const LOCKED_MEMORY_TEXT: &str =
    "the limit of locked memory is too low: raise it with `ulimit -l`, or run as root";
/// Maximum wait for a queue that an earlier socket has just closed: the kernel frees the queue with a delay.
const REBIND_TIMEOUT_NS: u64 = 3_000_000_000;
const REBIND_POLL_NS: u64 = 5_000_000;
/// Maximum wait for frames that are still on their way when the socket is closed.
const CLOSE_TIMEOUT_NS: u64 = 200_000_000;
/// Frames in flight hold send-buffer memory; the default is too small for a whole ring.
const SEND_BUFFER: i32 = 16 << 20;
/// Chunks lent to the receive queue of a zero-copy driver: no driver's default ring is larger.
const MAX_LENT_CHUNKS: u32 = 4096;
/// Maximum number of system calls in one kick. In each call the kernel takes some tens of frames.
const MAX_CALLS_PER_KICK: usize = 64;
/// Bytes of an entry of the transmit ring, and of the other rings.
const TX_ENTRY_BYTES: usize = size_of::<libc::xdp_desc>();
const ADDRESS_ENTRY_BYTES: usize = 8;
/// `AF_XDP`, in the type of the field `sxdp_family`.
const AF_XDP_FAMILY: u16 = 44;
const _: () = assert!(AF_XDP_FAMILY as i32 == libc::AF_XDP);

/// How frames get from the memory of this process to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// The driver reads the frames from the memory directly.
    ZeroCopy,
    /// The kernel copies each frame into memory of its own first.
    Copy,
}

impl CopyMode {
    /// Name that users see in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
        }
    }
}

/// Options of an AF_XDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XskOptions {
    /// Maximum number of frames that can be in flight at once.
    pub slots: usize,
    /// Longest frame, without FCS.
    pub longest: usize,
    /// Try zero copy first: for a driver that announces zero copy.
    pub zero_copy: bool,
}

/// An AF_XDP socket that sends.
#[derive(Debug)]
pub struct XskTx {
    slots: FrameSlots,
    socket: OwnedFd,
    mode: CopyMode,
    object: String,
    /// Fill ring, kept for the driver: the driver takes the chunks for its receive queue from it.
    _fill: XskRing,
}

/// Returns the reason why AF_XDP sockets cannot be opened here, if they cannot.
pub fn af_xdp_obstacle(netns: &NetNs) -> Option<Error> {
    open_xdp_socket(netns, "this machine").err()
}

fn open_xdp_socket(netns: &NetNs, object: &str) -> Result<OwnedFd, Error> {
    let family = AddressFamily::from_raw(AF_XDP_FAMILY);
    let opened = netns
        .run_in_namespace(|| rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None))?;
    opened.map_err(|errno| match errno {
        Errno::AFNOSUPPORT => UnsupportedFeature {
            feature: "sending through AF_XDP",
            needs: "a kernel with CONFIG_XDP_SOCKETS".into(),
            found: kernel::kernel_release_name(),
        }
        .into(),
        errno => Error::from_call("socket(AF_XDP)", object, errno).with_rights(MISSING_RIGHTS_TEXT),
    })
}

impl XskTx {
    /// Opens a socket on queue 0 of an interface; `name` is for messages. Frames that are too long for the interface's
    /// present MTU will be refused. If another socket has the queue, the call waits up to 3 s for its release.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: XskOptions,
    ) -> Result<Self, Error> {
        let until = clock::monotonic_ns() + REBIND_TIMEOUT_NS;
        let mut options = options;
        loop {
            match Self::try_open_on_interface(netns, index, name, options) {
                Err(error) if error.errno() == Some(libc::EBUSY) => {
                    if clock::monotonic_ns() >= until {
                        return Err(Error::Busy { object: format!("queue 0 of {name}"), holder: None });
                    }
                    clock::sleep_until_ns(clock::monotonic_ns() + REBIND_POLL_NS);
                }
                // A driver that announces zero copy may still refuse it, for instance for this frame size.
                // The next attempt is without zero copy, within the same time limit.
                Err(_) if options.zero_copy => options.zero_copy = false,
                other => return other,
            }
        }
    }

    fn try_open_on_interface(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: XskOptions,
    ) -> Result<Self, Error> {
        let socket = open_xdp_socket(netns, name)?;
        let mtu = NamespaceLinks::open_in(netns)?.find_link_by_index(index)?.mtu as usize;
        let shape = SlotShape::new(options.slots, options.longest);
        let lent = if options.zero_copy { MAX_LENT_CHUNKS } else { 0 };
        let memory = allocate_umem(&socket, shape, lent, name)?;
        let entries = clamp_to_u32(shape.ring_entries());
        // The kernel insists on a fill ring, even if nothing is received.
        let fill_entries = lent.max(2);
        let sizes = [
            (libc::XDP_UMEM_FILL_RING, fill_entries),
            (libc::XDP_UMEM_COMPLETION_RING, entries),
            (libc::XDP_TX_RING, entries),
        ];
        for (option, size) in sizes {
            set_option(&socket, libc::SOL_XDP, option, &size)
                .map_err(call_error("setsockopt(AF_XDP ring)", name))?;
        }
        let offsets = read_offsets(&socket, name)?;
        let tx_at = libc::XDP_PGOFF_TX_RING.cast_unsigned();
        let tx = map_ring(&socket, tx_at, &offsets.tx, TX_ENTRY_BYTES, entries, name)?;
        let done_at = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let done = map_ring(&socket, done_at, &offsets.cr, ADDRESS_ENTRY_BYTES, entries, name)?;
        let fill_at = libc::XDP_UMEM_PGOFF_FILL_RING;
        let mut fill = map_ring(&socket, fill_at, &offsets.fr, ADDRESS_ENTRY_BYTES, fill_entries, name)?;
        for chunk in 0..lent {
            let address = shape.bytes() + chunk as usize * shape.chunk;
            fill.entry_mut(chunk).copy_from_slice(&(address as u64).to_ne_bytes());
        }
        fill.publish_produced(lent);
        if set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_err() {
            // The buffer is as large as the kernel allows: a smaller one only means fewer frames in each call.
            ignore_failure(set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER));
        }
        // The kernel accepts no more rings once the socket is bound.
        bind_queue(&socket, index, shape, options.zero_copy, name)?;
        let chosen = get_option(&socket, libc::SOL_XDP, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 });
        let flags = chosen.map_err(call_error("getsockopt(XDP_OPTIONS)", name))?.flags;
        let mode = if flags & libc::XDP_OPTIONS_ZEROCOPY == 0 { CopyMode::Copy } else { CopyMode::ZeroCopy };
        let slots = FrameSlots::new(memory, tx, done, shape, mtu);
        Ok(Self { slots, socket, mode, object: name.to_owned(), _fill: fill })
    }

    /// How frames get from the memory of this process to the driver.
    pub fn mode(&self) -> CopyMode {
        self.mode
    }

    /// The next free slot, to be written and then committed; `None` while all slots are in flight.
    pub fn next_slot(&mut self) -> Option<&mut [u8]> {
        self.slots.next_slot()
    }

    /// Marks the first `len` bytes of the slot that [`Self::next_slot`] gave as a frame to be sent. A frame that is too
    /// short or too long for the interface is counted as refused and takes no slot. Panics if `len` does not fit.
    pub fn commit_frame(&mut self, len: usize) {
        self.slots.commit_frame(len);
    }

    /// Makes the kernel send the committed frames, without waiting, and takes back finished slots. A full queue is no
    /// error: the remaining frames stay pending. After an error (interface down or gone) all frames stay pending.
    pub fn kick_kernel(&mut self) -> Result<(), Error> {
        for _ in 0..MAX_CALLS_PER_KICK {
            if !self.slots.publish_committed() || (self.mode == CopyMode::ZeroCopy && !self.needs_wakeup()) {
                break;
            }
            // Only progress shows whether another call is useful.
            let before = self.slots.kernel_position();
            let sent = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
            match sent {
                Ok(_) => {}
                // Either the kernel's budget for one call is used up, and the next call continues; or the
                // kernel waits for memory or the driver.
                Err(Errno::AGAIN) if self.mode == CopyMode::Copy => {
                    self.slots.reap_slots();
                    if self.slots.kernel_position() == before {
                        break;
                    }
                }
                // The interface dropped the frame at which the kernel stopped, and the kernel will not
                // try it again (slots.rs).
                Err(Errno::BUSY) if self.mode == CopyMode::Copy => {
                    self.slots.reenter_stopped_frame();
                    break;
                }
                // The frames stay pending, and the next kick tries again.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR | Errno::NOMEM) => break,
                Err(errno) => {
                    self.slots.reap_slots();
                    return Err(Error::from_call("sendto", self.object.clone(), errno));
                }
            }
            // The call only wakes the driver, which then continues by itself.
            if self.mode == CopyMode::ZeroCopy {
                break;
            }
        }
        self.slots.reap_slots();
        Ok(())
    }

    fn needs_wakeup(&self) -> bool {
        self.slots.kernel_sleeps()
    }

    /// Takes back slots that the kernel has finished, without a system call.
    pub fn reap_slots(&mut self) {
        self.slots.reap_slots();
    }

    /// Withdraws the frames that the kernel has not taken yet, counts them as refused and returns their number.
    pub fn withdraw_untaken(&mut self) -> usize {
        self.slots.withdraw_unreached()
    }

    /// Number of committed frames that the kernel has not completed.
    pub fn pending_frames(&self) -> usize {
        self.slots.pending
    }

    /// Counts of all frames that are no longer pending.
    pub fn counts(&self) -> TxCounts {
        self.slots.counts
    }

    /// Entries that the kernel found faulty, without entries that were voided on purpose: normally zero; any
    /// other value is a bug.
    pub fn faulty_entries(&self) -> u64 {
        let none = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        let found = get_option(&self.socket, libc::SOL_XDP, libc::XDP_STATISTICS, none);
        found.map_or(0, |found| found.tx_invalid_descs.saturating_sub(self.slots.voided))
    }
}

impl Drop for XskTx {
    /// Waits briefly for frames that are in flight: until they have been sent, no other socket can use the queue.
    fn drop(&mut self) {
        // Frames that the kernel has not taken never complete, so the loop below must not wait for them.
        self.slots.withdraw_unreached();
        let until = clock::monotonic_ns() + CLOSE_TIMEOUT_NS;
        while self.slots.pending > 0 && clock::monotonic_ns() < until {
            clock::sleep_until_ns(clock::monotonic_ns() + REBIND_POLL_NS / 10);
            self.slots.reap_slots();
        }
    }
}

/// Allocates the frame memory and registers it with the kernel: the slots, and after them the chunks that are lent to
/// the driver for receiving.
fn allocate_umem(socket: &OwnedFd, shape: SlotShape, lent: u32, name: &str) -> Result<SharedArea, Error> {
    let len = (shape.bytes() + lent as usize * shape.chunk).next_multiple_of(SlotShape::PAGE_SLOT_BYTES);
    let memory = SharedArea::allocate_pages(len, name)?;
    let request = libc::xdp_umem_reg {
        addr: memory.address(),
        len: len as u64,
        chunk_size: clamp_to_u32(shape.chunk),
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    match set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request) {
        Ok(()) => Ok(memory),
        Err(errno) => {
            let mut error = Error::from_call("setsockopt(XDP_UMEM_REG)", name, errno);
            if let (Errno::NOBUFS, Error::Call { remedy, .. }) = (errno, &mut error) {
                *remedy = Some(LOCKED_MEMORY_TEXT);
            }
            Err(error)
        }
    }
}

fn read_offsets(socket: &OwnedFd, name: &str) -> Result<libc::xdp_mmap_offsets, Error> {
    let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let none = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
    get_option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, none)
        .map_err(call_error("getsockopt(XDP_MMAP_OFFSETS)", name))
}

fn map_ring(
    socket: &OwnedFd,
    at: u64,
    offsets: &libc::xdp_ring_offset,
    entry: usize,
    size: u32,
    name: &str,
) -> Result<XskRing, Error> {
    let layout = layout_from_offsets(offsets).map_err(call_error("getsockopt(XDP_MMAP_OFFSETS)", name))?;
    let len = layout.entries + entry * size as usize;
    Ok(XskRing::new(SharedArea::map_shared_at(socket.as_fd(), at, len, name)?, layout, entry, size))
}

fn layout_from_offsets(offsets: &libc::xdp_ring_offset) -> Result<RingLayout, Errno> {
    Ok(RingLayout {
        producer: checked_usize(offsets.producer)?,
        consumer: checked_usize(offsets.consumer)?,
        flags: checked_usize(offsets.flags)?,
        entries: checked_usize(offsets.desc)?,
    })
}

fn bind_queue(
    socket: &OwnedFd,
    index: u32,
    shape: SlotShape,
    zero_copy: bool,
    name: &str,
) -> Result<(), Error> {
    let in_pieces = shape.pieces > 1;
    // With this flag the kernel shows when it needs a call, so most calls can be omitted.
    let mut flags = libc::XDP_USE_NEED_WAKEUP;
    flags |= if in_pieces { libc::XDP_USE_SG } else { 0 };
    flags |= if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let address = libc::sockaddr_xdp {
        sxdp_family: AF_XDP_FAMILY,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let length = length_of::<libc::sockaddr_xdp>();
    // SAFETY: the address is a live, initialised sockaddr_xdp of the length given, and is only read.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 {
        return Ok(());
    }
    let error = Error::last_os_error("bind(AF_XDP)", name);
    match error.errno() {
        // An older kernel reports a flag that it does not know as invalid.
        Some(libc::EINVAL | libc::EOPNOTSUPP) if in_pieces => Err(UnsupportedFeature {
            feature: "sending frames longer than a memory page (4096 bytes) through AF_XDP",
            needs: "Linux 6.6 and, for zero copy, a driver that accepts frames in several buffers".into(),
            found: format!("Linux {} and interface {name}", kernel::kernel_release_name()),
        }
        .into()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests;
