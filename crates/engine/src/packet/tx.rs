//! The transmit half: writes frames into the ring and makes the kernel send them.
//!
//! A full queue never loses a frame: the frame stays in the ring, and the next flush tries it again. If the kernel
//! takes no frame for [`STALL_TIMEOUT_NS`] (link down, frame too long for the other end), the waiting frames are
//! withdrawn and counted as refused.

use super::facts::InterfaceMeter;
use crate::Error;
use crate::port::FrameTx;
use packetrig_stats::port::TxCounters;
use packetrig_sys::clock;
use packetrig_sys::packet::TxRing;

/// Time limit for frames in the ring while the kernel takes none of them.
const STALL_TIMEOUT_NS: u64 = 1_000_000_000;

/// The transmit half of a port on AF_PACKET rings.
#[derive(Debug)]
pub struct PacketTx {
    ring: TxRing,
    meter: InterfaceMeter,
    stall_watch: StandstillTimer,
}

impl PacketTx {
    pub(super) fn new(ring: TxRing, meter: InterfaceMeter) -> Self {
        Self { ring, meter, stall_watch: StandstillTimer::default() }
    }

    /// Resets the half for another run. Returns `false` if it cannot be used again.
    pub(super) fn reset_for_run(&mut self) -> Result<bool, Error> {
        self.meter.restart_interface_counts()?;
        self.stall_watch = StandstillTimer::default();
        Ok(self.ring.restart_ring()?)
    }

    /// Withdraws frames that the kernel has not taken for too long.
    fn withdraw_stuck_frames(&mut self) {
        let untaken = self.ring.untaken_frames();
        let counts = self.ring.counts();
        // The kernel has taken these frames and still holds their slots, so they do not show a standstill.
        let on_their_way = (self.ring.pending_frames() - untaken) as u64;
        if self.stall_watch.has_timed_out(untaken, counts.taken + counts.refused + on_their_way) {
            self.ring.withdraw_untaken();
        }
    }
}

/// Measures how long frames have waited without any being taken or refused.
#[derive(Debug, Default)]
pub struct StandstillTimer {
    /// Start of the standstill, and the count of finished frames at that time.
    stuck: Option<(u64, u64)>,
}

impl StandstillTimer {
    /// Returns whether frames are pending and none was finished for 1 s. Reads the clock only while frames are pending.
    pub fn has_timed_out(&mut self, pending: usize, finished: u64) -> bool {
        if pending == 0 {
            self.stuck = None;
            return false;
        }
        let now = clock::monotonic_ns();
        // The ring is stuck if the count of finished frames stands still, not if the ring is full: a slow
        // queue that takes a frame now and then must never lose one.
        match self.stuck {
            Some((since, at)) if at == finished => {
                let over = now.saturating_sub(since) >= STALL_TIMEOUT_NS;
                // The standstill is reported once; the caller withdraws the frames.
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
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        for filled in 0..want {
            let Some(length) = self.ring.next_slot().and_then(&mut *fill) else { return filled };
            self.ring.commit_frame(length);
        }
        want
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        // One system call for all filled slots. Frames that the interface does not take stay in their slots
        // for the next flush.
        let kicked = self.ring.kick_kernel();
        self.withdraw_stuck_frames();
        match kicked {
            // The interface is down: it may come up again before the timeout.
            Err(error) if error.errno() == Some(ENETDOWN_ERRNO) => Ok(()),
            // A permanent error: frames not taken are counted as refused.
            Err(error) => {
                self.ring.withdraw_untaken();
                Err(error.into())
            }
            Ok(()) => Ok(()),
        }
    }

    fn pending_frames(&self) -> usize {
        self.ring.untaken_frames()
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        self.ring.reap_slots();
        let refused = self.ring.counts().refused;
        let handed_over = self.ring.handed_over_frames();
        // The interface is read after the sender's counts: otherwise it would lack frames that
        // the sender counts already.
        let interface = self.meter.read_counters();
        Ok(TxCounters {
            handed_over,
            refused,
            on_wire: interface.map(|counters| counters.tx_frames),
            dropped: interface.map(|counters| {
                frames_lost_on_transmit(handed_over, counters.tx_frames, counters.tx_dropped)
            }),
        })
    }
}

/// `ENETDOWN`.
pub(crate) const ENETDOWN_ERRNO: i32 = 100;

/// Returns the frames lost between kernel and wire. An interface may count an attempt as dropped although the frame
/// stays in the ring and leaves later. So no more frames are lost than the kernel took and did not transmit.
pub fn frames_lost_on_transmit(taken: u64, transmitted: u64, dropped: u64) -> u64 {
    dropped.min(taken.saturating_sub(transmitted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_succeeded_later_are_not_losses() {
        assert_eq!(frames_lost_on_transmit(100, 100, 7), 0);
        assert_eq!(frames_lost_on_transmit(100, 95, 7), 5);
        assert_eq!(frames_lost_on_transmit(100, 95, 0), 0);
        // The interface also counts frames of other programs.
        assert_eq!(frames_lost_on_transmit(100, 120, 3), 0);
    }
}
