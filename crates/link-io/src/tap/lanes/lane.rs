//! One direction of a tap: moves frames from the receive ring of one side into the transmit rings of the other side
//! and of the mirrors.

use super::super::copies::MirrorCopyProperties;
use super::exit::{RingRefusal, TapTransmitRing};
use super::tally::{LaneTally, PublishedTally};
use crate::Error;
use packetrig_link::FrameTreatment;
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::link::Mac;
use packetrig_sys::packet::{MergedFrame, RawFrame, RingDrainTarget, RxRing};
use packetrig_units::{clamp_to_u16, clamp_to_u32};
use packetrig_wire::bpf::FilterProgram;
use packetrig_wire::foreign;
use packetrig_wire::trailer::TapTrailer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of frames that are taken before the kernel is asked to send.
const MAX_FRAMES_PER_BATCH: usize = 64;
/// Time to wait for frames before checking for a stop.
const FRAME_WAIT_NS: u64 = 5_000_000;
/// A sleeping thread is woken this long before a frame is due, and spins the rest.
const WAKE_UP_LEAD_NS: u64 = 60_000;
/// Interval for asking the kernel about losses, even if frames keep coming.
const LOSS_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Time after a stop during which arriving frames are still forwarded. Frames that arrived before the stop
/// have passed by then.
const END_DRAIN_TIMEOUT_NS: u64 = 1_000_000_000;
/// Interval for comparing the clocks.
const CLOCK_COMPARISON_INTERVAL_NS: u64 = 1_000_000_000;

pub(super) struct TapForwardingLane {
    pub(super) direction: u8,
    pub(super) rx: RxRing,
    pub(super) out: TapTransmitRing,
    pub(super) mirrors: Vec<(TapTransmitRing, MirrorCopyProperties)>,
    pub(super) filter: Option<FilterProgram>,
    /// MAC addresses of the stations that receive copies.
    pub(super) stations: Vec<Mac>,
    pub(super) has_trailer: bool,
    pub(super) treatment: Option<Box<dyn FrameTreatment>>,
    pub(super) published: Arc<PublishedTally>,
    pub(super) tally: LaneTally,
    /// Buffer for the current frame, if it was split or its checksum was completed.
    pub(super) completed: Vec<u8>,
}

impl TapForwardingLane {
    /// Forwards frames until the stop, and then the frames that had arrived before the stop.
    pub(super) fn run_lane(mut self, stop: &AtomicBool) -> Result<(), Error> {
        // An error is ignored: delayed frames then leave about 50 us later.
        drop(clock::tighten_timer_slack());
        let mut offset = clock::measure_realtime_offset();
        let mut compared_ns = clock::monotonic_ns();
        let mut looked_ns = compared_ns;
        let mut give_up_ns = None;
        let mut rest = RingDrainTarget::default();
        loop {
            // The order to stop is read before the ring: frames that arrived before the stop are still forwarded.
            let is_over = stop.load(Ordering::Acquire);
            let taken = self.poll_once(offset);
            let now_ns = clock::monotonic_ns();
            // Under overload the ring never becomes empty. Frames are lost then, and a stop must also work.
            if taken == 0 || now_ns >= looked_ns + LOSS_CHECK_INTERVAL_NS {
                self.read_and_publish_losses()?;
                looked_ns = now_ns;
            }
            if is_over {
                let give_up_ns = *give_up_ns.get_or_insert(now_ns + END_DRAIN_TIMEOUT_NS);
                // The kernel releases a block that is not full only after the timeout of the block.
                if now_ns >= give_up_ns || rest.is_read(self.rx.read_progress()?) {
                    break;
                }
            }
            if now_ns >= compared_ns + CLOCK_COMPARISON_INTERVAL_NS {
                offset = clock::measure_realtime_offset();
                compared_ns = now_ns;
            }
            if taken == 0 {
                self.wait_for_frames(now_ns)?;
            }
        }
        self.finish_lane()
    }

    /// Takes a batch of frames, forwards and copies them, and publishes the counts; returns their number.
    fn poll_once(&mut self, offset: RealtimeOffset) -> usize {
        let trailer_of = self.has_trailer.then_some(self.direction);
        let Self { rx, out, tally, treatment, mirrors, filter, stations, completed, .. } = &mut *self;
        // Each frame is forwarded first and copied afterwards, so that its position in the ring of the other
        // side never depends on a mirror.
        let mut latest_ns = 0;
        let taken = rx.receive_frames(MAX_FRAMES_PER_BATCH, &mut |frame| {
            split_or_complete_frame(frame, completed, &mut |frame| {
                tally.received += 1;
                tally.bytes += frame.full_len as u64;
                match treatment {
                    // Without a treatment no lateness is measured, so there is no due time.
                    None => send_frame(out, tally, frame.bytes, 0),
                    Some(treatment) => {
                        let arrived_ns = offset.to_monotonic(frame.realtime_ns);
                        latest_ns = arrived_ns;
                        treatment.accept_frame(arrived_ns, frame.bytes, &mut |bytes, due_ns| {
                            send_frame(out, tally, bytes, due_ns);
                        });
                    }
                }
                if mirrors.is_empty() {
                    return;
                }
                if select_for_copying(&frame, filter.as_ref(), stations, tally) {
                    copy_to_mirrors(&frame, trailer_of, mirrors, tally);
                }
            });
        });
        if let Some(treatment) = treatment {
            // While frames wait in the ring, the time is that of the latest frame taken. Otherwise a frame
            // that later frames must overtake could be released too early, only because this thread had no
            // processor.
            let now_ns = if taken == MAX_FRAMES_PER_BATCH { latest_ns } else { clock::monotonic_ns() };
            treatment.release_due_frames(now_ns, &mut |bytes, due_ns| send_frame(out, tally, bytes, due_ns));
            (tally.impaired, tally.made) = treatment.drop_and_copy_counts();
        }
        self.out.kick_ring();
        self.report_lateness();
        self.mirrors.iter_mut().for_each(|(exit, _)| exit.kick_ring());
        self.publish_counts();
        taken
    }

    fn report_lateness(&mut self) {
        if let Some(treatment) = &mut self.treatment {
            treatment.record_lateness(self.out.lateness());
        }
    }

    fn publish_counts(&mut self) {
        let tally = &mut self.tally;
        let counts = self.out.counts();
        tally.taken = counts.taken;
        tally.refused = counts.refused;
        tally.down = counts.down;
        for ((exit, _), copies) in self.mirrors.iter().zip(&mut tally.copies) {
            let counts = exit.counts();
            copies.taken = counts.taken;
            copies.refused = counts.refused;
            copies.down = counts.down;
        }
        self.published.publish_tally(tally);
    }

    fn read_and_publish_losses(&mut self) -> Result<(), Error> {
        // The time is read before the counter, so a later loss is in the next reading.
        let now_ns = clock::monotonic_ns();
        self.tally.ring = self.rx.read_stats()?.dropped;
        self.published.publish_losses(now_ns, self.tally.ring + self.tally.full);
        Ok(())
    }

    fn wait_for_frames(&mut self, now_ns: u64) -> Result<(), Error> {
        let due = self.treatment.as_ref().and_then(|treatment| treatment.next_due_time());
        let until_due_ns = due.map_or(u64::MAX, |due| due.saturating_sub(now_ns));
        // Waking up takes tens of microseconds, which would add to every delay that an impairment ordered.
        if until_due_ns <= WAKE_UP_LEAD_NS {
            clock::hint_busy_loop();
            return Ok(());
        }
        Ok(self.rx.wait_for_frames(FRAME_WAIT_NS.min(until_due_ns - WAKE_UP_LEAD_NS))?)
    }

    fn finish_lane(mut self) -> Result<(), Error> {
        let Self { out, tally, treatment, .. } = &mut self;
        if let Some(treatment) = treatment {
            treatment.release_all_frames(&mut |bytes, due_ns| send_frame(out, tally, bytes, due_ns));
            (tally.impaired, tally.made) = treatment.drop_and_copy_counts();
        }
        self.out.drain_ring();
        self.report_lateness();
        self.mirrors.iter_mut().for_each(|(exit, _)| exit.drain_ring());
        // This comes after the last frames were sent: frames that found a full ring are losses, too.
        self.read_and_publish_losses()?;
        self.publish_counts();
        Ok(())
    }
}

/// Passes the frame to `sink` as a cable would carry it. A station on this machine, or a card that merges
/// frames, leaves checksums and segmentation to the next card, but the next interface may be virtual.
fn split_or_complete_frame(frame: RawFrame<'_>, completed: &mut Vec<u8>, sink: &mut dyn FnMut(RawFrame<'_>)) {
    if let Some(MergedFrame { segment_bytes, transport_at }) = frame.merged {
        let part = RawFrame { lacks_checksum: false, merged: None, ..frame };
        let is_split =
            foreign::split_merged_frame(frame.bytes, segment_bytes, transport_at, completed, &mut |bytes| {
                sink(RawFrame { bytes, full_len: bytes.len(), ..part });
            });
        // A frame that cannot be split, for example one in a tunnel, is sent in one piece.
        if is_split {
            return;
        }
    }
    if !frame.lacks_checksum {
        return sink(frame);
    }
    completed.clear();
    completed.extend_from_slice(frame.bytes);
    // If the checksum cannot be computed, the frame is passed on unchanged.
    let lacks_checksum = !foreign::complete_checksum(completed);
    sink(RawFrame { bytes: completed, lacks_checksum, ..frame });
}

fn send_frame(out: &mut TapTransmitRing, tally: &mut LaneTally, frame: &[u8], due_ns: u64) {
    let put = out.write_due_frame(due_ns, &mut |slot| {
        slot.get_mut(..frame.len())?.copy_from_slice(frame);
        Some(frame.len())
    });
    match put {
        Ok(()) => {}
        Err(RingRefusal::Full) => tally.full += 1,
        Err(RingRefusal::TooLong) => tally.too_long += 1,
    }
}

fn select_for_copying(
    frame: &RawFrame<'_>,
    filter: Option<&FilterProgram>,
    stations: &[Mac],
    tally: &mut LaneTally,
) -> bool {
    let to = frame.bytes.first_chunk::<6>();
    // A switch may send a copy back. If the tap copied it again, copies would circulate.
    if to.is_some_and(|to| stations.contains(to)) {
        tally.own += 1;
        return false;
    }
    let full_len = clamp_to_u32(frame.full_len);
    // The ring may have truncated the frame, and a filter may test its length.
    let is_wanted = filter.is_none_or(|filter| filter.matches_truncated_frame(frame.bytes, full_len));
    if is_wanted {
        tally.wanted += 1;
    } else {
        tally.other += 1;
    }
    is_wanted
}

/// Puts copies into the rings of the mirrors, with trailers of this direction if `trailer_of` is set.
fn copy_to_mirrors(
    frame: &RawFrame<'_>,
    trailer_of: Option<u8>,
    mirrors: &mut [(TapTransmitRing, MirrorCopyProperties)],
    tally: &mut LaneTally,
) {
    let trailer = trailer_of.map(|direction| TapTrailer {
        direction,
        full_len: clamp_to_u16(frame.full_len),
        // The frame is counted before the copy is made, so a lost copy leaves a gap in the numbers.
        number: tally.wanted,
        at_ns: frame.realtime_ns,
    });
    for ((exit, shape), copies) in mirrors.iter_mut().zip(&mut tally.copies) {
        let mut bytes = 0;
        let put = exit.write_frame_copy(&mut |slot| {
            bytes = shape.write_mirror_copy(frame.bytes, trailer, slot)?;
            Some(bytes)
        });
        match put {
            Ok(()) => copies.bytes += bytes as u64,
            Err(RingRefusal::Full) => copies.full += 1,
            Err(RingRefusal::TooLong) => copies.too_long += 1,
        }
    }
}
