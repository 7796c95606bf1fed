//! Sides that take no frame: said once, while there is time to do something about it.

use packetrig_engine::tap::{Accounts, Cause, Direction};
use std::collections::BTreeMap;

/// What each direction had come to when it was looked at last, and whether it was told.
#[derive(Default)]
pub(super) struct Deafness(BTreeMap<String, Past>);

#[derive(Default)]
struct Past {
    forwarded: u64,
    passed_over: u64,
    told: bool,
}

impl Deafness {
    /// What is to be said after a look at the accounts.
    pub(super) fn remarks(&mut self, accounts: &Accounts) -> Vec<String> {
        accounts.directions.iter().filter_map(|direction| self.remark(direction)).collect()
    }

    fn remark(&mut self, direction: &Direction) -> Option<String> {
        let forwarded = direction.forwarded?;
        let passed_over = direction.dropped.get(&Cause::PassedOver).copied().unwrap_or(0);
        let past = self.0.entry(direction.to.clone()).or_default();
        let lost = passed_over.saturating_sub(past.passed_over);
        let is_deaf = lost > 0 && forwarded == past.forwarded;
        (past.forwarded, past.passed_over) = (forwarded, passed_over);
        if !is_deaf || std::mem::replace(&mut past.told, true) {
            return None;
        }
        Some(format!(
            "{} took none of the last {lost} frames: it is down, or its MTU is too small, or it is a virtual cable whose far \
             end has neither GRO on nor a program any more; `--back-end packet` forwards to such a cable",
            direction.to
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(forwarded: u64, passed_over: u64) -> Accounts {
        let dropped = [(Cause::PassedOver, passed_over)].into();
        let direction =
            Direction { to: "b".into(), forwarded: Some(forwarded), dropped, ..Direction::default() };
        Accounts { directions: vec![direction], ..Accounts::default() }
    }

    #[test]
    fn a_side_that_takes_nothing_is_named_once() {
        let mut deafness = Deafness::default();
        assert!(deafness.remarks(&accounts(10, 0)).is_empty());
        assert!(deafness.remarks(&accounts(20, 5)).is_empty(), "it takes some");
        let said = deafness.remarks(&accounts(20, 9));
        assert!(said.len() == 1 && said[0].starts_with("b took none of the last 4 frames"), "{said:?}");
        assert!(deafness.remarks(&accounts(20, 12)).is_empty(), "it is known");
    }
}
