//! Losses while a port was not in order, which explain drops of that port.

use super::figures::saturating_sum_of;

/// Lost frames of all streams, for each port of the plan.
#[derive(Debug)]
pub(super) struct FaultyPortLosses {
    sending: Vec<u64>,
    receiving: Vec<u64>,
}

impl FaultyPortLosses {
    /// Creates counters for this many ports, all 0.
    pub(super) fn with_ports(ports: usize) -> Self {
        Self { sending: vec![0; ports], receiving: vec![0; ports] }
    }

    /// Adds the losses of a stream from one port to another: while either was not in order, and the part while the
    /// sending port was not.
    pub(super) fn add_losses(&mut self, tx: usize, rx: usize, of_both: u64, of_sender: u64) {
        // The sender counts losses during both, so that no frame counts twice.
        let both = [
            (&mut self.sending, tx, of_sender),
            (&mut self.receiving, rx, of_both.saturating_sub(of_sender)),
        ];
        for (losses, port, frames) in both {
            if let Some(sum) = losses.get_mut(port) {
                *sum = sum.saturating_add(frames);
            }
        }
    }

    /// Losses while this sending port was not in order.
    pub(super) fn sending_at(&self, port: usize) -> u64 {
        self.sending.get(port).copied().unwrap_or(0)
    }

    /// Losses while this receiving port was not in order, and the sending port was.
    pub(super) fn losses_while_receiver_unordered(&self, port: usize) -> u64 {
        self.receiving.get(port).copied().unwrap_or(0)
    }

    pub(super) fn total_sending_losses(&self) -> u64 {
        saturating_sum_of(self.sending.iter().copied())
    }
}
