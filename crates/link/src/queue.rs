//! A queue before a limited rate: frames leave one after another, and each takes the time of its bits. Frames that do
//! not fit into the queue are dropped.

use packetrig_units::{BitRate, clamp_to_u64};
use std::collections::VecDeque;

/// Length of an FCS in bytes, which counts for the rate.
const FCS: u64 = 4;
const SECOND: u128 = 1_000_000_000;

/// Capacity of the queue in frames or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    Frames(u64),
    /// Each frame counts with its FCS.
    Bytes(u64),
}

/// Rate of layer 2 (including FCS), and the capacity of the queue before it. A frame that is being sent counts until
/// it has left completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateQueue {
    /// The rate, which must be above zero.
    pub rate: BitRate,
    pub room: QueueLimit,
}

/// Time at which the line becomes free: whole nanoseconds, and a remainder in units of 1 / (bits per second) ns.
#[derive(Clone, Copy, Debug, Default)]
struct RateQueueFreeTime {
    at_ns: u64,
    part: u128,
}

/// State of a running queue.
#[derive(Debug)]
pub(super) struct RateQueueState {
    queue: RateQueue,
    /// Departure time and bytes of each frame inside, in order.
    inside: VecDeque<(u64, u64)>,
    bytes: u64,
    /// Time at which the last frame has left.
    free: RateQueueFreeTime,
}

impl RateQueueState {
    pub(super) fn new(queue: RateQueue) -> Self {
        Self { queue, inside: VecDeque::new(), bytes: 0, free: RateQueueFreeTime::default() }
    }

    /// Admits a frame that arrives now and has this many bytes without FCS. Returns its departure time; `None` if
    /// the queue is full.
    pub(super) fn admit_frame(&mut self, now_ns: u64, bytes: usize) -> Option<u64> {
        // Frames that have left completely do not occupy the queue any more.
        while let Some((left, bytes)) = self.inside.front()
            && *left <= now_ns
        {
            self.bytes -= bytes;
            self.inside.pop_front();
        }
        let bytes = bytes as u64 + FCS;
        let is_full = match self.queue.room {
            QueueLimit::Frames(most) => self.inside.len() as u64 >= most,
            QueueLimit::Bytes(most) => self.bytes + bytes > most,
        };
        if is_full {
            return None;
        }
        // A rate of zero is not allowed; here it must not become a division by zero.
        let rate = u128::from(self.queue.rate.bits_per_second().max(1));
        // If the line was idle, the remainder of earlier frames does not count.
        let start =
            if now_ns > self.free.at_ns { RateQueueFreeTime { at_ns: now_ns, part: 0 } } else { self.free };
        // The remainder is carried to the next frame. Rounding each frame to a whole nanosecond would add up: at 10
        // Gbit/s a short frame takes about 50 ns, so an error of half a nanosecond is one percent of the rate.
        let parts = start.part + u128::from(bytes) * 8 * SECOND;
        let left = start.at_ns.saturating_add(clamp_to_u64(parts / rate));
        self.free = RateQueueFreeTime { at_ns: left, part: parts % rate };
        self.inside.push_back((left, bytes));
        self.bytes += bytes;
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bps: u64, room: QueueLimit) -> RateQueueState {
        RateQueueState::new(RateQueue { rate: BitRate::new(bps), room })
    }

    #[test]
    fn frames_leave_at_the_rate_without_drift() {
        // 64 bytes at 3 Mbit/s take 170 666.67 ns.
        let mut queue = waiting(3_000_000, QueueLimit::Frames(1_000_000));
        let left: Vec<u64> = (0..30_000).filter_map(|_| queue.admit_frame(0, 60)).collect();
        assert_eq!((left[0], left[1], left[2]), (170_666, 341_333, 512_000));
        assert_eq!(left[29_999], 5_120_000_000);
    }

    #[test]
    fn full_queue_drops_frames_until_room_returns() {
        // A frame of 125 bytes a microsecond.
        let mut queue = waiting(1_000_000_000, QueueLimit::Frames(2));
        let admitted: Vec<_> = (0..4).map(|_| queue.admit_frame(0, 121)).collect();
        assert_eq!(admitted, [Some(1000), Some(2000), None, None]);
        assert_eq!([queue.admit_frame(1000, 121), queue.admit_frame(1000, 121)], [Some(3000), None]);
        assert_eq!(queue.admit_frame(10_000, 121), Some(11_000), "an idle queue starts anew");
        let mut queue = waiting(1_000_000_000, QueueLimit::Bytes(300));
        assert_eq!(
            [queue.admit_frame(0, 121), queue.admit_frame(0, 121), queue.admit_frame(0, 60)],
            [Some(1000), Some(2000), None]
        );
        assert_eq!(queue.admit_frame(0, 46), Some(2400));
    }
}
