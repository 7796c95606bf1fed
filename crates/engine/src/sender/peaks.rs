//! Measures the most frames that left within 1, 10 and 100 ms.

use packetrig_stats::result::SendingPeaks;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64, remainder_as_usize};

/// Number of slots of a time window. A peak is exact to one slot.
const SLOTS_PER_WINDOW: usize = 10;

/// Finds the largest number of frames within a time window. The frames are counted in slots, tenths of the window.
#[derive(Clone, Debug)]
struct SendingPeakWindow {
    /// Length of a slot.
    part: Nanos,
    /// Frames of the latest slots, each at its slot number modulo [`SLOTS_PER_WINDOW`].
    parts: [u64; SLOTS_PER_WINDOW],
    /// Number of the latest slot.
    latest: u64,
    sum: u64,
    most: u64,
}

impl SendingPeakWindow {
    const fn new(length: Nanos) -> Self {
        let part = Nanos::new(length.as_u64() / SLOTS_PER_WINDOW as u64);
        Self { part, parts: [0; SLOTS_PER_WINDOW], latest: 0, sum: 0, most: 0 }
    }

    fn add_frames(&mut self, at: MonoTime, frames: u64) {
        let number = at.as_nanos() / self.part.as_u64();
        // No frame left between the latest slot and this one. At most all ten slots have to be cleared, however
        // long the gap was.
        let passed = number.saturating_sub(self.latest).min(SLOTS_PER_WINDOW as u64);
        for old in number.saturating_sub(passed) + 1..=number {
            self.sum -= std::mem::take(&mut self.parts[remainder_as_usize(old, SLOTS_PER_WINDOW)]);
        }
        self.latest = self.latest.max(number);
        self.parts[remainder_as_usize(number, SLOTS_PER_WINDOW)] += frames;
        self.sum += frames;
        self.most = self.most.max(self.sum);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SendingPeakMeter {
    /// Windows of 1, 10 and 100 ms.
    windows: [SendingPeakWindow; 3],
}

impl Default for SendingPeakMeter {
    fn default() -> Self {
        Self { windows: [1, 10, 100].map(|ms| SendingPeakWindow::new(Nanos::from_millis(ms))) }
    }
}

impl SendingPeakMeter {
    /// Counts frames that were made at `at`.
    pub(crate) fn add_frames(&mut self, at: MonoTime, frames: u64) {
        for window in &mut self.windows {
            window.add_frames(at, frames);
        }
    }

    /// Counts frames that left at unknown times between two instants, as if evenly.
    pub(crate) fn add_frames_evenly(&mut self, from: MonoTime, to: MonoTime, frames: u64) {
        let span = to.since(from).as_u64();
        // There is one step for each slot of the shortest window (100 us), but at most a thousand, so that a
        // long pause costs little.
        let steps = (span / 100_000).clamp(1, 1000);
        let mut counted = 0;
        for step in 1..=steps {
            let so_far = u128::from(frames) * u128::from(step) / u128::from(steps);
            let so_far = clamp_to_u64(so_far);
            self.add_frames(from + Nanos::new(span / steps * step), so_far - counted);
            counted = so_far;
        }
    }

    /// Returns the peaks; `None` if nothing was sent.
    pub(crate) fn sending_peaks(&self) -> Option<SendingPeaks> {
        let [in_1ms, in_10ms, in_100ms] = self.windows.each_ref().map(|window| window.most);
        (in_1ms > 0).then_some(SendingPeaks { in_1ms, in_10ms, in_100ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_found_over_each_time() {
        let mut peaks = SendingPeakMeter::default();
        let at = |us: u64| MonoTime::from_nanos(5_000_000_000 + us * 1000);
        // A frame each 100 us, and 50 at once in the middle.
        for n in 0..10_000 {
            peaks.add_frames(at(100 * n), if n == 5000 { 51 } else { 1 });
        }
        let wanted = SendingPeaks { in_1ms: 60, in_10ms: 150, in_100ms: 1050 };
        assert_eq!(peaks.sending_peaks(), Some(wanted));
        assert_eq!(SendingPeakMeter::default().sending_peaks(), None);
    }
}
