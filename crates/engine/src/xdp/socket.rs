//! The transmit half through an AF_XDP socket, for streams that cannot be sent as live frames.
//!
//! A full queue never loses a frame: the next flush tries it again. If the kernel takes no frame for a second (link
//! down), the waiting frames are withdrawn and counted as refused.

use crate::Error;
use crate::packet::{ENETDOWN_ERRNO, InterfaceMeter, StandstillTimer, frames_lost_on_transmit};
use crate::port::FrameTx;
use packetrig_stats::port::TxCounters;
use packetrig_sys::xsk::{CopyMode, XskTx};

/// The transmit half of a port on AF_XDP.
#[derive(Debug)]
pub struct SocketTx {
    socket: XskTx,
    meter: InterfaceMeter,
    stall_watch: StandstillTimer,
}

impl SocketTx {
    pub(crate) fn new(socket: XskTx, meter: InterfaceMeter) -> Self {
        Self { socket, meter, stall_watch: StandstillTimer::default() }
    }

    /// Returns whether the kernel copies the frames or sends them from this process's memory.
    pub fn copy_mode(&self) -> CopyMode {
        self.socket.mode()
    }
}

impl FrameTx for SocketTx {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        for filled in 0..want {
            let Some(length) = self.socket.next_slot().and_then(&mut *fill) else { return filled };
            self.socket.commit_frame(length);
        }
        want
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        let kicked = self.socket.kick_kernel();
        let counts = self.socket.counts();
        if self.stall_watch.has_timed_out(self.socket.pending_frames(), counts.taken + counts.refused) {
            self.socket.withdraw_untaken();
        }
        match kicked {
            // The interface is down: it may come up again before the timeout.
            Err(error) if error.errno() == Some(ENETDOWN_ERRNO) => Ok(()),
            // A permanent error: frames not taken are counted as refused.
            Err(error) => {
                self.socket.withdraw_untaken();
                Err(error.into())
            }
            Ok(()) => Ok(()),
        }
    }

    fn pending_frames(&self) -> usize {
        self.socket.pending_frames()
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        self.socket.reap_slots();
        let counts = self.socket.counts();
        // The interface is read after the sender's counts: otherwise it would lack frames that
        // the sender counts already.
        let interface = self.meter.read_counters();
        let handed_over = counts.taken;
        Ok(TxCounters {
            handed_over,
            // The kernel never completes frames that it finds faulty. They stay pending,
            // so `counts.refused` lacks them.
            refused: counts.refused + self.socket.faulty_entries(),
            on_wire: interface.map(|counters| counters.tx_frames),
            dropped: interface.map(|counters| {
                frames_lost_on_transmit(handed_over, counters.tx_frames, counters.tx_dropped)
            }),
        })
    }
}
