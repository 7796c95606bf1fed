//! Which mechanism, when nobody insists on one.
//!
//! The sender with real-time priority that sleeps and then spins was, under load and by one probe in a hundred, mostly as exact as a program
//! that holds frames back in the kernel (docs/results/probe). It needs nothing of the interface and keeps nothing of the kernel's waiting, so it
//! is the usual one. Where a calibration found it more than twice as far off, the gate is taken, if it can be had.

use crate::{Mechanism, Spread};
use serde::{Deserialize, Serialize};

/// How exact a mechanism was, by the far end's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exactness {
    /// Which.
    pub mechanism: Mechanism,
    /// From the instant to the arrival, in nanoseconds: half of the probes were below.
    pub p50_ns: i64,
    /// All but one in a hundred were below.
    pub p99_ns: i64,
    /// The largest.
    pub most_ns: i64,
}

impl Exactness {
    /// From errors.
    pub const fn of(mechanism: Mechanism, errors: Spread) -> Self {
        Self { mechanism, p50_ns: errors.p50, p99_ns: errors.p99, most_ns: errors.most }
    }
}

/// What a calibration found, for kernels and drivers like this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Release of the kernel.
    pub kernel: String,
    /// Driver of the interface.
    pub driver: String,
    /// How exact each mechanism was.
    pub mechanisms: Vec<Exactness>,
}

/// A mechanism that this interface can have, and why it.
pub fn choose(can: impl Fn(Mechanism) -> bool, found: Option<&Calibration>) -> (Mechanism, String) {
    let exactness = |wanted| {
        let all = found.map_or(&[][..], |found| &found.mechanisms);
        all.iter().find(|exact| exact.mechanism == wanted).map(|exact| exact.p99_ns)
    };
    match (exactness(Mechanism::Spin), exactness(Mechanism::Gate)) {
        (Some(spin), Some(gate)) if spin <= gate.saturating_mul(2) => {
            (Mechanism::Spin, format!("calibrated: p99 {spin} ns when spinning, {gate} ns with a gate"))
        }
        (Some(_), Some(_)) if !can(Mechanism::Gate) => {
            (Mechanism::Spin, "calibrated for the gate, which cannot be had here".into())
        }
        (Some(spin), Some(gate)) => {
            (Mechanism::Gate, format!("calibrated: p99 {gate} ns, less than half of {spin} ns when spinning"))
        }
        _ => (Mechanism::Spin, "the usual one; `packetrig probe calibrate` compares it with others".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(spin: i64, gate: i64) -> Calibration {
        let exact = |mechanism, p99_ns| Exactness { mechanism, p50_ns: 1, p99_ns, most_ns: p99_ns };
        Calibration {
            kernel: "6".into(),
            driver: "veth".into(),
            mechanisms: vec![exact(Mechanism::Spin, spin), exact(Mechanism::Gate, gate)],
        }
    }

    #[test]
    fn a_gate_is_taken_where_spinning_was_found_more_than_twice_as_far_off() {
        assert_eq!(choose(|_| true, None).0, Mechanism::Spin);
        assert_eq!(choose(|_| false, None).0, Mechanism::Spin);
        assert_eq!(choose(|_| true, Some(&calibration(200, 100))).0, Mechanism::Spin);
        assert_eq!(choose(|_| true, Some(&calibration(201, 100))).0, Mechanism::Gate);
        assert_eq!(choose(|_| false, Some(&calibration(201, 100))).0, Mechanism::Spin);
        let without = Calibration { mechanisms: vec![], ..calibration(0, 0) };
        assert_eq!(choose(|_| true, Some(&without)).0, Mechanism::Spin);
    }
}
