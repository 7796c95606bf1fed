//! The accounts every frame is in. A ledger is a value: merge it, then ask it to balance.
//!
//! One table, [`BALANCE_RULES`], lists the accounts that must add up. A rule is checked if every account of it was measured in every
//! part that was merged. It is listed as unchecked if a part should have measured an account and could not. A rule with an
//! account that no part has does not concern the ledger: a sender alone has no rules of a receiver.

use crate::port::{RxCounters, TxCounters};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Account of a ledger: a stage at which frames are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerAccount {
    /// The schedule requested the frame by the time the sender stopped.
    Planned,
    /// Planned, but the run ended before it was built.
    Unsent,
    /// Written into a send buffer.
    Built,
    /// The frame was built, but the kernel refused it.
    Refused,
    /// The kernel accepted the frame.
    HandedOver,
    /// The kernel took the frame, but the interface dropped it on transmit.
    TxDropped,
    /// Transmitted, as the interface counts.
    OnWire,
    /// The frame was received, by the counter of the interface.
    Arrived,
    /// Arrived, but our ring was full.
    RingDropped,
    /// Delivered to the receiver of the rig.
    Seen,
    /// The receiver saw the frame, but it is not of this run.
    Foreign,
    /// The frame is of the protocols of emulated interfaces and their neighbours.
    Protocol,
    /// The frame is of another run of packetrig.
    OtherRuns,
    /// The frame is of this run, but not expected at this port.
    Misdelivered,
    /// The frame is of this run.
    Recognised,
    Counted,
    /// Recognised, a copy of one counted.
    Duplicate,
    /// Recognised, too late to distinguish from a copy.
    Stale,
    /// Recognised by its headers only: the tag was damaged.
    Unnumbered,
    /// Copies of frames that receivers should have seen.
    Expected,
    /// Expected, and never counted.
    Lost,
}

/// Side that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalanceRuleSide {
    Sender,
    Receiver,
    /// The rule compares both ends.
    EndToEnd,
}

/// Accounts that must add up: `whole` = sum of `parts`.
#[derive(Clone, Copy, Debug)]
pub struct BalanceRule {
    pub name: &'static str,
    pub place: BalanceRuleSide,
    whole: LedgerAccount,
    parts: &'static [LedgerAccount],
}

pub const BALANCE_RULES: &[BalanceRule] = &[
    BalanceRule {
        name: "planned = built + unsent",
        place: BalanceRuleSide::Sender,
        whole: LedgerAccount::Planned,
        parts: &[LedgerAccount::Built, LedgerAccount::Unsent],
    },
    BalanceRule {
        name: "built = handed over + refused",
        place: BalanceRuleSide::Sender,
        whole: LedgerAccount::Built,
        parts: &[LedgerAccount::HandedOver, LedgerAccount::Refused],
    },
    BalanceRule {
        name: "handed over = on the wire + dropped by the interface",
        place: BalanceRuleSide::Sender,
        whole: LedgerAccount::HandedOver,
        parts: &[LedgerAccount::OnWire, LedgerAccount::TxDropped],
    },
    BalanceRule {
        name: "arrived = seen + dropped by our ring",
        place: BalanceRuleSide::Receiver,
        whole: LedgerAccount::Arrived,
        parts: &[LedgerAccount::Seen, LedgerAccount::RingDropped],
    },
    BalanceRule {
        name: "seen = recognised + misdelivered + other runs + protocol + foreign",
        place: BalanceRuleSide::Receiver,
        whole: LedgerAccount::Seen,
        parts: &[
            LedgerAccount::Recognised,
            LedgerAccount::Misdelivered,
            LedgerAccount::OtherRuns,
            LedgerAccount::Protocol,
            LedgerAccount::Foreign,
        ],
    },
    BalanceRule {
        name: "recognised = counted + duplicate + stale + unnumbered",
        place: BalanceRuleSide::Receiver,
        whole: LedgerAccount::Recognised,
        parts: &[
            LedgerAccount::Counted,
            LedgerAccount::Duplicate,
            LedgerAccount::Stale,
            LedgerAccount::Unnumbered,
        ],
    },
    BalanceRule {
        name: "expected = counted + lost",
        place: BalanceRuleSide::EndToEnd,
        whole: LedgerAccount::Expected,
        parts: &[LedgerAccount::Counted, LedgerAccount::Lost],
    },
];

/// Accounts and their counts. An account that was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameLedger {
    counts: BTreeMap<LedgerAccount, u64>,
    /// Accounts that some part of this ledger should have measured and could not.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unknown: BTreeSet<LedgerAccount>,
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerImbalance {
    pub rule: String,
    /// Side that the rule is about.
    pub place: BalanceRuleSide,
    pub whole: u64,
    pub parts: u64,
}

impl fmt::Display for LedgerImbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            BalanceRuleSide::Sender => "our sender",
            BalanceRuleSide::Receiver => "our receiver",
            BalanceRuleSide::EndToEnd => "end to end",
        };
        write!(f, "{place}: {} does not hold: {} against {}", self.rule, self.whole, self.parts)
    }
}

impl FrameLedger {
    /// Adds `frames` to an account.
    pub fn add_frames(&mut self, account: LedgerAccount, frames: u64) {
        let sum = self.counts.entry(account).or_default();
        // Parts may come from other machines, with counts as large as their types allow.
        *sum = sum.saturating_add(frames);
    }

    /// Moves frames that were added to one account to another.
    pub fn move_frames_between(&mut self, from: LedgerAccount, to: LedgerAccount, frames: u64) {
        // The number is limited to the frames of the account, so that the sum of both accounts stays the same.
        let moved = frames.min(self.get(from).unwrap_or(0));
        // An account that was not measured stays absent.
        if let Some(sum) = self.counts.get_mut(&from).filter(|_| moved > 0) {
            *sum -= moved;
            self.add_frames(to, moved);
        }
    }

    /// Adds an account that may not have been measured.
    pub fn add_measured_frames(&mut self, account: LedgerAccount, frames: Option<u64>) {
        match frames {
            Some(frames) => self.add_frames(account, frames),
            // An unknown count is absent and never 0. It also spoils the sum of the other parts.
            None => drop(self.unknown.insert(account)),
        }
    }

    /// Adds the counters of a sending port.
    pub fn add_sender(&mut self, tx: &TxCounters) {
        self.add_frames(LedgerAccount::Refused, tx.refused);
        self.add_frames(LedgerAccount::HandedOver, tx.handed_over);
        // An interface may lack this counter. A rule with an absent account is listed as unchecked, never as balanced.
        self.add_measured_frames(LedgerAccount::OnWire, tx.on_wire);
        self.add_measured_frames(LedgerAccount::TxDropped, tx.dropped);
    }

    /// Adds the counters of a receiving port, without its streams.
    pub fn add_receiver(&mut self, rx: &RxCounters) {
        self.add_measured_frames(LedgerAccount::Arrived, rx.arrived);
        self.add_frames(LedgerAccount::RingDropped, rx.ring_dropped);
        self.add_frames(LedgerAccount::Seen, rx.seen);
        self.add_frames(LedgerAccount::Foreign, rx.foreign);
        self.add_frames(LedgerAccount::Protocol, rx.protocol);
        self.add_frames(LedgerAccount::Misdelivered, rx.misdelivered);
        self.add_frames(LedgerAccount::OtherRuns, rx.other_runs);
        // Unnumbered frames are a part of the recognised ones; streams add the other parts.
        self.add_frames(LedgerAccount::Recognised, rx.unnumbered);
        self.add_frames(LedgerAccount::Unnumbered, rx.unnumbered);
    }

    /// Returns the count of an account; `None` if no part measured it.
    pub fn get(&self, account: LedgerAccount) -> Option<u64> {
        self.counts.get(&account).copied()
    }

    /// Returns all accounts that hold a count, in the order a frame goes through them.
    pub fn accounts(&self) -> impl Iterator<Item = (LedgerAccount, u64)> {
        self.counts.iter().map(|(account, frames)| (*account, *frames))
    }

    pub fn merge(&mut self, other: &Self) {
        for (account, frames) in &other.counts {
            self.add_frames(*account, *frames);
        }
        self.unknown.extend(&other.unknown);
    }

    /// Returns the rules that do not hold.
    pub fn find_imbalances(&self) -> Vec<LedgerImbalance> {
        BALANCE_RULES.iter().filter_map(|rule| self.check_balance_rule(rule)?).collect()
    }

    /// Returns the rules that could not be checked because an account that should have been measured was not.
    pub fn unchecked_rules(&self) -> Vec<&'static str> {
        BALANCE_RULES.iter().filter(|rule| self.lacks_account(rule)).map(|rule| rule.name).collect()
    }

    fn lacks_account(&self, rule: &BalanceRule) -> bool {
        rule.accounts().any(|account| self.unknown.contains(&account))
    }

    /// Checks a rule. `None`: it cannot be checked; `Some(None)`: it holds.
    #[expect(clippy::option_option, reason = "not checkable and holding are different answers")]
    fn check_balance_rule(&self, rule: &BalanceRule) -> Option<Option<LedgerImbalance>> {
        // One part that could not measure an account makes its sum too small, so the rule would fail without a fault.
        if self.lacks_account(rule) {
            return None;
        }
        let whole = self.get(rule.whole)?;
        let mut parts: u64 = 0;
        for part in rule.parts {
            // An account that no part has does not concern this ledger: a sender alone has no rules of a receiver.
            parts = parts.saturating_add(self.get(*part)?);
        }
        Some((whole != parts).then(|| LedgerImbalance {
            rule: rule.name.into(),
            place: rule.place,
            whole,
            parts,
        }))
    }
}

impl BalanceRule {
    /// Returns all accounts of the rule, the whole first.
    pub fn accounts(&self) -> impl Iterator<Item = LedgerAccount> {
        std::iter::once(self.whole).chain(self.parts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sender(planned: u64, unsent: u64) -> FrameLedger {
        let mut ledger = FrameLedger::default();
        ledger.add_frames(LedgerAccount::Planned, planned);
        ledger.add_frames(LedgerAccount::Unsent, unsent);
        ledger.add_frames(LedgerAccount::Built, planned - unsent);
        ledger
    }

    #[test]
    fn an_imbalance_names_the_rule_and_the_side() {
        let mut ledger = sender(10, 0);
        assert_eq!(ledger.find_imbalances(), []);
        ledger.add_frames(LedgerAccount::Unsent, 1);
        let wrong = ledger.find_imbalances();
        assert_eq!(wrong[0].to_string(), "our sender: planned = built + unsent does not hold: 10 against 11");
    }

    #[test]
    fn unmeasured_account_makes_ledger_rules_unchecked() {
        let mut all = sender(10, 0);
        all.add_measured_frames(LedgerAccount::HandedOver, Some(10));
        all.add_measured_frames(LedgerAccount::Refused, Some(0));
        let mut blind = sender(5, 0);
        blind.add_measured_frames(LedgerAccount::HandedOver, None);
        blind.add_measured_frames(LedgerAccount::Refused, Some(0));
        all.merge(&blind);
        assert_eq!(all.find_imbalances(), []);
        assert_eq!(
            all.unchecked_rules(),
            ["built = handed over + refused", "handed over = on the wire + dropped by the interface"]
        );
    }

    proptest! {
        #[test]
        fn balanced_ledgers_stay_balanced_in_any_order(parts in prop::collection::vec((0u64..1000, 0u64..1000), 1..6)) {
            let ledgers: Vec<FrameLedger> = parts.iter().map(|(a, b)| sender(a + b, *b)).collect();
            let fold = |list: &mut dyn Iterator<Item = &FrameLedger>| list.fold(FrameLedger::default(), |mut sum, l| { sum.merge(l); sum });
            let forward = fold(&mut ledgers.iter());
            prop_assert_eq!(&forward, &fold(&mut ledgers.iter().rev()));
            prop_assert_eq!(forward.find_imbalances(), []);
        }
    }
}
