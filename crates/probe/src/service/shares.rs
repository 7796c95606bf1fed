//! Divides the limits of each target among the users that probe it, and the share of each user among the
//! clients of that user.
//!
//! Each user with clients that have probed a target lately has an equal share of its rate and of its bursts,
//! which no other user can take. Each client of a user has an equal part of that share, so running more
//! programs gives a user no advantage. A client may also use the unused shares of other users, as long as at
//! least half of the burst is left for them.
//!
//! The limit for the total number of probes to a target applies to each user separately. It holds as long as the
//! service runs, whether the user's clients stay connected or not.
//!
//! Invariant: all clients together never exceed the limits of the target.

use super::ClientId;
use crate::{BudgetExceeded, PermittedTarget, ProbeBudget, TargetLimits};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A client that has not probed a target for this long has no share of its limits.
const ACTIVE_CLIENT_TIME: Nanos = Nanos::from_secs(10);
/// Maximum number of targets of one user at a time. A permit can allow millions of targets, and clients must
/// not make the service keep an account for each.
const MAX_TARGETS_AT_A_TIME: usize = 32_768;
/// Maximum number of targets of one client in its lifetime.
pub const MAX_TARGETS_OF_CLIENT: usize = 4_096;
/// Maximum number of targets of one user. Their probes are counted as long as the service runs.
const MAX_TARGETS_OF_USER: usize = 262_144;

/// Minimum time between two searches for idle targets.
const IDLE_TARGET_CHECK_INTERVAL: Nanos = Nanos::from_secs(1);

/// A client, and the user who runs its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbingClient {
    pub id: ClientId,
    pub user: u32,
}

/// Budget of a user or a client for a target, and the time of its last use.
#[derive(Debug)]
struct LimitShareUsage {
    budget: ProbeBudget,
    seen_at: MonoTime,
}

impl LimitShareUsage {
    fn is_active(&self, now: MonoTime) -> bool {
        now.since(self.seen_at) < ACTIVE_CLIENT_TIME
    }
}

#[derive(Debug)]
struct SharedTarget {
    budget: ProbeBudget,
    users: BTreeMap<u32, LimitShareUsage>,
    clients: BTreeMap<(u32, ClientId), LimitShareUsage>,
    /// The latest time at which a train was charged. A budget needs times that do not decrease.
    taken_at: MonoTime,
}

#[derive(Debug, Default)]
pub struct TargetShares {
    targets: BTreeMap<IpAddr, SharedTarget>,
    /// The targets of each client.
    of_clients: BTreeMap<ClientId, BTreeSet<IpAddr>>,
    /// The targets with limits that each user shares now.
    of_users: BTreeMap<u32, BTreeSet<IpAddr>>,
    /// Probes of each user to each target in all.
    totals: BTreeMap<u32, BTreeMap<IpAddr, u64>>,
    forgotten_at: MonoTime,
}

impl TargetShares {
    /// Charges the frames of a train, of these lengths, to the limits of the target, the user and the client.
    /// All frames are charged at the departure time of the first one, because a train is a burst. A refused
    /// train is not charged.
    pub fn deduct_train(
        &mut self,
        client: ProbingClient,
        target: PermittedTarget,
        lengths: &[u32],
        at: MonoTime,
    ) -> Result<(), BudgetExceeded> {
        let limits = target.limits();
        let totals = self.totals.get(&client.user);
        let total = totals.and_then(|totals| totals.get(&target.ip())).copied().unwrap_or(0);
        let total = total.saturating_add(lengths.len() as u64);
        // Total and room are checked before any account is charged: a refusal must leave all accounts unchanged.
        if total > limits.most || !self.make_room_for_target(client, target.ip(), at) {
            return Err(BudgetExceeded::Most(limits));
        }
        // `totals` counts the probes of each user, so the shared budget has no total.
        let of_all = TargetLimits { most: u64::MAX, ..limits };
        let shared = self.targets.entry(target.ip()).or_insert_with(|| SharedTarget {
            budget: ProbeBudget::new(of_all),
            users: BTreeMap::new(),
            clients: BTreeMap::new(),
            taken_at: at,
        });
        // The limits may differ from those of the last train: a permission has a last day.
        shared.budget = shared.budget.clone().with_limits(of_all);
        shared.deduct_train(client, of_all, lengths, at)?;
        self.of_users.entry(client.user).or_default().insert(target.ip());
        self.of_clients.entry(client.id).or_default().insert(target.ip());
        self.totals.entry(client.user).or_default().insert(target.ip(), total);
        Ok(())
    }

    /// Returns whether the client and its user probe this target already, or may probe one more target. If the user has
    /// too many targets, idle ones are forgotten first.
    fn make_room_for_target(&mut self, client: ProbingClient, target: IpAddr, now: MonoTime) -> bool {
        let has_client_room = self
            .of_clients
            .get(&client.id)
            .is_none_or(|targets| targets.len() < MAX_TARGETS_OF_CLIENT || targets.contains(&target));
        let has_user_room = self
            .totals
            .get(&client.user)
            .is_none_or(|totals| totals.len() < MAX_TARGETS_OF_USER || totals.contains_key(&target));
        if !has_client_room || !has_user_room {
            return false;
        }
        // The search goes over all targets, so it waits until room is needed.
        if self.is_user_full(client.user, target)
            && now.since(self.forgotten_at) >= IDLE_TARGET_CHECK_INTERVAL
        {
            self.forget_idle_targets(now);
        }
        !self.is_user_full(client.user, target)
    }

    /// True if a user probes as many targets as allowed, and `target` is not one of them.
    fn is_user_full(&self, user: u32, target: IpAddr) -> bool {
        let targets = self.of_users.get(&user);
        targets.is_some_and(|targets| targets.len() >= MAX_TARGETS_AT_A_TIME && !targets.contains(&target))
    }

    /// Forgets a client and its shares of all targets. The totals that its user has sent still count.
    pub fn remove_client(&mut self, client: ClientId) {
        let targets = self.of_clients.remove(&client).unwrap_or_default();
        for target in targets {
            if let Some(shared) = self.targets.get_mut(&target) {
                shared.clients.retain(|(_, id), _| *id != client);
            }
        }
    }

    /// Forgets targets that no client has probed lately, so that memory is bounded by the targets in use.
    fn forget_idle_targets(&mut self, now: MonoTime) {
        self.forgotten_at = now;
        let of_users = &mut self.of_users;
        self.targets.retain(|target, shared| {
            shared.clients.retain(|_, share| share.is_active(now));
            let are_buckets_full = shared.budget.are_buckets_full(now);
            // After a user is gone, its share stays until the target's budget is full again. Otherwise the user could
            // come back with a full share, at the cost of the other users.
            shared.users.retain(|user, share| {
                let is_kept = share.is_active(now) || !are_buckets_full;
                if !is_kept && let Some(targets) = of_users.get_mut(user) {
                    targets.remove(target);
                }
                is_kept
            });
            !shared.users.is_empty()
        });
    }
}

impl SharedTarget {
    fn deduct_train(
        &mut self,
        client: ProbingClient,
        limits: TargetLimits,
        lengths: &[u32],
        at: MonoTime,
    ) -> Result<(), BudgetExceeded> {
        // A budget needs times that do not decrease, and a train of another client may have been
        // charged for a later time.
        let at = at.max(self.taken_at);
        // The limits of the target hold whatever the shares are, so they are checked first.
        let all = budget_after(&self.budget, lengths, at)?;
        let others = self.users.iter().filter(|(user, share)| **user != client.user && share.is_active(at));
        let of_user = equal_share_of_limits(limits, others.count() as u64 + 1);
        let user = budget_with_share(self.users.get(&client.user), of_user);
        let siblings = self
            .clients
            .range((client.user, ClientId(0))..=(client.user, ClientId(u32::MAX)))
            .filter(|((_, id), share)| *id != client.id && share.is_active(at));
        let of_client = equal_share_of_limits(of_user, siblings.count() as u64 + 1);
        let key = (client.user, client.id);
        let own = budget_with_share(self.clients.get(&key), of_client);
        let (user_after, own_after) = (budget_after(&user, lengths, at), budget_after(&own, lengths, at));
        // A train beyond its own share must leave half of the burst: that of its user's share, or that of the
        // whole target.
        if user_after.is_err() {
            budget_after(&budget_with_half_burst(&self.budget, limits), lengths, at)?;
        } else if own_after.is_err() {
            budget_after(&budget_with_half_burst(&user, of_user), lengths, at)
                .or_else(|_| budget_after(&budget_with_half_burst(&self.budget, limits), lengths, at))?;
        }
        // A share that is used up is not charged further, because those frames used capacity that other users
        // left.
        self.users.insert(client.user, LimitShareUsage { budget: user_after.unwrap_or(user), seen_at: at });
        self.clients.insert(key, LimitShareUsage { budget: own_after.unwrap_or(own), seen_at: at });
        self.budget = all;
        self.taken_at = at;
        Ok(())
    }
}

/// The current budget of a user or client, with the limits of this share.
fn budget_with_share(used: Option<&LimitShareUsage>, share: TargetLimits) -> ProbeBudget {
    used.map_or_else(|| ProbeBudget::new(share), |used| used.budget.clone().with_limits(share))
}

fn budget_with_half_burst(budget: &ProbeBudget, limits: TargetLimits) -> ProbeBudget {
    budget.clone().with_limits(TargetLimits { burst: limits.burst / 2, ..limits })
}

/// An equal share of the limits for one of `sharers`.
fn equal_share_of_limits(limits: TargetLimits, sharers: u64) -> TargetLimits {
    TargetLimits {
        // The rate is at least 1: a rate of 0 means "none allowed", and many sharers must not refuse each other.
        probes_per_s: (limits.probes_per_s / sharers).max(1),
        bits_per_s: (limits.bits_per_s / sharers).max(1),
        burst: u32::try_from(u64::from(limits.burst) / sharers).unwrap_or(limits.burst).max(1),
        ..limits
    }
}

/// Returns the budget after all frames; an error if one of them does not fit.
fn budget_after(budget: &ProbeBudget, lengths: &[u32], at: MonoTime) -> Result<ProbeBudget, BudgetExceeded> {
    let mut after = budget.clone();
    lengths.iter().try_for_each(|length| after.deduct_frame(at, *length))?;
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProbePermit;

    fn target(text: &str) -> PermittedTarget {
        let permit = ProbePermit::from_text(text).unwrap();
        permit.permit_target("10.0.0.1".parse().unwrap(), "2026-11-25").unwrap()
    }

    fn usual() -> PermittedTarget {
        target(
            "[[target]]\nnetwork = \"10.0.0.0/8\"\nprobes_per_s = 1000\nbits_per_s = \"10Gbps\"\nburst = 40\nmost = 100000",
        )
    }

    /// A client of a user of its own.
    fn client(number: u32) -> ProbingClient {
        ProbingClient { id: ClientId(number), user: 1_000 + number }
    }

    /// Probes that each client gets in a second, if it wants one each given number of microseconds; each has a user of its own.
    fn second(wanted_us: &[u64]) -> Vec<u64> {
        second_of(wanted_us, client)
    }

    fn second_of(wanted_us: &[u64], client: impl Fn(u32) -> ProbingClient) -> Vec<u64> {
        let mut shares = TargetShares::default();
        let mut got = vec![0; wanted_us.len()];
        for us in 0..1_000_000 {
            for (index, every) in wanted_us.iter().enumerate() {
                if us % every == 0 {
                    let at = MonoTime::from_nanos(5_000_000_000 + us * 1_000);
                    let number = u32::try_from(index).unwrap();
                    got[index] += u64::from(shares.deduct_train(client(number), usual(), &[60], at).is_ok());
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
    fn ten_clients_keep_shares_despite_greedy_one() {
        // Nine want exactly their share, one wants a hundred times as much.
        let mut wanted = vec![10_000; 9];
        wanted.push(100);
        let got = second(&wanted);
        assert!(got[..9].iter().all(|got| *got == 100), "{got:?}");
        assert!((100..=141).contains(&got[9]), "{got:?}");
        assert!(got.iter().sum::<u64>() <= 1_041);
    }

    #[test]
    fn sixteen_programs_of_user_get_one_user_share() {
        // The first is a user's only one, the others are another's.
        let of_two = |number| ProbingClient { id: ClientId(number), user: number.min(1) };
        let got = second_of(&[2_000; 17], of_two);
        assert_eq!(got[0], 500, "{got:?}");
        assert!(got[1..].iter().all(|got| *got >= 30) && got.iter().sum::<u64>() <= 1_041, "{got:?}");
    }

    #[test]
    fn user_targets_leave_room_for_other_users() {
        let all = ProbePermit::from_text("[[target]]\nnetwork = \"10.0.0.0/8\"").unwrap();
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        let mut take = |id, user, n: u32| {
            let ip = std::net::Ipv4Addr::from(0x0a00_0001 + n).into();
            let client = ProbingClient { id: ClientId(id), user };
            shares.deduct_train(client, all.permit_target(ip, "2026-11-25").unwrap(), &[60], at).is_ok()
        };
        let taken = (0..20).map(|id| (0..4_096).filter(|n| take(id, 1, id * 4_096 + n)).count());
        assert_eq!(taken.sum::<usize>(), MAX_TARGETS_AT_A_TIME);
        assert!(take(99, 2, 100_000) && take(99, 2, 5));
    }

    #[test]
    fn unused_share_is_available_to_others() {
        let got = second(&[100, 20_000]);
        assert_eq!(got[1], 50);
        assert!((940..=995).contains(&got[0]), "{got:?}");
    }

    #[test]
    fn train_is_admitted_whole_or_not_at_all() {
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        assert!(shares.deduct_train(client(1), usual(), &[60; 41], at).is_err());
        shares.deduct_train(client(1), usual(), &[60; 40], at).unwrap();
        assert!(shares.deduct_train(client(1), usual(), &[60], at).is_err());
    }

    #[test]
    fn total_probe_limit_survives_client_reconnect() {
        let few = target("[[target]]\nnetwork = \"10.0.0.0/8\"\nmost = 3\nburst = 9");
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        for _ in 0..3 {
            shares.deduct_train(client(1), few, &[60], at).unwrap();
        }
        assert!(matches!(shares.deduct_train(client(1), few, &[60], at), Err(BudgetExceeded::Most(_))));
        shares.remove_client(ClientId(1));
        let again = ProbingClient { id: ClientId(7), ..client(1) };
        assert!(matches!(shares.deduct_train(again, few, &[60], at), Err(BudgetExceeded::Most(_))));
        shares.deduct_train(client(2), few, &[60], at).unwrap();
    }

    #[test]
    fn early_reserved_train_does_not_block_target() {
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        shares.deduct_train(client(1), usual(), &[60; 2], at + Nanos::from_millis(5)).unwrap();
        shares.deduct_train(client(2), usual(), &[60], at).unwrap();
    }

    #[test]
    fn client_targets_leave_room_for_other_clients() {
        let all = ProbePermit::from_text("[[target]]\nnetwork = \"10.0.0.0/8\"").unwrap();
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        let mut take = |number, n: u32| {
            let ip = std::net::Ipv4Addr::from(0x0a00_0001 + n).into();
            shares
                .deduct_train(client(number), all.permit_target(ip, "2026-11-25").unwrap(), &[60], at)
                .is_ok()
        };
        assert_eq!((0..5_000).filter(|n| take(1, *n)).count(), MAX_TARGETS_OF_CLIENT);
        assert!(take(2, 6_000) && take(1, 0));
    }

    #[test]
    fn new_client_ids_gain_no_extra_probes() {
        let mut shares = TargetShares::default();
        let at = MonoTime::from_nanos(5_000_000_000);
        let mut got = 0;
        for number in 0..1_000 {
            got += u64::from(shares.deduct_train(client(number), usual(), &[60], at).is_ok());
            shares.remove_client(ClientId(number));
            shares.forget_idle_targets(at);
        }
        assert_eq!(got, 40);
    }
}
