//! Comparing clocks: the controller answers probes ([`Responder`]), every node sends them ([`Prober`]).
//!
//! Datagrams go straight between the two machines, past the fabric, whose queues would be in the way. What they say is
//! sealed with the run's key, so that nobody else can move a node's clock. How far off a clock is, and how sure that is,
//! is [`packetrig_fleet::clock`]'s business.

mod probe;
mod prober;
mod responder;

pub use prober::Prober;
pub use responder::Responder;

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::ClockKey;
    use packetrig_units::Nanos;

    #[test]
    fn one_clock_compared_with_itself_is_found_to_be_one() {
        let responder = Responder::start(ClockKey([3; 32]), "here".into()).unwrap();
        let prober = Prober::start(responder.server().clone()).unwrap();
        let fit = prober.fit(Nanos::from_secs(20)).expect("answered");
        assert!(Nanos::new(fit.offset_ns.unsigned_abs()) <= fit.bound, "{fit:?}");
        assert!(fit.bound > Nanos::ZERO && fit.bound < Nanos::from_millis(20), "{fit:?}");
        let last = prober.last_fit(Nanos::from_secs(20)).expect("answered again");
        assert!(fit.agrees_with(&last), "{fit:?} {last:?}");
    }

    #[test]
    fn who_has_another_key_is_not_answered() {
        let responder = Responder::start(ClockKey([3; 32]), "here".into()).unwrap();
        let mut server = responder.server().clone();
        server.key = ClockKey([4; 32]);
        let prober = Prober::start(server).unwrap();
        assert_eq!(prober.fit(Nanos::from_millis(100)), None);
    }
}
