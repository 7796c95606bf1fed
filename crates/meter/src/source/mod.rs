//! Where packets come from: files, and the rings of interfaces.
//!
//! ```text
//!  file  -> Reader -> Block -> FileSource (one per worker, by hash of the addresses)
//!  iface -> packet rings (fanout by hash) or XDP rings -> LiveSource (one per ring)
//! ```
//! A source gives frames to an [`PacketIntake`] and says what the time is: that of the packets in a file, the clock's at an
//! interface. It counts what its ring lost; what a frame means is not its business.
//!
//! Invariant: after [`PacketSource::stop`] a source ends, and everything that had arrived by then has been given or counted.

mod block;
mod clock;
mod file;
mod live;
mod pace;
mod reader;
pub(crate) mod spread;

pub use file::{FileOptions, FileSource, FileSources, open_files};
pub use live::{InterfaceCounts, ListenMethod, LiveOptions, LiveSource, open_live};
pub use pace::ReplayPace;
pub use packetrig_engine::port::PortLocation;
pub use reader::ReadCounts;

use crate::Error;
use crate::intake::PacketIntake;

/// What came of asking for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// There were some, and there may be more.
    Some,
    /// There are none now.
    Nothing,
    /// There will be no more.
    Ended,
}

pub trait PacketSource: Send {
    /// Gives packets at hand to `intake`, as many as it has room for at most. Does not wait.
    fn take(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error>;

    /// The time until which all packets were given, nanoseconds since 1970. `is_idle`: there are none at hand.
    fn now_ns(&mut self, is_idle: bool) -> u64;

    /// Whether its packets may be out of order, and held back until they are in order.
    fn may_be_held(&self) -> bool {
        false
    }

    /// Waits until packets may be at hand, at most so long.
    fn wait(&mut self, within_ns: u64) -> Result<(), Error>;

    /// What its ring has dropped so far.
    fn ring_dropped(&mut self) -> Result<u64, Error>;

    /// Lets nothing in any more. What has arrived is still to be taken.
    fn stop(&mut self) -> Result<(), Error>;

    /// What it has given.
    fn delivered(&self) -> u64;

    /// Packets it was to give and, being stopped, did not.
    fn left(&self) -> u64 {
        0
    }

    /// What its ring says it put in, when nothing more comes; `None` if it does not count that.
    fn put_in(&mut self) -> Result<Option<u64>, Error> {
        Ok(None)
    }
}
