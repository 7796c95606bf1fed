//! The transmit half: frames into the ring, ring to the kernel.
//!
//! A full queue never loses a frame: it stays in the ring and is tried again at the next flush. What the kernel does not
//! take for [`PATIENCE_NS`] on end (link down, frame too long for the far end) is given up and counted as refused.

use super::facts::InterfaceMeter;
use crate::Error;
use crate::port::FrameTx;
use packetrig_stats::port::TxCounters;
use packetrig_sys::clock;
use packetrig_sys::packet::TxRing;

/// How long frames may wait without any being taken.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The transmit half of a port on AF_PACKET rings.
#[derive(Debug)]
pub struct PacketTx {
    ring: TxRing,
    meter: InterfaceMeter,
    patience: StallWatch,
}

impl PacketTx {
    pub(super) fn new(ring: TxRing, meter: InterfaceMeter) -> Self {
        Self { ring, meter, patience: StallWatch::default() }
    }

    /// Begins anew, as if it had been opened now. `false` if it cannot be used again.
    pub(super) fn restart(&mut self) -> Result<bool, Error> {
        self.meter.restart()?;
        self.patience = StallWatch::default();
        Ok(self.ring.restart()?)
    }

    /// Gives up frames that have not been taken for too long.
    fn drop_stuck_frames(&mut self) {
        let untaken = self.ring.untaken();
        let counts = self.ring.counts();
        let on_their_way = (self.ring.pending() - untaken) as u64;
        if self.patience.is_over(untaken, counts.taken + counts.refused + on_their_way) {
            self.ring.withdraw();
        }
    }
}

/// How long frames have waited without any being taken or refused.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// Since when, and at which count of finished frames, nothing has moved.
    stuck: Option<(u64, u64)>,
}

impl StallWatch {
    /// Whether frames that are pending have not moved for too long. Reads the clock only while frames are pending.
    pub fn is_over(&mut self, pending: usize, finished: u64) -> bool {
        if pending == 0 {
            self.stuck = None;
            return false;
        }
        let now = clock::monotonic_ns();
        // Stuck means that the count of finished frames stands still, not that the ring is full: a slow queue that
        // takes one frame now and then must never lose one.
        match self.stuck {
            Some((since, at)) if at == finished => {
                let over = now.saturating_sub(since) >= PATIENCE_NS;
                self.stuck = self.stuck.filter(|_| !over);
                over
            }
            _ => {
                self.stuck = Some((now, finished));
                false
            }
        }
    }
}

impl FrameTx for PacketTx {
    fn fill(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        for filled in 0..want {
            let Some(length) = self.ring.next_slot().and_then(&mut *fill) else { return filled };
            self.ring.commit(length);
        }
        want
    }

    fn flush(&mut self) -> Result<(), Error> {
        // One system call for all filled slots. What the interface does not take stays in its slot for the next
        // flush.
        let kicked = self.ring.kick();
        self.drop_stuck_frames();
        match kicked {
            // The interface is down: it may come up again while patience lasts.
            Err(error) if error.errno() == Some(NETDOWN) => Ok(()),
            // For good: what was not taken is counted as refused.
            Err(error) => {
                self.ring.withdraw();
                Err(error.into())
            }
            Ok(()) => Ok(()),
        }
    }

    fn pending(&self) -> usize {
        self.ring.untaken()
    }

    fn counters(&mut self) -> Result<TxCounters, Error> {
        self.ring.reap();
        let refused = self.ring.counts().refused;
        let handed_over = self.ring.handed_over();
        // Read after our own counts, so that the interface is never behind them for want of time.
        let interface = self.meter.read();
        Ok(TxCounters {
            handed_over,
            refused,
            on_wire: interface.map(|counters| counters.tx_frames),
            dropped: interface
                .map(|counters| lost_on_transmit(handed_over, counters.tx_frames, counters.tx_dropped)),
        })
    }
}

/// `ENETDOWN`.
pub(crate) const NETDOWN: i32 = 100;

/// The interface counts an attempt as dropped although the frame stays in the ring and goes out later; so no more is lost
/// than what it took and did not transmit.
pub fn lost_on_transmit(taken: u64, transmitted: u64, dropped: u64) -> u64 {
    dropped.min(taken.saturating_sub(transmitted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_succeeded_later_are_not_losses() {
        assert_eq!(lost_on_transmit(100, 100, 7), 0);
        assert_eq!(lost_on_transmit(100, 95, 7), 5);
        assert_eq!(lost_on_transmit(100, 95, 0), 0);
        // Somebody else's frames are in the interface's count, too.
        assert_eq!(lost_on_transmit(100, 120, 3), 0);
    }
}
