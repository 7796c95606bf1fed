//! Compares the clocks of nodes with the controller's clock: every node sends clock probes ([`ClockProber`]), and the
//! controller answers them ([`ClockResponder`]).
//!
//! The probes are UDP datagrams that go directly between the two machines, not through the fabric: its queues would add
//! delay. They are authenticated with a key of the node, so that no other machine can falsify the result.
//! [`packetrig_stats::exchange`] computes the offset of a clock and its error bound from the answers.

mod addresses;
mod probe;
mod prober;
mod responder;

pub(crate) use addresses::check_clock_addresses;
pub use prober::ClockProber;
pub use responder::{ClockResponder, clock_server_with_node_key};

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::{ClockKey, ClockServer};
    use packetrig_report::NodeName;
    use packetrig_units::Nanos;

    fn node(name: &str) -> NodeName {
        NodeName(name.into())
    }

    #[test]
    fn same_clock_fit_stays_within_bound() {
        let responder = ClockResponder::start_responding(ClockKey([3; 32]), "here".into()).unwrap();
        let prober =
            ClockProber::start_probing(clock_server_with_node_key(responder.server(), &node("a"))).unwrap();
        let fit = prober.wait_for_fit(Nanos::from_secs(20)).expect("answered");
        assert!(Nanos::new(fit.offset_ns.unsigned_abs()) <= fit.bound, "{fit:?}");
        assert!(fit.bound > Nanos::ZERO && fit.bound < Nanos::from_millis(20), "{fit:?}");
        let last = prober.measure_final_fit(Nanos::from_secs(20)).expect("answered again");
        assert!(fit.agrees_with_fit(&last), "{fit:?} {last:?}");
    }

    #[test]
    fn clock_probe_with_foreign_key_is_unanswered() {
        let responder = ClockResponder::start_responding(ClockKey([3; 32]), "here".into()).unwrap();
        let own = clock_server_with_node_key(responder.server(), &node("a"));
        let other = clock_server_with_node_key(responder.server(), &node("b"));
        assert!(own.key != other.key && own.key_number != other.key_number);
        assert!(own.key != responder.server().key, "no node learns the controller's key");
        // The key of one node with the number of another, and the controller's own number with neither.
        for key_number in [other.key_number, 0] {
            let forged = ClockServer { key_number, ..own.clone() };
            assert_eq!(
                ClockProber::start_probing(forged).unwrap().wait_for_fit(Nanos::from_millis(100)),
                None
            );
        }
    }
}
