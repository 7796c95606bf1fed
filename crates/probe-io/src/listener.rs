//! Receives answers: frames from a ring that the kernel fills, with the kernel's stamp of each arrival.
//!
//! A [`PacketListener`] belongs to one interface. Reading the ring takes no system call, so a sender can read it between two probes as often
//! as it likes. The kernel's filter passes only frames that are addressed to us and could be an answer.
//!
//! Invariant: the stamp of a frame is an interval of the monotonic clock that contains the time of the
//! kernel's stamp, as long as the real-time clock does not step twice between two readings.

mod filter;

use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::answer::{self, ProbeAnswer};
use packetrig_probe::{ProbeStamp, StampSource};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_sys::pcap::ClassicInsn;
use packetrig_sys::ports::{HeldPort, PortProtocol};
use packetrig_units::{MonoTime, Nanos};
use std::net::{IpAddr, SocketAddr};

/// The real-time clock is compared with the monotonic one again if the last comparison is older than this.
const CLOCK_COMPARISON_INTERVAL_NS: u64 = 100_000_000;
/// Longest wait before the caller can check whether to stop.
pub(crate) const STOP_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);
/// Maximum number of frames per call, so that the caller can check the time again: the next probe may be due.
const MAX_FRAMES_PER_CALL: usize = 256;

/// Minimum number of blocks of a ring.
const MIN_RING_BLOCKS: u32 = 64;

/// Packets to listen for: ICMP to any of the addresses, and TCP and UDP to the port at any of the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPackets {
    pub addresses: Vec<IpAddr>,
    /// Own port of UDP and TCP; `None` for ICMP only.
    pub port: Option<u16>,
}

/// Packets to listen for if ports are not known in advance: ICMP, TCP and UDP to any of the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketsToAllPorts {
    pub addresses: Vec<IpAddr>,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedFrame<'a> {
    /// The frame without FCS.
    pub frame: &'a [u8],
    pub at: ProbeStamp,
    /// True if the sender is on this machine and left the checksum to a network card, which the frame never passed.
    pub lacks_checksum: bool,
}

impl<'a> ReceivedFrame<'a> {
    /// Reads the frame as an answer; `None` if it cannot be one.
    pub fn read_answer(&self) -> Option<ProbeAnswer<'a>> {
        answer::read_answer(self.frame, self.lacks_checksum)
    }
}

#[derive(Debug)]
pub struct PacketListener {
    ring: RxRing,
    offset: RealtimeOffset,
    compared_at: u64,
}

impl PacketListener {
    /// Opens a listener for the wanted packets that arrive at an interface from now on, with a ring
    /// of the minimum size.
    pub fn open_at_interface(
        location: &PortLocation,
        index: u32,
        wanted: &WantedPackets,
    ) -> Result<Self, Error> {
        Self::open_with_room_for(location, index, wanted, 0)
    }

    /// Opens a listener with room for `frames` frames that arrive while the caller does not read. Each frame may
    /// take a whole block of the ring, because the kernel closes a block a millisecond after its first frame.
    pub fn open_with_room_for(
        location: &PortLocation,
        index: u32,
        wanted: &WantedPackets,
        frames: u32,
    ) -> Result<Self, Error> {
        Self::open_filtered(location, index, &filter::compile_filter(wanted), frames)
    }

    /// Opens a listener for ICMP, and for TCP and UDP to all ports, with room for `frames` frames.
    pub fn open_for_all_ports(
        location: &PortLocation,
        index: u32,
        wanted: &PacketsToAllPorts,
        frames: u32,
    ) -> Result<Self, Error> {
        Self::open_filtered(location, index, &filter::compile_all_ports(wanted), frames)
    }

    fn open_filtered(
        location: &PortLocation,
        index: u32,
        filter: &[ClassicInsn],
        frames: u32,
    ) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let options = RxOptions {
            // One block for each frame (see `open_with_room_for`), and some more for other frames.
            blocks: MIN_RING_BLOCKS.max(frames + MIN_RING_BLOCKS / 4),
            block_bytes: 1 << 16,
            // The shortest timeout of TPACKET_V3. Stamps are taken at arrival, so it delays only when the program sees a frame.
            retire_ms: 1,
            promiscuous: false,
            outgoing: false,
            merges: false,
        };
        let ring = RxRing::open_filtered(&netns, index, &location.interface, options, filter)?;
        // The clocks are compared right after the ring is open, so the first frames arrive close to a comparison.
        Ok(Self { ring, offset: clock::measure_realtime_offset(), compared_at: clock::monotonic_ns() })
    }

    /// Passes frames that have arrived to `take`, at most 256 per call, without waiting. Returns the
    /// number of frames passed.
    pub fn receive_waiting_frames(&mut self, mut take: impl FnMut(ReceivedFrame<'_>)) -> usize {
        let now = clock::monotonic_ns();
        let before = self.offset;
        if now - self.compared_at > CLOCK_COMPARISON_INTERVAL_NS {
            self.offset = clock::measure_realtime_offset();
            self.compared_at = now;
        }
        // The frames below arrived between the last comparison and this one, or a little later. If the
        // real-time clock was set in between, it is unknown whether a frame arrived before or after that, so
        // its stamp covers both conversions.
        let after = self.offset;
        self.ring.receive_frames(MAX_FRAMES_PER_CALL, &mut |raw| {
            take(ReceivedFrame {
                frame: raw.bytes,
                at: convert_realtime_stamp(before, after, raw.realtime_ns),
                lacks_checksum: raw.lacks_checksum,
            });
        })
    }

    /// Waits for frames, for at most `within` and at most `STOP_CHECK_INTERVAL`, so that the caller can
    /// check whether to stop.
    pub fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        Ok(self.ring.wait_for_frames(within.min(STOP_CHECK_INTERVAL).as_u64())?)
    }

    /// Reads how many frames the kernel dropped because the ring was full.
    pub fn read_dropped_frames(&mut self) -> Result<u64, Error> {
        Ok(self.ring.read_stats()?.dropped)
    }
}

/// Converts a real-time stamp that was taken between two comparisons of the real-time clock with the monotonic one.
fn convert_realtime_stamp(before: RealtimeOffset, after: RealtimeOffset, realtime_ns: u64) -> ProbeStamp {
    let one = to_probe_stamp(before, realtime_ns);
    let other = to_probe_stamp(after, realtime_ns);
    // The stamp covers both conversions: it contains the true time, whichever conversion was right.
    ProbeStamp { lo: one.lo.min(other.lo), hi: one.hi.max(other.hi), ..one }
}

fn to_probe_stamp(offset: RealtimeOffset, realtime_ns: u64) -> ProbeStamp {
    let at = MonoTime::from_nanos(offset.to_monotonic(realtime_ns));
    ProbeStamp::with_bound(StampSource::Kernel, at, offset.bound_ns)
}

/// Prevents the kernel from answering packets that come back to our port. If no socket had the port, the
/// kernel would answer with a TCP reset or "port unreachable". The listener still receives the frames.
/// Dropping this value frees the port.
#[derive(Debug)]
pub struct SilencedPort {
    held: Vec<HeldPort>,
}

impl SilencedPort {
    /// Reserves a port that is free for both TCP and UDP at a local address.
    pub fn reserve_any_port(namespace: Option<&str>, address: IpAddr) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(namespace)?;
        let mut attempts = 0;
        loop {
            // Port 0 lets the kernel choose a port. The socket keeps that port until this value is dropped.
            let tcp = HeldPort::hold_port_at(&netns, PortProtocol::Tcp, SocketAddr::new(address, 0))?;
            // The port is free for TCP. If it is in use for UDP, another one is tried.
            match HeldPort::hold_port_at(&netns, PortProtocol::Udp, SocketAddr::new(address, tcp.port())) {
                Ok(udp) => return Ok(Self { held: vec![tcp, udp] }),
                Err(packetrig_sys::Error::Busy { .. }) if attempts < 16 => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reserves a free port for UDP alone, for a process that is not allowed to bind TCP ports.
    pub fn reserve_any_udp_port(namespace: Option<&str>, address: IpAddr) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(namespace)?;
        let udp = HeldPort::hold_port_at(&netns, PortProtocol::Udp, SocketAddr::new(address, 0))?;
        Ok(Self { held: vec![udp] })
    }

    /// Reserves the same UDP port at another local address, too.
    pub fn reserve_same_udp_port_at(
        &mut self,
        namespace: Option<&str>,
        address: IpAddr,
    ) -> Result<(), Error> {
        let netns = NetNs::open_named_or_current_namespace(namespace)?;
        self.held.push(HeldPort::hold_port_at(
            &netns,
            PortProtocol::Udp,
            SocketAddr::new(address, self.port()),
        )?);
        Ok(())
    }

    /// Reserves the same port, for TCP and UDP, at another local address, too.
    pub fn reserve_same_port_at(&mut self, namespace: Option<&str>, address: IpAddr) -> Result<(), Error> {
        let netns = NetNs::open_named_or_current_namespace(namespace)?;
        for protocol in [PortProtocol::Tcp, PortProtocol::Udp] {
            self.held.push(HeldPort::hold_port_at(&netns, protocol, SocketAddr::new(address, self.port()))?);
        }
        Ok(())
    }

    pub fn port(&self) -> u16 {
        self.held.first().map_or(0, HeldPort::port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_between_two_comparisons_holds_both() {
        let before = RealtimeOffset { offset_ns: 1_000, bound_ns: 10 };
        let after = RealtimeOffset { offset_ns: 1_100, bound_ns: 20 };
        let stamp = convert_realtime_stamp(before, after, 5_000);
        assert_eq!((stamp.lo, stamp.hi, stamp.source), (3_880, 4_010, StampSource::Kernel));
    }
}
