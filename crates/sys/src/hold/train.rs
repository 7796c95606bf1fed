//! Trains of live frames: in one system call, the kernel makes the frames itself, and a BPF program fills each frame
//! and releases it at its time.
//!
//! A [`LiveTrain`] owns the program and the memory that the program shares with this process. Invariant: this process
//! writes to the memory of a frame only before the frame is queued, and again after it was sent.

use super::{
    FrameReleaseRecord, MAX_HELD_NS, SHARED_TABLE_BYTES, TRAIN_PROGRAM, load_release_counter,
    load_release_record,
};
use crate::Error;
use crate::area::SharedArea;
use crate::bpf::{BpfAttachment, BpfMap, BpfProgram, MapKind};
use crate::convert::ring_index;
use crate::layout::train::{self as layout, frame, train};
use crate::netns::NetNs;
use packetrig_units::clamp_to_u32;
use std::sync::atomic::Ordering;

/// Maximum number of frames that can be queued at once.
pub const MAX_TRAIN_FRAMES: usize = layout::FRAMES;
/// Maximum number of frames that the kernel gives to the driver together.
const MAX_AT_ONCE: u32 = 256;
/// Maximum number of bytes of a frame, without FCS.
pub const MAX_TRAIN_FRAME_BYTES: usize = layout::LONGEST;

#[derive(Debug)]
pub struct LiveTrain {
    program: BpfProgram,
    table: SharedArea,
    frames: SharedArea,
    given: u64,
    _ready: Option<ReadyProgram>,
}

/// Keeps a program among those that the kernel calls directly (its XDP dispatcher). Otherwise the kernel adds the
/// program for each run of several frames and removes it afterwards, so the run begins some ten milliseconds late. An
/// attached program stays in the dispatcher, so the program is also attached to the loopback interface of an empty
/// namespace, where no frame ever arrives.
#[derive(Debug)]
struct ReadyProgram {
    _attachment: BpfAttachment,
    _nobodys: NetNs,
}

impl ReadyProgram {
    fn attach_idle_program(program: &BpfProgram) -> Result<Self, Error> {
        const LOOPBACK_INDEX: u32 = 1;
        let nobodys = NetNs::create_unnamed_namespace()?;
        Ok(Self {
            _attachment: program.attach_xdp(&nobodys, LOOPBACK_INDEX, false, "lo")?,
            _nobodys: nobodys,
        })
    }
}

impl LiveTrain {
    /// Loads the program. Frames will leave through the interface with this number.
    pub fn open_for_interface(index: u32) -> Result<Self, Error> {
        let train = BpfMap::create_zeroed("train", MapKind::SharedArray, SHARED_TABLE_BYTES, 1)?;
        let frames = BpfMap::create_zeroed(
            "frames",
            MapKind::SharedArray,
            frame::SIZE,
            clamp_to_u32(MAX_TRAIN_FRAMES),
        )?;
        let program =
            BpfProgram::load_xdp("train", &TRAIN_PROGRAM.link_program("xdp", &[&train, &frames])?, false)?;
        let mut table = train.share_memory()?;
        table.bytes_mut(train::IFINDEX, 4).copy_from_slice(&index.to_ne_bytes());
        table.atomic_u64(train::MOST).store(MAX_HELD_NS, Ordering::Release);
        // A failure is ignored: trains then begin late, which the recorded times show.
        let ready = ReadyProgram::attach_idle_program(&program).ok();
        Ok(Self { program, table, frames: frames.share_memory()?, given: 0, _ready: ready })
    }

    /// Queues a frame with its release time. Returns `false` if the frame is too short or too long, or
    /// the ring is full.
    pub fn try_queue_frame(&mut self, at_ns: u64, bytes: &[u8]) -> bool {
        if !(14..=MAX_TRAIN_FRAME_BYTES).contains(&bytes.len()) {
            return false;
        }
        // The program may still read the frames that were not sent yet.
        if self.given - self.released_count() >= MAX_TRAIN_FRAMES as u64 {
            return false;
        }
        let start = frame::SIZE * ring_index(self.given, MAX_TRAIN_FRAMES as u64);
        let frame = self.frames.bytes_mut(start, frame::BYTES + bytes.len());
        frame[..8].copy_from_slice(&at_ns.to_ne_bytes());
        frame[8..12].copy_from_slice(&clamp_to_u32(bytes.len()).to_ne_bytes());
        frame[frame::BYTES..].copy_from_slice(bytes);
        self.given += 1;
        true
    }

    /// Sends at most `most` of the queued frames, and blocks until they are sent. If a frame is due more than
    /// [`MAX_HELD_NS`] after the program reaches it, this frame and all later frames stay queued. `longest` is the
    /// length of the longest of the frames. Must be called in the network namespace of the interface. The driver gets
    /// `at_once` frames together, so these frames are sent without gaps. Returns the new [`Self::released_count`].
    pub fn send_batch(&mut self, longest: usize, most: usize, at_once: u32) -> Result<u64, Error> {
        let sent_off = self.released_count();
        let waiting = (self.given - sent_off).min(most as u64);
        if let Ok(waiting @ 1..) = u32::try_from(waiting) {
            // Release: the program sees the frames before it may send them.
            self.table.atomic_u64(train::END).store(sent_off + u64::from(waiting), Ordering::Release);
            // There is one call more than there are frames: only the next call shows that the driver has the last frame. The length is
            // that of the kernel's buffers; the program sets the length of each frame.
            let frame = [0; MAX_TRAIN_FRAME_BYTES];
            self.program.run_on_live_frames(
                &frame[..longest.clamp(60, MAX_TRAIN_FRAME_BYTES)],
                at_once.clamp(1, MAX_AT_ONCE),
                waiting + 1,
            )?;
        }
        Ok(self.released_count())
    }

    /// Number of frames that were sent or failed ([`Self::failed_count`]) since the train was opened.
    pub fn released_count(&self) -> u64 {
        load_release_counter(&self.table, train::NEXT)
    }

    /// Number of frames that the program could not fill, and dropped.
    pub fn failed_count(&self) -> u64 {
        self.table.atomic_u64(train::FAILED).load(Ordering::Acquire)
    }

    /// Returns the record of frame `number`, counted from 0. The frame must be one of the last
    /// [`super::MAX_HELD_FRAMES`]. `released_ns` is 0 if the frame was dropped ([`Self::failed_count`]). The
    /// kernel calls the program once more after the last frame of a batch, so the record after the last one has
    /// an entry time, too.
    pub fn gated_frame(&self, number: u64) -> FrameReleaseRecord {
        load_release_record(&self.table, number)
    }

    /// Drops the frames that are queued and not sent yet. Returns their number.
    pub fn drop_unsent_frames(&mut self) -> u64 {
        let left = self.given - self.released_count();
        self.given -= left;
        left
    }
}
