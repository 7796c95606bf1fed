//! Limits the agent's wait for a message: other events, such as the end of the senders, are checked only between waits.

use super::{AgentShell, now};
use packetrig_fleet::fabric::Endpoint;
use packetrig_units::Nanos;

/// Longest wait during a run, and on a single machine always. It limits how late the agent notices a request to end.
pub(super) const MAX_WAIT_DURING_RUN: Nanos = Nanos::from_millis(10);
/// Longest wait of a node of a fleet without a run: it waits only for messages and for the time of its next hello.
const MAX_WAIT_WITHOUT_RUN: Nanos = Nanos::from_millis(200);
/// Shortest time between two checks whether senders are done.
const MIN_SENDER_CHECK_INTERVAL: Nanos = Nanos::from_millis(1);
/// The interval between checks whether senders are done is the time for which they have been sending, divided by this
/// number (within the limits above). So a short run ends without delay, and a long run needs few checks.
const SENDER_CHECK_DIVISOR: u64 = 64;

/// Returns the time until the next check whether senders are done. `sending`: how long they have been sending.
pub(super) fn senders_check_interval(sending: Nanos) -> Nanos {
    Nanos::new(sending.as_u64() / SENDER_CHECK_DIVISOR).clamp(MIN_SENDER_CHECK_INTERVAL, MAX_WAIT_DURING_RUN)
}

impl<E: Endpoint> AgentShell<'_, E> {
    /// Returns the longest time for which the agent may wait for a message now.
    pub(super) fn longest_wait(&self) -> Nanos {
        match self.sending_since {
            // On a single machine the run ends only when the agent notices it, so the wait stays short there.
            _ if self.membership.is_some() && self.agent.is_idle() => MAX_WAIT_WITHOUT_RUN,
            Some(since) if self.agent.awaits_senders() => senders_check_interval(now().since(since)),
            _ => MAX_WAIT_DURING_RUN,
        }
    }
}
