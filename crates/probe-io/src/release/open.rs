//! Opens release mechanisms at an interface.

use super::direct::DirectRelease;
use super::gate::GateRelease;
use super::live::LiveRelease;
use super::place::ReleaseInterface;
use super::queued::QueuedRelease;
use super::ring::RingRelease;
use super::worker::ReleaseWorker;
use super::{DepartedFrame, FrameReleaser, ReleaseOptions, ReleasePipeline};
use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::{ProbeFlag, ReleaseMechanism};

/// ENOBUFS: the queue or the interface had no room for a frame.
const ENOBUFS_ERRNO: i32 = 105;

/// Opens a release mechanism at an interface. Dropping the value removes everything that the mechanism set up.
pub fn open_release(
    location: &PortLocation,
    mechanism: ReleaseMechanism,
    options: ReleaseOptions,
) -> Result<Box<dyn FrameReleaser>, Error> {
    Ok(Box::new(open_worker(location, mechanism, options)?))
}

/// Opens a mechanism for trains that follow each other closely.
pub fn open_pipeline(
    location: &PortLocation,
    mechanism: ReleaseMechanism,
    options: ReleaseOptions,
) -> Result<Box<dyn ReleasePipeline>, Error> {
    Ok(Box::new(open_worker(location, mechanism, options)?))
}

fn open_worker(
    location: &PortLocation,
    mechanism: ReleaseMechanism,
    options: ReleaseOptions,
) -> Result<ReleaseWorker, Error> {
    let place = ReleaseInterface::look_up_interface(location)?;
    let worker = match mechanism {
        ReleaseMechanism::Sleep | ReleaseMechanism::Spin => ReleaseWorker::start_thread(
            &place,
            mechanism,
            options,
            DirectRelease::open_at(&place, mechanism, &options)?,
        )?,
        ReleaseMechanism::Ring => {
            ReleaseWorker::start_thread(&place, mechanism, options, RingRelease::open_at(&place, &options)?)?
        }
        ReleaseMechanism::Gate => {
            ReleaseWorker::start_thread(&place, mechanism, options, GateRelease::open_at(&place, &options)?)?
        }
        ReleaseMechanism::Live => {
            ReleaseWorker::start_thread(&place, mechanism, options, LiveRelease::open_at(&place, &options)?)?
        }
        ReleaseMechanism::Fq | ReleaseMechanism::Etf | ReleaseMechanism::Launch => {
            ReleaseWorker::start_thread(
                &place,
                mechanism,
                options,
                QueuedRelease::open_at(&place, mechanism, &options)?,
            )?
        }
    };
    Ok(worker)
}

/// Flags a frame as dropped if the kernel had no room for it. Returns other errors, which end the train.
pub(super) fn flag_if_queue_full(
    sent: Result<(), packetrig_sys::Error>,
    gone: &mut DepartedFrame,
) -> Result<(), Error> {
    match sent {
        // This frame is lost, but the next one may have room again.
        Err(error) if error.errno() == Some(ENOBUFS_ERRNO) => {
            gone.flags.push(ProbeFlag::Dropped);
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Result of sending the frames of a train one by one.
pub(super) struct SentFrames {
    /// Number of frames before the first error other than lack of room.
    pub(super) count: usize,
    pub(super) result: Result<(), Error>,
}

/// Calls `send` for each frame in turn, until a call fails. The caller can still fetch the stamps of the frames
/// before the failure, because the kernel has numbered them.
pub(super) fn send_each_frame(
    gone: &mut [DepartedFrame],
    mut send: impl FnMut(usize, &mut DepartedFrame) -> Result<(), Error>,
) -> SentFrames {
    for (count, gone) in gone.iter_mut().enumerate() {
        if let Err(error) = send(count, gone) {
            return SentFrames { count, result: Err(error) };
        }
    }
    SentFrames { count: gone.len(), result: Ok(()) }
}
