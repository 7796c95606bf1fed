//! The ledger of a run: each account counts the frames that have reached one stage between sender and receiver. The
//! ledgers of ports and streams are merged, and then checked for balance.
//!
//! The table [`BALANCE_RULES`] lists the accounts that must add up. A rule is checked if the merged ledger has all
//! of its accounts and none of them is unknown. A rule is listed as unchecked if one of its accounts should have
//! been measured and could not. If no ledger has an account of a rule, the rule does not apply: a sender alone has no
//! accounts of a receiver.

use crate::port::{RxCounters, TxCounters};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An account of a ledger: a stage at which frames are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerAccount {
    /// Frames that were due by the time the sender stopped.
    Planned,
    /// Planned frames that were not built, because the sender stopped before.
    Unsent,
    /// Frames that were written into a send buffer.
    Built,
    /// Built frames that the kernel refused.
    Refused,
    /// Frames that the kernel accepted.
    HandedOver,
    /// Frames that the kernel accepted and that the interface dropped on transmit.
    TxDropped,
    /// Transmitted frames, according to the counter of the interface.
    OnWire,
    /// Received frames, according to the counter of the interface.
    Arrived,
    /// Arrived frames that were dropped because the receive ring was full.
    RingDropped,
    /// Frames that were delivered to the receiver of the rig.
    Seen,
    /// Frames that the receiver saw and that belong to none of the next four accounts.
    Foreign,
    /// Frames of the protocols of emulated interfaces and their neighbours.
    Protocol,
    /// Frames of another run of packetrig.
    OtherRuns,
    /// Frames of this run that are not expected at this port.
    Misdelivered,
    /// Frames that were recognised as frames of this run.
    Recognised,
    Counted,
    /// Recognised frames that are copies of counted ones.
    Duplicate,
    /// Recognised frames that arrived too late to be distinguished from copies.
    Stale,
    /// Frames that were recognised only by their headers, because the tag was damaged.
    Unnumbered,
    /// Frames that the receivers should have counted. A frame that should reach two ports counts twice.
    Expected,
    /// Expected frames that were never counted.
    Lost,
}

/// Where the accounts of a rule are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalanceRuleSide {
    Sender,
    Receiver,
    /// The rule compares the counts of senders and receivers.
    EndToEnd,
}

/// A rule that accounts must satisfy: `whole` = sum of `parts`.
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
    /// Accounts that should have been measured and could not, in at least one merged ledger.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unknown: BTreeSet<LedgerAccount>,
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerImbalance {
    pub rule: String,
    /// Where the accounts of the rule are counted.
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
        write!(f, "{place}: {} does not hold: left side {}, right side {}", self.rule, self.whole, self.parts)
    }
}

impl FrameLedger {
    /// Adds `frames` to an account.
    pub fn add_frames(&mut self, account: LedgerAccount, frames: u64) {
        let sum = self.counts.entry(account).or_default();
        // Counts from other machines may be as large as their types allow, so the sum saturates.
        *sum = sum.saturating_add(frames);
    }

    /// Moves frames that were added to one account to another.
    pub fn move_frames_between(&mut self, from: LedgerAccount, to: LedgerAccount, frames: u64) {
        // At most the frames of the account are moved, so that the sum of both accounts stays the same.
        let moved = frames.min(self.get(from).unwrap_or(0));
        // An account that was not measured stays absent.
        if let Some(sum) = self.counts.get_mut(&from).filter(|_| moved > 0) {
            *sum -= moved;
            self.add_frames(to, moved);
        }
    }

    /// Adds frames to an account. `None` means that they could not be measured: the account then counts as unknown.
    pub fn add_frames_if_measured(&mut self, account: LedgerAccount, frames: Option<u64>) {
        match frames {
            Some(frames) => self.add_frames(account, frames),
            // An unknown count is not 0: it makes the whole account unknown.
            None => drop(self.unknown.insert(account)),
        }
    }

    /// Adds the counters of a sending port.
    pub fn add_sending_port_counters(&mut self, tx: &TxCounters) {
        self.add_frames(LedgerAccount::Refused, tx.refused);
        self.add_frames(LedgerAccount::HandedOver, tx.handed_over);
        // An interface may lack these counters. The rules that use them are then listed as
        // unchecked, not as balanced.
        self.add_frames_if_measured(LedgerAccount::OnWire, tx.on_wire);
        self.add_frames_if_measured(LedgerAccount::TxDropped, tx.dropped);
    }

    /// Adds the counters of a receiving port, without its streams.
    pub fn add_receiving_port_counters(&mut self, rx: &RxCounters) {
        self.add_frames_if_measured(LedgerAccount::Arrived, rx.arrived);
        self.add_frames(LedgerAccount::RingDropped, rx.ring_dropped);
        self.add_frames(LedgerAccount::Seen, rx.seen);
        self.add_frames(LedgerAccount::Foreign, rx.foreign);
        self.add_frames(LedgerAccount::Protocol, rx.protocol);
        self.add_frames(LedgerAccount::Misdelivered, rx.misdelivered);
        self.add_frames(LedgerAccount::OtherRuns, rx.other_runs);
        // Unnumbered frames are part of the recognised frames; the streams add the other parts.
        self.add_frames(LedgerAccount::Recognised, rx.unnumbered);
        self.add_frames(LedgerAccount::Unnumbered, rx.unnumbered);
    }

    /// Returns the count of an account; `None` if no merged ledger has measured it.
    pub fn get(&self, account: LedgerAccount) -> Option<u64> {
        self.counts.get(&account).copied()
    }

    /// Returns all accounts with a count, in the order in which a frame passes through them.
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

    /// Returns the names of the rules that could not be checked, because an account that should have
    /// been measured was not.
    pub fn unchecked_rules(&self) -> Vec<&'static str> {
        BALANCE_RULES.iter().filter(|rule| self.has_unmeasured_account(rule)).map(|rule| rule.name).collect()
    }

    fn has_unmeasured_account(&self, rule: &BalanceRule) -> bool {
        rule.accounts().any(|account| self.unknown.contains(&account))
    }

    /// Checks a rule. `None` means that it cannot be checked, `Some(None)` that it holds.
    #[expect(clippy::option_option, reason = "not checkable and holding are different answers")]
    fn check_balance_rule(&self, rule: &BalanceRule) -> Option<Option<LedgerImbalance>> {
        // If one port could not measure an account, the sum of the account is too small: the rule would fail although
        // no frame is missing.
        if self.has_unmeasured_account(rule) {
            return None;
        }
        let whole = self.get(rule.whole)?;
        let mut parts: u64 = 0;
        for part in rule.parts {
            // If this ledger lacks an account, the rule does not apply: a sender alone has no accounts of a receiver.
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
    /// Returns all accounts of the rule, starting with `whole`.
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
        assert_eq!(
            wrong[0].to_string(),
            "our sender: planned = built + unsent does not hold: left side 10, right side 11"
        );
    }

    #[test]
    fn unmeasured_account_makes_ledger_rules_unchecked() {
        let mut all = sender(10, 0);
        all.add_frames_if_measured(LedgerAccount::HandedOver, Some(10));
        all.add_frames_if_measured(LedgerAccount::Refused, Some(0));
        let mut blind = sender(5, 0);
        blind.add_frames_if_measured(LedgerAccount::HandedOver, None);
        blind.add_frames_if_measured(LedgerAccount::Refused, Some(0));
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
