//! Several rings that share the arriving frames of an interface; each flow goes to one ring (PACKET_FANOUT_HASH).
//!
//! The kernel's hash is symmetric: both directions of a flow go to the same ring. It covers the fields that
//! the kernel's dissector reads: addresses, protocol and ports, through GRE, IP-in-IP and MPLS; for fragments
//! only the addresses; for UDP tunnels (VXLAN, GTP-U) the outer header. The kernel is not asked to reassemble
//! fragments: packetrig counts the frames on the wire.
//!
//! Invariant: a frame is in one ring or was dropped by one ring. Until all rings have joined, none accepts a
//! frame, because a bound ring that has not joined would accept all frames.

use super::{RxOptions, RxRing};
use crate::packet::socket::{self, call_error};
use crate::pcap::ClassicInsn;
use crate::{Error, netns::NetNs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// `return 0`: no frame passes.
const DROP_ALL_FILTER: [ClassicInsn; 1] = [ClassicInsn { code: 6, jt: 0, jf: 0, k: 0 }];

// Flags of linux/if_packet.h.
const UNIQUE_ID: u32 = 0x2000;
const IGNORE_OUTGOING: u32 = 0x4000;

impl RxRing {
    /// Opens `count` rings on an interface, and receives from now on. The kernel distributes the frames over
    /// the rings by flow.
    pub fn open_fanout_rings(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: RxOptions,
        filter: &[ClassicInsn],
        count: usize,
    ) -> Result<Vec<Self>, Error> {
        if count < 2 {
            return Ok(vec![Self::open_filtered(netns, index, name, options, filter)?]);
        }
        // Until all rings have joined, a filter keeps every frame out: a bound ring that has not joined would
        // take all frames.
        let rings: Vec<Self> = (0..count)
            .map(|_| Self::open_filtered(netns, index, name, options, &DROP_ALL_FILTER))
            .collect::<Result<_, _>>()?;
        let mut group = None;
        for ring in &rings {
            let id = join_group(&ring.socket, group, options.outgoing);
            group = Some(id.map_err(call_error("setsockopt(PACKET_FANOUT)", name))?);
        }
        for ring in &rings {
            set_final_filter(&ring.socket, filter)
                .map_err(call_error("setsockopt(SO_ATTACH_FILTER)", name))?;
        }
        Ok(rings)
    }

    /// Stops the ring from receiving more frames; frames in it stay. Unread frames in the ring become visible after
    /// [`RxOptions::retire_ms`] at the latest.
    pub fn stop_intake(&mut self) -> Result<(), Error> {
        self.narrow_to_filter(&DROP_ALL_FILTER).map(|_| ())
    }
}

/// Makes a group or joins one; returns its number. The kernel chooses the number of a new group
/// (PACKET_FANOUT_FLAG_UNIQUEID), so that no other program has it.
fn join_group(socket: &OwnedFd, group: Option<u32>, outgoing: bool) -> Result<u32, Errno> {
    let unwanted = if outgoing { 0 } else { IGNORE_OUTGOING };
    match set_fanout(socket, group, unwanted) {
        // Groups have this flag since Linux 5.8. Without it outgoing frames are recognised by their direction.
        Err(Errno::INVAL) if unwanted != 0 => set_fanout(socket, group, 0)?,
        asked => asked?,
    }
    Ok(socket::get_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, 0u32)? & 0xffff)
}

/// Sends the request: the number of the group in the lower half, kind and flags in the upper one (packet(7)).
fn set_fanout(socket: &OwnedFd, group: Option<u32>, flags: u32) -> Result<(), Errno> {
    let hash = libc::PACKET_FANOUT_HASH | flags;
    let request = group.map_or((hash | UNIQUE_ID) << 16, |id| id | hash << 16);
    socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &request)
}

fn set_final_filter(socket: &OwnedFd, filter: &[ClassicInsn]) -> rustix::io::Result<()> {
    if filter.is_empty() {
        // An empty filter lets all frames pass, so the filter that drops all frames is removed.
        return socket::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32);
    }
    socket::attach_filter(socket, filter)
}
