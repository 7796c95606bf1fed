//! The transmit ring (TPACKET_V2).
//!
//! ```text
//!   tail                    head
//!    v                       v
//!  [sending][request][request][free][free] ...   status word of each slot
//! ```
//!
//! Slots are filled at the head and come back at the tail, in order. The kernel takes them during a send call
//! ("kick"), in the caller's thread. If the interface or its queue is full, the kernel leaves the frame in
//! its slot. The next kick tries it again, so no frame is lost. A frame that the kernel will never accept
//! ([`TxCounts::refused`]) is removed, so that it does not block the later ones.
//!
//! Each frame is preceded by a `virtio_net_hdr` whose only use is its header length: it makes the kernel copy the frame
//! into its own memory instead of lending the slot to it in page fragments. That is faster at every frame size (60
//! bytes: 1.20 against 0.87 million frames/s, 1514 bytes: 1.10 against 0.79, `examples/ring_rate` on a veth pair), and
//! the receiver at the other end of a virtual link never reads a slot that is being written again. The price: the
//! kernel then no longer compares the length with the MTU, so this code does it.

mod slots;

pub use slots::TxCounts;

use super::socket::{self, call_error};
use crate::area::SharedArea;
use crate::error::ignore_failure;
use crate::stamping::{self, KernelReport, WantedStamps};
use crate::{Error, link::NamespaceLinks, netns::NetNs};
use rustix::io::Errno;
use rustix::net::SendFlags;
use slots::{TxRingShape, TxSlots};
use std::os::fd::{AsFd, OwnedFd};

/// Frames in flight hold send-buffer memory; the default is too small for a whole ring.
const SEND_BUFFER: i32 = 16 << 20;

/// Options of a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxOptions {
    /// Minimum number of slots. It is rounded up so that the slots fill whole blocks of memory.
    pub slots: usize,
    /// Longest frame that must fit into a slot, without FCS.
    pub longest: usize,
    /// Go straight to the driver, past queueing disciplines and packet taps of this interface.
    pub bypass_queue: bool,
}

impl Default for TxOptions {
    fn default() -> Self {
        Self { slots: 1024, longest: 1518, bypass_queue: true }
    }
}

#[derive(Debug)]
pub struct TxRing {
    slots: TxSlots,
    socket: OwnedFd,
    index: u32,
    object: String,
}

impl TxRing {
    /// Opens a ring on the interface with this index in `netns`; `name` is for messages. Frames that are too long for
    /// the interface's present MTU will be refused.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: TxOptions,
    ) -> Result<Self, Error> {
        let socket = socket::open_packet_socket(netns, name)?;
        let mtu = NamespaceLinks::open_in(netns)?.find_link_by_index(index)?.mtu as usize;
        let shape = TxRingShape::new(options.slots, options.longest);
        // These options are set before the ring is made: afterwards the kernel refuses version and header.
        socket::set_option(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &libc::tpacket_versions::TPACKET_V2,
        )
        .map_err(call_error("setsockopt(PACKET_VERSION)", name))?;
        // Past the queueing discipline, frames leave in the order and at the time of the call.
        if options.bypass_queue {
            socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
                .map_err(call_error("setsockopt(PACKET_QDISC_BYPASS)", name))?;
        }
        socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)
            .map_err(call_error("setsockopt(PACKET_VNET_HDR)", name))?;
        enlarge_send_buffer(&socket);
        let request = shape
            .kernel_request()
            .ok_or(Errno::INVAL)
            .map_err(call_error("setsockopt(PACKET_TX_RING)", name))?;
        socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_TX_RING, &request)
            .map_err(call_error("setsockopt(PACKET_TX_RING)", name))?;
        let area = SharedArea::map_shared(socket.as_fd(), shape.bytes(), name)?;
        // With protocol 0 the socket receives nothing.
        socket::bind_interface(&socket, index, 0, name)?;
        Ok(Self { slots: TxSlots::new(area, shape, mtu), socket, index, object: name.to_owned() })
    }

    /// Resets the ring, as if it had been opened now: counters begin at zero. `false` if the ring cannot be used again:
    /// frames are still pending, or its interface is gone. The length limit by the MTU stays as it is.
    pub fn restart_ring(&mut self) -> Result<bool, Error> {
        self.slots.reap_slots();
        // A frame that is still pending would leave in the next run.
        if self.slots.filled > 0 || !socket::is_socket_usable(&self.socket, self.index, &self.object)? {
            return Ok(false);
        }
        self.slots.counts = TxCounts::default();
        Ok(true)
    }

    /// The next free slot, to be written and then committed; `None` while the ring is full.
    pub fn next_slot(&mut self) -> Option<&mut [u8]> {
        self.slots.next_slot()
    }

    /// Marks the first `len` bytes of the slot that [`Self::next_slot`] gave as a frame to be sent. A frame that is
    /// too short or too long for the interface is counted as refused and takes no slot. Panics if no slot is free or
    /// `len` does not fit.
    pub fn commit_frame(&mut self, len: usize) {
        self.slots.commit_frame(len);
    }

    /// Limits frames to the interface's new MTU from now on.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.slots.mtu = mtu as usize;
    }

    /// Makes the kernel send the committed frames, without waiting, and takes back finished slots. A full queue is no
    /// error: the remaining frames stay pending. After an error (interface down or gone) all frames stay pending.
    pub fn kick_kernel(&mut self) -> Result<(), Error> {
        // An empty message makes the kernel look at the ring. DONTWAIT: a full queue must not stop the caller.
        let sent = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
        self.slots.reap_slots();
        match sent {
            // MSGSIZE and INVAL: one frame does not suit the interface; `reap_slots` has counted and removed it.
            Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR | Errno::MSGSIZE | Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::from_call("sendto", self.object.clone(), errno)),
        }
    }

    /// Takes back slots that the kernel has finished, without a system call.
    pub fn reap_slots(&mut self) {
        self.slots.reap_slots();
    }

    /// Withdraws the frames that the kernel has not taken yet, counts them as refused and returns their
    /// number. Frames on their way stay pending.
    pub fn withdraw_untaken(&mut self) -> usize {
        self.slots.withdraw_untaken()
    }

    /// Number of committed frames whose slots the kernel has not given back yet.
    pub fn pending_frames(&self) -> usize {
        self.slots.filled
    }

    /// Pending frames that the kernel has not taken yet. The other frames are on their way. A card returns a
    /// slot when the frame has left. A virtual interface returns it when a receiver has consumed the frame,
    /// perhaps after a queue of the device under test.
    pub fn untaken_frames(&self) -> usize {
        self.slots.untaken_frames()
    }

    /// Number of frames that the kernel has taken since the ring was opened or restarted, including frames whose slots
    /// it has not given back yet.
    pub fn handed_over_frames(&self) -> u64 {
        self.slots.handed_over_frames()
    }

    /// Number of slots of the ring.
    pub fn capacity(&self) -> usize {
        self.slots.shape.slots
    }

    /// Makes the kernel stamp departures from now on. In the reports, frames are numbered from 0 in the order in which
    /// the kernel takes them.
    pub fn request_stamps(&self, wanted: WantedStamps) -> Result<(), Error> {
        super::plain::enlarge_stamp_buffer(&self.socket);
        stamping::request_stamps(&self.socket, wanted)
    }

    /// Calls `take` with all reports about departures; does not wait. Returns how many reports there were.
    pub fn drain_reports(&self, take: &mut dyn FnMut(KernelReport)) -> Result<usize, Error> {
        stamping::drain_reports(&self.socket, take)
    }

    /// Counts of all frames that are no longer pending.
    pub fn counts(&self) -> TxCounts {
        self.slots.counts
    }
}

/// Enlarges the send buffer as far as the kernel allows. With a small buffer each kick sends fewer
/// frames; none is lost.
fn enlarge_send_buffer(socket: &OwnedFd) {
    if socket::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_err() {
        ignore_failure(socket::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER));
    }
}

#[cfg(test)]
mod tests;
