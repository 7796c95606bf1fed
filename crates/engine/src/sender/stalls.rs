//! Records when a sender was behind its schedule.

use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_units::{MonoTime, Nanos};

/// Lateness above which a sender counts as stalled.
const STALL_THRESHOLD: Nanos = Nanos::from_millis(10);
/// Maximum number of stalls that are stored separately. Later stalls extend the last one.
const MAX_STORED_STALLS: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct StallLog {
    events: Vec<PortEvent>,
    /// Whether the sender has not been on time since the last stall.
    is_open: bool,
}

impl Default for StallLog {
    fn default() -> Self {
        // The memory is reserved here, because a sender allocates nothing while it sends.
        Self { events: Vec::with_capacity(MAX_STORED_STALLS), is_open: false }
    }
}

impl StallLog {
    /// Records how far behind the sender is now; zero if it is on time.
    pub(crate) fn record_lag(&mut self, behind: Nanos, now: MonoTime) {
        if self.is_open {
            self.extend_last_stall(behind, now);
        } else if behind > STALL_THRESHOLD {
            self.is_open = true;
            // If the list is full, the last event covers all later ones, which is too wide but misses nothing.
            if self.events.len() == MAX_STORED_STALLS {
                self.extend_last_stall(behind, now);
            } else {
                let what = PortEventKind::SenderStalled { most_late: behind };
                // The stall began when the late frame was due.
                self.events.push(PortEvent { what, from: now - behind, until: None, only_sending: true });
            }
        }
    }

    fn extend_last_stall(&mut self, behind: Nanos, now: MonoTime) {
        self.is_open = behind > Nanos::ZERO;
        let Some(last) = self.events.last_mut() else { return };
        if let PortEventKind::SenderStalled { most_late } = last.what {
            last.what = PortEventKind::SenderStalled { most_late: most_late.max(behind) };
        }
        last.until = if self.is_open { None } else { Some(now) };
    }

    pub(crate) fn events(&self) -> Vec<PortEvent> {
        self.events.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_of_one_catching_up_are_one() {
        let at = |ms: u64| MonoTime::default() + Nanos::from_millis(ms);
        let mut log = StallLog::default();
        for (behind, now) in [(9, 100), (50, 200), (30, 250), (80, 300), (0, 700), (5, 800), (20, 900)] {
            log.record_lag(Nanos::from_millis(behind), at(now));
        }
        let told: Vec<_> = log.events().iter().map(|event| (event.what, event.from, event.until)).collect();
        let stalled = |ms| PortEventKind::SenderStalled { most_late: Nanos::from_millis(ms) };
        assert_eq!(told, [(stalled(80), at(150), Some(at(700))), (stalled(20), at(880), None)]);
    }
}
