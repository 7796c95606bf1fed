//! The receive ring (TPACKET_V3).
//!
//! The kernel fills one block after another with frames of any length. It gives a block to the reader when the block is
//! full, or when [`RxOptions::retire_ms`] have passed since its first frame. The reader gives the block back after the
//! last frame. Many small blocks are better than few large ones: at low rates each finished block holds only a few
//! frames, so the number of blocks, not their size, decides how long the reader may pause.
//!
//! The kernel removes the VLAN tag from a frame; this code puts the tag back in its place, with its TPID. Frames that
//! this machine sends through the interface are delivered only on request.

mod blocks;
mod fanout;

pub use blocks::{ArrivalStamp, MergedFrame, RawFrame};

use super::promiscuous;
use super::socket::{self, call_error};
use crate::area::SharedArea;
use crate::error::ignore_failure;
use crate::{Error, clock, netns::NetNs, pcap::ClassicInsn};
use blocks::{RxBlocks, RxRingShape};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Number of frames that are discarded between two clock readings.
const DISCARDED_PER_CLOCK_READING: usize = 1 << 14;
/// Longest wait for a block that the kernel still fills.
const MAX_BLOCK_WAIT_NS: u64 = 1_000_000;

/// Options of a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxOptions {
    /// Number of blocks of [`Self::block_bytes`] each. It limits for how long the reader may pause.
    pub blocks: u32,
    /// Bytes of a block: a power of two, at least a page. A frame that does not fit into a block is truncated.
    pub block_bytes: u32,
    /// The kernel gives a block that is not full to the reader after this many milliseconds.
    pub retire_ms: u32,
    /// Receive frames for other hardware addresses, too (promiscuous mode).
    pub promiscuous: bool,
    /// Deliver frames that this machine sends, too.
    pub outgoing: bool,
    /// Make the kernel report for each frame whether it is several packets on the wire ([`RawFrame::merged`]). A
    /// merged frame of another protocol than TCP and UDP, which only SCTP sends, then counts as dropped: the
    /// kernel cannot describe it.
    pub merges: bool,
}

impl Default for RxOptions {
    /// A ring of 32 MiB. At low rates the reader may pause for a second; the ring holds more than 200 000 short frames.
    fn default() -> Self {
        Self {
            blocks: 512,
            block_bytes: 1 << 16,
            retire_ms: 2,
            promiscuous: true,
            outgoing: false,
            merges: false,
        }
    }
}

/// Counters since the ring was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStats {
    /// Frames that were put into the ring.
    pub received: u64,
    /// Frames lost because the ring was full.
    pub dropped: u64,
    /// Number of times that the kernel found the ring full.
    pub freezes: u64,
}

/// How far the reader of a ring is behind the kernel. Frames that have arrived and were not read are in the
/// blocks of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingProgress {
    /// Frames that the kernel has put into the ring so far.
    pub arrived: u64,
    /// Frames that the reader has read so far.
    pub read: u64,
}

impl RingProgress {
    /// Returns true if the reader has caught up.
    pub const fn is_read(self) -> bool {
        self.read >= self.arrived
    }
}

/// Remembers how many frames had arrived when a reader was asked to end. Later frames do not delay the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingDrainTarget {
    /// Number of frames that the reader has to reach; set by the first call of [`Self::is_read`].
    until: Option<u64>,
}

impl RingDrainTarget {
    /// Returns true if all frames were read that had arrived at the first call of this function.
    pub fn is_read(&mut self, progress: RingProgress) -> bool {
        progress.read >= *self.until.get_or_insert(progress.arrived)
    }
}

#[derive(Debug)]
pub struct RxRing {
    blocks: RxBlocks,
    socket: OwnedFd,
    index: u32,
    object: String,
    /// Counters since the ring was opened.
    total: RxStats,
    /// Value of `total` when the ring was last restarted.
    before: RxStats,
}

impl RxRing {
    /// Opens a ring on the interface with this index in `netns` and receives from now on; `name` is for messages.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: RxOptions,
    ) -> Result<Self, Error> {
        Self::open_filtered(netns, index, name, options, &[])
    }

    /// Opens a ring into which the kernel puts only frames that pass a filter; an empty filter lets all frames pass.
    /// The filter's result is the number of bytes to keep of a frame. The filter sees frames without the VLAN tag that
    /// the kernel has removed.
    pub fn open_filtered(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: RxOptions,
        filter: &[ClassicInsn],
    ) -> Result<Self, Error> {
        let socket = socket::open_packet_socket(netns, name)?;
        configure_socket(&socket, options, name)?;
        // The filter is attached before the socket is bound, so that no frame gets past it.
        socket::attach_filter(&socket, filter)
            .map_err(|e| Error::from_call("setsockopt(SO_ATTACH_FILTER)", name, e))?;
        let shape = RxRingShape { block: options.block_bytes as usize, blocks: options.blocks as usize };
        let area = SharedArea::map_shared(socket.as_fd(), shape.block * shape.blocks, name)?;
        // From here on frames arrive: filter and ring are in place.
        socket::bind_interface(&socket, index, libc::ETH_P_ALL, name)?;
        // The membership ends with the socket, so a process that dies does not leave the interface promiscuous.
        if options.promiscuous {
            promiscuous::make_interface_promiscuous(&socket, index)
                .map_err(|e| Error::from_call("setsockopt(PACKET_ADD_MEMBERSHIP)", name, e))?;
        }
        let mut blocks = RxBlocks::new(area, shape);
        blocks.outgoing = options.outgoing;
        blocks.has_vnet = options.merges;
        Ok(Self {
            blocks,
            socket,
            index,
            object: name.to_owned(),
            total: RxStats::default(),
            before: RxStats::default(),
        })
    }

    /// Calls `sink` with the frames that are ready, at most `most`. Returns their number. Neither waits nor
    /// makes a system call.
    pub fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RawFrame<'_>)) -> usize {
        self.blocks.receive_frames(most, sink)
    }

    /// Waits until frames are ready, at most `within_ns`. An interface that goes down does not end the wait with an
    /// error: it may come up again.
    pub fn wait_for_frames(&mut self, within_ns: u64) -> Result<(), Error> {
        // If a block is ready, no system call is needed.
        if self.blocks.is_ready() {
            return Ok(());
        }
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::ERR)];
        match rustix::event::poll(&mut polled, Some(&clock::to_timespec(within_ns))) {
            // A signal ends the wait early. The caller then checks whether it has to stop.
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::from_call("ppoll", self.object.clone(), errno)),
        }
        if polled[0].revents().contains(PollFlags::ERR) {
            return match socket::take_error(&self.socket) {
                Ok(()) | Err(Errno::NETDOWN) => Ok(()),
                Err(errno) => Err(Error::from_call("ppoll", self.object.clone(), errno)),
            };
        }
        Ok(())
    }

    /// Restricts the ring from now on to frames that pass a filter, as with [`Self::open_filtered`]; frames
    /// already in the ring stay. `false` if the filter is empty or the kernel refuses it.
    pub fn narrow_to_filter(&mut self, filter: &[ClassicInsn]) -> Result<bool, Error> {
        match socket::attach_filter(&self.socket, filter) {
            Ok(()) => Ok(!filter.is_empty()),
            Err(Errno::INVAL) => Ok(false),
            Err(errno) => Err(Error::from_call("setsockopt(SO_ATTACH_FILTER)", self.object.clone(), errno)),
        }
    }

    /// Starts again, as if the ring had been opened now: earlier frames are dropped, and counters begin at
    /// zero. `false` if the ring cannot be used again: its interface is gone or was down, or frames come
    /// faster than they can be thrown away for `within_ns`.
    pub fn restart_ring(&mut self, within_ns: u64) -> Result<bool, Error> {
        // The kernel unbinds the socket when the interface is removed. Such a ring would stay empty for ever.
        if !socket::is_socket_usable(&self.socket, self.index, &self.object)? {
            return Ok(false);
        }
        let end = clock::monotonic_ns() + within_ns;
        // A frame that has arrived may be in a block that the kernel still fills.
        let arrived = self.read_progress()?.arrived;
        while self.blocks.read < arrived {
            if clock::monotonic_ns() >= end {
                return Ok(false);
            }
            if self.blocks.receive_frames(DISCARDED_PER_CLOCK_READING, &mut |_| {}) == 0 {
                self.wait_for_frames(MAX_BLOCK_WAIT_NS)?;
            }
        }
        self.update_statistics()?;
        // Frames that have arrived in the meantime and are not read yet belong to the new run.
        self.before = RxStats { received: self.blocks.read, ..self.total };
        Ok(true)
    }

    /// Reads the counters since the ring was opened or restarted.
    pub fn read_stats(&mut self) -> Result<RxStats, Error> {
        self.update_statistics()?;
        Ok(RxStats {
            received: self.total.received - self.before.received,
            dropped: self.total.dropped - self.before.dropped,
            freezes: self.total.freezes - self.before.freezes,
        })
    }

    /// Reads how many frames have arrived and how many were read. So a caller can tell an empty ring from a ring with
    /// frames in a block that the kernel still fills.
    pub fn read_progress(&mut self) -> Result<RingProgress, Error> {
        self.update_statistics()?;
        Ok(RingProgress { arrived: self.total.received, read: self.blocks.read })
    }

    fn update_statistics(&mut self) -> Result<(), Error> {
        // A reading sets the kernel's counters to zero, and `tp_packets` includes the drops (packet(7)).
        let since_last = socket::take_statistics(&self.socket)
            .map_err(|errno| Error::from_call("getsockopt(PACKET_STATISTICS)", self.object.clone(), errno))?;
        self.total.received += u64::from(since_last.tp_packets.saturating_sub(since_last.tp_drops));
        self.total.dropped += u64::from(since_last.tp_drops);
        self.total.freezes += u64::from(since_last.tp_freeze_q_cnt);
        Ok(())
    }
}

fn configure_socket(socket: &OwnedFd, options: RxOptions, name: &str) -> Result<(), Error> {
    // These options are set before the ring is made: afterwards the kernel refuses version, reserve and header.
    socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)
        .map_err(call_error("setsockopt(PACKET_VERSION)", name))?;
    // Space before each frame: its MAC addresses are moved there when the VLAN tag is put back.
    socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_RESERVE, &16u32)
        .map_err(call_error("setsockopt(PACKET_RESERVE)", name))?;
    if options.merges {
        socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)
            .map_err(call_error("setsockopt(PACKET_VNET_HDR)", name))?;
    }
    // Since Linux 4.20. An older kernel refuses this, and outgoing frames are recognised by their direction (blocks.rs).
    let ignores_outgoing = i32::from(!options.outgoing);
    ignore_failure(socket::set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_IGNORE_OUTGOING,
        &ignores_outgoing,
    ));
    // Only the software stamp is used: a stamp of the card comes from another clock.
    let stamping = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    socket::set_option(socket, libc::SOL_SOCKET, crate::stamping::STAMPING, &stamping)
        .map_err(call_error("setsockopt(SO_TIMESTAMPING)", name))?;
    // The frame size has no meaning for blocks of variable frames, but must divide the block.
    let request = libc::tpacket_req3 {
        tp_block_size: options.block_bytes,
        tp_block_nr: options.blocks,
        tp_frame_size: 2048,
        tp_frame_nr: options.block_bytes / 2048 * options.blocks,
        tp_retire_blk_tov: options.retire_ms,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
        .map_err(call_error("setsockopt(PACKET_RX_RING)", name))
}

#[cfg(test)]
mod tests;
