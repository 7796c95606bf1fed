//! Sources of packets: files, and the rings of interfaces.
//!
//! ```text
//!  file  -> CaptureReader -> PacketBlock -> FileSource (one per worker, by hash of the addresses)
//!  iface -> packet rings (fanout by hash) or XDP rings -> LiveSource (one per ring)
//! ```
//! A source passes frames to a [`PacketIntake`] and supplies the time: for a file, the time of its packets; for an
//! interface, that of the clock. It counts the frames that its ring lost. It does not parse frames.
//!
//! Invariant: after [`PacketSource::stop_receiving`], a source ends once it has delivered or counted every packet that
//! had arrived by then.

mod block;
mod clock;
mod file;
mod interface;
mod live;
mod pace;
mod reader;
pub(crate) mod spread;

pub use file::{FileOptions, FileSource, FileSources, open_files};
pub use interface::{InterfaceCounts, SharedInterfaceCounts};
pub use live::{ListenMethod, LiveOptions, LiveSource, open_live_sources};
pub use pace::ReplayPace;
pub use packetrig_engine::port::PortLocation;
pub use reader::ReadCounts;

use crate::Error;
use crate::intake::PacketIntake;

/// Result of one call of [`PacketSource::take_packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The source has delivered packets and may have more.
    Some,
    /// The source has no packets now.
    Nothing,
    /// The source will never have packets again.
    Ended,
}

/// Counts of the packets that this machine sent through a metered interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Packets on the wire.
    pub packets: u64,
    /// Frames in the ring; a merged frame counts once here, but as several packets above.
    pub frames: u64,
}

pub trait PacketSource: Send {
    /// Passes waiting packets to `intake`, at most as many as it has room for. Does not wait, except to read from
    /// a file or pipe.
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error>;

    /// Returns the time up to which all packets have been delivered, in nanoseconds since 1970. `is_idle` is true if
    /// no packets are waiting.
    fn delivered_until_ns(&mut self, is_idle: bool) -> u64;

    /// Reports whether the packets may be out of order, and may be held back to be sorted.
    fn can_hold_back_packets(&self) -> bool {
        false
    }

    /// Waits until packets may have arrived, for at most `within_ns`.
    fn wait_for_packets(&mut self, within_ns: u64) -> Result<(), Error>;

    /// Returns the number of frames that the ring has dropped so far.
    fn ring_dropped(&mut self) -> Result<u64, Error>;

    /// Stops receiving. Packets that have arrived can still be taken.
    fn stop_receiving(&mut self) -> Result<(), Error>;

    /// Returns the number of frames that the source has delivered.
    fn delivered_frames(&self) -> u64;

    /// Returns the counts of those delivered frames that this machine sent.
    fn sent_counts(&self) -> SentCounts {
        SentCounts::default()
    }

    /// Returns the number of packets that the source did not deliver because it was stopped.
    fn skipped_packets(&self) -> u64 {
        0
    }

    /// Returns the number of frames that the kernel put into the ring, read after the end; `None` if
    /// that is not counted.
    fn frames_put_into_ring(&mut self) -> Result<Option<u64>, Error> {
        Ok(None)
    }
}
