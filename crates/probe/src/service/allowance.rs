//! Limits the work that the service does for a client besides sending: messages,
//! refused packets, look-ups, connections.
//!
//! Work is counted in units of some microseconds each. A sent packet refunds the cost of a message, so a
//! program that sends the packets that it submits is never slowed, even with small batches. If a client has
//! used up its allowance, the service does not read from it until the allowance has grown again. All clients
//! of a user share a second allowance, so that more or new connections give no additional work. A client that
//! requests little is not slowed by other clients of its user.
//!
//! Invariant: in any interval of `t` seconds, at most `burst + t * per_s` units and one message are charged
//! to an allowance, not counting refunded units.

use packetrig_units::{MonoTime, Nanos};

/// Costs of work, in units.
pub mod work {
    pub const MESSAGE_COST: u64 = 5;
    pub const UNSENT_PACKET_COST: u64 = 1;
    /// Units that are refunded for a sent packet.
    pub const SENT_PACKET_REFUND: u64 = MESSAGE_COST;
    /// Cost of looking up the path to a target, or the user of a port, if the service does not know it yet.
    pub const LOOK_UP_COST: u64 = 10;
    /// Number of queued packets that may be searched for one unit.
    pub const QUEUED_PACKETS_PER_UNIT: u64 = 64;
}

/// A bucket of units that refills steadily. Its level may become negative, because the cost of a message is
/// known only after the work.
#[derive(Clone, Debug)]
pub struct WorkAllowance {
    /// Time in which one unit is refilled.
    unit: Nanos,
    burst: u64,
    full_at: MonoTime,
}

impl WorkAllowance {
    /// The allowance of one connection: 5000 units/s, and at once the units for two full default
    /// quotas of refused packets.
    const fn for_client() -> Self {
        Self::new(Nanos::from_micros(200), 10_000)
    }

    /// The allowance that a client has even if other clients of its user are busy: 500 units/s.
    const fn for_modest_client() -> Self {
        Self::new(Nanos::from_millis(2), 200)
    }

    /// The allowance of all connections of a user: 20 000 units/s.
    pub const fn for_user() -> Self {
        Self::new(Nanos::from_micros(50), 40_000)
    }

    /// The allowance for new connections of a user: 100 a second. Here, a unit is a connection.
    pub const fn for_connections() -> Self {
        Self::new(Nanos::from_millis(10), 200)
    }

    const fn new(unit: Nanos, burst: u64) -> Self {
        Self { unit, burst, full_at: MonoTime::from_nanos(0) }
    }

    pub fn spend_units(&mut self, units: u64, now: MonoTime) {
        // A virtual clock: the allowance is full again at `full_at`, and each unit moves that time by its own cost.
        self.full_at = self.full_at.max(now) + self.refill_time(units);
    }

    /// Gives units back to the allowance, which never exceeds its burst.
    pub fn refund_units(&mut self, units: u64) {
        let full_at = self.full_at.as_nanos().saturating_sub(self.refill_time(units).as_u64());
        self.full_at = MonoTime::from_nanos(full_at);
    }

    /// Returns how long the service must wait until it may do more work; zero means now.
    pub fn needed_pause(&self, now: MonoTime) -> Nanos {
        let used = self.full_at.since(now).as_u64();
        Nanos::new(used.saturating_sub(self.refill_time(self.burst).as_u64()))
    }

    const fn refill_time(&self, units: u64) -> Nanos {
        Nanos::new(self.unit.as_u64().saturating_mul(units))
    }
}

/// The allowance of one client.
#[derive(Clone, Debug)]
pub struct ClientAllowance {
    whole: WorkAllowance,
    modest: WorkAllowance,
}

impl Default for ClientAllowance {
    fn default() -> Self {
        Self { whole: WorkAllowance::for_client(), modest: WorkAllowance::for_modest_client() }
    }
}

impl ClientAllowance {
    pub fn spend_units(&mut self, units: u64, now: MonoTime) {
        self.whole.spend_units(units, now);
        self.modest.spend_units(units, now);
    }

    pub fn refund_units(&mut self, units: u64) {
        self.whole.refund_units(units);
        self.modest.refund_units(units);
    }

    /// Time for which the service does not read from the client. `of_user` is the pause for all clients of its user.
    pub fn needed_pause(&self, of_user: Nanos, now: MonoTime) -> Nanos {
        // The modest allowance comes last: a client within it is never paused, however busy its user is.
        self.whole.needed_pause(now).max(of_user).min(self.modest.needed_pause(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modest_client_is_not_slowed_by_same_user() {
        let forever = Nanos::from_secs(1_000);
        let mut client = ClientAllowance::default();
        for ms in 0..10_000 {
            if ms % 10 == 0 {
                assert_eq!(client.needed_pause(forever, at(ms)), Nanos::ZERO, "a hundred messages a second");
                client.spend_units(work::MESSAGE_COST, at(ms));
            }
        }
        client.spend_units(1_000, at(10_000));
        assert!(client.needed_pause(forever, at(10_000)) > Nanos::from_secs(1));
        assert_eq!(client.needed_pause(Nanos::ZERO, at(10_000)), Nanos::ZERO, "the user has something left");
    }

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(10_000_000_000 + ms * 1_000_000)
    }

    /// Units that a client gets done in ten seconds, with this cost of a message and this many units given back for it.
    fn done(cost: u64, given_back: u64) -> u64 {
        let mut allowance = WorkAllowance::for_client();
        let mut done = 0;
        for ms in 0..10_000 {
            // A flood: 32 messages in each millisecond, as far as it may.
            for _ in 0..32 {
                if allowance.needed_pause(at(ms)) > Nanos::ZERO {
                    break;
                }
                allowance.spend_units(cost, at(ms));
                allowance.refund_units(given_back);
                done += cost;
            }
        }
        done
    }

    #[test]
    fn flood_is_limited_to_burst_then_rate() {
        for cost in [1, 33, 1_025] {
            let done = done(cost, 0);
            let most = 10_000 + 10 * 5_000 + cost;
            assert!(done <= most && done >= most - 2 * cost - 10, "{cost}: {done} of {most}");
        }
    }

    #[test]
    fn client_that_sends_its_packets_is_never_slowed() {
        assert_eq!(done(1, 1), 32 * 10_000);
    }

    #[test]
    fn returned_allowance_is_not_saved_up() {
        let mut allowance = WorkAllowance::for_client();
        allowance.refund_units(1_000_000);
        allowance.spend_units(10_001, at(0));
        assert_eq!(allowance.needed_pause(at(0)), Nanos::from_micros(200));
        assert_eq!(allowance.needed_pause(at(1)), Nanos::ZERO);
        allowance.spend_units(1_000, at(1));
        assert_eq!(allowance.needed_pause(at(100)), Nanos::from_micros(200_200 - 100_000));
    }
}
