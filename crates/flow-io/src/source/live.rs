//! Interfaces as a source: AF_PACKET rings that share the traffic by flow, or the rings of an XDP program.
//!
//! Packets are only copied: they continue to the kernel's stack. The time is the wall clock's, but while packets are
//! waiting it is the time of the latest delivered packet. So a meter that is behind does not time out flows whose
//! packets are still in the ring.

use super::{PacketSource, SentCounts, SharedInterfaceCounts, TakeOutcome};
use crate::Error;
use crate::intake::PacketIntake;
use packetrig_engine::packet::{PacketTap, TapOptions};
use packetrig_engine::port::{FrameRx, PortLocation, RingProgress, RxFrame};
use packetrig_engine::xdp::{HeaderListener, XdpTap, XdpTapOptions};
use packetrig_flow::parse::LinkKind;
use packetrig_flow::parse::merged::MergeMetadata;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos, clamp_to_u32};
use std::sync::PoisonError;

/// Bytes that an Ethernet frame with two VLAN tags has beyond the MTU.
const FRAME_BYTES_BEYOND_MTU: usize = 14 + 2 * 4;
/// Interval for checking rings that offer no way to wait.
const RING_CHECK_INTERVAL_NS: u64 = 1_000_000;
/// If a frame's time is earlier than that of the frame before it by more than this, the clock was set back.
const CLOCK_SET_BACK_THRESHOLD_NS: u64 = 1_000_000_000;
/// Time that the kernel may take to release the last block of a ring. It takes a few milliseconds unless
/// a processor is stalled.
const LAST_BLOCK_TIMEOUT_NS: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    pub way: ListenMethod,
    /// Number of workers that share the traffic of an interface.
    pub workers: usize,
    /// Number of bytes that are captured of each frame, at most.
    pub snap_len: u32,
    /// True if packets that this machine sends are metered, too.
    pub outgoing: bool,
    /// True if frames for other stations are received, too.
    pub promiscuous: bool,
    /// Size of each ring, in bytes.
    pub ring_bytes: u64,
}

impl LiveOptions {
    /// Returns the number of workers of each interface. Fails if the method cannot share an interface among them.
    pub(crate) const fn workers_per_interface(&self) -> Result<usize, Error> {
        // Only AF_PACKET can spread an interface over several rings by flow (fanout).
        let way = match self.way {
            ListenMethod::Packet => return Ok(if self.workers == 0 { 1 } else { self.workers }),
            ListenMethod::Xdp => "xdp",
            ListenMethod::Headers => "headers",
        };
        if self.workers > 1 { Err(Error::OneWorker { way, workers: self.workers }) } else { Ok(1) }
    }
}

/// Method of listening on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenMethod {
    Packet,
    /// Frames, cut to the snap length by an XDP program.
    Xdp,
    /// Unified headers, made by an XDP program.
    Headers,
}

enum LiveRing {
    Packet(PacketTap),
    Xdp(XdpTap),
    Headers(HeaderListener),
}

/// Gives frames their wall-clock time and the number of their interface, and recognises merged frames by their length.
struct FrameStamper {
    /// Wall clock minus monotonic clock.
    offset_ns: i64,
    input: u16,
    /// The latest time so far.
    last_ns: u64,
    /// Bytes of the longest frame that the interface sends and receives.
    longest: usize,
    sent: SentCounts,
}

/// A ring of an interface.
pub struct LiveSource {
    tap: LiveRing,
    stamp: FrameStamper,
    delivered: u64,
    interface: SharedInterfaceCounts,
    /// Time at which the ring was closed for new packets.
    shut_ns: Option<u64>,
}

impl std::fmt::Debug for LiveSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSource").field("input", &self.stamp.input).finish_non_exhaustive()
    }
}

/// Opens the rings of an interface. `interface` has the interface's counters, and `input` is its number in records.
pub fn open_live_sources(
    location: &PortLocation,
    interface: &SharedInterfaceCounts,
    input: u16,
    options: LiveOptions,
) -> Result<Vec<LiveSource>, Error> {
    let workers = options.workers_per_interface()?;
    let source = |tap, offset| LiveSource::new(tap, offset, input, interface);
    match options.way {
        ListenMethod::Packet => {
            let tap = TapOptions {
                filter: None,
                snap_len: Some(options.snap_len),
                promiscuous: options.promiscuous,
                outgoing: options.outgoing,
                // Blocks of the ring have 64 KiB.
                blocks: clamp_to_u32(options.ring_bytes >> 16).max(4),
            };
            let taps = PacketTap::open_fanout_rings(location, tap, workers)?;
            Ok(taps
                .into_iter()
                .map(|tap| {
                    let offset = tap.offset();
                    source(LiveRing::Packet(tap), offset)
                })
                .collect())
        }
        ListenMethod::Xdp => {
            let tap = XdpTap::open_interface(location, &xdp_tap_options(options))?;
            let offset = tap.offset();
            Ok(vec![source(LiveRing::Xdp(tap), offset)])
        }
        ListenMethod::Headers => {
            let tap = HeaderListener::open_interface(location, &xdp_tap_options(options))?;
            let offset = tap.offset();
            Ok(vec![source(LiveRing::Headers(tap), offset)])
        }
    }
}

/// Options of an XDP tap that passes all packets on to the kernel's stack.
fn xdp_tap_options(options: LiveOptions) -> XdpTapOptions {
    XdpTapOptions { filter: None, snap_len: Some(options.snap_len), pass: true }
}

impl LiveRing {
    /// Passes as many frames or headers to `intake` as it has room for, and returns their number.
    fn receive_frames(
        &mut self,
        intake: &mut PacketIntake,
        stamp: &mut FrameStamper,
    ) -> Result<usize, Error> {
        let room = intake.free_slots();
        let frame = &mut |frame: RxFrame<'_>| stamp.deliver_frame_to_intake(&frame, intake);
        Ok(match self {
            Self::Packet(tap) => tap.receive_frames(room, frame)?,
            Self::Xdp(tap) => tap.receive_frames(room, frame)?,
            Self::Headers(tap) => tap.receive_headers(room, &mut |header| {
                let at_ns = stamp.update_latest_time(stamp.wall_time_ns(header.at));
                if header.is_record {
                    intake.add_unified_header(header.bytes, header.full_len, at_ns, stamp.input);
                } else {
                    intake.add_frame(header.bytes, header.full_len, at_ns, stamp.input);
                }
            }),
        })
    }

    /// Reports whether no packet lies in a block that the kernel still fills. A ring that cannot be read any
    /// more counts as drained.
    fn is_ring_drained(&mut self) -> bool {
        let Self::Packet(tap) = self else { return true };
        tap.ring_progress().map_or(true, RingProgress::is_read)
    }
}

impl FrameStamper {
    /// Passes a frame to the parser, and counts it if this machine sent it.
    fn deliver_frame_to_intake(&mut self, frame: &RxFrame<'_>, intake: &mut PacketIntake) {
        let before = intake.counts().seen;
        let at_ns = self.update_latest_time(frame.realtime_ns.unwrap_or_else(|| self.wall_time_ns(frame.at)));
        let RxFrame { bytes, full_len, .. } = *frame;
        match frame.merged {
            Some(merged) => {
                let note =
                    MergeMetadata { segment_bytes: merged.segment_bytes, transport_at: merged.transport_at };
                intake.add_merged_frame(bytes, full_len, note, at_ns, self.input);
            }
            // The frame is longer than the link allows: it was merged (LRO, for example), and the kernel does
            // not report the original packets.
            None if full_len > self.longest => {
                intake.add_unsplit_frame(LinkKind::Ethernet, bytes, full_len, at_ns, self.input);
            }
            None => intake.add_frame(bytes, full_len, at_ns, self.input),
        }
        if frame.is_outgoing {
            self.sent.frames += 1;
            // The difference is added, because a merged frame is several packets.
            self.sent.packets += intake.counts().seen - before;
        }
    }

    fn wall_time_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos().saturating_add_signed(self.offset_ns)
    }

    /// Updates the time up to which all packets have been delivered, and returns `at_ns`. A frame that is older than
    /// the one before it does not move the time back, but setting back the clock does.
    fn update_latest_time(&mut self, at_ns: u64) -> u64 {
        let is_set_back = at_ns.saturating_add(CLOCK_SET_BACK_THRESHOLD_NS) < self.last_ns;
        self.last_ns = if is_set_back { at_ns } else { self.last_ns.max(at_ns) };
        at_ns
    }

    /// Measures the offset between the wall clock and the monotonic clock again if the wall clock was set.
    fn update_offset_if_clock_was_set(&mut self) {
        let offset_ns = clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns()).cast_signed();
        if offset_ns.abs_diff(self.offset_ns) > CLOCK_SET_BACK_THRESHOLD_NS {
            self.offset_ns = clock::measure_realtime_offset().offset_ns;
        }
    }
}

impl LiveSource {
    fn new(
        tap: LiveRing,
        offset: clock::RealtimeOffset,
        input: u16,
        interface: &SharedInterfaceCounts,
    ) -> Self {
        let mtu = interface.lock().unwrap_or_else(PoisonError::into_inner).mtu;
        let longest = mtu as usize + FRAME_BYTES_BEYOND_MTU;
        let sent = SentCounts::default();
        let stamp = FrameStamper { offset_ns: offset.offset_ns, input, last_ns: 0, longest, sent };
        Self { tap, stamp, delivered: 0, interface: interface.clone(), shut_ns: None }
    }

    /// Reads the interface's counters. It is called before and after the ring is shut.
    fn read_counters_at_shutdown(&self) {
        self.interface.lock().unwrap_or_else(PoisonError::into_inner).read_counters_at_shutdown();
    }

    /// Reports whether all packets have been delivered that were on their way into the ring when it was closed, or
    /// the time limit for them is over.
    fn has_delivered_last_packets(&mut self) -> bool {
        let Some(shut_ns) = self.shut_ns else { return false };
        let now_ns = clock::monotonic_ns();
        // A block that the kernel never releases must not keep the meter from ending.
        now_ns > shut_ns + LAST_BLOCK_TIMEOUT_NS
            || (now_ns > shut_ns + 3 * PacketTap::MAX_DELIVERY_DELAY.as_u64() && self.tap.is_ring_drained())
    }
}

impl PacketSource for LiveSource {
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        if !matches!(self.tap, LiveRing::Packet(_)) {
            // The kernel stamps the frames of a packet socket with the wall clock already.
            self.stamp.update_offset_if_clock_was_set();
        }
        let given = self.tap.receive_frames(intake, &mut self.stamp)?;
        self.delivered += given as u64;
        if given > 0 {
            return Ok(TakeOutcome::Some);
        }
        // The end is checked only after an empty read: until then the ring may hold more.
        Ok(if self.has_delivered_last_packets() { TakeOutcome::Ended } else { TakeOutcome::Nothing })
    }

    fn delivered_until_ns(&mut self, is_idle: bool) -> u64 {
        if !is_idle {
            return self.stamp.last_ns;
        }
        // Newer packets may still be on their way into the ring. Older packets may be in a block that the kernel
        // has not released yet.
        let now = clock::wall_clock_ns().saturating_sub(PacketTap::MAX_DELIVERY_DELAY.as_u64());
        if self.tap.is_ring_drained() {
            self.stamp.update_latest_time(now);
        }
        self.stamp.last_ns
    }

    fn wait_for_packets(&mut self, within_ns: u64) -> Result<(), Error> {
        match &mut self.tap {
            LiveRing::Packet(tap) => tap.wait_for_frames(Nanos::new(within_ns))?,
            LiveRing::Xdp(tap) => tap.wait_for_frames(Nanos::new(within_ns))?,
            LiveRing::Headers(_) => {
                clock::sleep_until_ns(clock::monotonic_ns() + within_ns.min(RING_CHECK_INTERVAL_NS));
            }
        }
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(match &mut self.tap {
            LiveRing::Packet(tap) => tap.ring_stats()?.dropped,
            LiveRing::Xdp(tap) => tap.ring_dropped(),
            LiveRing::Headers(tap) => tap.ring_dropped(),
        })
    }

    fn delivered_frames(&self) -> u64 {
        self.delivered
    }

    fn sent_counts(&self) -> SentCounts {
        self.stamp.sent
    }

    fn frames_put_into_ring(&mut self) -> Result<Option<u64>, Error> {
        Ok(match &mut self.tap {
            LiveRing::Packet(tap) => Some(tap.ring_stats()?.received),
            LiveRing::Xdp(_) | LiveRing::Headers(_) => None,
        })
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        // A worker that was told to stop calls this at every interval; only the first call counts.
        if self.shut_ns.is_none() {
            self.read_counters_at_shutdown();
            match &mut self.tap {
                LiveRing::Packet(tap) => tap.stop_receiving()?,
                LiveRing::Xdp(tap) => tap.stop_receiving()?,
                LiveRing::Headers(tap) => tap.stop_receiving()?,
            }
            self.read_counters_at_shutdown();
            self.shut_ns = Some(clock::monotonic_ns());
        }
        Ok(())
    }
}
