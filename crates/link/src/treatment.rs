//! What may be done to frames between the sides of a tap on the way `packet`. Nothing without a treatment.

/// Frames and time in, frames out. One for each direction, on the thread that forwards it; it must not wait.
///
/// Invariant: frames accepted + made = frames given out + dropped, once it has finished.
pub trait FrameTreatment: Send {
    /// Takes a frame that arrived at this instant of the monotonic clock, and gives out what is to leave now.
    fn accept(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8]));
    /// Gives out what is due by now.
    fn release(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8]));
    /// When the next frame is due, if one is held.
    fn next_due(&self) -> Option<u64>;
    /// Gives out what is still held.
    fn finish(&mut self, out: &mut dyn FnMut(&[u8]));
    /// Frames dropped on purpose, and frames made beyond those that came, so far.
    fn counts(&self) -> (u64, u64);
}
