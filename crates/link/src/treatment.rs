//! Treatment of the frames that a tap forwards with the method `packet`. Without a treatment, frames pass unchanged.

/// Lateness of departures: time from the due time of a frame (arrival plus delay) to the return of the
/// call that sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepartureLateness {
    pub frames: u64,
    pub most_ns: u64,
    pub sum_ns: u64,
}

impl DepartureLateness {
    /// Adds a frame with these due and departure times.
    pub fn add_departure(&mut self, due_ns: u64, left_ns: u64) {
        let late_ns = left_ns.saturating_sub(due_ns);
        self.frames += 1;
        self.most_ns = self.most_ns.max(late_ns);
        self.sum_ns = self.sum_ns.saturating_add(late_ns);
    }
}

/// Delays, drops or changes the frames of one direction. Its functions run on the forwarding thread and must not block.
///
/// Invariant: at the end, accepted frames + additional copies = frames passed on + dropped frames.
pub trait FrameTreatment: Send {
    /// Accepts a frame that arrived at this time of the monotonic clock. Passes the frames that leave now to `out`,
    /// each with its due time.
    fn accept_frame(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64));
    /// Passes the frames that are due now to `out`.
    fn release_due_frames(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64));
    /// Returns the due time of the next frame; `None` if no frame is held.
    fn next_due_time(&self) -> Option<u64>;
    /// Passes all frames that are still held to `out`.
    fn release_all_frames(&mut self, out: &mut dyn FnMut(&[u8], u64));
    /// Called with the lateness of all frames so far.
    fn record_lateness(&mut self, lateness: DepartureLateness);
    /// Returns two counts so far: frames dropped on purpose, and additional copies.
    fn drop_and_copy_counts(&self) -> (u64, u64);
}
