//! Warms up the kernel's send path shortly before a frame is due.
//!
//! After a sleep the CPU caches are cold, and the first frame takes the kernel some tens of microseconds longer. A few frames over the
//! loopback interface, of an EtherType without receivers, use most of the same code: socket, buffers, softirq and receiver. The
//! interface's own driver stays cold.
//!
//! Invariant: nothing leaves this machine.

use super::place::ReleaseInterface;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{FrameOptions, FrameSocket};
use packetrig_units::Nanos;

/// Maximum duration of a warm-up, unless another thread gets the processor.
pub(super) const MAX_WARM_UP_TIME: Nanos = Nanos::from_micros(80);
/// Number of frames per warm-up.
const WARM_UP_FRAMES: usize = 3;
const WARM_UP_FRAME_BYTES: usize = 60;
const LOOPBACK_INTERFACE: &str = "lo";
/// Local experimental EtherType 1 (IEEE Std 802).
const WARM_UP_ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const WARM_UP_PAYLOAD: &[u8] = b"packetrig warms up";

#[derive(Debug)]
pub(super) struct SendPathWarmer {
    socket: FrameSocket,
    frame: [u8; WARM_UP_FRAME_BYTES],
}

impl SendPathWarmer {
    /// Opens a socket on the loopback interface of the namespace of `place`, or else of the calling thread's
    /// namespace. `None` if neither can be used, or if frames are released through the loopback interface itself.
    pub(super) fn open_for_place(place: &ReleaseInterface) -> Option<Self> {
        if place.link.loopback {
            return None;
        }
        Self::open_in(&place.netns).or_else(|| Self::open_in(&NetNs::current().ok()?))
    }

    fn open_in(netns: &NetNs) -> Option<Self> {
        let link = NamespaceLinks::open_in(netns)
            .ok()?
            .find_link_by_name(LOOPBACK_INTERFACE)
            .ok()
            .filter(|link| link.up)?;
        let socket =
            FrameSocket::open_on_interface(netns, link.index, LOOPBACK_INTERFACE, FrameOptions::default())
                .ok()?;
        let mut frame = [0; WARM_UP_FRAME_BYTES];
        frame[12..14].copy_from_slice(&WARM_UP_ETHERTYPE);
        frame[14..14 + WARM_UP_PAYLOAD.len()].copy_from_slice(WARM_UP_PAYLOAD);
        Some(Self { socket, frame })
    }

    /// Sends the warm-up frames. A refused frame also warms the caches, so errors are ignored.
    pub(super) fn send_warm_up(&self) {
        for _ in 0..WARM_UP_FRAMES {
            drop(self.socket.send_frame(&self.frame));
        }
    }
}
