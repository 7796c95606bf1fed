//! Decides when a connection must be closed, from its activity between two checks. Reads no clock.

use super::policy::CallProtocol;
use super::rejections::RejectionCause;
use super::slots::ConnectionRecord;
use crate::ClientDeadlines;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of HTTP/2's preface and of the head of the first frame (RFC 9113, 3.4 and 4.1).
const HTTP2_FIRST_BYTES: u64 = 24 + 9;

/// The activity of a connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionProgress {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) read_when_idle: u64,
    pub(crate) requests: u64,
    pub(crate) is_busy: bool,
    /// True while a part of a response waits for the client to read.
    pub(crate) waits_for_client: bool,
    /// True if the client is trusted, or had an admitted request, so that it may stay idle for longer.
    pub(crate) is_known: bool,
}

impl ConnectionProgress {
    pub(crate) fn from_record(record: &ConnectionRecord) -> Self {
        Self {
            bytes_read: record.bytes_read.load(Ordering::Relaxed),
            bytes_written: record.bytes_written.load(Ordering::Relaxed),
            read_when_idle: record.read_when_idle.load(Ordering::Relaxed),
            requests: record.requests.load(Ordering::Relaxed),
            is_busy: record.in_flight.load(Ordering::Acquire) > 0,
            waits_for_client: record.is_write_blocked.load(Ordering::Relaxed)
                || record.unfetched.load(Ordering::Acquire) > 0,
            is_known: record.is_trusted() || record.was_admitted.load(Ordering::Relaxed),
        }
    }
}

/// The deadlines of a connection, and how much time has passed of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionWatch {
    deadlines: ClientDeadlines,
    protocol: CallProtocol,
    /// Time without the beginning or end of a request.
    idle: Duration,
    /// Time for which a head, or the first bytes, have been incomplete.
    head: Duration,
    /// Time for which the client has not read enough.
    unfetched: Duration,
    /// Number of written bytes at the time when the client had last read enough.
    written_before: u64,
    requests: u64,
}

impl ConnectionWatch {
    pub(crate) const fn new(deadlines: ClientDeadlines, protocol: CallProtocol) -> Self {
        let nothing = Duration::ZERO;
        Self {
            deadlines,
            protocol,
            idle: nothing,
            head: nothing,
            unfetched: nothing,
            written_before: 0,
            requests: 0,
        }
    }

    /// Interval between two checks: an eighth of the shortest deadline, but 5 ms to 1 s. A connection outlives its
    /// deadline by one interval at most.
    pub(crate) fn connection_check_interval(deadlines: &ClientDeadlines) -> Duration {
        let shortest =
            deadlines.first.min(deadlines.idle).min(deadlines.idle_stranger).min(deadlines.response);
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// Returns the cause to close the connection now, `step` after the last check; `None` if it may stay.
    pub(crate) fn check_progress(
        &mut self,
        now: ConnectionProgress,
        step: Duration,
    ) -> Option<RejectionCause> {
        // Slow readers are found before the check for busy connections: a client that does not read keeps
        // its own request busy.
        if self.update_slow_reader(now, step) {
            return Some(RejectionCause::SlowReader);
        }
        // A request that began and ended between two checks resets the deadlines, too.
        let had_request = now.requests != self.requests;
        self.requests = now.requests;
        if now.is_busy || had_request {
            self.idle = Duration::ZERO;
            self.head = Duration::ZERO;
            return None;
        }
        // The time is added up in steps and not read from a clock. So no client misses a deadline because the server
        // process was stopped for some time.
        self.idle += step;
        self.head = if self.awaits_head(now) { self.head + step } else { Duration::ZERO };
        let idle = if now.is_known { self.deadlines.idle } else { self.deadlines.idle_stranger };
        if self.head > self.deadlines.first {
            Some(RejectionCause::Head)
        } else if self.idle > idle {
            // A client that has sent no request is not idle: the head of its first request is overdue.
            Some(if now.requests == 0 { RejectionCause::Head } else { RejectionCause::Idle })
        } else {
            None
        }
    }

    /// Returns whether the remaining bytes of a head, or the first bytes, are due.
    fn awaits_head(&self, now: ConnectionProgress) -> bool {
        // HTTP/1: bytes after the last response are the beginning of the next head. A client of HTTP/2 sends other
        // frames at any time (pings, window updates), so only the preface and the first frame have a deadline.
        match self.protocol {
            CallProtocol::Http => now.requests == 0 || now.bytes_read > now.read_when_idle,
            CallProtocol::Grpc => now.requests == 0 && now.bytes_read < HTTP2_FIRST_BYTES,
        }
    }

    /// Advances the time for which the client has not read enough. Returns whether it has missed its deadline.
    fn update_slow_reader(&mut self, now: ConnectionProgress, step: Duration) -> bool {
        // Apart from its send buffer, the kernel accepts bytes only as the client reads.
        let taken = now.bytes_written.saturating_sub(self.written_before);
        if !now.waits_for_client || taken >= self.deadlines.response_bytes {
            self.unfetched = Duration::ZERO;
            self.written_before = now.bytes_written;
            return false;
        }
        self.unfetched += step;
        self.unfetched > self.deadlines.response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the second in which a connection with this progress is closed, and the cause.
    fn closed(
        protocol: CallProtocol,
        progress: impl Fn(u64) -> ConnectionProgress,
    ) -> Option<(u64, RejectionCause)> {
        let mut watch = ConnectionWatch::new(ClientDeadlines::default(), protocol);
        (1..=1000)
            .find_map(|second| watch.check_progress(progress(second), SECOND).map(|cause| (second, cause)))
    }

    #[test]
    fn incomplete_head_is_closed_after_ten_seconds() {
        for protocol in [CallProtocol::Http, CallProtocol::Grpc] {
            let known = |_| ConnectionProgress { is_known: true, ..Default::default() };
            assert_eq!(closed(protocol, known), Some((11, RejectionCause::Head)));
        }
        let dripping =
            |second| ConnectionProgress { bytes_read: second, is_known: true, ..Default::default() };
        assert_eq!(closed(CallProtocol::Http, dripping), Some((11, RejectionCause::Head)));
        let second_head = |second: u64| ConnectionProgress {
            requests: 1,
            bytes_read: 100 + second.saturating_sub(50),
            read_when_idle: 100,
            is_known: true,
            ..Default::default()
        };
        assert_eq!(closed(CallProtocol::Http, second_head), Some((61, RejectionCause::Head)));
    }

    #[test]
    fn idle_timeout_is_longer_for_known_clients() {
        let idle = |is_known| {
            move |_| ConnectionProgress {
                requests: 1,
                bytes_read: 9,
                read_when_idle: 9,
                is_known,
                ..Default::default()
            }
        };
        assert_eq!(closed(CallProtocol::Http, idle(true)), Some((302, RejectionCause::Idle)));
        assert_eq!(closed(CallProtocol::Grpc, idle(false)), Some((12, RejectionCause::Idle)));
        let only_preface = |_| ConnectionProgress { bytes_read: 33, is_known: true, ..Default::default() };
        assert_eq!(closed(CallProtocol::Grpc, only_preface), Some((301, RejectionCause::Head)));
    }

    #[test]
    fn long_call_is_kept_but_slow_reader_closed() {
        let busy = |_| ConnectionProgress { requests: 1, is_busy: true, ..Default::default() };
        assert_eq!(closed(CallProtocol::Http, busy), None);
        let reading = |rate: u64| {
            move |second| ConnectionProgress {
                requests: 1,
                is_busy: true,
                waits_for_client: true,
                bytes_written: rate * second,
                ..Default::default()
            }
        };
        assert_eq!(closed(CallProtocol::Http, reading(2 << 10)), None);
        assert_eq!(closed(CallProtocol::Grpc, reading(512)), Some((31, RejectionCause::SlowReader)));
        let never_reading = |_| ConnectionProgress {
            requests: 1,
            waits_for_client: true,
            is_known: true,
            ..Default::default()
        };
        assert_eq!(closed(CallProtocol::Http, never_reading), Some((31, RejectionCause::SlowReader)));
    }
}
