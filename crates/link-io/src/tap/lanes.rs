//! The back end `packet`: a thread for each direction takes frames from a ring and puts them into the ring of the other
//! side, then copies them into the rings of the mirrors.
//!
//! If the transmit ring of the other side is full, the lane tries a few times again. If the ring of a mirror is
//! full, the copy is dropped at once and counted. Frames that this machine sends are not forwarded, so no frame
//! circulates. A [`FrameTreatment`] makes all changes to frames.
//!
//! Invariant: every frame taken from the ring is in one of the counts of [`PublishedTally`] before the next
//! read of the ring.

mod exit;
mod lane;
mod tally;

use super::account::TapAccounts;
use super::copies::MirrorCopyProperties;
use super::hold::PreparedTapInterface;
use super::link_state::PresentInterfaces;
use super::place::TapState;
use super::{DEFAULT_COPY_BYTES, MirrorSpec, TapSpec};
use crate::Error;
use exit::{LastKnownMtu, TapTransmitRing};
use lane::TapForwardingLane;
use packetrig_engine::packet::InterfaceMeter;
use packetrig_link::FrameTreatment;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_units::MonoTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use tally::PublishedTally;

/// Length of an Ethernet header with one VLAN tag: the part of a frame without FCS that the MTU does not count.
pub(super) const FRAME_BYTES_BEYOND_MTU: u32 = 18;

/// Frames that were lost because a receive ring, or the transmit ring of the other side, was full.
#[derive(Clone, Copy, Debug)]
pub(super) struct TapRingLosses {
    /// Time up to which all losses are included.
    pub(super) looked: MonoTime,
    pub(super) frames: u64,
}

pub(super) struct TapLanes {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    published: [Arc<PublishedTally>; 2],
    /// Meters of the sides: frames that their drivers dropped on transmit.
    meters: [InterfaceMeter; 2],
    /// Last known MTUs of all interfaces, the sides first.
    mtus: Arc<[AtomicU32]>,
}

impl TapLanes {
    /// Starts the forwarding, with a treatment for each direction or none.
    pub(super) fn begin_forwarding(
        spec: &TapSpec,
        sides: &[PreparedTapInterface; 2],
        mirrors: &[PreparedTapInterface],
        treatments: Option<[Box<dyn FrameTreatment>; 2]>,
    ) -> Result<Self, Error> {
        let mut treatments = treatments.map_or([None, None], |both| both.map(Some));
        let stop = Arc::new(AtomicBool::new(false));
        let meters = [start_meter(&sides[0])?, start_meter(&sides[1])?];
        let published = [0, 1].map(|_| Arc::new(PublishedTally::new(mirrors.len())));
        let mtus = sides.iter().chain(mirrors).map(|held| AtomicU32::new(held.link.mtu)).collect();
        let mut lanes = Vec::new();
        for direction in [0, 1] {
            let published = Arc::clone(&published[direction]);
            let mut lane = open_lane(spec, sides, mirrors, direction, published, &mtus)?;
            lane.treatment = treatments[direction].take();
            if lane.treatment.is_some() {
                // Lateness is measured only for treatments, because it costs a clock reading for each batch.
                lane.out.start_measuring_lateness();
            }
            lanes.push(lane);
        }
        // All rings are opened before the first thread runs, so that no direction forwards alone if the other
        // lane fails to open.
        let mut all = Self { stop, threads: Vec::new(), published, meters, mtus };
        for (direction, lane) in lanes.into_iter().enumerate() {
            let stop = Arc::clone(&all.stop);
            let thread = std::thread::Builder::new().name(format!("tap-{direction}"));
            let thread = thread.spawn(move || lane.run_lane(&stop));
            let name = format!("tap-{direction}");
            all.threads.push(thread.map_err(|source| Error::Thread { name, source })?);
        }
        Ok(all)
    }

    /// Passes the current MTUs of the interfaces to the threads.
    pub(super) fn update_mtus(&self, seen: &PresentInterfaces) {
        for (mtu, link) in self.mtus.iter().zip(seen) {
            if let Some(link) = link {
                mtu.store(link.mtu, Ordering::Relaxed);
            }
        }
    }

    /// Returns the error of a thread that ended too early.
    pub(super) fn check_threads(&mut self) -> Result<(), Error> {
        match self.threads.iter().position(JoinHandle::is_finished) {
            None => Ok(()),
            Some(ended) => join_lane(self.threads.remove(ended))
                .and(Err(Error::Bug("a thread of a tap ended before it received the order to end"))),
        }
    }

    /// Forwards the frames that have arrived, ends the threads, and returns their first error.
    pub(super) fn end_forwarding(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Release);
        // Every thread is joined, even after an error of the first.
        let results: Vec<_> = self.threads.drain(..).map(join_lane).collect();
        results.into_iter().collect()
    }

    /// Returns how many frames both lanes have lost in their own rings, and the time up to which
    /// this number is complete.
    pub(super) fn own_losses(&self) -> TapRingLosses {
        let [(one_ns, one), (other_ns, other)] =
            self.published.each_ref().map(|published| published.read_losses());
        // The losses of both lanes are complete only up to the earlier of the two times.
        TapRingLosses { looked: MonoTime::from_nanos(one_ns.min(other_ns)), frames: one + other }
    }

    pub(super) fn read_accounts(&mut self, state: &TapState) -> TapAccounts {
        let mut directions = Vec::new();
        for side in [0, 1] {
            // The driver of the other side sends the frames of this direction.
            let transmitted = self.meters[1 - side].read_counters();
            directions.push(self.published[side].direction_account(state, side, transmitted));
        }
        TapAccounts { directions, ..TapAccounts::default() }
    }
}

impl Drop for TapLanes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // `end_forwarding` has reported the error, or was not called.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn join_lane(thread: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    thread.join().unwrap_or_else(|_| Err(Error::Panicked("tap".into())))
}

fn start_meter(side: &PreparedTapInterface) -> Result<InterfaceMeter, packetrig_sys::Error> {
    InterfaceMeter::start(&side.netns, side.link.index)
}

fn open_lane(
    spec: &TapSpec,
    sides: &[PreparedTapInterface; 2],
    mirrors: &[PreparedTapInterface],
    direction: usize,
    published: Arc<PublishedTally>,
    mtus: &Arc<[AtomicU32]>,
) -> Result<TapForwardingLane, Error> {
    let from = &sides[direction];
    let to = &sides[1 - direction];
    // The size is at least the MTU of Ethernet: a smaller MTU may be raised while the tap runs.
    let longest = from.link.mtu.max(to.link.mtu).max(1500) + FRAME_BYTES_BEYOND_MTU;
    // The kernel releases a block that is not full only after this timeout, which delays forwarded frames.
    // Each block may hold only one frame, so the number of blocks decides how long this thread may be
    // stopped. The default block size has room for the largest piece that a network stack sends.
    let options = RxOptions { retire_ms: 1, promiscuous: true, merges: true, ..RxOptions::default() };
    let name = from.location.to_string();
    let exits = spec.mirrors.iter().zip(mirrors).enumerate().map(|(number, (mirror, held))| {
        let mtu = LastKnownMtu { all: Arc::clone(mtus), interface: 2 + number };
        let exit = TapTransmitRing::open_ring(held, held.link.mtu + FRAME_BYTES_BEYOND_MTU, mtu)?;
        Ok((exit, mirror_copy_properties(spec, mirror, held)))
    });
    let exits = exits.collect::<Result<Vec<_>, Error>>()?;
    // The receive ring is opened last: from then on, the frames in it must be forwarded.
    Ok(TapForwardingLane {
        direction: u8::from(direction == 1),
        out: TapTransmitRing::open_ring(
            to,
            longest,
            LastKnownMtu { all: Arc::clone(mtus), interface: 1 - direction },
        )?,
        mirrors: exits,
        filter: spec.filter.as_ref().map(|(_, program)| program.clone()),
        stations: spec.mirrors.iter().filter_map(|mirror| mirror.to).collect(),
        has_trailer: spec.trailer,
        treatment: None,
        published,
        rx: RxRing::open_on_interface(&from.netns, from.link.index, &name, options)?,
        tally: tally::LaneTally::new(spec.mirrors.len()),
        completed: Vec::new(),
    })
}

fn mirror_copy_properties(
    spec: &TapSpec,
    mirror: &MirrorSpec,
    held: &PreparedTapInterface,
) -> MirrorCopyProperties {
    MirrorCopyProperties {
        snap: spec.snap_len.unwrap_or(DEFAULT_COPY_BYTES) as usize,
        to: mirror.to,
        longest: (held.link.mtu + FRAME_BYTES_BEYOND_MTU) as usize,
    }
}
