//! Sides that take no frame, and interfaces that are gone: said once, while there is time to do something about it.

use packetrig_engine::tap::{TapAccounts, TapDirection, TapLossCause};
use std::collections::BTreeMap;

/// What each direction had come to when it was looked at last, and whether it was told.
#[derive(Default)]
pub(super) struct TapDeafness {
    past: BTreeMap<String, DeafPast>,
    gone: Vec<String>,
}

#[derive(Default)]
struct DeafPast {
    forwarded: u64,
    not_taken: u64,
    told: bool,
}

impl TapDeafness {
    /// What is to be said after a look at the accounts.
    pub(super) fn remarks(&mut self, accounts: &TapAccounts) -> Vec<String> {
        accounts.directions.iter().filter_map(|direction| self.remark(direction)).collect()
    }

    /// What is to be said of interfaces that are gone by now.
    pub(super) fn losses(&mut self, gone: &[String]) -> Vec<String> {
        let new: Vec<String> = gone.iter().filter(|name| !self.gone.contains(name)).cloned().collect();
        let said = new.iter().map(|name| loss(name)).collect();
        self.gone.extend(new);
        said
    }

    fn remark(&mut self, direction: &TapDirection) -> Option<String> {
        let forwarded = direction.forwarded?;
        let dropped = |cause| direction.dropped.get(&cause).copied().unwrap_or(0);
        let not_taken = dropped(TapLossCause::PassedOver) + dropped(TapLossCause::Deaf);
        let past = self.past.entry(direction.to.clone()).or_default();
        let lost = not_taken.saturating_sub(past.not_taken);
        let is_deaf = lost > 0 && forwarded == past.forwarded;
        (past.forwarded, past.not_taken) = (forwarded, not_taken);
        if !is_deaf || std::mem::replace(&mut past.told, true) {
            return None;
        }
        // Which of them it is the kernel says only where a frame has one exit.
        let others = if dropped(TapLossCause::PassedOver) > 0 {
            "it is down, or its MTU is too small, or "
        } else {
            ""
        };
        Some(format!(
            "{} refused the last {lost} frames: {others}it is a virtual cable whose far end no longer has GRO \
                on or an XDP program; `--back-end packet` forwards to such a cable",
            direction.to
        ))
    }
}

/// Of an interface that is gone.
pub(super) fn loss(name: &str) -> String {
    format!("{name} is gone: frames for it are dropped; restart the tap to use a new interface of that name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(forwarded: u64, passed_over: u64) -> TapAccounts {
        not_taken(forwarded, TapLossCause::PassedOver, passed_over)
    }

    fn not_taken(forwarded: u64, cause: TapLossCause, frames: u64) -> TapAccounts {
        let dropped = [(cause, frames)].into();
        let direction =
            TapDirection { to: "b".into(), forwarded: Some(forwarded), dropped, ..TapDirection::default() };
        TapAccounts { directions: vec![direction], ..TapAccounts::default() }
    }

    #[test]
    fn a_side_that_takes_nothing_is_named_once() {
        let mut deafness = TapDeafness::default();
        assert!(deafness.remarks(&accounts(10, 0)).is_empty());
        assert!(deafness.remarks(&accounts(20, 5)).is_empty(), "it takes some");
        let said = deafness.remarks(&accounts(20, 9));
        assert!(said.len() == 1 && said[0].starts_with("b refused the last 4 frames"), "{said:?}");
        assert!(deafness.remarks(&accounts(20, 12)).is_empty(), "it is known");
    }

    #[test]
    fn where_the_kernel_says_why_nothing_else_is_supposed() {
        let said = TapDeafness::default().remarks(&not_taken(0, TapLossCause::Deaf, 7));
        assert!(
            said.len() == 1 && said[0].contains("refused the last 7 frames: it is a virtual"),
            "{said:?}"
        );
        assert!(
            TapDeafness::default().remarks(&not_taken(0, TapLossCause::Down, 7)).is_empty(),
            "it is known to be down"
        );
    }

    #[test]
    fn an_interface_that_is_gone_is_named_once() {
        let mut deafness = TapDeafness::default();
        assert!(deafness.losses(&[]).is_empty());
        let said = deafness.losses(&["m0".into()]);
        assert!(said.len() == 1 && said[0].starts_with("m0 is gone"), "{said:?}");
        let said = deafness.losses(&["m0".into(), "b".into()]);
        assert!(said.len() == 1 && said[0].starts_with("b is gone"), "{said:?}");
    }
}
