//! What may be done to frames between the sides of a tap on the way `packet`. Nothing without a treatment.

/// How late frames left: from when each was due, which is its arrival and its delay, until the call that sent it had returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepartureLateness {
    pub frames: u64,
    pub most_ns: u64,
    pub sum_ns: u64,
}

impl DepartureLateness {
    /// Adds a frame that was due and left at these times.
    pub fn add(&mut self, due_ns: u64, left_ns: u64) {
        let late_ns = left_ns.saturating_sub(due_ns);
        self.frames += 1;
        self.most_ns = self.most_ns.max(late_ns);
        self.sum_ns = self.sum_ns.saturating_add(late_ns);
    }
}

/// Frames and time in, frames out. One for each direction, on the thread that forwards it; it must not wait.
///
/// Invariant: frames accepted + made = frames given out + dropped, once it has finished.
pub trait FrameTreatment: Send {
    /// Takes a frame that arrived at this instant of the monotonic clock, and gives out what is to leave now. With each frame goes the
    /// time when it was due.
    fn accept(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64));
    /// Gives out what is due by now.
    fn release(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64));
    /// When the next frame is due, if one is held.
    fn next_due(&self) -> Option<u64>;
    /// Gives out what is still held.
    fn finish(&mut self, out: &mut dyn FnMut(&[u8], u64));
    /// Is told how late all frames so far have left.
    fn note_lateness(&mut self, lateness: DepartureLateness);
    /// Frames dropped on purpose, and frames made beyond those that came, so far.
    fn counts(&self) -> (u64, u64);
}
