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
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;

/// Shortest silence that counts. Packet counts of two meters cannot show a cut of less than 70 ms, see
/// `flow::group::copies`.
const MIN_SILENCE_NS: u64 = 50_000_000;
/// Maximum number of packets that are held back (34 MiB). Above it, the oldest packets are released early.
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
}

#[derive(Debug)]
struct WaitingGroup {
    packets: Vec<PacketInfo>,
    held_since: MonoTime,
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
    /// caller meters them. The others are held back. `now` returns the time of `CLOCK_BOOTTIME`.
    pub(crate) fn hold_packets_after_silence(
        &mut self,
        packets: &[PacketInfo],
        now: impl Fn() -> MonoTime,
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
                let group = WaitingGroup { packets: Vec::new(), held_since: now(), is_after_loss: false };
                self.waiting.push_back(group);
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

    /// Records that packets were lost. It is not known before which of the held packets that was.
    pub(crate) fn mark_packet_loss(&mut self) {
        self.waiting.iter_mut().for_each(|group| group.is_after_loss = true);
    }

    /// Takes out the oldest packets, if a loss before them would be known by now. Both times are of `CLOCK_BOOTTIME`.
    pub(crate) fn take_compared_packets(
        &mut self,
        compared_until: MonoTime,
        now: MonoTime,
    ) -> Option<ReleasedPackets> {
        let oldest = self.waiting.front()?;
        let is_due = oldest.held_since <= compared_until
            || now >= oldest.held_since + MAX_HOLDING_TIME
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

    /// Returns the times of the packets that are due, in milliseconds, and whether a loss may have been before them.
    fn due(buffer: &mut SilenceBuffer, compared_ms: u64, now_ms: u64) -> Vec<(u64, bool)> {
        let released = std::iter::from_fn(|| buffer.take_compared_packets(at(compared_ms), at(now_ms)));
        let times = released.flat_map(|ReleasedPackets { packets, is_after_loss }| {
            packets.into_iter().map(move |packet| (packet.at_ns / MS, is_after_loss))
        });
        times.collect()
    }

    #[test]
    fn packets_without_silence_pass() {
        let mut buffer = SilenceBuffer::default();
        for start in [1000, 1001, 1002] {
            assert_eq!(buffer.hold_packets_after_silence(&packets(&[start, start + 1]), || at(0)), 2);
        }
        assert_eq!(buffer.complete_until_ns(7), 7);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[1052]), || at(0)), 1, "too short a silence");
        // A clock that is set back makes no silence.
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[3, 4]), || at(0)), 2);
    }

    #[test]
    fn packets_after_silence_wait_until_counts_are_compared() {
        let mut buffer = SilenceBuffer::default();
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[100, 101, 400, 401]), || at(9)), 2);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[402]), || at(10)), 0);
        assert_eq!(buffer.complete_until_ns(500 * MS), 400 * MS - 1);
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[700]), || at(300)), 0);
        assert!(due(&mut buffer, 8, 1000).is_empty());
        assert_eq!(due(&mut buffer, 9, 1000), [(400, false), (401, false), (402, false)]);
        assert_eq!(buffer.complete_until_ns(800 * MS), 700 * MS - 1);
        assert!(due(&mut buffer, 9, 3299).is_empty());
        assert_eq!(due(&mut buffer, 9, 3300), [(700, false)], "nobody compares");
        assert_eq!(buffer.hold_packets_after_silence(&packets(&[701]), || at(3301)), 1);
    }

    /// One comparison may show the loss of two cuts.
    #[test]
    fn loss_is_marked_before_each_held_packet_group() {
        let mut buffer = SilenceBuffer::default();
        buffer.hold_packets_after_silence(&packets(&[1, 100, 200]), || at(5));
        buffer.mark_packet_loss();
        buffer.hold_packets_after_silence(&packets(&[300]), || at(6));
        assert_eq!(due(&mut buffer, 6, 7), [(100, true), (200, true), (300, false)]);
    }

    #[test]
    fn held_packets_are_bounded_and_kept_in_order() {
        let mut buffer = SilenceBuffer::default();
        buffer.hold_packets_after_silence(&packets(&[1]), || at(0));
        let many = vec![PacketInfo { at_ns: 100 * MS, ..PacketInfo::default() }; MAX_HELD_PACKETS];
        assert_eq!(buffer.hold_packets_after_silence(&many, || at(1)), 0);
        assert_eq!(due(&mut buffer, 0, 1).len(), 0);
        buffer.hold_packets_after_silence(&packets(&[101, 200]), || at(1));
        assert_eq!(due(&mut buffer, 0, 1).len(), MAX_HELD_PACKETS + 1, "too many: released early");
        let rest = buffer.take_oldest_packets().unwrap();
        assert_eq!((rest.packets.len(), rest.packets[0].at_ns), (1, 200 * MS));
        assert_eq!(buffer.complete_until_ns(300), 300);
        assert!(buffer.take_oldest_packets().is_none());
    }
}
