//! The transmit ring (TPACKET_V2).
//!
//! ```text
//!   tail                    head
//!    v                       v
//!  [sending][request][request][free][free] ...   status word of each slot
//! ```
//!
//! Slots are filled at the head and come back at the tail, in order. The kernel takes them when it is kicked, in the
//! caller's thread. When interface or queue are full, it leaves the frame in its slot, where the next kick tries it
//! again: nothing is lost that way. A frame the kernel will never take ([`TxCounts::refused`]) is removed, so that it
//! does not stop those behind it.
//!
//! Each frame is preceded by a `virtio_net_hdr` whose only use is its header length: it makes the kernel copy the frame
//! into its own memory instead of lending the slot to it in page fragments. That is faster at every frame size (60 bytes:
//! 1.20 against 0.87 million frames/s, 1514 bytes: 1.10 against 0.79, `examples/ring_rate` on a veth pair), and the far
//! end of a virtual link never reads a slot that is being written again. The price: the kernel then no longer compares
//! the length with the MTU, so that is done here.

use super::socket;
use crate::area::Area;
use crate::stamping::{self, Report, Wanted};
use crate::{Error, link::Links, netns::NetNs};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// From the start of a slot to the `virtio_net_hdr`: the slot's header without the address that only receiving has.
const TO_VNET: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
const VNET: usize = 10;
const TO_FRAME: usize = TO_VNET + VNET;
/// Where the slot's header says how long `virtio_net_hdr` and frame are, and where the former says how much to copy.
const AT_LENGTH: usize = 4;
const AT_COPIED: usize = TO_VNET + 2;
/// More than this is not copied: the kernel may not find so much memory in one piece.
const MOST_COPIED: usize = 16_384;
const ETHERNET_HEADER: usize = 14;
const VLAN_TAG: usize = 4;
/// Status bits that say who owns a slot; above them are bits about time stamps.
const OWNER: u32 = 7;
/// Slots start on cache lines.
const SLOT_ALIGNMENT: usize = 64;
/// The kernel allocates slots in blocks of this many bytes, or the next power of two that holds one.
const BLOCK: usize = 1 << 16;
/// Frames in flight hold send-buffer memory; the default is too small for a whole ring.
const SEND_BUFFER: i32 = 16 << 20;

/// How to open a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxOptions {
    /// Slots, at least; rounded up to fill memory.
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

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Taken by the kernel.
    pub taken: u64,
    /// Refused for good: wrong length for the interface, or withdrawn.
    pub refused: u64,
}

/// A transmit ring.
#[derive(Debug)]
pub struct TxRing {
    slots: Slots,
    socket: OwnedFd,
    object: String,
}

impl TxRing {
    /// Opens a ring on the interface with this index in `netns`; `name` is for messages. The MTU of this moment bounds
    /// the frames.
    pub fn open(netns: &NetNs, index: u32, name: &str, options: TxOptions) -> Result<Self, Error> {
        let socket = socket::open(netns, name)?;
        let mtu = Links::open(netns)?.by_index(index)?.mtu as usize;
        let shape = Shape::new(options.slots, options.longest);
        let packet = |option| (libc::SOL_PACKET, option);
        let failed = |call| move |errno: Errno| Error::call(call, name, errno);
        socket::set(&socket, packet(libc::PACKET_VERSION), &libc::tpacket_versions::TPACKET_V2)
            .map_err(failed("setsockopt(PACKET_VERSION)"))?;
        if options.bypass_queue {
            socket::set(&socket, packet(libc::PACKET_QDISC_BYPASS), &1i32)
                .map_err(failed("setsockopt(PACKET_QDISC_BYPASS)"))?;
        }
        socket::set(&socket, packet(libc::PACKET_VNET_HDR), &1i32)
            .map_err(failed("setsockopt(PACKET_VNET_HDR)"))?;
        enlarge_send_buffer(&socket);
        let request = shape.request().ok_or(Errno::INVAL).map_err(failed("setsockopt(PACKET_TX_RING)"))?;
        socket::set(&socket, packet(libc::PACKET_TX_RING), &request)
            .map_err(failed("setsockopt(PACKET_TX_RING)"))?;
        let area = Area::map(socket.as_fd(), shape.bytes(), name)?;
        socket::bind(&socket, index, 0, name)?;
        Ok(Self { slots: Slots::new(area, shape, mtu), socket, object: name.to_owned() })
    }

    /// The next free slot, to be written and then committed; `None` while the ring is full.
    pub fn next_slot(&mut self) -> Option<&mut [u8]> {
        self.slots.next()
    }

    /// Marks the first `len` bytes of the slot that [`Self::next_slot`] gave as a frame to be sent. A frame that the
    /// interface cannot send, by its length, is counted as refused and takes no slot.
    /// Panics if no slot is free or `len` does not fit.
    pub fn commit(&mut self, len: usize) {
        self.slots.commit(len);
    }

    /// From now on frames are bounded by this MTU, which the interface has been given since.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.slots.mtu = mtu as usize;
    }

    /// Has the kernel send what is committed, without waiting, and takes back what is done. A full queue is no error: the
    /// rest stays pending. An error (interface down or gone) leaves everything pending.
    pub fn kick(&mut self) -> Result<(), Error> {
        let sent = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
        self.slots.reap();
        match sent {
            // MSGSIZE and INVAL: one frame does not suit the interface; `reap` has counted and removed it.
            Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR | Errno::MSGSIZE | Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::call("sendto", self.object.clone(), errno)),
        }
    }

    /// Takes back slots the kernel is done with, without entering the kernel.
    pub fn reap(&mut self) {
        self.slots.reap();
    }

    /// Gives up the frames that the kernel has not taken yet, counts them as refused and says how many they were.
    /// Those on their way stay pending.
    pub fn withdraw(&mut self) -> usize {
        self.slots.withdraw()
    }

    /// Committed frames that are not done.
    pub fn pending(&self) -> usize {
        self.slots.filled
    }

    /// Slots of the ring.
    pub fn capacity(&self) -> usize {
        self.slots.shape.slots
    }

    /// Has departures stamped from now on; numbers count the frames that are taken, from 0.
    pub fn request_stamps(&self, wanted: Wanted) -> Result<(), Error> {
        super::plain::make_room(&self.socket);
        stamping::request(&self.socket, wanted)
    }

    /// Gives everything that is known of departures to `take`; does not wait. Says how many reports there were.
    pub fn reports(&self, take: &mut dyn FnMut(Report)) -> Result<usize, Error> {
        stamping::reports(&self.socket, take)
    }

    /// What became of all frames that are no longer pending.
    pub fn counts(&self) -> TxCounts {
        self.slots.counts
    }
}

/// Best effort: what the kernel allows of the wanted size. A small buffer makes for smaller bites, not for loss.
fn enlarge_send_buffer(socket: &OwnedFd) {
    if socket::set(socket, (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE), &SEND_BUFFER).is_err() {
        socket::set(socket, (libc::SOL_SOCKET, libc::SO_SNDBUF), &SEND_BUFFER).unwrap_or(());
    }
}

/// Where the slots are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    slot: usize,
    block: usize,
    per_block: usize,
    slots: usize,
}

impl Shape {
    fn new(slots: usize, longest: usize) -> Self {
        let slot = (TO_FRAME + longest).next_multiple_of(SLOT_ALIGNMENT);
        let block = slot.next_power_of_two().max(BLOCK);
        let per_block = block / slot;
        Self { slot, block, per_block, slots: slots.max(2).next_multiple_of(per_block) }
    }

    fn bytes(self) -> usize {
        self.slots / self.per_block * self.block
    }

    fn offset(self, slot: usize) -> usize {
        slot / self.per_block * self.block + slot % self.per_block * self.slot
    }

    fn request(self) -> Option<libc::tpacket_req> {
        let number = |value: usize| u32::try_from(value).ok();
        Some(libc::tpacket_req {
            tp_block_size: number(self.block)?,
            tp_block_nr: number(self.slots / self.per_block)?,
            tp_frame_size: number(self.slot)?,
            tp_frame_nr: number(self.slots)?,
        })
    }
}

/// The arithmetic of the ring.
#[derive(Debug)]
struct Slots {
    area: Area,
    shape: Shape,
    /// Next slot to fill.
    head: usize,
    /// Oldest slot not given back.
    tail: usize,
    /// Slots from tail to head.
    filled: usize,
    mtu: usize,
    counts: TxCounts,
}

impl Slots {
    fn new(area: Area, shape: Shape, mtu: usize) -> Self {
        Self { area, shape, head: 0, tail: 0, filled: 0, mtu, counts: TxCounts::default() }
    }

    fn next(&mut self) -> Option<&mut [u8]> {
        if self.filled == self.shape.slots {
            self.reap();
        }
        if self.filled == self.shape.slots {
            return None;
        }
        let offset = self.shape.offset(self.head) + TO_FRAME;
        Some(self.area.bytes_mut(offset, self.shape.slot - TO_FRAME))
    }

    fn commit(&mut self, len: usize) {
        assert!(self.filled < self.shape.slots && len <= self.shape.slot - TO_FRAME, "commit of {len} bytes");
        let offset = self.shape.offset(self.head);
        if !self.is_sendable(offset + TO_FRAME, len) {
            self.counts.refused += 1;
            return;
        }
        let length = u32::try_from(VNET + len).expect("a slot is far smaller than 4 GiB");
        let copied = u16::try_from(len.min(MOST_COPIED)).expect("the most that is copied fits");
        self.area.bytes_mut(offset + AT_LENGTH, 4).copy_from_slice(&length.to_ne_bytes());
        self.area.bytes_mut(offset + AT_COPIED, 2).copy_from_slice(&copied.to_ne_bytes());
        // Release: the kernel sees frame and length before it sees the request.
        self.area.word(offset).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.head = self.after(self.head);
        self.filled += 1;
    }

    /// The kernel's own rule: a VLAN tag does not count.
    fn is_sendable(&self, frame: usize, len: usize) -> bool {
        let most = ETHERNET_HEADER + self.mtu;
        let is_tagged = || self.area.bytes(frame + 12, 2) == [0x81, 0x00];
        len >= ETHERNET_HEADER && (len <= most || (len <= most + VLAN_TAG && is_tagged()))
    }

    fn reap(&mut self) {
        while self.filled > 0 {
            match self.owner(self.tail) {
                libc::TP_STATUS_AVAILABLE => {
                    self.counts.taken += 1;
                    self.tail = self.after(self.tail);
                    self.filled -= 1;
                }
                libc::TP_STATUS_WRONG_FORMAT => self.expel(),
                _ => break,
            }
        }
    }

    /// Removes the refused frame at the tail. The kernel waits at that very slot, so those behind it move up by one.
    fn expel(&mut self) {
        let mut slot = self.tail;
        for _ in 1..self.filled {
            let next = self.after(slot);
            self.copy_frame(next, slot);
            self.area.word(self.shape.offset(slot)).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
            slot = next;
        }
        self.area.word(self.shape.offset(slot)).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
        self.head = slot;
        self.filled -= 1;
        self.counts.refused += 1;
    }

    fn copy_frame(&mut self, from: usize, to: usize) {
        let (from, to) = (self.shape.offset(from) + AT_LENGTH, self.shape.offset(to) + AT_LENGTH);
        for at in (0..self.shape.slot - AT_LENGTH).step_by(4) {
            let part = self.area.number(from + at).to_ne_bytes();
            self.area.bytes_mut(to + at, 4).copy_from_slice(&part);
        }
    }

    fn withdraw(&mut self) -> usize {
        self.reap();
        let mut withdrawn = 0;
        while self.filled > 0 {
            let last = self.before(self.head);
            if self.owner(last) != libc::TP_STATUS_SEND_REQUEST {
                break;
            }
            self.area.word(self.shape.offset(last)).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            self.head = last;
            self.filled -= 1;
            withdrawn += 1;
        }
        self.counts.refused += withdrawn as u64;
        withdrawn
    }

    fn owner(&self, slot: usize) -> u32 {
        // Acquire: what the kernel did to the slot is seen before the slot is used again.
        self.area.word(self.shape.offset(slot)).load(Ordering::Acquire) & OWNER
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.shape.slots { 0 } else { slot + 1 }
    }

    fn before(&self, slot: usize) -> usize {
        if slot == 0 { self.shape.slots - 1 } else { slot - 1 }
    }
}

#[cfg(test)]
mod tests;
