//! Losses while a port had a fault. They explain drops that this port counted.

use super::figures::saturating_sum_of;

/// Frames of all streams that were lost while a port had a fault, for each port of the plan.
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

    /// Adds losses of a stream from port `tx` to port `rx`: `of_both` are its losses while either port had a
    /// fault, and `of_sender` is the part of them while the sending port had a fault.
    pub(super) fn add_losses(&mut self, tx: usize, rx: usize, of_both: u64, of_sender: u64) {
        // Losses while both ports had a fault count only for the sender, so that no frame counts twice.
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

    /// Losses while this sending port had a fault.
    pub(super) fn losses_of_faulty_sender(&self, port: usize) -> u64 {
        self.sending.get(port).copied().unwrap_or(0)
    }

    /// Losses while this receiving port had a fault and the sending port had none.
    pub(super) fn losses_of_faulty_receiver(&self, port: usize) -> u64 {
        self.receiving.get(port).copied().unwrap_or(0)
    }

    pub(super) fn total_losses_of_faulty_senders(&self) -> u64 {
        saturating_sum_of(self.sending.iter().copied())
    }
}
