//! Divides the limits of each target among the clients that probe it.
//!
//! Each client that has probed a target lately has an equal share of its rate and of its bursts, which nobody can take away. What others do
//! not use it may use, too, as long as at least half of the target's burst is left for others.
//!
//! Invariant: all clients together never exceed the limits of the target.

use super::ClientId;
use crate::{BudgetExceeded, PermittedTarget, ProbeBudget, TargetLimits};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A client that has not probed a target for this long has no share of its limits.
const ACTIVE: Nanos = Nanos::from_secs(10);
/// Targets at a time. A permit can allow millions, and clients must not make the service keep account of all of them.
const MOST_TARGETS: usize = 65_536;

#[derive(Debug)]
struct ClientShare {
    budget: ProbeBudget,
    /// Probes of this client in all.
    taken: u64,
    seen_at: MonoTime,
}

#[derive(Debug)]
struct SharedTarget {
    budget: ProbeBudget,
    clients: BTreeMap<ClientId, ClientShare>,
}

#[derive(Debug, Default)]
pub struct TargetShares {
    targets: BTreeMap<IpAddr, SharedTarget>,
}

impl TargetShares {
    /// Takes the frames of a whole train, each with its departure time and length. A refusal takes nothing.
    pub fn take(
        &mut self,
        client: ClientId,
        target: PermittedTarget,
        train: &[(MonoTime, u32)],
        now: MonoTime,
    ) -> Result<(), BudgetExceeded> {
        let limits = target.limits();
        if self.targets.len() >= MOST_TARGETS && !self.targets.contains_key(&target.ip()) {
            self.forget_idle(now);
            if self.targets.len() >= MOST_TARGETS {
                return Err(BudgetExceeded::Most(limits));
            }
        }
        // How many probes one client sends in all is a limit of each client, as it is of each command.
        let of_all = TargetLimits { most: u64::MAX, ..limits };
        let shared = self
            .targets
            .entry(target.ip())
            .or_insert_with(|| SharedTarget { budget: ProbeBudget::new(of_all), clients: BTreeMap::new() });
        shared.budget = shared.budget.clone().with_limits(of_all);
        shared.take(client, limits, train, now)
    }

    /// Forgets a client.
    pub fn remove_client(&mut self, client: ClientId) {
        self.targets.values_mut().for_each(|shared| drop(shared.clients.remove(&client)));
    }

    /// Forgets targets that nobody has probed lately, so that memory is bounded by what is in use.
    pub fn forget_idle(&mut self, now: MonoTime) {
        self.targets.retain(|_, shared| !shared.clients.is_empty() || !shared.budget.is_full(now));
    }
}

impl SharedTarget {
    fn take(
        &mut self,
        client: ClientId,
        limits: TargetLimits,
        train: &[(MonoTime, u32)],
        now: MonoTime,
    ) -> Result<(), BudgetExceeded> {
        let own = self.clients.entry(client).or_insert_with(|| ClientShare {
            budget: ProbeBudget::new(limits),
            taken: 0,
            seen_at: now,
        });
        own.seen_at = now;
        if own.taken + train.len() as u64 > limits.most {
            return Err(BudgetExceeded::Most(limits));
        }
        let active = self.clients.values().filter(|share| now.since(share.seen_at) < ACTIVE).count();
        let share = share_of(limits, active as u64);
        let Some(own) = self.clients.get_mut(&client) else { return Err(BudgetExceeded::Most(limits)) };
        let mut within = own.budget.clone().with_limits(share);
        let all = taken_whole(&self.budget, train)?;
        if take_all(&mut within, train).is_ok() {
            own.budget = within;
        } else {
            // Beyond its own share: only what leaves half of the burst to others.
            let half = TargetLimits { burst: limits.burst / 2, ..self.budget.limits() };
            taken_whole(&self.budget.clone().with_limits(half), train)?;
        }
        self.budget = all;
        own.taken += train.len() as u64;
        Ok(())
    }
}

/// An equal share of the limits for one of so many clients.
fn share_of(limits: TargetLimits, clients: u64) -> TargetLimits {
    let clients = clients.max(1);
    TargetLimits {
        probes_per_s: limits.probes_per_s / clients,
        bits_per_s: limits.bits_per_s / clients,
        burst: u32::try_from(u64::from(limits.burst) / clients).unwrap_or(limits.burst).max(1),
        most: u64::MAX,
        ..limits
    }
}

/// The budget after all frames; an error if one does not fit.
fn taken_whole(budget: &ProbeBudget, train: &[(MonoTime, u32)]) -> Result<ProbeBudget, BudgetExceeded> {
    let mut after = budget.clone();
    take_all(&mut after, train)?;
    Ok(after)
}

fn take_all(budget: &mut ProbeBudget, train: &[(MonoTime, u32)]) -> Result<(), BudgetExceeded> {
    train.iter().try_for_each(|(at, length)| budget.take(*at, *length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProbePermit;

    fn target(text: &str) -> PermittedTarget {
        let permit = ProbePermit::from_text(text).unwrap();
        permit.permitted("10.0.0.1".parse().unwrap(), "2026-11-25").unwrap()
    }

    fn usual() -> PermittedTarget {
        target(
            "[[target]]\nnetwork = \"10.0.0.0/8\"\nprobes_per_s = 1000\nbits_per_s = \"10Gbps\"\nburst = 40\nmost = 100000",
        )
    }

    /// What each client gets of a second in which it wants a probe every so many microseconds.
    fn second(wanted_us: &[u64]) -> Vec<u64> {
        let mut shares = TargetShares::default();
        let mut got = vec![0; wanted_us.len()];
        for us in 0..1_000_000 {
            for (client, every) in wanted_us.iter().enumerate() {
                if us % every == 0 {
                    let at = MonoTime::from_nanos(5_000_000_000 + us * 1_000);
                    let id = ClientId(u32::try_from(client).unwrap());
                    got[client] += u64::from(shares.take(id, usual(), &[(at, 60)], at).is_ok());
                }
            }
        }
        got
    }

    #[test]
    fn one_client_alone_has_all_of_the_limits() {
        let got = second(&[100]);
        assert!((1_000..=1_041).contains(&got[0]), "{got:?}");
    }

    #[test]
    fn ten_clients_stay_inside_their_shares_whatever_one_of_them_wants() {
        // Nine want exactly their share, one wants a hundred times as much.
        let mut wanted = vec![10_000; 9];
        wanted.push(100);
        let got = second(&wanted);
        assert!(got[..9].iter().all(|got| *got == 100), "{got:?}");
        assert!((100..=141).contains(&got[9]), "{got:?}");
        assert!(got.iter().sum::<u64>() <= 1_041);
    }

    #[test]
    fn what_others_do_not_use_can_be_used() {
        let got = second(&[100, 20_000]);
        assert_eq!(got[1], 50);
        assert!((940..=995).contains(&got[0]), "{got:?}");
    }

    #[test]
    fn a_train_is_taken_whole_or_not_at_all() {
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        assert!(shares.take(ClientId(1), usual(), &[(at, 60); 41], at).is_err());
        shares.take(ClientId(1), usual(), &[(at, 60); 40], at).unwrap();
        assert!(shares.take(ClientId(1), usual(), &[(at, 60)], at).is_err());
    }

    #[test]
    fn the_number_of_probes_in_all_is_bounded_for_each_client() {
        let few = target("[[target]]\nnetwork = \"10.0.0.0/8\"\nmost = 3\nburst = 9");
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        for _ in 0..3 {
            shares.take(ClientId(1), few, &[(at, 60)], at).unwrap();
        }
        assert!(matches!(shares.take(ClientId(1), few, &[(at, 60)], at), Err(BudgetExceeded::Most(_))));
        shares.take(ClientId(2), few, &[(at, 60)], at).unwrap();
    }

    #[test]
    fn coming_back_with_another_number_gives_no_more_than_the_limits() {
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        let mut got = 0;
        for client in 0..1_000 {
            got += u64::from(shares.take(ClientId(client), usual(), &[(at, 60)], at).is_ok());
            shares.remove_client(ClientId(client));
            shares.forget_idle(at);
        }
        assert_eq!(got, 40);
    }
}
