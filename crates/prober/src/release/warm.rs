//! Walking the kernel's way of a frame shortly before one is due.
//!
//! Whoever has slept finds its caches full of others: the first frame after that takes the kernel some tens of microseconds longer. A few frames
//! over the loopback interface, of a type that nobody listens to, take most of the same way: socket, buffers, softirq and receiver. The
//! interface's own driver stays cold.
//!
//! Invariant: nothing leaves this machine.

use super::place::ReleasePlace;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{FrameOptions, FrameSocket};
use packetrig_units::Nanos;

/// It takes no longer than this, unless somebody else gets the processor.
pub(super) const TAKES: Nanos = Nanos::from_micros(80);
/// Frames at a time.
const FRAMES: usize = 3;
const LENGTH: usize = 60;
const LOOPBACK: &str = "lo";
/// For local experiments (IEEE Std 802).
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const SAYS: &[u8] = b"packetrig warms up";

#[derive(Debug)]
pub(super) struct WarmRelease {
    socket: FrameSocket,
    frame: [u8; LENGTH],
}

impl WarmRelease {
    /// Over the loopback interface beside the interface that frames are released at, else over this process's own; `None` if neither is up,
    /// or if it is the interface itself.
    pub(super) fn open(place: &ReleasePlace) -> Option<Self> {
        if place.link.loopback {
            return None;
        }
        Self::over(&place.netns).or_else(|| Self::over(&NetNs::current().ok()?))
    }

    fn over(netns: &NetNs) -> Option<Self> {
        let link = NamespaceLinks::open(netns).ok()?.by_name(LOOPBACK).ok().filter(|link| link.up)?;
        let socket = FrameSocket::open(netns, link.index, LOOPBACK, FrameOptions::default()).ok()?;
        let mut frame = [0; LENGTH];
        frame[12..14].copy_from_slice(&ETHER_TYPE);
        frame[14..14 + SAYS.len()].copy_from_slice(SAYS);
        Some(Self { socket, frame })
    }

    /// Does it. What does not get through has warmed, too.
    pub(super) fn up(&self) {
        for _ in 0..FRAMES {
            drop(self.socket.send(&self.frame));
        }
    }
}
