//! Holds back the packets that arrive after a silence, until it is known whether packets were lost during it.
//!
//! A meter of a group learns that its copy of the link was cut when it compares packet counts with another meter, which
//! may be after packets arrive again. These packets must not be counted to the parts of flows from before the cut: such
//! a part would have a gap that nobody knows. So packets after a silence wait until counts from after the silence are
//! compared, and a loss is marked in the table before they are metered. No fixed time would do: on a busy machine,
//! the comparison comes late.
//!
//! Invariant: every packet comes out once, in the order of arrival.

use packetrig_flow::PacketInfo;
use packetrig_flow::group::CopyComparison;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;

/// Shortest silence that counts. Packet counts of two meters cannot show a cut of less than 70 ms, see
/// `flow::group::copies`.
const MIN_SILENCE_NS: u64 = 50_000_000;
/// Maximum number of packets that a worker holds back: 34 MiB, or twice that while their buffer has just grown. Above it,
/// the oldest packets are released early.
const MAX_HELD_PACKETS: usize = 1 << 18;
/// Time after which packets are released although nothing is compared: no other meter may be able to count.
const MAX_HOLDING_TIME: Nanos = Nanos::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct SilenceBuffer {
    /// Time of the latest packet.
    latest_ns: Option<u64>,
    /// Held packets, oldest first. Each group was begun by a silence.
    waiting: VecDeque<WaitingGroup>,
    held_packets: usize,
    /// True if packets were lost after the last held one.
    is_after_loss: bool,
}

#[derive(Debug)]
struct WaitingGroup {
    packets: Vec<PacketInfo>,
    /// Times of the packet before the silence, and of the first one after it.
    silent_since: MonoTime,
    silent_until: MonoTime,
    is_after_loss: bool,
}

/// Packets that need not wait any longer.
#[derive(Debug)]
pub(crate) struct ReleasedPackets {
    pub(crate) packets: Vec<PacketInfo>,
    /// True if packets may have been lost before these.
    pub(crate) is_after_loss: bool,
}

impl SilenceBuffer {
    /// Accepts packets in the order of arrival. Returns the number of packets at the beginning that need not wait: the
    /// caller meters them. The others are held back. `boottime` converts the time of a packet to `CLOCK_BOOTTIME`.
    pub(crate) fn hold_packets_after_silence(
        &mut self,
        packets: &[PacketInfo],
        boottime: impl Fn(u64) -> MonoTime,
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
            let before_ns = self.latest_ns.unwrap_or(packet.at_ns);
            self.latest_ns = Some(packet.at_ns);
            let is_silence = packet.at_ns.saturating_sub(before_ns) >= MIN_SILENCE_NS;
            let is_after_loss = std::mem::take(&mut self.is_after_loss) && !self.waiting.is_empty();
            if is_silence || is_after_loss {
                self.waiting.push_back(WaitingGroup {
                    packets: Vec::new(),
                    silent_since: boottime(before_ns),
                    silent_until: boottime(packet.at_ns),
                    is_after_loss,
                });
            }
            match self.waiting.back_mut() {
                Some(group) => {
                    group.packets.push(*packet);
                    self.held_packets += 1;
                }
                None => free += 1,
            }
        }
        free
    }

    /// Records that packets were lost, before any of the held packets or after the last one.
    pub(crate) fn mark_packet_loss(&mut self) {
        self.waiting.iter_mut().for_each(|group| group.is_after_loss = true);
        self.is_after_loss = !self.waiting.is_empty();
    }

    /// Takes out the oldest packets, if it is known by now whether packets were lost before them. All times are of
    /// `CLOCK_BOOTTIME`.
    pub(crate) fn take_compared_packets(
        &mut self,
        comparison: CopyComparison,
        now: MonoTime,
    ) -> Option<ReleasedPackets> {
        let oldest = self.waiting.front()?;
        let is_compared = comparison.bounded_since <= oldest.silent_since
            && oldest.silent_until <= comparison.compared_until;
        let is_due = oldest.is_after_loss
            || is_compared
            || now >= oldest.silent_until + MAX_HOLDING_TIME
            || self.held_packets > MAX_HELD_PACKETS;
        if is_due { self.take_oldest_packets() } else { None }
    }

    /// Takes out the oldest packets in any case.
    pub(crate) fn take_oldest_packets(&mut self) -> Option<ReleasedPackets> {
        let WaitingGroup { packets, is_after_loss, .. } = self.waiting.pop_front()?;
        self.held_packets -= packets.len();
        Some(ReleasedPackets { packets, is_after_loss })
    }

    /// Returns the time before which all packets have been released, if the source has delivered all packets up to
    /// `given_ns`.
    pub(crate) fn complete_until_ns(&self, given_ns: u64) -> u64 {
        let oldest = self.waiting.front().and_then(|group| group.packets.first());
        oldest.map_or(given_ns, |packet| packet.at_ns.saturating_sub(1).min(given_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn packets(times_ms: &[u64]) -> Vec<PacketInfo> {
        times_ms.iter().map(|ms| PacketInfo { at_ns: ms * MS, ..PacketInfo::default() }).collect()
    }

    const fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * MS)
    }

    /// Packets have the times of `CLOCK_BOOTTIME` here.
    const fn boottime(at_ns: u64) -> MonoTime {
        MonoTime::from_nanos(at_ns)
    }

    const fn compared(bounded_ms: u64, compared_ms: u64) -> CopyComparison {
        CopyComparison { losses: 0, bounded_since: at(bounded_ms), compared_until: at(compared_ms) }
    }

    /// Returns the times of the packets that are due, in milliseconds, and whether a loss may have been before them.
    fn due(buffer: &mut SilenceBuffer, comparison: CopyComparison, now_ms: u64) -> Vec<(u64, bool)> {
        let released = std::iter::from_fn(|| buffer.take_compared_packets(comparison, at(now_ms)));
        let times = released.flat_map(|ReleasedPackets { packets, is_after_loss }| {
            packets.into_iter().map(move |packet| (packet.at_ns / MS, is_after_loss))
        });
        times.collect()
    }

    #[test]
    fn packets_without_silence_pass() {
        let mut buffer = SilenceBuffer::default();
        for start in [1000, 1001, 1002] {
            assert_eq!(buffer.hold_packets_after_silence(&packets(&[start, start + 1]), boottime), 2);
        }
        assert_eq!(buffer.complete_until_ns(7), 7);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[1052]), boottime), 1, "too short a silence");
        // A clock that is set back makes no silence.
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[3, 4]), boottime), 2);
    }

    #[test]
    fn packets_after_silence_wait_until_counts_are_compared() {
        let mut buffer = SilenceBuffer::default();
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[100, 101, 400, 401]), boottime), 2);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[402]), boottime), 0);
        assert_eq!(buffer.complete_until_ns(500 * MS), 400 * MS - 1);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[700]), boottime), 0);
        assert!(due(&mut buffer, compared(0, 399), 1000).is_empty());
        assert!(due(&mut buffer, compared(102, 999), 1000).is_empty(), "the bound may contain the loss");
        assert_eq!(due(&mut buffer, compared(101, 400), 1000), [(400, false), (401, false), (402, false)]);
        assert_eq!(buffer.complete_until_ns(800 * MS), 700 * MS - 1);
        assert!(due(&mut buffer, compared(0, 0), 3699).is_empty());
        assert_eq!(due(&mut buffer, compared(0, 0), 3700), [(700, false)], "nobody compares");
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[701]), boottime), 1);
    }

    /// One comparison may show the loss of two cuts, and the ring may drop packets while others are held.
    #[test]
    fn loss_is_marked_before_each_held_packet_group() {
        let mut buffer = SilenceBuffer::default();
        buffer.hold_packets_after_silence(&packets(&[1, 100, 200, 201]), boottime);
        buffer.mark_packet_loss();
        buffer.hold_packets_after_silence(&packets(&[202, 203, 300]), boottime);
        let released = due(&mut buffer, compared(0, 0), 301);
        assert_eq!(released, [(100, true), (200, true), (201, true), (202, true), (203, true)]);
        assert_eq!(due(&mut buffer, compared(0, 300), 301), [(300, false)]);
        // Nothing is held: the table knows of the loss, and the next packet need not wait.
        buffer.mark_packet_loss();
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[301]), boottime), 1);
    }

    #[test]
    fn held_packets_are_bounded_and_kept_in_order() {
        let mut buffer = SilenceBuffer::default();
        buffer.hold_packets_after_silence(&packets(&[1]), boottime);
        let many = vec![PacketInfo { at_ns: 100 * MS, ..PacketInfo::default() }; MAX_HELD_PACKETS];
        assert_eq!(buffer.hold_packets_after_silence(&many, boottime), 0);
        assert_eq!(due(&mut buffer, compared(0, 0), 1).len(), 0);
        buffer.hold_packets_after_silence(&packets(&[101, 200]), boottime);
        assert_eq!(
            due(&mut buffer, compared(0, 0), 1).len(),
            MAX_HELD_PACKETS + 1,
            "too many: released early"
        );
        let rest = buffer.take_oldest_packets().unwrap();
        assert_eq!((rest.packets.len(), rest.packets[0].at_ns), (1, 200 * MS));
        assert_eq!(buffer.complete_until_ns(300), 300);
        assert!(buffer.take_oldest_packets().is_none());
    }
}
