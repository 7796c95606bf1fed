//! Packets that wait for their release times, with a quota for each client.
//!
//! A train is divided into bursts: packets that follow each other within [`BURST_GAP`]. Nothing of others leaves within a burst. Pauses
//! between bursts are long enough for packets of others.
//!
//! Invariant: a client never has more packets or bytes in the queue than its quota; packets of a client that was removed are gone.

use super::{BurstRank, BurstSpan};
use crate::{PermittedTarget, small_count};
use packetrig_units::{MonoTime, Nanos};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Packets of a train that are nearer to each other than this are released together.
const BURST_GAP: Nanos = Nanos::from_millis(1);
/// A longer burst is divided all the same, so that no client has the outlet for long.
const LONGEST_BURST: Nanos = Nanos::from_millis(50);
const MOST_IN_BURST: usize = 256;
/// What a client has sent counts half after this time.
const USAGE_HALVES: Nanos = Nanos::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// How much one client may have in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientQuota {
    pub packets: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPacket {
    /// The client's number for it.
    pub cookie: u64,
    pub due: MonoTime,
    /// The frame from its Ethernet header on, without FCS.
    pub frame: Vec<u8>,
}

/// A train, or a single packet, that has passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTrain {
    pub client: ClientId,
    pub batch: u64,
    /// The client's number for it; 0: a single packet.
    pub train: u32,
    pub target: PermittedTarget,
    /// How much later than due a packet may leave; `None`: however late.
    pub latest: Option<Nanos>,
    /// At least one, in the order of their release times.
    pub packets: Vec<QueuedPacket>,
}

/// A part of a train that is released in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedBurst {
    pub part: QueuedTrain,
    /// Of the whole train, if this is its first burst: when each frame is due and how long it is.
    pub train_begins: Option<Vec<(MonoTime, u32)>>,
    order: u64,
    /// The order of the first burst of its train.
    train_order: u64,
}

impl QueuedBurst {
    /// When its first packet is due.
    pub fn due(&self) -> MonoTime {
        self.part.packets.first().map(|packet| packet.due).unwrap_or_default()
    }

    fn bytes(&self) -> u64 {
        self.part.packets.iter().map(|packet| packet.frame.len() as u64).sum()
    }

    /// Whether it belongs to this batch (0: any) and train (0: any) of this client.
    fn is_of(&self, client: ClientId, batch: u64, train: u32) -> bool {
        let part = &self.part;
        part.client == client && (batch == 0 || part.batch == batch) && (train == 0 || part.train == train)
    }
}

#[derive(Debug)]
struct ClientLoad {
    quota: ClientQuota,
    priority: u8,
    packets: u32,
    bytes: u64,
    /// Frames sent lately, and when that was reckoned.
    usage: u64,
    reckoned_at: MonoTime,
}

#[derive(Debug, Default)]
pub struct ReleaseQueue {
    /// By when the first packet is due and by the order of hand-over.
    waiting: BTreeMap<(MonoTime, u64), QueuedBurst>,
    clients: BTreeMap<ClientId, ClientLoad>,
    order: u64,
}

impl ReleaseQueue {
    pub fn add_client(&mut self, client: ClientId, priority: u8, quota: ClientQuota) {
        let load =
            ClientLoad { quota, priority, packets: 0, bytes: 0, usage: 0, reckoned_at: MonoTime::default() };
        self.clients.insert(client, load);
    }

    /// Forgets a client with all its packets.
    pub fn remove_client(&mut self, client: ClientId) {
        self.waiting.retain(|_, burst| burst.part.client != client);
        self.clients.remove(&client);
    }

    /// Packets of a client in the queue.
    pub fn queued(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |load| load.packets)
    }

    /// Adds a train; gives it back if it exceeds the quota of its client.
    pub fn push(&mut self, train: QueuedTrain) -> Result<(), QueuedTrain> {
        let packets = small_count(train.packets.len());
        let bytes: u64 = train.packets.iter().map(|packet| packet.frame.len() as u64).sum();
        let Some(load) = self.clients.get_mut(&train.client).filter(|load| {
            packets <= load.quota.packets.saturating_sub(load.packets)
                && bytes <= load.quota.bytes.saturating_sub(load.bytes)
        }) else {
            return Err(train);
        };
        load.packets += packets;
        load.bytes += bytes;
        let train_order = self.order;
        for (part, train_begins) in bursts(train) {
            let burst = QueuedBurst { part, train_begins, order: self.order, train_order };
            self.waiting.insert((burst.due(), self.order), burst);
            self.order += 1;
        }
        Ok(())
    }

    /// Takes packets out: those of a batch, or of all (0); of a train, or of all (0).
    pub fn cancel(&mut self, client: ClientId, batch: u64, train: u32) -> Vec<QueuedBurst> {
        self.take_out(|burst| burst.is_of(client, batch, train))
    }

    /// Takes out all packets to a target.
    pub fn cancel_target(&mut self, target: IpAddr) -> Vec<QueuedBurst> {
        self.take_out(|burst| burst.part.target.ip() == target)
    }

    /// Takes out the bursts of a train of which this burst was taken.
    pub fn cancel_rest(&mut self, of: &QueuedBurst) -> Vec<QueuedBurst> {
        self.take_out(|burst| burst.train_order == of.train_order)
    }

    fn take_out(&mut self, is_meant: impl Fn(&QueuedBurst) -> bool) -> Vec<QueuedBurst> {
        let taken: Vec<_> =
            self.waiting.extract_if(.., |_, burst| is_meant(burst)).map(|(_, burst)| burst).collect();
        taken.iter().for_each(|burst| self.unload(burst));
        taken
    }

    /// When the next packet is due.
    pub fn next_due(&self) -> Option<MonoTime> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// Takes the bursts that are due until then, at most so many packets.
    pub fn take_due(&mut self, until: MonoTime, most: usize) -> Vec<QueuedBurst> {
        let mut taken = Vec::new();
        let mut packets = 0;
        while packets < most {
            let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= until) else {
                break;
            };
            let burst = first.remove();
            packets += burst.part.packets.len();
            self.unload(&burst);
            taken.push(burst);
        }
        taken
    }

    /// The time that a burst needs, and its rank among others.
    pub fn span(&mut self, burst: &QueuedBurst, now: MonoTime) -> BurstSpan {
        let due = burst.due();
        let last = burst.part.packets.last().map_or(due, |packet| packet.due);
        let load = self.clients.get_mut(&burst.part.client);
        let (priority, usage) = load.map_or((0, 0), |load| (load.priority, load.usage_at(now)));
        let rank = BurstRank { priority: Reverse(priority), usage, due, order: burst.order };
        BurstSpan { rank, length: last.since(due), latest: burst.part.latest }
    }

    /// Notes that frames of a client were sent.
    pub fn note_sent(&mut self, client: ClientId, frames: u64, now: MonoTime) {
        if let Some(load) = self.clients.get_mut(&client) {
            load.usage = load.usage_at(now) + frames;
        }
    }

    fn unload(&mut self, burst: &QueuedBurst) {
        if let Some(load) = self.clients.get_mut(&burst.part.client) {
            load.packets -= small_count(burst.part.packets.len());
            load.bytes -= burst.bytes();
        }
    }
}

impl ClientLoad {
    fn usage_at(&mut self, now: MonoTime) -> u64 {
        let halvings = now.since(self.reckoned_at).as_u64() / USAGE_HALVES.as_u64();
        if halvings > 0 {
            self.usage = self.usage.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
            self.reckoned_at = now;
        }
        self.usage
    }
}

/// Divides a train into bursts. The first one has the times and lengths of the whole train.
fn bursts(train: QueuedTrain) -> Vec<(QueuedTrain, Option<Vec<(MonoTime, u32)>>)> {
    let mut whole =
        Some(train.packets.iter().map(|packet| (packet.due, small_count(packet.frame.len()))).collect());
    let mut parts: Vec<Vec<QueuedPacket>> = Vec::new();
    for packet in train.packets {
        let joins = parts.last().is_some_and(|part: &Vec<QueuedPacket>| {
            let first = part.first().map(|packet| packet.due).unwrap_or_default();
            let last = part.last().map(|packet| packet.due).unwrap_or_default();
            packet.due.since(last) < BURST_GAP
                && packet.due.since(first) < LONGEST_BURST
                && part.len() < MOST_IN_BURST
        });
        match parts.last_mut() {
            Some(part) if joins => part.push(packet),
            _ => parts.push(vec![packet]),
        }
    }
    let QueuedTrain { client, batch, train, target, latest, .. } = train;
    let part = |packets| QueuedTrain { client, batch, train, target, latest, packets };
    parts.into_iter().map(|packets| (part(packets), whole.take())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProbePermit;

    const ONE: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    fn at(us: u64) -> MonoTime {
        MonoTime::from_nanos(us * 1_000)
    }

    fn train(client: ClientId, batch: u64, number: u32, due_us: &[u64]) -> QueuedTrain {
        let target = ProbePermit::default().permitted("127.0.0.1".parse().unwrap(), "2026-11-25").unwrap();
        let packet = |due: &u64| QueuedPacket { cookie: *due, due: at(*due), frame: vec![0; 60] };
        let packets = due_us.iter().map(packet).collect();
        QueuedTrain { client, batch, train: number, target, latest: None, packets }
    }

    fn queue(quota: u32) -> ReleaseQueue {
        let mut queue = ReleaseQueue::default();
        for (client, priority) in [(ONE, 0), (OTHER, 1)] {
            queue.add_client(client, priority, ClientQuota { packets: quota, bytes: 60_000 });
        }
        queue
    }

    fn cookies(bursts: &[QueuedBurst]) -> Vec<Vec<u64>> {
        bursts.iter().map(|burst| burst.part.packets.iter().map(|packet| packet.cookie).collect()).collect()
    }

    #[test]
    fn bursts_come_out_in_the_order_of_time_and_none_is_cut() {
        let mut queue = queue(100);
        queue.push(train(ONE, 1, 7, &[500, 600, 2_000, 2_010, 9_000])).unwrap();
        queue.push(train(OTHER, 1, 0, &[550])).unwrap();
        assert_eq!(queue.next_due(), Some(at(500)));
        let taken = queue.take_due(at(500), 100);
        assert_eq!(cookies(&taken), [vec![500, 600]]);
        let whole = taken[0].train_begins.as_ref().unwrap();
        assert_eq!(
            whole.iter().map(|(due, _)| *due).collect::<Vec<_>>(),
            [500, 600, 2_000, 2_010, 9_000].map(at)
        );
        let taken = queue.take_due(at(2_000), 100);
        assert_eq!(cookies(&taken), [vec![550], vec![2_000, 2_010]]);
        assert!(taken[0].train_begins.is_some() && taken[1].train_begins.is_none());
        assert_eq!((queue.queued(ONE), queue.queued(OTHER)), (1, 0));
    }

    #[test]
    fn the_rest_of_a_train_is_that_train_and_no_other_of_its_number() {
        let mut queue = queue(100);
        queue.push(train(ONE, 1, 7, &[0, 2_000, 4_000])).unwrap();
        queue.push(train(ONE, 1, 7, &[6_000])).unwrap();
        let first = queue.take_due(at(0), 100).remove(0);
        assert_eq!(cookies(&queue.cancel_rest(&first)), [vec![2_000], vec![4_000]]);
        assert_eq!(queue.queued(ONE), 1);
    }

    #[test]
    fn a_client_with_a_dense_stream_does_not_have_the_outlet_for_ever() {
        let mut queue = queue(10_000);
        let dense: Vec<u64> = (0..400).map(|n| n * 900).collect();
        queue.push(train(ONE, 1, 1, &dense)).unwrap();
        let taken = queue.take_due(at(1_000_000), usize::MAX);
        assert!(taken.len() >= 7, "{}", taken.len());
        let dense: Vec<u64> = (0..400).collect();
        queue.push(train(ONE, 1, 1, &dense)).unwrap();
        let lengths: Vec<_> =
            queue.take_due(at(1_000_000), usize::MAX).iter().map(|b| b.part.packets.len()).collect();
        assert_eq!(lengths, [256, 144]);
    }

    #[test]
    fn a_quota_holds_and_is_free_again_after_release() {
        let mut queue = queue(3);
        queue.push(train(ONE, 1, 0, &[10])).unwrap();
        let refused = queue.push(train(ONE, 2, 1, &[20, 30, 40])).unwrap_err();
        assert_eq!(refused.packets.len(), 3, "a train is queued whole or not at all");
        queue.push(train(OTHER, 2, 1, &[20, 30, 40])).unwrap();
        queue.take_due(at(10), 100);
        queue.push(train(ONE, 2, 1, &[20, 30, 40])).unwrap();
        assert_eq!(queue.queued(ONE), 3);
        assert!(queue.push(train(ClientId(9), 1, 0, &[1])).is_err(), "nobody of that number is a client");
    }

    #[test]
    fn cancelled_packets_are_those_of_the_client_only() {
        let mut queue = queue(100);
        queue.push(train(ONE, 1, 5, &[10, 20])).unwrap();
        queue.push(train(ONE, 1, 6, &[30])).unwrap();
        queue.push(train(ONE, 2, 5, &[40])).unwrap();
        queue.push(train(OTHER, 1, 5, &[50])).unwrap();
        assert_eq!(cookies(&queue.cancel(ONE, 1, 5)), [vec![10, 20]]);
        assert_eq!(cookies(&queue.cancel(ONE, 0, 0)), [vec![30], vec![40]]);
        assert_eq!((queue.queued(ONE), queue.queued(OTHER)), (0, 1));
        queue.remove_client(OTHER);
        assert_eq!((queue.next_due(), queue.queued(OTHER)), (None, 0));
    }

    #[test]
    fn who_has_sent_more_lately_has_the_lower_rank() {
        let mut queue = queue(100);
        queue.push(train(ONE, 1, 0, &[10])).unwrap();
        let burst = queue.take_due(at(10), 1).remove(0);
        let now = at(10_000_000);
        queue.note_sent(ONE, 100, now);
        assert_eq!(queue.span(&burst, now).rank.usage, 100);
        assert_eq!(queue.span(&burst, now + Nanos::from_millis(1_000)).rank.usage, 25);
        assert_eq!(queue.span(&burst, now + Nanos::from_secs(100)).rank.usage, 0);
    }
}
