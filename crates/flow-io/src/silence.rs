//! Holds back the packets that arrive after a silence, until a loss during that silence is known.
//!
//! A meter of a group learns that its copy of the link was cut when it compares packet counts with another meter, which
//! may be after packets arrive again. These packets must not be counted to the parts of flows from before the cut: such
//! a part would have a gap that nobody knows. So packets after a silence wait, and the loss is marked in the table
//! before they are metered. Without a loss, they are metered a little later.
//!
//! Invariant: every packet comes out once, in the order of arrival.

use crate::intake::PACKETS_PER_BATCH;
use packetrig_flow::PacketInfo;
use packetrig_units::Nanos;
use std::collections::VecDeque;

/// Shortest silence that counts. Packet counts of two meters cannot show a cut of less than 70 ms, see
/// `flow::group::copies`.
const MIN_SILENCE_NS: u64 = 50_000_000;
/// Maximum number of packets that are held back (34 MiB). Above it, the oldest packets are released early.
const MAX_HELD_PACKETS: usize = 1 << 18;

#[derive(Debug)]
pub(crate) struct SilenceBuffer {
    /// Time after the end of a silence at which a loss during that silence is known.
    notice_ns: u64,
    /// Time of the latest packet.
    latest_ns: Option<u64>,
    held: Vec<PacketInfo>,
    /// Groups of held packets, each begun by a silence.
    waiting: VecDeque<WaitingGroup>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingGroup {
    packets: usize,
    /// Time of release, on the monotonic clock.
    due_ns: u64,
}

impl SilenceBuffer {
    pub(crate) const fn new(notice: Nanos) -> Self {
        Self { notice_ns: notice.as_u64(), latest_ns: None, held: Vec::new(), waiting: VecDeque::new() }
    }

    /// Accepts packets in the order of arrival. Returns the number of packets at the beginning that need not wait: the
    /// caller meters them. The others are held back. `clock_ns` returns the time of the monotonic clock.
    pub(crate) fn hold_packets_after_silence(
        &mut self,
        packets: &[PacketInfo],
        clock_ns: impl Fn() -> u64,
    ) -> usize {
        let Some(last) = packets.last() else { return 0 };
        let before_ns = self.latest_ns.unwrap_or(packets[0].at_ns);
        // Times usually grow, so a short time between the ends of the batch has no silence in it.
        if self.waiting.is_empty() && last.at_ns.wrapping_sub(before_ns) < MIN_SILENCE_NS {
            self.latest_ns = Some(last.at_ns);
            return packets.len();
        }
        let mut free = 0;
        for packet in packets {
            let silence_ns = packet.at_ns.saturating_sub(self.latest_ns.unwrap_or(packet.at_ns));
            self.latest_ns = Some(packet.at_ns);
            if silence_ns >= MIN_SILENCE_NS {
                self.waiting.push_back(WaitingGroup {
                    packets: 0,
                    due_ns: clock_ns().saturating_add(self.notice_ns),
                });
            }
            match self.waiting.back_mut() {
                Some(group) => {
                    group.packets += 1;
                    self.held.push(*packet);
                }
                None => free += 1,
            }
        }
        free
    }

    /// Releases the packets that have waited long enough. Calls `out` with batches, and with the time of the last packet
    /// of each batch.
    pub(crate) fn release_due_packets(&mut self, clock_ns: u64, out: impl FnMut(&[PacketInfo], u64)) {
        let mut released = 0;
        while let Some(group) = self.waiting.front()
            && (group.due_ns <= clock_ns || self.held.len() - released > MAX_HELD_PACKETS)
        {
            released += group.packets;
            self.waiting.pop_front();
        }
        self.release_packets(released, out);
    }

    /// Releases all packets.
    pub(crate) fn release_all_packets(&mut self, out: impl FnMut(&[PacketInfo], u64)) {
        self.waiting.clear();
        self.release_packets(self.held.len(), out);
    }

    /// Returns the time before which all packets have been released, if the source has delivered all packets up to
    /// `given_ns`.
    pub(crate) fn complete_until_ns(&self, given_ns: u64) -> u64 {
        self.held.first().map_or(given_ns, |packet| packet.at_ns.saturating_sub(1).min(given_ns))
    }

    fn release_packets(&mut self, count: usize, mut out: impl FnMut(&[PacketInfo], u64)) {
        for batch in self.held[..count].chunks(PACKETS_PER_BATCH) {
            batch.last().into_iter().for_each(|last| out(batch, last.at_ns));
        }
        self.held.drain(..count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn packets(times_ms: &[u64]) -> Vec<PacketInfo> {
        times_ms.iter().map(|ms| PacketInfo { at_ns: ms * MS, ..PacketInfo::default() }).collect()
    }

    fn buffer() -> SilenceBuffer {
        SilenceBuffer::new(Nanos::from_millis(500))
    }

    /// Returns the times of the packets that are due at a time, in milliseconds.
    fn due(buffer: &mut SilenceBuffer, clock_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        buffer.release_due_packets(clock_ms * MS, |batch, last_ns| {
            assert_eq!(batch.last().map(|packet| packet.at_ns), Some(last_ns));
            times.extend(batch.iter().map(|packet| packet.at_ns / MS));
        });
        times
    }

    #[test]
    fn packets_without_silence_pass() {
        let mut buffer = buffer();
        for start in [1000, 1001, 1002] {
            assert_eq!(buffer.hold_packets_after_silence(&packets(&[start, start + 1]), || 0), 2);
        }
        assert_eq!(buffer.complete_until_ns(7), 7);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[1052]), || 0), 1, "too short a silence");
        // A clock that is set back makes no silence.
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[3, 4]), || 0), 2);
    }

    #[test]
    fn packets_after_silence_wait_for_their_notice() {
        let mut buffer = buffer();
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[100, 101, 400, 401]), || 9 * MS), 2);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[402]), || 10 * MS), 0);
        assert_eq!(buffer.complete_until_ns(500 * MS), 400 * MS - 1);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[700]), || 300 * MS), 0);
        assert!(due(&mut buffer, 508).is_empty());
        assert_eq!(due(&mut buffer, 509), [400, 401, 402]);
        assert_eq!(buffer.complete_until_ns(800 * MS), 700 * MS - 1);
        assert_eq!(due(&mut buffer, 800), [700]);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[701]), || 801 * MS), 1);
    }

    #[test]
    fn held_packets_are_bounded_and_kept_in_order() {
        let mut buffer = buffer();
        buffer.hold_packets_after_silence(&packets(&[1]), || 0);
        let many = vec![PacketInfo { at_ns: 100 * MS, ..PacketInfo::default() }; MAX_HELD_PACKETS];
        assert_eq!(buffer.hold_packets_after_silence(&many, || 0), 0);
        assert_eq!(due(&mut buffer, 0).len(), 0);
        buffer.hold_packets_after_silence(&packets(&[101, 200]), || 0);
        assert_eq!(due(&mut buffer, 0).len(), MAX_HELD_PACKETS + 1, "too many: released early");
        let mut rest = Vec::new();
        buffer.release_all_packets(|batch, _| rest.extend(batch.iter().map(|packet| packet.at_ns / MS)));
        assert_eq!(rest, [200]);
        assert_eq!(buffer.complete_until_ns(300), 300);
    }
}
