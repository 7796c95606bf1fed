//! Retries enrolment with growing pauses, because many nodes may join at once, or the fleet may not be reachable yet.
//!
//! Each pause is drawn at random from a range that doubles, so nodes that were refused together do not return together.

use super::client::{NodeKey, enrol_node_with_key};
use super::{Error, FleetMembership, JoinLine};
use packetrig_fleet::message::NodeName;
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

/// Upper bound of the first pause.
const MAX_FIRST_PAUSE: Duration = Duration::from_millis(400);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);
/// Maximum number of attempts. The pauses between them take 65 to 130 seconds in total.
const MAX_ENROL_ATTEMPTS: u32 = 14;

/// Joins the fleet of `line` as `name`, with this key. After a temporary failure, calls `on_failure` and tries again.
/// Returns the error of the last attempt, or the first error that is not temporary.
pub fn enrol_with_retries(
    line: &JoinLine,
    name: &NodeName,
    key: &NodeKey,
    on_failure: &mut dyn FnMut(&Error),
) -> Result<FleetMembership, Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match enrol_node_with_key(line, name, key) {
            Err(error) if error.is_temporary() && attempt < MAX_ENROL_ATTEMPTS => {
                on_failure(&error);
                std::thread::sleep(random_pause_after_attempt(attempt, random_u32_or_zero()));
            }
            done => return done,
        }
    }
}

/// Returns a random number; 0 if the system returns none. Then this node waits for the shortest pause.
fn random_u32_or_zero() -> u32 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u32::from_be_bytes(bytes),
        Err(_) => 0,
    }
}

/// Returns the pause after this attempt: between half of its upper bound (`drawn` is 0) and the whole bound.
fn random_pause_after_attempt(attempt: u32, drawn: u32) -> Duration {
    let range = MAX_RETRY_PAUSE.min(MAX_FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(attempt - 1)));
    let half = range / 2;
    half + half.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_pause_doubles_to_limit_with_jitter() {
        let ranges: Vec<Duration> =
            (1..=MAX_ENROL_ATTEMPTS).map(|attempt| random_pause_after_attempt(attempt, u32::MAX)).collect();
        assert_eq!(ranges[..3], [MAX_FIRST_PAUSE, 2 * MAX_FIRST_PAUSE, 4 * MAX_FIRST_PAUSE]);
        assert!(ranges.is_sorted() && ranges.ends_with(&[MAX_RETRY_PAUSE]));
        assert!((1..=40).all(|attempt| random_pause_after_attempt(attempt, 0) * 2
            <= random_pause_after_attempt(attempt, u32::MAX) + Duration::from_nanos(9)));
        assert!(random_pause_after_attempt(3, 1 << 30) < random_pause_after_attempt(3, 1 << 31));
    }
}
