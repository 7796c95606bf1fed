//! Treatment of frames between the sides of a tap with the method `packet`. Without a
//! treatment, frames pass unchanged.

/// Lateness of departures: from the due time of a frame, which is its arrival plus its delay, until the call that sent it had returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepartureLateness {
    pub frames: u64,
    pub most_ns: u64,
    pub sum_ns: u64,
}

impl DepartureLateness {
    /// Adds a frame that was due and left at these times.
    pub fn add_departure(&mut self, due_ns: u64, left_ns: u64) {
        let late_ns = left_ns.saturating_sub(due_ns);
        self.frames += 1;
        self.most_ns = self.most_ns.max(late_ns);
        self.sum_ns = self.sum_ns.saturating_add(late_ns);
    }
}

/// Delays, drops or changes the frames of one direction. It runs on the thread that forwards them and must not
/// block.
///
/// Invariant: frames accepted + made = frames given out + dropped, once it has finished.
pub trait FrameTreatment: Send {
    /// Takes a frame that arrived at this instant of the monotonic clock, and gives out frames that leave now, each with its due time.
    fn accept_frame(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64));
    /// Gives out the frames that are due by now.
    fn release_due_frames(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64));
    /// Due time of the next frame, if one is held.
    fn next_due_time(&self) -> Option<u64>;
    /// Gives out all frames that are still held.
    fn release_all_frames(&mut self, out: &mut dyn FnMut(&[u8], u64));
    /// Receives the lateness of all frames so far.
    fn record_lateness(&mut self, lateness: DepartureLateness);
    /// Returns two counts so far: frames dropped on purpose, and additional copies made.
    fn loss_and_copy_counts(&self) -> (u64, u64);
}
