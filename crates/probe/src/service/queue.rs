//! Trains and single packets that wait for their release times, with a quota for each client.
//!
//! Invariant: a client never has more packets or bytes in the queue than its quota. Work for a client takes time only
//! in proportion to its own packets. After a client is removed, none of its packets is in the queue.

use super::{PacketEndpoints, TrainPriority};
use crate::{PermittedTarget, small_count};
use packetrig_units::{MonoTime, Nanos, clamp_to_u32};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Half-life of the number of frames that count as recently sent, of a client or a user.
const USAGE_HALF_LIFE: Nanos = Nanos::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Limits of one client in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientQuota {
    pub packets: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPacket {
    /// Number that the client chose for the packet.
    pub cookie: u64,
    pub due: MonoTime,
    pub ends: PacketEndpoints,
    /// The frame from its Ethernet header on, without FCS.
    pub frame: Vec<u8>,
}

/// A train, or a single packet, that has passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTrain {
    pub client: ClientId,
    /// User number of the client's process.
    pub user: u32,
    pub batch: u64,
    /// Number that the client chose for the train; 0 for a single packet.
    pub train: u32,
    pub target: PermittedTarget,
    /// Largest allowed lateness of a packet; `None` for any.
    pub latest: Option<Nanos>,
    /// Packets in the order of their release times; at least one.
    pub packets: Vec<QueuedPacket>,
}

impl QueuedTrain {
    /// Due time of the first packet.
    pub fn earliest_due_time(&self) -> MonoTime {
        self.packets.first().map(|packet| packet.due).unwrap_or_default()
    }

    fn frame_bytes(&self) -> u64 {
        self.packets.iter().map(|packet| packet.frame.len() as u64).sum()
    }

    /// Returns whether the train belongs to this batch (0: any) and has this number (0: any).
    const fn matches_batch_and_train(&self, batch: u64, train: u32) -> bool {
        (batch == 0 || self.batch == batch) && (train == 0 || self.train == train)
    }
}

/// A train that is due, and its rank among the due trains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTrain {
    pub train: QueuedTrain,
    pub rank: TrainPriority,
}

/// Position in the queue: by the due time of the first packet, then by the order of hand-over.
type QueuePosition = (MonoTime, u64);

#[derive(Debug)]
struct ClientQueue {
    quota: ClientQuota,
    priority: u8,
    packets: u32,
    bytes: u64,
    waiting: BTreeMap<QueuePosition, QueuedTrain>,
    user: u32,
    usage: RecentUsage,
}

/// Number of frames sent lately, and the time for which it was computed.
#[derive(Debug, Default)]
struct RecentUsage {
    frames: u64,
    reckoned_at: MonoTime,
}

impl RecentUsage {
    fn decay_and_get_frames(&mut self, now: MonoTime) -> u64 {
        // Usage is halved only when it is read, so idle clients cost no work.
        let past = now.since(self.reckoned_at).as_u64();
        let halvings = past / USAGE_HALF_LIFE.as_u64();
        if halvings > 0 {
            self.frames = self.frames.checked_shr(clamp_to_u32(halvings)).unwrap_or(0);
            // The remaining part of a half-life counts for the next halving.
            self.reckoned_at = MonoTime::from_nanos(now.as_nanos() - past % USAGE_HALF_LIFE.as_u64());
        }
        self.frames
    }

    fn add_frames(&mut self, frames: u64, now: MonoTime) {
        let known = self.decay_and_get_frames(now);
        if known == 0 {
            // The first half-life begins with the usage itself.
            self.reckoned_at = now;
        }
        self.frames = known + frames;
    }
}

#[derive(Debug, Default)]
pub struct ReleaseQueue {
    clients: BTreeMap<ClientId, ClientQueue>,
    /// Client of the train at each position.
    order: BTreeMap<QueuePosition, ClientId>,
    /// Recent usage of all clients of each user. Users are few, so none is forgotten.
    users: BTreeMap<u32, RecentUsage>,
    handed_over: u64,
}

impl ReleaseQueue {
    pub fn add_client(&mut self, client: ClientId, user: u32, priority: u8, quota: ClientQuota) {
        let queue = ClientQueue {
            quota,
            priority,
            packets: 0,
            bytes: 0,
            waiting: BTreeMap::new(),
            user,
            usage: RecentUsage::default(),
        };
        self.clients.insert(client, queue);
    }

    /// Forgets a client with all its packets.
    pub fn remove_client(&mut self, client: ClientId) {
        for place in self.clients.remove(&client).into_iter().flat_map(|queue| queue.waiting.into_keys()) {
            self.order.remove(&place);
        }
    }

    /// Number of a client's packets in the queue; zero for an unknown client.
    pub fn queued_packets(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |queue| queue.packets)
    }

    /// Adds a train; returns it as the error if it exceeds the quota of its client, or if the client was removed.
    pub fn push_train(&mut self, train: QueuedTrain) -> Result<(), QueuedTrain> {
        let (packets, bytes) = (small_count(train.packets.len()), train.frame_bytes());
        let Some(queue) = self.clients.get_mut(&train.client).filter(|queue| {
            packets <= queue.quota.packets.saturating_sub(queue.packets)
                && bytes <= queue.quota.bytes.saturating_sub(queue.bytes)
        }) else {
            // The caller gets the train back: it must report each of its packets.
            return Err(train);
        };
        queue.packets += packets;
        queue.bytes += bytes;
        // The running number keeps the order of hand-over among trains that are due at the same time.
        let place = (train.earliest_due_time(), self.handed_over);
        self.handed_over += 1;
        self.order.insert(place, train.client);
        queue.waiting.insert(place, train);
        Ok(())
    }

    /// Removes trains of a client from the queue: those of one batch, or of all batches if `batch` is 0; and only
    /// the train of one number, or all if `train` is 0. Returns the removed trains.
    pub fn cancel_trains(&mut self, client: ClientId, batch: u64, train: u32) -> Vec<QueuedTrain> {
        self.remove_matching_trains(client, |waiting| waiting.matches_batch_and_train(batch, train))
    }

    /// Removes the trains to a target that belong to users for which `is_meant` is true. Returns the removed trains.
    pub fn cancel_trains_to_target(
        &mut self,
        target: IpAddr,
        is_meant: impl Fn(u32) -> bool,
    ) -> Vec<QueuedTrain> {
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        let is_cancelled = |train: &QueuedTrain| {
            // `::ffff:192.0.2.1` is the same host as `192.0.2.1`.
            train.target.ip().to_canonical() == target.to_canonical() && is_meant(train.user)
        };
        let of = clients.into_iter().map(|client| self.remove_matching_trains(client, is_cancelled));
        of.flatten().collect()
    }

    fn remove_matching_trains(
        &mut self,
        client: ClientId,
        is_meant: impl Fn(&QueuedTrain) -> bool,
    ) -> Vec<QueuedTrain> {
        let Some(queue) = self.clients.get_mut(&client) else { return Vec::new() };
        let taken: Vec<_> = queue.waiting.extract_if(.., |_, train| is_meant(train)).collect();
        let mut trains = Vec::with_capacity(taken.len());
        for (place, train) in taken {
            self.order.remove(&place);
            queue.subtract_train(&train);
            trains.push(train);
        }
        trains
    }

    /// Due time of the train that is due first; `None` if the queue is empty.
    pub fn next_due_time(&self) -> Option<MonoTime> {
        self.order.first_key_value().map(|((due, _), _)| *due)
    }

    /// Removes and returns the trains that begin by `until`, up to about `most` packets.
    pub fn take_due_trains(&mut self, until: MonoTime, most: usize, now: MonoTime) -> Vec<DueTrain> {
        let mut taken = Vec::new();
        let mut packets = 0;
        // Trains stay whole, so the last one may exceed `most`.
        while packets < most {
            let Some(first) = self.order.first_entry().filter(|first| first.key().0 <= until) else { break };
            let (place, client) = first.remove_entry();
            // Both maps always change together, so these lines only guard against a programming error.
            let Some(queue) = self.clients.get_mut(&client) else { continue };
            let Some(train) = queue.waiting.remove(&place) else { continue };
            queue.subtract_train(&train);
            packets += train.packets.len();
            let (due, order) = place;
            let rank = TrainPriority {
                priority: Reverse(queue.priority),
                usage_of_user: self
                    .users
                    .get_mut(&queue.user)
                    .map_or(0, |usage| usage.decay_and_get_frames(now)),
                usage: queue.usage.decay_and_get_frames(now),
                due,
                order,
            };
            taken.push(DueTrain { train, rank });
        }
        taken
    }

    /// Adds sent frames to the usage of a client and its user.
    pub fn count_sent_frames(&mut self, client: ClientId, frames: u64, now: MonoTime) {
        if let Some(queue) = self.clients.get_mut(&client) {
            queue.usage.add_frames(frames, now);
            self.users.entry(queue.user).or_default().add_frames(frames, now);
        }
    }
}

impl ClientQueue {
    fn subtract_train(&mut self, train: &QueuedTrain) {
        self.packets -= small_count(train.packets.len());
        self.bytes -= train.frame_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProbePermit;
    use crate::service::PacketFlow;

    const ONE: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    fn at(us: u64) -> MonoTime {
        MonoTime::from_nanos(us * 1_000)
    }

    fn train(client: ClientId, batch: u64, number: u32, due_us: &[u64]) -> QueuedTrain {
        let ip = "127.0.0.1".parse().unwrap();
        let target = ProbePermit::default().permit_target(ip, "2026-11-25").unwrap();
        let ends = PacketEndpoints {
            source: ip,
            target: ip,
            flow: PacketFlow::Icmp { identifier: 1 },
            mark: None,
            length: 46,
        };
        let packet = |due: &u64| QueuedPacket { cookie: *due, due: at(*due), ends, frame: vec![0; 60] };
        let packets = due_us.iter().map(packet).collect();
        QueuedTrain { client, user: 0, batch, train: number, target, latest: None, packets }
    }

    fn queue(quota: u32) -> ReleaseQueue {
        let mut queue = ReleaseQueue::default();
        for (client, priority) in [(ONE, 0), (OTHER, 1)] {
            queue.add_client(client, client.0, priority, ClientQuota { packets: quota, bytes: 60_000 });
        }
        queue
    }

    fn cookies<'a>(trains: impl IntoIterator<Item = &'a QueuedTrain>) -> Vec<Vec<u64>> {
        let cookies = |train: &QueuedTrain| train.packets.iter().map(|packet| packet.cookie).collect();
        trains.into_iter().map(cookies).collect()
    }

    fn due(queue: &mut ReleaseQueue, until: MonoTime) -> Vec<DueTrain> {
        queue.take_due_trains(until, 100, until)
    }

    #[test]
    fn queued_trains_leave_whole_in_time_order() {
        let mut queue = queue(100);
        queue.push_train(train(ONE, 1, 7, &[500, 600, 2_000])).unwrap();
        queue.push_train(train(OTHER, 1, 0, &[550])).unwrap();
        assert_eq!(queue.next_due_time(), Some(at(500)));
        assert_eq!(cookies(due(&mut queue, at(500)).iter().map(|due| &due.train)), [vec![500, 600, 2_000]]);
        let taken = due(&mut queue, at(2_000));
        assert_eq!(cookies(taken.iter().map(|due| &due.train)), [vec![550]]);
        assert_eq!((taken[0].rank.priority, taken[0].rank.order), (Reverse(1), 1));
        assert_eq!(
            (queue.queued_packets(ONE), queue.queued_packets(OTHER), queue.next_due_time()),
            (0, 0, None)
        );
    }

    #[test]
    fn client_quota_holds_and_frees_after_release() {
        let mut queue = queue(3);
        queue.push_train(train(ONE, 1, 0, &[10])).unwrap();
        let refused = queue.push_train(train(ONE, 2, 1, &[20, 30, 40])).unwrap_err();
        assert_eq!(refused.packets.len(), 3, "a train is queued whole or not at all");
        queue.push_train(train(OTHER, 2, 1, &[20, 30, 40])).unwrap();
        due(&mut queue, at(10));
        queue.push_train(train(ONE, 2, 1, &[20, 30, 40])).unwrap();
        assert_eq!(queue.queued_packets(ONE), 3);
        assert!(
            queue.push_train(train(ClientId(9), 1, 0, &[1])).is_err(),
            "nobody of that number is a client"
        );
    }

    #[test]
    fn cancelled_packets_are_those_of_the_client_only() {
        let mut queue = queue(100);
        queue.push_train(train(ONE, 1, 5, &[10, 20])).unwrap();
        queue.push_train(train(ONE, 1, 6, &[30])).unwrap();
        queue.push_train(train(ONE, 2, 5, &[40])).unwrap();
        queue.push_train(train(OTHER, 1, 5, &[50])).unwrap();
        assert_eq!(cookies(&queue.cancel_trains(ONE, 1, 5)), [vec![10, 20]]);
        assert_eq!(cookies(&queue.cancel_trains(ONE, 0, 0)), [vec![30], vec![40]]);
        assert_eq!((queue.queued_packets(ONE), queue.queued_packets(OTHER)), (0, 1));
        assert_eq!(
            cookies(&queue.cancel_trains_to_target("127.0.0.1".parse().unwrap(), |user| user == 0)),
            [vec![50]]
        );
        queue.push_train(train(OTHER, 1, 5, &[50])).unwrap();
        queue.remove_client(OTHER);
        assert_eq!((queue.next_due_time(), queue.queued_packets(OTHER)), (None, 0));
        assert!(due(&mut queue, at(100)).is_empty());
    }

    #[test]
    fn usage_halves_however_often_it_is_read() {
        let mut usage = RecentUsage::default();
        usage.add_frames(64, at(700_000));
        let frames =
            [1_100_000, 1_500_000, 1_900_000, 2_300_000].map(|us| usage.decay_and_get_frames(at(us)));
        assert_eq!(frames, [64, 32, 16, 8]);
        // What comes after a pause is not halved at once.
        assert_eq!(usage.decay_and_get_frames(at(9_900_000)), 0);
        usage.add_frames(64, at(10_100_000));
        assert_eq!(usage.decay_and_get_frames(at(10_500_000)), 64);
    }

    #[test]
    fn recent_usage_lowers_client_rank() {
        let usage = |wait| {
            let mut queue = queue(100);
            let now = at(10_000_000);
            queue.count_sent_frames(ONE, 100, now);
            queue.push_train(train(ONE, 1, 0, &[10])).unwrap();
            queue.take_due_trains(at(10), 1, now + wait)[0].rank.usage
        };
        assert_eq!(usage(Nanos::ZERO), 100);
        assert_eq!(usage(Nanos::from_millis(1_000)), 25);
        assert_eq!(usage(Nanos::from_secs(100)), 0);
    }

    #[test]
    fn more_programs_of_a_user_are_one_user() {
        let mut queue = queue(100);
        let (second, now) = (ClientId(3), at(10_000_000));
        queue.add_client(second, ONE.0, 0, ClientQuota { packets: 9, bytes: 9_000 });
        queue.count_sent_frames(ONE, 100, now);
        queue.count_sent_frames(OTHER, 10, now);
        for client in [ONE, OTHER, second] {
            queue.push_train(train(client, 1, 0, &[10])).unwrap();
        }
        let usage: Vec<_> = queue
            .take_due_trains(at(10), 9, now)
            .into_iter()
            .map(|due| (due.rank.usage_of_user, due.rank.usage))
            .collect();
        assert_eq!(usage, [(100, 100), (10, 10), (100, 0)]);
    }
}
