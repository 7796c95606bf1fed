//! The beginning of each connection: the handshake, and requests that fill the server's send queue.

use super::{
    FIRST_DATA_TIMEOUT_NS, MAX_CONNECT_ATTEMPTS, MAX_SEGMENT_BYTES, NANOS_PER_MS, OneprobeMachine,
    OneprobeState, OneprobeStep, OpenConnection, small_count,
};
use super::{OneprobeFailure, OutgoingSegment, flags, initial_sequence};

impl OneprobeMachine {
    pub(super) fn begin_or_retry_connection(&mut self, now: u64, tries: u32) -> Option<OneprobeStep> {
        if tries == 0 {
            // If the series has no more probes, no new connection is opened.
            if self.report.probes >= u64::from(self.options.count) {
                self.state = OneprobeState::Finished;
                return None;
            }
            self.report.connections += 1;
            // Each connection has its own number, so that segments of an earlier connection are not mistaken
            // for segments of this one.
            let first = initial_sequence(self.options.seed, self.report.connections);
            self.connection = OpenConnection {
                first,
                next: first,
                acknowledged: first,
                // The path stays the same, and so does its round trip.
                round_trip: self.connection.round_trip,
                ..OpenConnection::default()
            };
        }
        let size = self.options.answer.to_be_bytes();
        // The maximum segment size makes the server's answers exactly as long as `answer`, which their sequence numbers rely on.
        self.queue.push_back(OutgoingSegment {
            sequence: self.connection.first,
            flags: flags::SYN,
            window: self.options.answer,
            options: vec![2, 4, size[0], size[1]],
            ..OutgoingSegment::default()
        });
        self.state = OneprobeState::Connecting { at: now, tries: tries + 1 };
        None
    }

    pub(super) fn retry_connect(&mut self, now: u64, at: u64, tries: u32) -> Option<OneprobeStep> {
        // 1, 2, 4, 8, 8 s: the initial timeout and the backoff of RFC 6298 (2.1, 5.5).
        let again_at = at + ((1_000 * NANOS_PER_MS) << tries.saturating_sub(1).min(3));
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        if tries < MAX_CONNECT_ATTEMPTS {
            return self.begin_or_retry_connection(now, tries);
        }
        self.fail_series(OneprobeFailure::Silent)
    }

    pub(super) fn fail_series(&mut self, failure: OneprobeFailure) -> Option<OneprobeStep> {
        self.failure = Some(failure);
        self.state = OneprobeState::Finished;
        None
    }

    /// Makes the server fill its send queue: sends whole requests, with a window for two answers.
    pub(super) fn fill_server_queue(
        &mut self,
        now: u64,
        since: u64,
        asked_at: u64,
        quiet_at: u64,
    ) -> Option<OneprobeStep> {
        // Once data has arrived, wait until no more of it is in flight, because the first probe needs the
        // number of the server's next byte.
        if self.connection.has_data {
            if now < quiet_at {
                return Some(OneprobeStep::Wait(quiet_at));
            }
            self.state = OneprobeState::Synchronizing { asked_at: now, tries: 1 };
            self.queue_state_request();
            return None;
        }
        if now >= since + FIRST_DATA_TIMEOUT_NS {
            return self.close_and_reconnect_later(now, false);
        }
        let again_at = asked_at + 1_000 * NANOS_PER_MS;
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        self.queue_first_request();
        self.state = OneprobeState::FillingQueue { since, asked_at: now, quiet_at };
        None
    }

    pub(super) fn queue_first_request(&mut self) {
        // One segment has up to four whole requests, so that the server has more data to send. A longer
        // segment may not fit the path.
        let whole = self.request.length();
        let length = (whole * (MAX_SEGMENT_BYTES / whole.max(1)).clamp(1, 4)).min(MAX_SEGMENT_BYTES);
        let first = self.connection.first.wrapping_add(1);
        self.queue.push_back(self.data_segment(
            first,
            length,
            self.connection.edge.wrapping_sub(self.connection.expected),
        ));
        self.connection.next = first.wrapping_add(small_count(length));
    }
}
